"""Whether a classifier answers the same when padding stands behind a text: rows of a batch are padded on the right."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import TESTED, kind

TEXTS = ("good", "it was not what they had hoped for, and nobody stayed to the end of it", "one two three", "why ?")
MOVED = 0.1  # of how far these texts' own answers lie apart


def refuse_moved_by_padding(folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """XLNet reads its state where the batch ends, FNet mixes padding with the words: their answers would hang on which
    texts stand together in a batch."""
    try:
        rows = [tokenizer(text)["input_ids"] or [0] for text in TEXTS]
        alone = torch.cat([_asked(model, tokenizer, [row]) for row in rows])
        together = _asked(model, tokenizer, rows)
    except Exception:  # what cannot be asked at all is told where it is used, with its own reason
        return
    apart = (alone - alone.mean(0)).norm()
    if bool((together - alone).norm() > MOVED * apart + 1e-3):
        raise InputError(
            f"{folder}: a {kind(model)} answers otherwise when padding stands behind a text, and batches are padded there; "
            f"use an encoder such as {', '.join(TESTED)}"
        )


def _asked(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[list[int]]) -> Tensor:
    """(rows, classes)"""
    longest = max(map(len, rows))
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(longest) < lengths[:, None]
    ids = torch.full(real.shape, tokenizer.pad_token_id or 0)
    ids[real] = torch.tensor([one for row in rows for one in row])
    given = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(ids)}
    with torch.inference_mode():
        said: Tensor = model(**{name: given[name] for name in tokenizer.model_input_names if name in given}).logits
    return said
