"""Numbers of 16 bits in matrix products: whether they are faster here, and how a network computes with them.

Only products are computed in 16 bits. Weights, norms, softmax and losses stay in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.models.kernels import HALVES, SoftmaxInFloat32
from potstill.signals import Signals
from potstill.system import processor
from potstill.system.processor import best_seconds

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
FASTER = 1.5  # bfloat16 is considered where the device multiplies so many times faster in it
SIZES = {"cpu": 512, "cuda": 4096}  # of the matrices that are multiplied
TURNS = 30  # many short ones: the best finds a quiet moment on a busy machine


@contextmanager
def autocast(model: nn.Module, device: torch.device, precision: str, attention: bool = False) -> Iterator[None]:
    """Within it, the products of a model are computed in this precision. `attention`: its probabilities are wanted, so
    that no fused kernel computes them."""
    if precision == "float32":
        yield
        return
    eager = attention or getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager"
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    hooks = [norm.register_forward_pre_hook(_first_in_float32) for norm in norms]
    try:
        with torch.autocast(device.type, TYPES[precision]), SoftmaxInFloat32() if eager else nullcontext():
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _first_in_float32(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return given[0].float(), *given[1:]


def in_float32(signals: Signals) -> Signals:
    """What losses compute with: some architectures answer with states in the precision of their products."""
    every: dict[str, Any] = {field.name: getattr(signals, field.name) for field in fields(signals)}
    halves = {name: each for name, each in every.items() if isinstance(each, Tensor) and each.dtype in HALVES}
    floats: dict[str, Any] = {name: each.float() for name, each in halves.items()}
    return replace(signals, **floats)


def machine(device: torch.device) -> dict[str, Any]:
    """What a measured speed depends on besides the work."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else processor.processor_name()
    flags = [] if on_gpu else processor.instructions()
    return {"device": name, "instructions": flags, "threads": torch.get_num_threads(), "torch": torch.__version__}


def device_described(device: torch.device) -> str:
    """In one line, as "AMD EPYC (AVX2, AVX-512, VNNI, BF16), 2 threads"; of a GPU its name."""
    return str(machine(device)["device"]) if device.type == "cuda" else processor.described(torch.get_num_threads())


def bfloat16_gain(device: torch.device) -> float:
    """How many times faster this device multiplies matrices in bfloat16 than in float32; measured once, then remembered."""
    if device.type not in SIZES:
        return 1.0
    what = {"what": "products", **machine(device)}
    known = processor.recall(what)
    if known is None:
        size = SIZES[device.type]
        pairs = {
            name: [torch.randn(size, size, device=device).to(TYPES[name]) for _ in range(2)]
            for name in ("float32", "bfloat16")
        }

        def product(name: str) -> None:
            torch.mm(*pairs[name])
            synchronise(device)

        with torch.inference_mode():
            seconds = best_seconds({name: lambda name=name: product(name) for name in pairs}, TURNS)  # type: ignore[misc]
        known = {"gain": seconds["float32"] / seconds["bfloat16"]}
        processor.note(what, known)
    return float(known["gain"])


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def in_bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """A copy for inference whose products have weights of bfloat16; everything else is shared with the model.

    Run it within `autocast`. It is faster than autocast alone, which would round every weight again in every batch.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    made = copy.deepcopy(model, shared)  # tensors that are in the memo are not copied
    for module in made.modules():
        if type(module) is nn.Linear:
            module.weight = nn.Parameter(module.weight.detach().bfloat16(), requires_grad=False)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.detach().bfloat16(), requires_grad=False)
    return made.eval()
