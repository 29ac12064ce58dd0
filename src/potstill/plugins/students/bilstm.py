"""One bidirectional LSTM over word vectors: hundreds of times cheaper than BERT (Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from potstill.api import FROM_RANDOM_WEIGHTS, Width, parse_value
from potstill.plugins.students.bag import Bag


@dataclass(frozen=True)
class Bilstm(Bag):
    """`hidden`: units of each direction. The other fields are those of `Bag`."""

    network = "bilstm"
    pace = FROM_RANDOM_WEIGHTS._replace(rate=2e-3)

    hidden: Width = 150

    @classmethod
    def short_form(cls, text: str) -> dict[str, Any]:
        return {"hidden": parse_value(text)}

    def shape(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden, **super().shape()}
