"""A new network of fully connected layers for images, such as 784-800-800-10 (Hinton et al., 2015, arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from potstill.api import Field, Width
from potstill.plugins.students._images import Dropout, ImageBuilder


@dataclass(frozen=True)
class Mlp(ImageBuilder):
    """A multi-layer perceptron with rectified linear units. It needs no model to begin from.

    hidden: units of each hidden layer.
    dropout: of hidden units.
    input_dropout: of pixels.
    """

    name: ClassVar[str] = "mlp"

    hidden: Annotated[list[Width], Field(min_length=1, max_length=64)] = field(default_factory=lambda: [800, 800])
    dropout: Dropout = 0.0
    input_dropout: Dropout = 0.0

    def fields(self) -> dict[str, Any]:
        return {"hidden_sizes": list(self.hidden), "dropout": self.dropout, "input_dropout": self.input_dropout}
