"""What the builders of networks over word vectors share."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoConfig

from potstill.errors import InputError
from potstill.models.anatomy import longest_input, word_embeddings
from potstill.models.architectures.registration import PREFIX
from potstill.models.student import Context, Student, stock_model
from potstill.models.tokenizers.vectors import word_vectors
from potstill.models.tokenizers.words import Words, by_pieces, by_words, rows_of


def word_vector_student(
    name: str, current: Student, context: Context, words: Words, most: int, vectors: str, width: int, **shape: Any
) -> Student:
    """Build a network of type potstill-NAME for the labels of `current`."""
    if not type(current.model).__name__.endswith("ForSequenceClassification"):
        raise InputError(
            f"{name}: classifies whole texts, and this task needs other predictions; write student = 'keep_layers:3'"
        )
    tokenizer = (
        by_pieces(current.tokenizer) if words == "pieces" else by_words(current.tokenizer, context.texts(), most)
    )
    table = None if vectors == "fresh" else word_vectors(name, vectors, tokenizer, words, current, context.seed)
    before, width = current.model.config, width if table is None else table.shape[1]
    config = AutoConfig.for_model(
        f"{PREFIX}{name}",
        vocab_size=rows_of(tokenizer),
        embedding_size=width,
        max_position_embeddings=longest_input(current.model, current.tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        pairs=context.pairs,
        **{"hidden_size": width, **shape},
    )
    config.id2label, config.label2id = copy.deepcopy((before.id2label, before.label2id))
    config.problem_type = before.problem_type
    model = stock_model(current.model, config, weights=None, seed=context.seed)
    if table is not None:
        with torch.no_grad():
            word_embeddings(model).weight.copy_(table)
    return Student(model, tokenizer)
