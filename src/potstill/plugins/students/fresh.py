"""A new network of any shape with random weights, such as TinyBERT's 4 layers of 312 (arXiv:1909.10351)."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import TESTED, positions, word_embeddings
from potstill.models.student import Context, Student, stock_model
from potstill.recipe.bounds import Layers, Width
from potstill.recipe.pace import FROM_RANDOM_WEIGHTS, Pace

FEED_FORWARD = {"distilbert": "hidden_dim", "gpt2": "n_inner"}
COUNTS_FROM_PADDING = ("roberta", "mpnet")  # their first position is the padding's id + 1


@dataclass(frozen=True)
class Fresh:
    """Same tokenizer, labels and longest input as before; `architecture` defaults to that of the start."""

    layers: Layers = 4
    width: Width = 312
    feed_forward: Width | None = None  # 4 * width
    heads: Width | None = None  # of a size near 64
    architecture: str | None = None

    pace: ClassVar[Pace] = Pace(5e-4, FROM_RANDOM_WEIGHTS.epochs)  # at 1e-3 its attention was not stable

    def build(self, current: Student, context: Context) -> Student:
        architecture = self.architecture or context.start.model.config.model_type
        if self.architecture is not None and architecture not in TESTED:
            raise InputError(f"fresh: there is no architecture {architecture!r}; write one of {', '.join(TESTED)}")
        if any(size is not None and size < 1 for size in (self.layers, self.width, self.feed_forward, self.heads)):
            raise InputError("fresh: every size is at least 1; write e.g. layers = 4, width = 312")
        even = architecture in ("modernbert", "llama")  # their rotary positions turn pairs
        heads = self.heads or fitting_heads(self.width, even)
        if self.width % heads or (even and self.width // heads % 2):
            raise InputError(
                f"fresh: {heads} heads do not fit a width of {self.width}; "
                f"write heads = {fitting_heads(self.width, even)}, or leave it out"
            )
        if context.start.model.config.is_encoder_decoder:
            raise InputError(
                "fresh: makes networks of one stack; write student = 'marian:4+4x256' for one that translates"
            )
        config = self._config(architecture, heads, current)
        model = stock_model(current.model, config, weights=None, seed=context.seed)
        padding, expected = current.tokenizer.pad_token_id, word_embeddings(model).padding_idx
        if expected is not None and padding != expected:
            raise InputError(
                f"fresh: {architecture} takes piece {expected} for padding, this tokenizer pads with {padding}; "
                "write architecture = 'bert'"
            )
        return Student(model, readable_by(model, current.tokenizer))

    def _config(self, architecture: str, heads: int, current: Student) -> PreTrainedConfig:
        before, tokenizer = current.model.config, current.tokenizer
        fields: dict[str, Any] = before.to_dict() if before.model_type == architecture else {}
        for follows_from_the_shape in ("layer_types", "architectures", "dtype", "head_dim"):
            fields.pop(follows_from_the_shape, None)
        shape = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": heads,
            FEED_FORWARD.get(architecture, "intermediate_size"): self.feed_forward or 4 * self.width,
            "vocab_size": word_embeddings(current.model).num_embeddings,
        }
        if "num_key_value_heads" in fields:  # as many queries share a key as before, where that can be
            shared = max(1, before.num_attention_heads // before.num_key_value_heads)
            shape["num_key_value_heads"] = heads // shared if heads % shared == 0 else heads
        own_names = CONFIG_MAPPING[architecture].attribute_map  # GPT-2 says n_layer
        fields |= {own_names.get(name, name): value for name, value in shape.items()}
        if architecture == "electra":
            fields["embedding_size"] = self.width
        if before.model_type != architecture:
            unused = tokenizer.pad_token_id + 1 if architecture in COUNTS_FROM_PADDING else 0
            fields["max_position_embeddings"] = positions(current.model) + unused
        config = CONFIG_MAPPING[architecture].from_dict(fields)
        if before.model_type != architecture:
            for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
                if hasattr(config, name):
                    setattr(config, name, getattr(tokenizer, name))
        config.id2label, config.label2id = copy.deepcopy((before.id2label, before.label2id))
        config.problem_type = before.problem_type
        return config


def fitting_heads(width: int, even: bool) -> int:
    """The number of heads whose size is nearest to 64; rotary positions need even sizes."""
    sizes = [size for size in range(1, width + 1) if width % size == 0 and not (even and size % 2)]
    if not sizes:
        raise InputError(f"fresh: rotary positions need an even width, not {width}; write width = {width + 1}")
    return width // min(sizes, key=lambda size: (abs(size - 64), size))


def readable_by(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same tokenizer, giving only what this model takes: DistilBERT, MPNet and ModernBERT have no segments."""
    tokenizer = copy.deepcopy(tokenizer)
    taken = inspect.signature(model.forward).parameters
    names = [name for name in tokenizer.model_input_names if name in taken]
    if names != tokenizer.model_input_names:
        tokenizer.model_input_names = names
        tokenizer.init_kwargs["model_input_names"] = names  # only what is here too is saved
    return tokenizer
