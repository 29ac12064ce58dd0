"""One bidirectional LSTM over word vectors: hundreds of times cheaper than BERT (Tang et al., 2019, arXiv:1903.12136)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from potstill.models.student import Context, Student
from potstill.models.tokenizers.words import Words
from potstill.plugins.students._word_vectors import word_vector_student
from potstill.recipe.bounds import Rows, Share, Width
from potstill.recipe.pace import FROM_RANDOM_WEIGHTS, Pace


@dataclass(frozen=True)
class Bilstm:
    """Texts of a pair go through the same LSTM, into [a, b, a⊙b, |a−b|].

    `words`: the start's pieces, or the `most` frequent words of the task's texts. `vectors`: "fresh" ones of `width`,
    "teacher" (the start's own table), "glove", or a text file.
    """

    hidden: Width = 150  # of each direction
    features: Width = 200
    width: Width = 300
    words: Words = "pieces"
    most: Rows = 30000
    vectors: str = "fresh"
    dropout: Share = 0.1

    pace: ClassVar[Pace] = Pace(2e-3, FROM_RANDOM_WEIGHTS.epochs)

    def build(self, current: Student, context: Context) -> Student:
        where = (self.words, self.most, self.vectors, self.width)
        return word_vector_student(
            "bilstm",
            current,
            context,
            *where,
            hidden_size=self.hidden,
            features=self.features,
            dropout=self.dropout,
        )
