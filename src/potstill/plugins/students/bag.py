"""The mean of a text's word vectors and one hidden layer: the cheapest student (Iyyer et al., 2015)."""

from __future__ import annotations

from dataclasses import dataclass

from potstill.plugins.students._word_vectors import WordVectorBuilder


@dataclass(frozen=True)
class Bag(WordVectorBuilder):
    """A "deep averaging network": the order of the words does not matter."""

    network = "bag"
