"""Which device trains, in which precision."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from potstill.errors import InputError
from potstill.recipe.schema import Recipe


def make_accelerator(recipe: Recipe) -> Accelerator:
    precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[recipe.precision]
    kind = recipe.device.split(":")[0]
    available = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(kind, False):
        raise InputError(
            f"this machine has no device '{recipe.device}'; write --device cpu, or --device auto to use what is there"
        )
    if recipe.precision == "float16" and not available["cuda"]:
        raise InputError("float16 needs a CUDA device; write precision = 'bfloat16' or 'float32'")
    if ":" in recipe.device:
        os.environ["ACCELERATE_TORCH_DEVICE"] = recipe.device
    # the other ranks wait while rank 0 measures; a rank that died is noticed at once, whatever the limit
    waiting = InitProcessGroupKwargs(timeout=timedelta(hours=12))
    return Accelerator(cpu=kind == "cpu", mixed_precision=precision, kwargs_handlers=[waiting])
