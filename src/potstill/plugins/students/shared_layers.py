"""ALBERT: one layer at every depth, and narrow embeddings, begun from a BERT (Lan et al., 2020, arXiv:1909.11942)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from potstill.api import (
    FINE_TUNING,
    BuildContext,
    Builder,
    Count,
    InputError,
    Student,
    anatomy,
    factorised_tables,
    networks,
    torch,
    transformers,
)

NAMES = {  # of a BERT's layer -> of ALBERT's
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.dense",
    "attention.output.LayerNorm": "attention.LayerNorm",
    "intermediate.dense": "ffn",
    "output.dense": "ffn_output",
    "output.LayerNorm": "full_layer_layer_norm",
}
OUTSIDE = {"bert.pooler.dense.": "albert.pooler.", "classifier.": "classifier.", "qa_outputs.": "qa_outputs."}
EMBEDDINGS, TABLES = "embeddings", ("word_embeddings", "position_embeddings", "token_type_embeddings")
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


@dataclass(frozen=True)
class SharedLayers(Builder):
    """layer: which of the BERT's layers the shared one begins as, counted from 1; or the mean of all.
    layers: how often it is used. None: as often as the BERT has layers.
    embedding: the width of the embedding tables.
    """

    architectures = ("bert",)
    pace = FINE_TUNING._replace(rate=4 * FINE_TUNING.rate, steps=1500)  # of a student with three layers of its own

    layer: Count | Literal["mean"] = "mean"
    layers: Count | None = None
    embedding: Annotated[int, Field(ge=2)] = 128

    def build(self, current: Student, context: BuildContext) -> Student:
        model, bert = current.model, current.model.config
        if bert.model_type not in self.architectures or type(model).__name__.endswith("ForPreTraining"):
            raise InputError(
                f"shared_layers: shapes a BERT, not a {type(model).__name__}; write student = 'keep_layers:3'"
            )
        if isinstance(self.layer, int) and self.layer > bert.num_hidden_layers:
            raise InputError(
                f"shared_layers: there is no layer {self.layer}; write a number from 1 to {bert.num_hidden_layers}"
            )
        if self.embedding > bert.hidden_size:
            raise InputError(
                f"shared_layers: embedding is {self.embedding}; write at most {bert.hidden_size}, the width"
            )
        built = networks.stock_model(model, self._config(bert), None, context.seed)
        weights = {
            new + name.removeprefix(old): weight
            for name, weight in model.state_dict().items()
            for old, new in OUTSIDE.items()
            if name.startswith(old)
        }
        layers = [dict(layer.state_dict()) for layer in anatomy.encoder_layers(model)]
        for old, new in NAMES.items():
            for part in ("weight", "bias"):
                same = torch.stack([layer[f"{old}.{part}"] for layer in layers])
                weights[f"{LAYER}.{new}.{part}"] = same.mean(0) if self.layer == "mean" else same[self.layer - 1]
        there = model.base_model.get_submodule(EMBEDDINGS)
        words, *others = (there.get_parameter(f"{name}.weight").detach() for name in TABLES)
        narrow = factorised_tables.narrow_tables(words, others, there.get_submodule("LayerNorm"), self.embedding)
        weights |= {f"albert.{EMBEDDINGS}.{n}.weight": table for n, table in zip(TABLES, narrow.tables, strict=True)}
        weights |= {
            "albert.encoder.embedding_hidden_mapping_in.weight": narrow.matrix,
            "albert.encoder.embedding_hidden_mapping_in.bias": narrow.bias,
        }
        if "cls.predictions.bias" in (before := model.state_dict()):
            weights["predictions.bias"] = weights["predictions.decoder.bias"] = before["cls.predictions.bias"]
        built.load_state_dict(built.state_dict() | weights)
        return Student(built, networks.fitting_tokenizer(current.tokenizer, built))

    def _config(self, bert: transformers.PreTrainedConfig) -> transformers.AlbertConfig:
        return transformers.AlbertConfig(
            vocab_size=bert.vocab_size,
            embedding_size=self.embedding,
            hidden_size=bert.hidden_size,
            num_hidden_layers=self.layers or bert.num_hidden_layers,
            num_attention_heads=bert.num_attention_heads,
            intermediate_size=bert.intermediate_size,
            hidden_act=bert.hidden_act,
            hidden_dropout_prob=bert.hidden_dropout_prob,
            attention_probs_dropout_prob=bert.attention_probs_dropout_prob,
            max_position_embeddings=bert.max_position_embeddings,
            type_vocab_size=bert.type_vocab_size,
            initializer_range=bert.initializer_range,
            layer_norm_eps=bert.layer_norm_eps,
            pad_token_id=bert.pad_token_id,
        )
