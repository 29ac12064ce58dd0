"""The mean of a text's word vectors and one hidden layer: the cheapest student (Iyyer et al., 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from potstill.api import (
    BuildContext,
    Builder,
    InputError,
    Share,
    Student,
    TableRows,
    Width,
    anatomy,
    networks,
    transformers,
    word_vectors,
)


@dataclass(frozen=True)
class Bag(Builder):
    """A "deep averaging network": the order of the words does not matter. `Bilstm` shares all but its network.

    The two texts of a pair, a and b, are read by the same network and joined as [a, b, a⊙b, |a−b|].

    features: units of the last hidden layer.
    width: of the word vectors, if they are "fresh".
    words: "pieces", the tokens of the student to begin from; or "words", the most frequent words of the train texts.
    most: how many words.
    vectors: "fresh", "teacher" (those of the student to begin from), "glove", or a text file.
    """

    random_weights = True
    network: ClassVar[str] = "bag"  # its model_type without "potstill-"

    features: Width = 200
    width: Width = 300
    words: Literal["pieces", "words"] = "pieces"
    most: TableRows = 30000
    vectors: str = "fresh"
    dropout: Share = 0.1

    def shape(self) -> dict[str, Any]:
        """Return what the config says beside the word vectors and the labels."""
        return {"features": self.features, "dropout": self.dropout}

    def build(self, current: Student, context: BuildContext) -> Student:
        if not type(current.model).__name__.endswith("ForSequenceClassification"):
            raise InputError(
                f"{self.network}: classifies whole texts, and this task needs other predictions; "
                "write student = 'keep_layers:3'"
            )
        if self.words == "pieces":
            tokenizer = word_vectors.subword_tokenizer(current.tokenizer)
        else:
            tokenizer = word_vectors.word_tokenizer(current.tokenizer, context.texts(), self.most)
        table = None
        if self.vectors != "fresh":
            table = word_vectors.word_vectors(self.network, self.vectors, tokenizer, self.words, current, context.seed)
        width = self.width if table is None else table.shape[1]
        config = transformers.AutoConfig.for_model(
            f"potstill-{self.network}",
            vocab_size=word_vectors.table_rows(tokenizer),
            embedding_size=width,
            max_position_embeddings=anatomy.longest_input(current.model, current.tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            pairs=context.pairs,
            **{"hidden_size": width, **self.shape()},
        )
        model = networks.stock_model(current.model, config, weights=None, seed=context.seed)
        if table is not None:
            anatomy.word_embeddings(model).weight.data.copy_(table)
        return Student(model, tokenizer)
