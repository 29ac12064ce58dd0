"""The configs of potstill's own networks. No torch here: transformers reads configs without it."""

from __future__ import annotations

from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from potstill.data.formats.images import MOST_PIXELS

MOST_LAYERS = 64


class PixelConfig(PreTrainedConfig):
    """The config of a network that reads images from 0 to 1, without further scaling; an image is one token."""

    image_size: list[int] | tuple[int, int] = (28, 28)  # height and width
    num_channels: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        height, width = self.image_size
        return self.num_channels, height, width


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


class WordVectorConfig(PreTrainedConfig):
    """`pairs`: a row is two texts, separated by their token types, which go through the same encoder."""

    vocab_size: int = 30522
    embedding_size: int = 300
    features: int = 200
    pairs: bool = False
    dropout: float = 0.0
    num_hidden_layers: int = 0  # no layers that could be compared, kept or dropped
    max_position_embeddings: int = 512  # tokens that are read: the network has no positions, but a batch needs a limit
    pad_token_id: int | None = 0


class BilstmConfig(WordVectorConfig):
    model_type = "potstill-bilstm"

    hidden_size: int = 150  # of each direction


class BagConfig(WordVectorConfig):
    model_type = "potstill-bag"

    hidden_size: int = 300  # of a text's vector, as wide as word vectors


class LstmTranslatorConfig(PreTrainedConfig):
    """`input_feeding`: the decoder reads the previous attention output with the next word (Luong et al., 2015)."""

    model_type = "potstill-lstm-translator"

    vocab_size: int = 8000
    hidden_size: int = 500  # of word vectors and states
    lstm_layers: int = 2  # of the encoder, and of the decoder
    input_feeding: bool = True
    dropout: float = 0.2
    num_hidden_layers: int = 0
    max_position_embeddings: int = 512
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True  # source, target and output share one table
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0
