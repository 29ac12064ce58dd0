"""A new Transformer for translation (Vaswani et al., 2017, arXiv:1706.03762) in the shape of Marian (arXiv:1804.00344)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from potstill.api import NEVER, InputError, Layers, Student, Width, anatomy, joint_bpe, torch, transformers
from potstill.plugins.students._translation import TranslationBuilder


@dataclass(frozen=True)
class Marian(TranslationBuilder):
    """One embedding table serves both languages and the output; positions are sinusoidal.

    feed_forward: None: 4 * width.
    heads: None: of a size near 64.
    """

    name, shape, sizes = "marian", "4+4x256", ("encoder_layers", "decoder_layers", "width")

    encoder_layers: Layers = 4
    decoder_layers: Layers = 4
    width: Width = 256
    feed_forward: Width | None = None
    heads: Width | None = None

    def student(self, tokenizer: transformers.PreTrainedTokenizerBase, seed: int, rows: int | None = None) -> Student:
        student = super().student(tokenizer, seed, rows)
        model: Any = student.model
        with torch.no_grad():
            # never written, so that its row of the shared table stays zero: the decoder starts from it
            model.final_logits_bias[0, tokenizer.pad_token_id] = NEVER
        return student

    def config(self, rows: int, special: dict[str, Any]) -> transformers.PreTrainedConfig:
        heads = self.heads or anatomy.fitting_heads(self.width)
        if self.width % heads or self.width % 2:
            step = math.lcm(2, self.heads or 1)
            below = self.width // step * step
            fitting = f"{below} or {below + step}" if below else f"{step}"
            raise InputError(
                f"marian: {heads} heads and pairs of sines do not fit a width of {self.width}; write a width of {fitting}"
            )
        feed_forward = self.feed_forward or 4 * self.width
        return transformers.MarianConfig(
            vocab_size=rows,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            d_model=self.width,
            encoder_ffn_dim=feed_forward,
            decoder_ffn_dim=feed_forward,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            dropout=self.dropout,
            activation_function="relu",
            max_position_embeddings=joint_bpe.LONGEST,
            scale_embedding=True,
            init_std=0.02,  # for a post-norm network; with width**-0.5 (embeddings of size 1) it learned far more slowly
            forced_eos_token_id=None,
            **special,
        )
