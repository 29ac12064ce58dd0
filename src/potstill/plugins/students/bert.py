"""A new BERT with a WordPiece vocabulary of the texts, for pre-training (Devlin et al., 2019, arXiv:1810.04805)."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

from potstill.api import (
    FROM_RANDOM_WEIGHTS,
    BuildContext,
    Builder,
    Count,
    DataTask,
    InputError,
    Layers,
    Share,
    Student,
    TableRows,
    Texts,
    Width,
    anatomy,
    heads,
    loading,
    networks,
    transformers,
    wordpiece,
)

SHAPE = "6x384"


@dataclass(frozen=True)
class Bert(Builder):
    """It begins with a vocabulary of the train texts, or takes over the tokenizer of the model before it.

    feed_forward: None: 4 * width.
    heads: None: of a size near 64.
    vocabulary: tokens at most, if a vocabulary is made.
    lowercase: of a vocabulary that is made: upper case and accents are not told apart.
    tokenizer: a folder to take the tokenizer from.
    positions: tokens that it can read.
    """

    random_weights = True
    pace = FROM_RANDOM_WEIGHTS._replace(rate=5e-4)

    layers: Layers = 6
    width: Width = 384
    feed_forward: Width | None = None
    heads: Width | None = None
    vocabulary: TableRows = 30522
    lowercase: bool = True
    tokenizer: str | None = None
    positions: Count = 512
    dropout: Share = 0.1

    @classmethod
    def short_form(cls, text: str) -> dict[str, int]:
        match = re.fullmatch(r"([1-9]\d*)[x×]([1-9]\d*)", text.replace(" ", ""))
        if not match:
            raise InputError(f"bert:{text} is not a shape; write for example bert:{SHAPE}, layers and width")
        return {"layers": int(match[1]), "width": int(match[2])}

    def begin(self, task: DataTask, seed: int, texts: Texts) -> Student:
        if task.images or task.generates or task.two_stacks:
            raise InputError("bert: reads texts and writes none; write another student (`potstill list students`)")
        if self.tokenizer:
            return self._student(loading.load_tokenizer(self.tokenizer), task.head, max(task.classes, 2), seed)
        made = wordpiece.wordpiece_of(texts, self.vocabulary, self.lowercase, self.positions)
        return self._student(made, task.head, max(task.classes, 2), seed)

    def build(self, current: Student, context: BuildContext) -> Student:
        before: Any = current.model.config
        if before.is_encoder_decoder:
            raise InputError("bert: makes no encoder with decoder; write student = 'marian:4+4x256'")
        own = loading.load_tokenizer(self.tokenizer) if self.tokenizer else copy.deepcopy(current.tokenizer)
        rows = 0 if self.tokenizer else anatomy.word_embeddings(current.model).num_embeddings
        student = self._student(own, heads.head_of(before), len(before.id2label), context.seed, rows)
        config = student.model.config
        config.id2label, config.label2id = copy.deepcopy((before.id2label, before.label2id))
        config.problem_type = before.problem_type
        return student

    def _student(
        self, tokenizer: transformers.PreTrainedTokenizerBase, head: str, labels: int, seed: int, rows: int = 0
    ) -> Student:
        fitting = anatomy.fitting_heads(self.width)
        if self.width % (self.heads or fitting):
            raise InputError(f"bert: width {self.width} does not fit {self.heads} heads; write heads = {fitting}")
        config: Any = transformers.BertConfig(
            vocab_size=rows or len(tokenizer),
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads or fitting,
            intermediate_size=self.feed_forward or 4 * self.width,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=self.positions,
            pad_token_id=tokenizer.pad_token_id,
        )
        config.num_labels = labels
        model = networks.new_model(config, head, seed)
        return Student(model, networks.fitting_tokenizer(tokenizer, model))
