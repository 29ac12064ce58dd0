"""How a finished model reads many texts fastest on this machine: in threads or in streams, and how many tokens at once.

Threads share every operation of a batch. Streams share its rows: each runs the whole network for its own, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from potstill.data.tokens import split_by_tokens
from potstill.models.onnx.exported import ArrayForward
from potstill.system import processor
from potstill.system.files import file_xxh3
from potstill.system.processor import best_seconds

PADDED = (512, 1024, 4096)  # tokens of a batch, from which is chosen
UNMEASURED = 1024  # for few texts: nearly always near the best
TURNS = 2
LONG = 0.1  # seconds of a batch: where one takes longer, a larger one is not faster


class Way(NamedTuple):
    streams: bool = False
    padded: int = UNMEASURED  # tokens of a batch


def fastest_way(
    files: Iterable[Path],
    threads: int,
    engine: str,
    forwards: Mapping[bool, ArrayForward],
    lengths: np.ndarray,
    inputs: Callable[[np.ndarray], Mapping[str, np.ndarray]],
) -> Way:
    """The way that reads most tokens a second, measured once for a model and machine, and then remembered.

    `files`: the weights; `forwards`: in threads (False) and, where that is possible, in streams (True). `lengths`:
    (rows,) tokens of some texts, and `inputs` makes a batch of rows.
    """
    what = circumstances("reading", files, threads, engine)
    known = processor.recall(what)
    if known is None:
        rates = _tokens_per_second(forwards, lengths, inputs)
        best = max(rates, key=rates.__getitem__)
        known = {"streams": best.streams, "padded": best.padded, "tokens_per_second": rates[best]}
        processor.note(what, known)
    return Way(known["streams"] and True in forwards, known["padded"])


def circumstances(what: str, files: Iterable[Path], threads: int, engine: str) -> dict[str, Any]:
    """All that the speed of reading depends on."""
    model = {"what": what, "model": [file_xxh3(file) for file in files], "engine": engine}
    return {**model, "device": processor.processor_name(), "instructions": processor.instructions(), "threads": threads}


def _tokens_per_second(
    forwards: Mapping[bool, ArrayForward],
    lengths: np.ndarray,
    inputs: Callable[[np.ndarray], Mapping[str, np.ndarray]],
) -> dict[Way, float]:
    """Time a batch of texts of medium length in every way. Larger batches than are worth it are left out."""
    rates: dict[Way, float] = {}
    for padded in PADDED:
        batches = list(split_by_tokens(np.arange(len(lengths)), lengths, padded))
        batch = batches[(len(batches) - 1) // 2]  # the last one may be smaller
        seconds = best_seconds({way: partial(run, inputs(batch)) for way, run in forwards.items()}, TURNS)
        rates |= {Way(way, padded): float(lengths[batch].sum()) / spent for way, spent in seconds.items()}
        if min(seconds.values()) > LONG or len(batches) == 1:
            break
    return rates
