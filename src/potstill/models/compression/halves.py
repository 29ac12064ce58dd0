"""Weights in half of their bytes: float16 in the file, float32 again when they are loaded."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from potstill.errors import InputError
from potstill.models.compression.coded import take_weights

LARGEST = torch.finfo(torch.float16).max


def store_halves(folder: Path) -> Path:
    """Write the float32 weights of a saved model again in float16, as one file; return it. Other tensors stay as they are.

    The config goes on saying float32, so that transformers computes in float32 too.
    """
    weights = take_weights(folder)
    for name, weight in weights.items():
        if weight.dtype == torch.float32:
            if weight.numel() and float(weight.abs().max()) > LARGEST:
                raise InputError(
                    f"{name} has numbers beyond {LARGEST:,.0f}, the largest of float16; write --to onnx, or use the "
                    "student's own folder"
                )
            weights[name] = weight.to(torch.float16)
    file = folder / "model.safetensors"
    save_file(weights, file, {"format": "pt"})
    return file
