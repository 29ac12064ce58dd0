"""Networks over word vectors: a bidirectional LSTM (Tang et al., 2019, arXiv:1903.12136), and a bag of words.

Both read a text into one vector, or each text of a pair by the same weights; a ReLU layer and an output layer follow.
No attention, no layer norm. Padding never reaches a vector.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from transformers import PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from potstill.models.architectures.own_model import OwnModel


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


class Bilstm(nn.Module):
    """The last state of each direction: forward at a text's last token, backward at its first."""

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True, bidirectional=True)
        self.width = 2 * config.hidden_size

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(texts, tokens) and (texts,) -> (texts, 2 * hidden); zeros for an empty text."""
        vectors = self.dropout(self.embeddings(ids))
        packed = pack_padded_sequence(vectors, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)  # (directions, texts, hidden)
        return last.transpose(0, 1).flatten(1) * (lengths > 0)[:, None]


class Bag(nn.Module):
    """The mean of a text's word vectors."""

    def __init__(self, config: BagConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.dropout = nn.Dropout(config.dropout)
        self.width = config.embedding_size

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(texts, tokens) and (texts,) -> (texts, width); zeros for an empty text."""
        vectors = self.dropout(self.embeddings(ids))
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        return (vectors * real[:, :, None]).sum(1) / lengths.clamp(min=1)[:, None]


def pair_features(a: Tensor, b: Tensor) -> Tensor:
    """(rows, width) twice -> (rows, 4 * width): [a, b, a⊙b, |a−b|]"""
    return torch.cat([a, b, a * b, (a - b).abs()], -1)


def split_pairs(ids: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Split rows of two consecutive texts of these lengths -> all first texts, then all second ones; their lengths."""
    columns = torch.arange(ids.shape[1], device=ids.device)
    behind = (first[:, None] + columns).clamp(max=ids.shape[1] - 1)
    return torch.cat([ids, ids.gather(1, behind)]), torch.cat([first, second])


class WordVectorModel(OwnModel):
    """What both networks share: everything after a text's vector."""

    base_model_prefix = "encoder"

    def __init__(self, config: Any, encoder: Any) -> None:
        super().__init__(config)
        self.encoder = encoder
        self.dense = nn.Linear((4 if config.pairs else 1) * encoder.width, config.features)
        self.dropout = nn.Dropout(config.dropout)
        self.out = nn.Linear(config.features, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.uniform_(module.weight, -0.25, 0.25)
        elif isinstance(module, nn.Linear | nn.LSTM):
            module.reset_parameters()

    def onnx_graph(self) -> Any:
        from potstill.models.onnx.word_vectors import make_graph  # onnx is an optional dependency

        return make_graph(self) if isinstance(self.encoder, Bilstm | Bag) else None

    def get_input_embeddings(self) -> nn.Embedding:
        table: nn.Embedding = self.encoder.embeddings
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embeddings = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """(rows, tokens) each -> logits (rows, classes)."""
        if input_ids.shape[1] == 0:  # all texts are empty: tokenizers return floats
            input_ids = torch.full((len(input_ids), 1), self.config.pad_token_id or 0, device=input_ids.device)
            attention_mask = token_type_ids = torch.zeros_like(input_ids)
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if self.config.pairs:
            second = torch.zeros_like(real) if token_type_ids is None else real * token_type_ids
            lengths = real.sum(1), second.sum(1)
            a, b = self.encoder(*split_pairs(input_ids, lengths[0] - lengths[1], lengths[1])).chunk(2)
            features = pair_features(a, b)
        else:
            features = self.encoder(input_ids, real.sum(1))
        logits = self.out(self.dropout(F.relu(self.dense(features))))
        loss = None if labels is None else self.loss_function(labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class BilstmForSequenceClassification(WordVectorModel):
    config_class = BilstmConfig

    def __init__(self, config: BilstmConfig) -> None:
        super().__init__(config, Bilstm(config))


class BagForSequenceClassification(WordVectorModel):
    config_class = BagConfig

    def __init__(self, config: BagConfig) -> None:
        super().__init__(config, Bag(config))
