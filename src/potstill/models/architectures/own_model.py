"""The base class of potstill's own networks: what the rest of the program must know about them."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


class OwnModel(PreTrainedModel):
    """A network of potstill's own. Texts are padded on the right, and padding never changes a prediction.

    A class whose name ends in For… and a head, or in Model, is registered with the Auto classes of transformers.
    """

    def onnx_graph(self) -> Any | None:
        """Return the network as an ONNX model if PyTorch's exporter cannot trace it."""
        return None
