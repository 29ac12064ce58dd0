"""Fully connected layers with ReLU between pixels and classes."""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput

from potstill.data.formats.images import MOST_PIXELS
from potstill.models.architectures.own_model import OwnModel, PixelConfig

MOST_LAYERS = 64


class MlpConfig(PixelConfig):
    model_type = "potstill-mlp"

    hidden_sizes: list[int] | tuple[int, ...] = (800, 800)  # units of each hidden layer
    dropout: float | int = 0.0
    input_dropout: float | int = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        layers, pixels = list(self.hidden_sizes), [self.num_channels, *self.image_size]
        if not 1 <= len(layers) <= MOST_LAYERS or min(layers) < 1:
            raise ValueError(f"hidden_sizes names 1 to {MOST_LAYERS} layers of at least one unit")
        if len(pixels) != 3 or min(pixels) < 1 or max(pixels) > MOST_PIXELS:
            raise ValueError("image_size is height and width")
        for derived in ("num_hidden_layers", "hidden_size", "max_position_embeddings"):
            kwargs.pop(derived, None)
        self.num_hidden_layers, self.hidden_size, self.max_position_embeddings = len(layers), layers[-1], 1
        super().__post_init__(**kwargs)


class MlpPreTrainedModel(OwnModel):
    config_class = MlpConfig
    base_model_prefix = "mlp"
    main_input_name = "pixel_values"

    def _init_weights(self, module: nn.Module) -> None:
        """He et al. (2015): the scale of a layer's output does not depend on how many units it reads."""
        if isinstance(module, nn.Linear):
            init.kaiming_normal_(module.weight, nonlinearity="relu")
            init.zeros_(module.bias)

    def get_input_embeddings(self) -> None:  # type: ignore[override]
        """There is no embedding table."""


class MlpModel(MlpPreTrainedModel):
    """From pixels to the last hidden layer."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__(config)
        channels, height, width = config.shape
        sizes = [channels * height * width, *config.hidden_sizes]
        self.input_dropout = nn.Dropout(config.input_dropout)
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in itertools.pairwise(sizes)])
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """(batch, channels, height, width), or flat, from 0 to 1 -> (batch, width)."""
        states = self.input_dropout(pixel_values.flatten(1))
        for layer in self.layers:
            states = self.dropout(nn.functional.relu(layer(states)))
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=states)


class MlpForImageClassification(MlpPreTrainedModel):
    def __init__(self, config: MlpConfig) -> None:
        super().__init__(config)
        self.mlp = MlpModel(config)
        self.classifier = nn.Linear(config.hidden_sizes[-1], int(config.num_labels or 2))
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any) -> ImageClassifierOutput:
        logits = self.classifier(self.mlp(pixel_values).last_hidden_state)
        loss: Any = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
