"""The base classes of potstill's own networks: what the rest of the program must know about them."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as PIPELINE_NAMES

from potstill.models.heads import auto_class


class OwnModel(PreTrainedModel):
    """A network of potstill's own. Texts are padded on the right, and padding never changes a prediction.

    A class whose name ends in For… and a head, or in Model, registers itself and its config with the Auto classes of
    transformers. A base class has no config, or a name that ends in PreTrainedModel.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        config, name = cls.config_class, cls.__name__
        head = name.partition("For")[2]
        if config is None or name.endswith("PreTrainedModel") or not (head or name.endswith("Model")):
            return
        AutoConfig.register(config.model_type, config, exist_ok=True)
        (auto_class(head) if head else AutoModel).register(config, cls, exist_ok=True)
        if head == "SequenceClassification":  # pipelines refuse a model whose name is not listed here
            PIPELINE_NAMES[config.model_type] = name

    def onnx_graph(self) -> Any | None:
        """Return the network as an ONNX model if PyTorch's exporter cannot trace it."""
        return None


class PixelConfig(PreTrainedConfig):
    """The config of a network that reads images from 0 to 1, without further scaling; an image is one token."""

    image_size: list[int] | tuple[int, int] = (28, 28)  # height and width
    num_channels: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        height, width = self.image_size
        return self.num_channels, height, width
