"""Translation, and whatever else turns a text into another one by an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from potstill.data.row import Form
from potstill.data.tokens import Encoded, Tokens
from potstill.tasks.generate import WRITTEN, Generating, ids_of
from potstill.tasks.task import TaskName


@dataclass(frozen=True)
class Translating(Generating):
    """A sequence is the source's tokens, then the target's; each ends as the tokenizer ends a text."""

    form: ClassVar[Form] = "translation"
    head: ClassVar[str] = "Seq2SeqLM"

    @property
    def name(self) -> TaskName:
        return "translate"

    @property
    def decodes(self) -> bool:
        return True

    @property
    def metrics(self) -> list[str]:
        return ["bleu", "bleu_beam", "chrf", "mode", "likelihood", "token_accuracy", "perplexity"]

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        """At most `length` tokens of the source, and as many of the target."""
        sources, cut = ids_of(tokenizer, [text for text, _ in texts], length)
        with target_mode(tokenizer):
            targets, also = ids_of(tokenizer, [str(pair or "") for _, pair in texts], length)
        ids = [[*ours, *theirs] for ours, theirs in zip(sources, targets, strict=True)]
        segments = [[0] * len(ours) + [WRITTEN] * len(theirs) for ours, theirs in zip(sources, targets, strict=True)]
        return Encoded(ids, segments, sum(one or other for one, other in zip(cut, also, strict=True)))

    def never(self, tokens: Tokens) -> tuple[int, ...]:
        """Padding is never written; many decoders begin with it."""
        return (tokens.padding,)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        _, counts = self.written(tokens, rows)
        positions = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack([np.repeat(np.arange(len(rows)), counts), positions], 1), None

    def inputs(self, made: dict[str, Tensor], real: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        """The source for the encoder; the decoder gets the target moved by one, begun as its model begins."""
        ids, written = made["input_ids"], (made["token_type_ids"] == WRITTEN) & real
        source = real & ~written
        lengths, sizes = source.sum(1), written.sum(1)
        columns = torch.arange(int(sizes.max()))
        behind = (lengths[:, None] + columns).clamp(max=ids.shape[1] - 1)
        targets = ids.gather(1, behind).masked_fill(columns >= sizes[:, None], tokens.padding)
        longest = int(lengths.max())
        return {
            "input_ids": ids[:, :longest].masked_fill(~source[:, :longest], tokens.padding),
            "attention_mask": source[:, :longest].long(),
            "decoder_targets": targets,
        }


@contextmanager
def target_mode(tokenizer: Any) -> Iterator[None]:
    """Inside, texts are read as those that are written, where the tokenizer tells the two languages apart, as Marian's own does."""
    if hasattr(tokenizer, "_switch_to_target_mode"):
        tokenizer._switch_to_target_mode()
    try:
        yield
    finally:
        if hasattr(tokenizer, "_switch_to_input_mode"):
            tokenizer._switch_to_input_mode()
