"""LSTM encoder and decoder with attention, the networks that Kim and Rush (2016, arXiv:1606.07947) distilled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from potstill.api import Layers, Share, Width, transformers
from potstill.plugins.students._translation import TranslationBuilder


@dataclass(frozen=True)
class LstmTranslator(TranslationBuilder):
    """One table of word vectors, as wide as the states, serves both languages and the output.

    layers: of the encoder, and of the decoder.
    width: of the states.
    input_feeding: the last attention output is read beside the next word, as in the paper; slower.
    """

    name, shape, sizes = "lstm_translator", "2x500", ("layers", "width")

    layers: Layers = 2
    width: Width = 500
    input_feeding: bool = True
    dropout: Share = 0.2

    def config(self, rows: int, special: dict[str, Any]) -> transformers.PreTrainedConfig:
        return transformers.AutoConfig.for_model(
            "potstill-lstm-translator",
            vocab_size=rows,
            hidden_size=self.width,
            lstm_layers=self.layers,
            input_feeding=self.input_feeding,
            dropout=self.dropout,
            **special,
        )
