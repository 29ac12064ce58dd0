"""Convolutions of 3 × 3 in pairs, each pair followed by pooling, then fully connected layers: VGG in small."""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput

from potstill.data.formats.images import MOST_PIXELS
from potstill.models.architectures.own_model import OwnModel, PixelConfig

MOST_LAYERS = 64
PAIR = 2  # convolutions before each pooling


class CnnConfig(PixelConfig):
    model_type = "potstill-cnn"

    channels: list[int] | tuple[int, ...] = (32, 64)  # of each pair of convolutions
    hidden_sizes: list[int] | tuple[int, ...] = (128,)  # units of each fully connected layer
    dropout: float | int = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        pairs, layers, pixels = list(self.channels), list(self.hidden_sizes), [self.num_channels, *self.image_size]
        if not pairs or not layers or PAIR * len(pairs) + len(layers) > MOST_LAYERS or min(pairs + layers) < 1:
            raise ValueError(f"channels and hidden_sizes name 3 to {MOST_LAYERS} layers of at least one unit")
        if len(pixels) != 3 or min(pixels) < 1 or max(pixels) > MOST_PIXELS:
            raise ValueError("image_size is height and width")
        for derived in ("num_hidden_layers", "hidden_size", "max_position_embeddings"):
            kwargs.pop(derived, None)
        self.num_hidden_layers, self.hidden_size = PAIR * len(pairs) + len(layers), layers[-1]
        self.max_position_embeddings = 1
        super().__post_init__(**kwargs)


class PlacedConv(nn.Conv2d):
    """A convolution that knows at how many places of an image it multiplies all its weights, for the plan of a run."""

    def __init__(self, inputs: int, outputs: int, places: int) -> None:
        super().__init__(inputs, outputs, kernel_size=3, padding=1)
        self.places = places


class CnnPreTrainedModel(OwnModel):
    config_class = CnnConfig
    base_model_prefix = "cnn"
    main_input_name = "pixel_values"

    def _init_weights(self, module: nn.Module) -> None:
        """He et al. (2015): the scale of a layer's output does not depend on how many units it reads."""
        if isinstance(module, nn.Linear | nn.Conv2d):
            init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            init.zeros_(module.bias)

    def get_input_embeddings(self) -> None:  # type: ignore[override]
        """There is no embedding table."""


class CnnModel(CnnPreTrainedModel):
    """From pixels to the last hidden layer. No norm over a batch: a row's prediction does not depend on other rows."""

    def __init__(self, config: CnnConfig) -> None:
        super().__init__(config)
        inputs, height, width = config.shape
        layers: list[nn.Module] = []
        for outputs in config.channels:
            for _ in range(PAIR):
                layers.append(PlacedConv(inputs, outputs, height * width))
                inputs = outputs
            height, width = -(-height // 2), -(-width // 2)
        sizes = [inputs * height * width, *config.hidden_sizes]
        layers += [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)  # the last row of an odd height counts too
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """(batch, channels, height, width), or flat, from 0 to 1 -> (batch, width)."""
        convolutions = PAIR * len(self.config.channels)
        states: Any = pixel_values.reshape(-1, *self.config.shape)
        for number, layer in enumerate(self.layers, 1):
            if number == convolutions + 1:
                states = states.flatten(1)
            states = nn.functional.relu(layer(states))
            if number > convolutions:
                states = self.dropout(states)
            elif number % PAIR == 0:
                states = self.pool(states)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=states)


class CnnForImageClassification(CnnPreTrainedModel):
    def __init__(self, config: CnnConfig) -> None:
        super().__init__(config)
        self.cnn = CnnModel(config)
        self.classifier = nn.Linear(config.hidden_sizes[-1], int(config.num_labels or 2))
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any) -> ImageClassifierOutput:
        logits = self.classifier(self.cnn(pixel_values).last_hidden_state)
        loss: Any = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
