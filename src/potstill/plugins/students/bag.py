"""The mean of a text's word vectors and one hidden layer: the cheapest student (Iyyer et al., 2015, "deep averaging network")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from potstill.models.student import Context, Student
from potstill.models.tokenizers.words import Words
from potstill.plugins.students._word_vectors import word_vector_student
from potstill.recipe.bounds import Rows, Share, Width
from potstill.recipe.pace import FROM_RANDOM_WEIGHTS, Pace


@dataclass(frozen=True)
class Bag:
    """Words in any order are the same text. The two texts of a pair become [a, b, a⊙b, |a−b|].

    `words`, `most`, `vectors` and `width` are those of `bilstm`.
    """

    features: Width = 200
    width: Width = 300
    words: Words = "pieces"
    most: Rows = 30000
    vectors: str = "fresh"
    dropout: Share = 0.1

    pace: ClassVar[Pace] = FROM_RANDOM_WEIGHTS

    def build(self, current: Student, context: Context) -> Student:
        where = (self.words, self.most, self.vectors, self.width)
        return word_vector_student("bag", current, context, *where, features=self.features, dropout=self.dropout)
