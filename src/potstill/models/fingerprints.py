"""Hashes of models: of their weights, and of everything that decides a model's predictions."""

from __future__ import annotations

import json

import torch
import xxhash
from accelerate.utils.modeling import get_state_dict_offloaded_model
from transformers import PreTrainedModel

from potstill.models.anatomy import is_causal, is_spread

NOT_DECIDING = ("_name_or_path", "transformers_version", "potstill_temperature")  # fields that change no logit


def fingerprint(model: PreTrainedModel, tokenizer_print: str, length: int) -> str:
    """Hash all that decides a prediction: weights, architecture, tokenizer, length, float type; not the data set."""
    digest = xxhash.xxh3_128()
    add_weights(digest, model)
    shape = {k: v for k, v in model.config.to_dict().items() if k not in NOT_DECIDING}
    if is_causal(model) and not model.can_generate():
        # causal encoders were once read at their first token: memories from that time must not match
        digest.update(b"the last token stands for a text")
    digest.update(json.dumps([shape, tokenizer_print, length, str(model.dtype)], sort_keys=True, default=str).encode())
    return digest.hexdigest()


def weights_hash(model: PreTrainedModel) -> str:
    digest = xxhash.xxh3_128()
    add_weights(digest, model)
    return digest.hexdigest()


def add_weights(digest: xxhash.xxh3_128, model: PreTrainedModel) -> None:
    """Add every tensor and its name to a hash, on any device."""
    state = get_state_dict_offloaded_model(model) if is_spread(model) else model.state_dict()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
