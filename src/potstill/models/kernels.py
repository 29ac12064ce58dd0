"""Dropout and attention of networks in training on a processor, several times faster than those of PyTorch.

PyTorch draws dropout on a CPU from one slow generator on one thread, and its attention has no fused kernel with dropout;
that without dropout is slow to differentiate in 16 bits. Both were a third of a training step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

HALVES = (torch.bfloat16, torch.float16)
SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
DROPOUT = (functional.dropout, torch.dropout)
WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # numbers of so many bytes
DRAWS = 2**16  # dropout probabilities are rounded to multiples of 1 / DRAWS; the kept numbers are scaled accordingly


class SoftmaxInFloat32(TorchFunctionMode):
    """Within it, softmax is computed in float32. Autocast does this on GPUs; fused attention does it by itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SOFTMAX and args[0].dtype in HALVES:
            args, kwargs = (args[0].float(), *args[1:]), {**(kwargs or {}), "dtype": torch.float32}
        return func(*args, **(kwargs or {}))


class TrainingKernels(TorchFunctionMode):
    """Within it, a network on a CPU computes dropout and attention by the functions of this file.

    The masks follow from the seed. A call of PyTorch costs a microsecond more.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.bits = np.random.SFC64(seed)
        self.quick: dict[Any, Callable[..., Tensor | None]] = dict.fromkeys(DROPOUT, self.quick_dropout)
        self.quick[functional.scaled_dot_product_attention] = self.quick_attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.quick and (result := self.quick[func](*args, **(kwargs or {}))) is not None:
            return result
        return func(*args, **kwargs) if kwargs else func(*args)

    def quick_dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
    ) -> Tensor | None:
        """None where PyTorch's own is as good; the names of the arguments are PyTorch's."""
        if not (training and train and 0 < p < 1) or inplace or input.device.type != "cpu":
            return None
        return dropout(input, p, self.bits)

    def quick_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor | None:
        """The same for attention: fused kernels are good without dropout in float32."""
        if query.device.type != "cpu" or (dropout_p == 0 and query.dtype not in HALVES):
            return None
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        probabilities = attention_probabilities(query * scale, key, attn_mask)
        if dropout_p:
            probabilities = dropout(probabilities, dropout_p, self.bits)
        return probabilities @ value


def attention_probabilities(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """(…, tokens, width), scaled -> (…, tokens, tokens) in the precision of the queries; the softmax is at least in float32.

    `mask`: what may be seen, or what is added to the scores. A token that may see nothing sees all equally, so that it
    stays finite: it is padding, and nobody reads it.
    """
    scores = queries @ keys.transpose(-1, -2)
    wide = scores.float() if scores.dtype in HALVES else scores
    if mask is not None:
        lowest = torch.finfo(wide.dtype).min
        added = (
            torch.zeros(mask.shape, dtype=wide.dtype).masked_fill(~mask, lowest) if mask.dtype == torch.bool else mask
        )
        wide = wide + added.to(wide.dtype).clamp_min(lowest)
    return wide.softmax(-1).to(scores.dtype)


def dropout(states: Tensor, p: float, bits: np.random.BitGenerator) -> Tensor:
    """Zero with probability p; what is kept is divided by the probability of being kept."""
    bound, count = min(max(round(p * DRAWS), 1), DRAWS - 1), states.numel()
    draws = bits.random_raw(-(-count // 4)).view(np.uint16)[:count]  # four of each number of 64 bits
    # the bits of the factor times 0 or 1 are its bits or those of zero; PyTorch would take eight times as long for it
    factor = torch.tensor(DRAWS / (DRAWS - bound), dtype=states.dtype)
    pattern = factor.view(WHOLE[factor.element_size()]).numpy()
    factors = (draws >= bound).view(np.uint8) * pattern.view(f"u{factor.element_size()}")
    return states * torch.from_numpy(factors.view(pattern.dtype)).view(states.dtype).view(states.shape)
