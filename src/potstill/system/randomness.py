"""Random numbers as functions of what they are for, so that resumed runs, ranks and workers draw the same ones.

Nothing random is stored: the order of an epoch, dropout and augmentation follow from a seed and a few names or keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    import torch

SPLITMIX_STEP = np.uint64(0x9E3779B97F4A7C15)  # the counter of SplitMix64 advances by this number


def mix(*parts: int | str) -> int:
    """Return a seed of 63 bits, which torch accepts, from numbers and names that say what the seed is for."""
    return xxhash.xxh3_64_intdigest(repr(parts).encode()) >> 1


def splitmix64(numbers: np.ndarray) -> np.ndarray:
    """Map uint64 to uint64 one to one so that close numbers end up far apart: the finalizer of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def uniform(numbers: np.ndarray) -> np.ndarray:
    """Map random uint64 to float64 in [0, 1)."""
    return np.asarray((numbers >> np.uint64(11)) / 2.0**53)


def draw_uniform(keys: np.ndarray, seed: tuple[int, ...], count: int) -> np.ndarray:
    """Return (n, count) numbers in [0, 1). Each depends only on its key, its column and the seed."""
    salted = splitmix64(keys.astype(np.uint64) ^ np.uint64(mix(*seed, "drawn")))
    return uniform(splitmix64(salted[:, None] + np.arange(1, count + 1, dtype=np.uint64) * SPLITMIX_STEP))


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the generators that work on this device draws from."""
    import torch

    if device.type == "cpu":  # torch.manual_seed would also queue calls for absent GPUs, each with a formatted stack
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators inside the block and restore their state after it."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
