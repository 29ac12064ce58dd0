"""Small models that write: translators and language models of every architecture that is decoded here."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from potstill.models.student import Student
from potstill.system.randomness import seeded
from tests.support.small_models import LONGEST, _byte_pairs, _numbered, sentences

TRANSLATORS = ("marian", "bart", "t5", "m2m_100")
WRITERS = (*TRANSLATORS, "gpt2", "llama")


def writers_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Byte pairs; a source ends with </s>. Padding is last where Marian has it, else among the first."""
    found, merges = _byte_pairs()
    every = ["</s>", "<unk>", *found, "<pad>"] if kind == "marian" else ["</s>", "<pad>", "<unk>", *found]
    backend = Tokenizer(models.BPE(vocab=_numbered(every), merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if kind in TRANSLATORS:
        backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=LONGEST, model_input_names=names, **special
    )


def shape_of(kind: str, vocabulary: int, padding: int) -> dict[str, Any]:
    common = {"vocab_size": vocabulary, "pad_token_id": padding, "eos_token_id": 0}
    if kind in ("gpt2", "llama"):
        shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "bos_token_id": 0}
        more = {"intermediate_size": 64} if kind == "llama" else {}
        return {**common, **shape, **more, "max_position_embeddings": LONGEST, "initializer_range": 0.3}
    common |= {"decoder_start_token_id": 0 if kind == "m2m_100" else padding, "num_layers": 2}
    if kind == "t5":
        return {**common, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "initializer_factor": 2.0}
    both = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in both.items()}
    return {
        **common,
        **sides,
        "d_model": 32,
        "max_position_embeddings": LONGEST,
        "init_std": 0.1,
        "dropout": 0.0,
        "scale_embedding": True,
    }


def small_writer(kind: str, seed: int = 0, steps: int = 0) -> Student:
    """A random one; after some steps it copies short sources, badly, so that its outputs are of many kinds."""
    tokenizer = writers_tokenizer(kind)
    config = AutoConfig.for_model(kind, **shape_of(kind, len(tokenizer), int(tokenizer.pad_token_id or 0)))
    with seeded(seed):
        model = (AutoModelForSeq2SeqLM if kind in TRANSLATORS else AutoModelForCausalLM).from_config(config)
        model.config.architectures = [type(model).__name__]
        _train(model, tokenizer, steps)
    return Student(model.eval(), tokenizer)


@cache
def trained_marian() -> Student:
    student = small_writer("marian", steps=100)
    student.model.generation_config.forced_eos_token_id = None
    return student


def _train(model: Any, tokenizer: Any, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    end = "" if model.config.is_encoder_decoder else "</s>"
    texts = [" ".join(text.split()[:6]) + end for text, _ in sentences(200, 1)]
    model.train()
    for step in range(steps):
        chosen = [texts[(16 * step + place) % len(texts)] for place in range(16)]
        batch = tokenizer(chosen, padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
