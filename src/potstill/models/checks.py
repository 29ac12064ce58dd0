"""Checks of a loaded model: complete and finite weights, the right tokenizer, predictions that ignore padding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import TESTED, architecture_name, has_layers, in_head, is_spread, layers_path
from potstill.models.folders import model_folder

PADDED_TEXTS = (  # of many lengths
    "good",
    "it was not what they had hoped for, and nobody stayed to the end of it",
    "one two three",
    "why ?",
)
PADDING_EFFECT = 0.1  # tolerated, relative to how far the logits of these texts differ from each other


def missing_weights(info: dict[str, Any]) -> set[str]:
    """Return the weights that the file lacks or has in another shape; `info` is transformers' load report."""
    return set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}


def refuse_bad_weights(folder: str | Path, model: PreTrainedModel, info: dict[str, Any], may_make_head: bool) -> None:
    """Refuse missing, non-finite and surplus weights; with `may_make_head` the head may be missing."""
    missing = sorted(missing_weights(info))
    encoder = [name for name in missing if not in_head(model, name)]
    if encoder:
        raise InputError(
            f"{folder} lacks {len(encoder)} weights of the encoder, or has them in another shape, "
            f"such as {encoder[0]}; use a folder whose config.json and model.safetensors belong together"
        )
    if missing and not may_make_head:
        raise InputError(
            f"{folder} has no trained head ({', '.join(missing)}); use a model that was fine-tuned on this task"
        )
    saved = set()
    for name, weight in _stored_weights(model_folder(folder)) if is_spread(model) else model.state_dict().items():
        saved.add(name)
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise InputError(
                f"{folder}: {name} holds numbers that are not finite; use a model whose training did not diverge"
            )
    saved |= set(getattr(model, "all_tied_weights_keys", None) or {})  # stored under the name of another weight
    if lost := [name for name, weight in model.named_parameters() if weight.is_meta and name not in saved]:
        raise InputError(f"{folder}: {lost[0]} is in no file and cannot be offloaded; write teacher_devices = 'one'")
    if has_layers(model):
        _refuse_surplus_layers(folder, model, info)


def _refuse_surplus_layers(folder: str | Path, model: PreTrainedModel, info: dict[str, Any]) -> None:
    layer = re.compile(re.escape(layers_path(model).partition(".")[2]) + r"\.(\d+)\.")
    numbers = {name: int(match[1]) for name in info["unexpected_keys"] if (match := layer.search(name))}
    surplus = sorted(name for name, number in numbers.items() if number >= model.config.num_hidden_layers)
    if surplus:
        raise InputError(
            f"{folder} has layers that its config.json does not name, such as {surplus[0]}; "
            f"write the right number of layers into config.json, which now says {model.config.num_hidden_layers}"
        )


def _stored_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield weights one by one: a model that is spread over devices may not fit into memory."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is not a dictionary)
                yield name, tensors.get_tensor(name)


def refuse_padding_effect(folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a classifier whose predictions change when a text is padded on the right, as texts of a batch are.

    XLNet reads its state at the end of the batch, and FNet mixes padding with words: their predictions would depend on
    which texts share a batch.
    """
    try:
        rows = [tokenizer(text)["input_ids"] or [0] for text in PADDED_TEXTS]
        alone = torch.cat([_logits(model, tokenizer, [row]) for row in rows])
        together = _logits(model, tokenizer, rows)
    except Exception:  # a model that cannot run at all fails where it is used, with its own reason
        return
    spread = (alone - alone.mean(0)).norm()
    if bool((together - alone).norm() > PADDING_EFFECT * spread + 1e-3):
        raise InputError(
            f"{folder}: the predictions of a {architecture_name(model)} change when texts are padded on the right, "
            f"as in batches; use an encoder such as {', '.join(TESTED)}"
        )


def _logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[list[int]]) -> Tensor:
    """(rows, classes)"""
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(max(map(len, rows))) < lengths[:, None]
    ids = torch.full(real.shape, tokenizer.pad_token_id or 0)
    ids[real] = torch.tensor([token for row in rows for token in row])
    inputs = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(ids)}
    with torch.inference_mode():
        logits: Tensor = model(**{name: inputs[name] for name in tokenizer.model_input_names if name in inputs}).logits
    return logits
