"""Half of BERT's layers in DistilBERT's network, without token types and pooler (Sanh et al., 2019, arXiv:1910.01108)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from potstill.api import FINE_TUNING, BuildContext, Builder, InputError, Student, networks, transformers
from potstill.plugins.students.keep_layers import KeepLayers

NAMES = {  # of BERT's modules -> of DistilBERT's
    "bert.embeddings": "distilbert.embeddings",
    "bert.pooler.dense": "pre_classifier",
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.decoder": "vocab_projector",
}
IN_LAYER = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
TYPES = "bert.embeddings.token_type_embeddings.weight"
READS_POOLER = ("ForSequenceClassification", "ForMultipleChoice")


@dataclass(frozen=True)
class DistilBert(Builder):
    """The vector of the first token type is added to the positions, so that the embeddings of one text stay what they were.

    layers: "paper", one out of two (2, 4, 6, 8, 10, 12 of 12); "script", spread from the first to the last (1, 3, 5, 8, 10, 12 of
    12); or a list counted from 1.
    """

    architectures = ("bert",)
    pace = FINE_TUNING._replace(rate=2 * FINE_TUNING.rate, steps=1500)  # as for any student with half of the layers

    layers: Literal["paper", "script"] | list[int] = "paper"

    def kept(self, layers: int) -> list[int]:
        if isinstance(self.layers, list):
            return KeepLayers(self.layers).kept(layers)
        half = max(1, layers // 2)
        if self.layers == "paper" or half == 1:
            return [place * layers // half for place in range(1, half + 1)]
        gaps = half - 1  # rounded to the nearest: 0, 2.2, 4.4, 6.6, 8.8 and 11 of 12 layers counted from 0
        return [1 + (2 * place * (layers - 1) + gaps) // (2 * gaps) for place in range(half)]

    def build(self, current: Student, context: BuildContext) -> Student:
        model = current.model
        if model.config.model_type not in self.architectures:
            raise InputError(
                f"distilbert: shapes a BERT, not a {model.config.model_type}; write student = 'keep_layers:skip:6'"
            )
        chosen = self.kept(model.config.num_hidden_layers)
        weights = {}
        for name, weight in model.state_dict().items():
            if name == TYPES or name == "cls.predictions.bias":  # the latter is the bias of the decoder
                continue
            if name.startswith("bert.pooler.") and not type(model).__name__.endswith(READS_POOLER):
                continue
            if found := re.match(r"bert\.encoder\.layer\.(\d+)\.(.+)\.(\w+)$", name):
                layer, part, kind = int(found[1]) + 1, found[2], found[3]
                if layer in chosen:
                    weights[f"distilbert.transformer.layer.{chosen.index(layer)}.{IN_LAYER[part]}.{kind}"] = weight
                continue
            before = next((module for module in NAMES if name.startswith(f"{module}.")), "")
            weights[NAMES.get(before, before) + name.removeprefix(before)] = weight
        positions = "distilbert.embeddings.position_embeddings.weight"
        weights[positions] = weights[positions] + model.state_dict()[TYPES][0]
        built = networks.stock_model(model, _config(model.config, len(chosen)), weights)
        return Student(built, networks.fitting_tokenizer(current.tokenizer, built))


def _config(bert: transformers.PreTrainedConfig, layers: int) -> transformers.DistilBertConfig:
    return transformers.DistilBertConfig(
        vocab_size=bert.vocab_size,
        max_position_embeddings=bert.max_position_embeddings,
        n_layers=layers,
        n_heads=bert.num_attention_heads,
        dim=bert.hidden_size,
        hidden_dim=bert.intermediate_size,
        activation=bert.hidden_act,
        dropout=bert.hidden_dropout_prob,
        attention_dropout=bert.attention_probs_dropout_prob,
        initializer_range=bert.initializer_range,
        pad_token_id=bert.pad_token_id,
    )
