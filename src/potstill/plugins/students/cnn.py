"""A new convolutional network for images, shaped like VGG (Simonyan and Zisserman, 2015, arXiv:1409.1556)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from potstill.api import Field, Width
from potstill.plugins.students._images import Dropout, ImageBuilder

Pairs = Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=1, max_length=8)]


@dataclass(frozen=True)
class Cnn(ImageBuilder):
    """Pairs of 3 × 3 convolutions with rectified linear units, each pair followed by pooling of 2 × 2, then fully connected
    layers: with channels = [64, 128] and hidden = [256, 256] the Conv-4 of Frankle and Carbin (2019). It needs no model to
    begin from.

    channels: of each pair of convolutions.
    hidden: units of each fully connected layer.
    dropout: of the units of fully connected layers.
    """

    name: ClassVar[str] = "cnn"

    channels: Pairs = field(default_factory=lambda: [32, 64])
    hidden: Annotated[list[Width], Field(min_length=1, max_length=32)] = field(default_factory=lambda: [128])
    dropout: Dropout = 0.0

    def fields(self) -> dict[str, Any]:
        return {"channels": list(self.channels), "hidden_sizes": list(self.hidden), "dropout": self.dropout}
