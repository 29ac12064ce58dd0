"""A new Transformer for translation (Vaswani et al., 2017, arXiv:1706.03762) in the shape of Marian (arXiv:1804.00344)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from potstill.errors import InputError
from potstill.models.student import Context, Student, new_network
from potstill.models.tokenizers.joint_bpe import LONGEST
from potstill.plugins.students._translation import HEAD, Vocabulary, new_vocabulary, sizes, taken_vocabulary
from potstill.plugins.students.fresh import fitting_heads
from potstill.recipe.bounds import Layers, Rows, Share, Width
from potstill.recipe.pace import FROM_RANDOM_WEIGHTS, Pace
from potstill.signals import NEVER
from potstill.tasks.task import Task


@dataclass(frozen=True)
class Marian:
    """Begins from nothing, with byte pairs of the rows' texts; after another model it takes over its tokenizer.

    One table of embeddings for both sides and the output; positions are sines.
    """

    encoder_layers: Layers = 4
    decoder_layers: Layers = 4
    width: Width = 256
    feed_forward: Width | None = None  # 4 * width
    heads: Width | None = None  # of a size near 64
    vocabulary: Rows = 8000  # pieces, where a tokenizer is made
    dropout: Share = 0.1
    tokenizer: str | None = None  # a folder to take it from

    serves: ClassVar[tuple[str, ...]] = (HEAD,)
    pace: ClassVar[Pace] = FROM_RANDOM_WEIGHTS

    @staticmethod
    def short_form(text: str) -> dict[str, int]:
        encoder, decoder, width = sizes("marian", text, r"(\d+)\+(\d+)x(\d+)", "4+4x256")
        return {"encoder_layers": encoder, "decoder_layers": decoder, "width": width}

    def begin(self, task: Task, seed: int, texts: Callable[[], Iterator[str]]) -> Student:
        return self._made(new_vocabulary("marian", self.tokenizer, task, texts, self.vocabulary), seed)

    def build(self, current: Student, context: Context) -> Student:
        return self._made(taken_vocabulary("marian", self.tokenizer, current), context.seed)

    def _made(self, vocabulary: Vocabulary, seed: int) -> Student:
        heads = self.heads or fitting_heads(self.width, even=False)
        if self.width % heads or self.width % 2:
            step = math.lcm(2, self.heads or 1)
            below = self.width // step * step
            fitting = f"{below} or {below + step}" if below else f"{step}"
            raise InputError(
                f"marian: {heads} heads and sines in pairs do not fit a width of {self.width}; write a width of {fitting}"
            )
        feed_forward = self.feed_forward or 4 * self.width
        config = MarianConfig(
            vocab_size=vocabulary.size,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            d_model=self.width,
            encoder_ffn_dim=feed_forward,
            decoder_ffn_dim=feed_forward,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            dropout=self.dropout,
            activation_function="relu",
            max_position_embeddings=LONGEST,
            scale_embedding=True,
            init_std=0.02,  # of a post-norm network; with width**-0.5 (embeddings of size 1) it learned far slower
            forced_eos_token_id=None,
            **vocabulary.special,
        )
        model = new_network(lambda: MarianMTModel(config), seed)
        with torch.no_grad():
            # never written, so that its row of the shared table stays zero: that is what the decoder starts from
            model.final_logits_bias[0, vocabulary.pad] = NEVER
        model.config.architectures = [type(model).__name__]
        model.generation_config = GenerationConfig(max_length=LONGEST, **vocabulary.special)
        return Student(model.eval(), vocabulary.tokenizer)
