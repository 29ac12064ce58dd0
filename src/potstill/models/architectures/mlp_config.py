"""The config of networks of fully connected layers; without torch, so that AutoConfig can know it early."""

from __future__ import annotations

from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from potstill.data.formats.images import MOST_PIXELS

MOST_LAYERS = 64


class MlpConfig(PreTrainedConfig):
    """`hidden_sizes`: units of each hidden layer. An image is read whole, as one token."""

    model_type = "potstill-mlp"

    hidden_sizes: list[int] | tuple[int, ...] = (800, 800)
    image_size: list[int] | tuple[int, int] = (28, 28)
    num_channels: int = 1
    dropout: float | int = 0.0
    input_dropout: float | int = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        layers, pixels = list(self.hidden_sizes), [self.num_channels, *self.image_size]
        if not 1 <= len(layers) <= MOST_LAYERS or min(layers) < 1:
            raise ValueError(f"hidden_sizes names 1 to {MOST_LAYERS} layers of at least one unit")
        if len(pixels) != 3 or min(pixels) < 1 or max(pixels) > MOST_PIXELS:
            raise ValueError("image_size is height and width")
        for follows in ("num_hidden_layers", "hidden_size", "max_position_embeddings"):
            kwargs.pop(follows, None)
        self.num_hidden_layers, self.hidden_size, self.max_position_embeddings = len(layers), layers[-1], 1
        super().__post_init__(**kwargs)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        height, width = self.image_size
        return self.num_channels, height, width
