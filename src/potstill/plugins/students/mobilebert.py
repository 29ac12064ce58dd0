"""MobileBERT: thin layers with bottlenecks, and its teacher's wide ones (Sun et al., 2020, arXiv:2004.02984)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from potstill.api import (
    FROM_RANDOM_WEIGHTS,
    BuildContext,
    Builder,
    Count,
    InputError,
    Layers,
    Student,
    Width,
    anatomy,
    networks,
    torch,
    transformers,
)


@dataclass(frozen=True)
class MobileBert(Builder):
    """The tokenizer, the labels and the longest input stay. From another MobileBERT with states as wide, such as the teacher, it
    takes the embeddings and the head.

    width: of the states between layers, the feature maps.
    bottleneck: the width inside a layer; more than `width` makes the teacher, with inverted bottlenecks.
    stacked: feed-forwards in a layer, each of `feed_forward`.
    embedding: the width of a token's row in the table; three neighbours make a state.
    norm: "none" scales and shifts each number, as in the student; "layer" is that of the teacher.
    """

    random_weights = True
    pace = FROM_RANDOM_WEIGHTS._replace(rate=5e-4)

    layers: Layers = 24
    width: Width = 512
    bottleneck: Width = 128
    heads: Count = 4
    feed_forward: Width = 512
    stacked: Count = 4
    embedding: Width = 128
    norm: Literal["none", "layer"] = "none"
    activation: Literal["relu", "gelu"] = "relu"

    def build(self, current: Student, context: BuildContext) -> Student:
        before, tokenizer = current.model, current.tokenizer
        if before.config.is_encoder_decoder:
            raise InputError("mobilebert: makes no encoder with decoder; write student = 'marian:4+4x256'")
        if self.bottleneck % self.heads:
            raise InputError(
                f"mobilebert: a bottleneck of {self.bottleneck} does not fit {self.heads} heads; write heads = 1, or "
                f"bottleneck = {self.heads * max(1, self.bottleneck // self.heads)}"
            )
        if self.embedding > self.width:
            raise InputError(f"mobilebert: embedding is wider than width; write embedding = {self.width}")
        config = transformers.MobileBertConfig(
            vocab_size=anatomy.word_embeddings(before).num_embeddings,
            max_position_embeddings=anatomy.positions(before),
            pad_token_id=tokenizer.pad_token_id,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            intra_bottleneck_size=self.bottleneck,
            num_feedforward_networks=self.stacked,
            embedding_size=self.embedding,
            normalization_type={"none": "no_norm", "layer": "layer_norm"}[self.norm],
            hidden_act=self.activation,
        )
        model = networks.stock_model(before, config, weights=None, seed=context.seed)
        if before.config.model_type == "mobilebert":
            _take_over(before, model)
        return Student(model, networks.fitting_tokenizer(tokenizer, model))


def _take_over(source: transformers.PreTrainedModel, target: transformers.PreTrainedModel) -> None:
    """Copy what lies outside the layers and has the same shape."""
    theirs = source.state_dict()
    with torch.no_grad():
        for name, weight in target.state_dict().items():
            inside = name.startswith("mobilebert.encoder.")
            if not inside and name in theirs and theirs[name].shape == weight.shape:
                weight.copy_(theirs[name])
