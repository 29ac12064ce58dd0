"""A new network of any shape with random weights, such as TinyBERT's 4 layers of 312 (arXiv:1909.10351)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from potstill.api import (
    FROM_RANDOM_WEIGHTS,
    BuildContext,
    Builder,
    InputError,
    Layers,
    Student,
    Width,
    anatomy,
    held,
    networks,
    quantized,
    transformers,
)

FEED_FORWARD = {"distilbert": "hidden_dim", "gpt2": "n_inner"}
COUNTS_FROM_PADDING = ("roberta", "mpnet")  # their first position is the padding's id + 1


@dataclass(frozen=True)
class Fresh(Builder):
    """The tokenizer, the labels and the longest input stay those of the current student.

    feed_forward: None: 4 * width.
    heads: None: of a size near 64.
    architecture: None: that of the student to begin from.
    """

    random_weights = True
    pace = FROM_RANDOM_WEIGHTS._replace(rate=5e-4)  # at 1e-3 its attention was not stable

    layers: Layers = 4
    width: Width = 312
    feed_forward: Width | None = None
    heads: Width | None = None
    architecture: str | None = None

    def build(self, current: Student, context: BuildContext) -> Student:
        architecture = self.architecture or networks.stock_config(context.start.model.config).model_type
        if self.architecture is not None and architecture not in anatomy.TESTED:
            raise InputError(f"fresh: no architecture {architecture!r}; write one of {', '.join(anatomy.TESTED)}")
        even = architecture in ("modernbert", "llama")  # their rotary positions turn pairs
        fitting = anatomy.fitting_heads(self.width, even)
        heads = self.heads or fitting
        if self.width % heads or (even and self.width // heads % 2):
            raise InputError(
                f"fresh: width {self.width} does not fit {heads} heads; write heads = {fitting}, or omit heads"
            )
        if context.start.model.config.is_encoder_decoder:
            raise InputError("fresh: makes no encoder with decoder; write student = 'marian:4+4x256'")
        config = self._config(architecture, heads, current)
        model = networks.stock_model(current.model, config, weights=None, seed=context.seed)
        padding, expected = current.tokenizer.pad_token_id, anatomy.word_embeddings(model).padding_idx
        if expected is not None and padding != expected:
            raise InputError(
                f"fresh: {architecture} expects token {expected} as padding, but this tokenizer pads with {padding}; "
                "write architecture = 'bert'"
            )
        return Student(model, networks.fitting_tokenizer(current.tokenizer, model))

    def _config(self, architecture: str, heads: int, current: Student) -> transformers.PreTrainedConfig:
        before, tokenizer = networks.stock_config(current.model.config), current.tokenizer
        kind: Any = transformers.CONFIG_MAPPING[architecture]
        fields: dict[str, Any] = before.to_dict() if before.model_type == architecture else {}
        # they follow from the shape; and random weights are not compressed
        for name in ("layer_types", "architectures", "dtype", "head_dim", held.PRUNED, held.CLUSTERS, quantized.BITS):
            fields.pop(name, None)
        shape = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": heads,
            FEED_FORWARD.get(architecture, "intermediate_size"): self.feed_forward or 4 * self.width,
            "vocab_size": anatomy.word_embeddings(current.model).num_embeddings,
        }
        if "num_key_value_heads" in fields:  # as many queries share a key as before, if possible
            shared = max(1, before.num_attention_heads // before.num_key_value_heads)
            shape["num_key_value_heads"] = heads // shared if heads % shared == 0 else heads
        fields |= {kind.attribute_map.get(name, name): value for name, value in shape.items()}  # GPT-2 says n_layer
        if architecture == "electra":
            fields["embedding_size"] = self.width
        if before.model_type == architecture:
            return kind.from_dict(fields)
        unused = tokenizer.pad_token_id + 1 if architecture in COUNTS_FROM_PADDING else 0
        config = kind.from_dict({**fields, "max_position_embeddings": anatomy.positions(current.model) + unused})
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
            if hasattr(config, name):
                setattr(config, name, getattr(tokenizer, name))
        return config
