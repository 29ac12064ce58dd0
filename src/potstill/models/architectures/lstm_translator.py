"""An LSTM encoder and decoder with global attention (Luong et al., 2015, arXiv:1508.04025).

Kim and Rush (2016, arXiv:1606.07947) distilled such networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput

from potstill.models.architectures.own_model import OwnModel
from potstill.signals import NEVER


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


class States(NamedTuple):
    """The decoder's state after some words; `generate` passes it on as `past_key_values`."""

    hidden: Tensor  # (layers, batch, width)
    cell: Tensor  # (layers, batch, width)
    attended: Tensor  # (batch, 1, width) attention output at the last word


@dataclass
class EncoderOutput(ModelOutput):
    """The batch is the first axis everywhere, because `generate` repeats it for beams."""

    last_hidden_state: Tensor | None = None  # (batch, tokens, width)
    hidden: Tensor | None = None  # (batch, layers, width) after a text's last token
    cell: Tensor | None = None  # (batch, layers, width)


class LstmEncoder(nn.Module):
    main_input_name = "input_ids"

    def __init__(self, config: LstmTranslatorConfig, embeddings: nn.Embedding) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = _lstm(config, config.hidden_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> EncoderOutput:
        """(batch, tokens) each."""
        vectors = self.dropout(self.embeddings(input_ids))
        lengths = _lengths(input_ids, attention_mask).cpu()
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        packed, (hidden, cell) = self.lstm(packed)
        states = pad_packed_sequence(packed, batch_first=True, total_length=input_ids.shape[1])[0]
        return EncoderOutput(states, hidden.transpose(0, 1), cell.transpose(0, 1))


class LstmDecoder(nn.Module):
    def __init__(self, config: LstmTranslatorConfig, embeddings: nn.Embedding) -> None:
        super().__init__()
        width = config.hidden_size
        self.input_feeding = config.input_feeding
        self.embeddings = embeddings
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = _lstm(config, 2 * width if config.input_feeding else width)
        self.score = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(2 * width, width, bias=False)

    def forward(self, ids: Tensor, states: States, source: Tensor, real: Tensor) -> tuple[Tensor, States]:
        """(batch, words); source (batch, tokens, width), real (batch, tokens) bool -> (batch, words, width)."""
        vectors = self.dropout(self.embeddings(ids))
        if not self.input_feeding:
            outputs, (hidden, cell) = self.lstm(vectors, (states.hidden, states.cell))
            attended = self.attend(outputs, source, real)
            return self.dropout(attended), States(hidden, cell, attended[:, -1:])
        steps = []
        for word in vectors.split(1, dim=1):
            inputs = torch.cat([word, states.attended], -1)
            output, (hidden, cell) = self.lstm(inputs, (states.hidden, states.cell))
            states = States(hidden, cell, self.dropout(self.attend(output, source, real)))
            steps.append(states.attended)
        return torch.cat(steps, 1), states

    def attend(self, outputs: Tensor, source: Tensor, real: Tensor) -> Tensor:
        """tanh(W [context; h]), where context is the mean of the source states weighted by softmax(hᵀ W source)."""
        scores = self.score(outputs) @ source.transpose(1, 2)  # (batch, words, tokens)
        exact = torch.promote_types(scores.dtype, torch.float32)  # also where products are in bfloat16
        weights = scores.masked_fill(~real[:, None], float("-inf")).softmax(-1, dtype=exact)
        return torch.tanh(self.combine(torch.cat([weights @ source, outputs], -1)))


def _lstm(config: LstmTranslatorConfig, input_size: int) -> nn.LSTM:
    between = config.dropout if config.lstm_layers > 1 else 0.0
    return nn.LSTM(input_size, config.hidden_size, config.lstm_layers, batch_first=True, dropout=between)


def _lengths(ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """(batch,), at least 1: an LSTM cannot read an empty text."""
    whole = ids.new_full((ids.shape[0],), ids.shape[1])
    return whole if attention_mask is None else attention_mask.sum(1).clamp(min=1)


class LstmTranslatorPreTrainedModel(OwnModel):
    config_class = LstmTranslatorConfig
    base_model_prefix = "translator"
    _input_embed_layer = "embeddings"

    def _init_weights(self, module: nn.Module) -> None:
        """Uniform from -0.1 to 0.1, as in Kim and Rush."""
        if isinstance(module, nn.Linear | nn.LSTM | nn.Embedding):
            for parameter in module.parameters():
                init.uniform_(parameter, -0.1, 0.1)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            init.zeros_(module.weight[module.padding_idx])


class LstmTranslator(LstmTranslatorPreTrainedModel):
    """Everything before the output layer."""

    def __init__(self, config: LstmTranslatorConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.encoder = LstmEncoder(config, self.embeddings)
        self.decoder = LstmDecoder(config, self.embeddings)
        self.post_init()


class LstmTranslatorForSeq2SeqLM(LstmTranslatorPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {  # noqa: RUF012 (transformers reads it from the class)
        "lm_head.weight": "translator.embeddings.weight",
        "translator.encoder.embeddings.weight": "translator.embeddings.weight",
        "translator.decoder.embeddings.weight": "translator.embeddings.weight",
    }

    def __init__(self, config: LstmTranslatorConfig) -> None:
        super().__init__(config)
        self.translator = LstmTranslator(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,  # not needed: padding comes last and never reaches earlier words
        labels: Tensor | None = None,
        encoder_outputs: EncoderOutput | None = None,
        past_key_values: States | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """(batch, tokens) and (batch, words) -> logits (batch, words, vocabulary); labels of -100 are ignored."""
        if encoder_outputs is None:
            assert input_ids is not None, "a source is needed"
            encoder_outputs = self.translator.encoder(input_ids, attention_mask)
        if decoder_input_ids is None:
            assert labels is not None, "decoder_input_ids or labels are needed"
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source, hidden, cell = encoder_outputs.last_hidden_state, encoder_outputs.hidden, encoder_outputs.cell
        assert source is not None and hidden is not None and cell is not None
        if past_key_values is None:
            nothing = source.new_zeros(len(source), 1, source.shape[2])
            past_key_values = States(hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous(), nothing)
        lengths = _lengths(source[:, :, 0], attention_mask)
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        attended, states = self.translator.decoder(decoder_input_ids, past_key_values, source, real)
        logits = self.lm_head(attended)
        if (pad := self.config.pad_token_id) is not None:  # padding is never generated, and its row gets no gradient
            logits = logits.index_fill(-1, torch.tensor(pad, device=logits.device), NEVER)
        loss: Any = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        cache: Any = states if use_cache else None
        last_hidden: Any = source
        return Seq2SeqLMOutput(loss=loss, logits=logits, past_key_values=cache, encoder_last_hidden_state=last_hidden)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift the labels right by one; the first word follows the start token."""
        start = labels.new_full((len(labels), 1), int(self.config.decoder_start_token_id))
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, int(self.config.pad_token_id))], 1)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """The cache is `States`, not keys and values."""
        return False

    @staticmethod
    def _reorder_cache(past_key_values: States, beam_idx: Tensor) -> States:
        hidden, cell, attended = past_key_values
        return States(hidden[:, beam_idx], cell[:, beam_idx], attended[beam_idx])
