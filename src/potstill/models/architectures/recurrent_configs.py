"""The configs of networks over word vectors. No torch here: transformers reads configs without it."""

from __future__ import annotations

from transformers.configuration_utils import PreTrainedConfig


class BilstmConfig(PreTrainedConfig):
    """`pairs`: a row is two texts, told apart by their token types, which go through the same encoder."""

    model_type = "potstill-bilstm"

    vocab_size: int = 30522
    embedding_size: int = 300
    hidden_size: int = 150  # of each direction
    features: int = 200
    pairs: bool = False
    dropout: float = 0.0
    num_hidden_layers: int = 0  # none that could be compared, kept or cut
    max_position_embeddings: int = 512  # tokens that are read of a row: it has no positions, but a batch needs an end
    pad_token_id: int | None = 0


class BagConfig(PreTrainedConfig):
    """The same without an LSTM: the mean of word vectors is as wide as they are."""

    model_type = "potstill-bag"

    vocab_size: int = 30522
    embedding_size: int = 300
    hidden_size: int = 300  # of a text's vector
    features: int = 200
    pairs: bool = False
    dropout: float = 0.0
    num_hidden_layers: int = 0
    max_position_embeddings: int = 512
    pad_token_id: int | None = 0


class LstmTranslatorConfig(PreTrainedConfig):
    """`input_feeding`: what the attention found at one step is read beside the next word (Luong et al., 2015)."""

    model_type = "potstill-lstm-translator"

    vocab_size: int = 8000
    hidden_size: int = 500  # of word vectors and states
    lstm_layers: int = 2  # of either side
    input_feeding: bool = True
    dropout: float = 0.2
    num_hidden_layers: int = 0
    max_position_embeddings: int = 512
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True  # source, target and output share one table
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0
