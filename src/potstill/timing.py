"""How fast: all models take turns in one run, and each one's best turn counts, since a busy machine only ever slows."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from potstill.batches import Source
from potstill.networks import Run
from potstill.signals import View

ROWS, ALONE = 128, 48  # timed in batches; timed one by one
SIZES = (8, 32, 128)
LEAST_TURNS, MOST_TURNS, SECONDS = 2, 5, 20.0  # further turns are taken while these seconds are not spent

Key = TypeVar("Key", bound=Hashable)
Speed = dict[str, float]
"""latency_ms and latency_p95_ms of one text at a time; examples_per_second at batch 32; best_examples_per_second, best_batch."""


def speeds(runs: Mapping[Key, tuple[Run, Source]]) -> dict[Key, Speed]:
    """Of each model on the first rows of a source, which must not be empty. Texts of a batch are of like length."""
    plans = {name: {size: _views(source, size) for size in (1, *SIZES)} for name, (_, source) in runs.items()}
    best = {name: {size: np.full(len(views), np.inf) for size, views in plan.items()} for name, plan in plans.items()}
    begun, turn = time.perf_counter(), 0
    while turn <= LEAST_TURNS or (turn <= MOST_TURNS and time.perf_counter() - begun < SECONDS):
        for name, (run, _) in runs.items():
            for size, views in plans[name].items():
                for place, view in enumerate(views[:1] if turn == 0 else views):  # the first turn warms up
                    spent = _seconds(run, view)
                    if turn:
                        best[name][size][place] = min(best[name][size][place], spent)
        turn += 1
    return {name: _told(min(ROWS, len(source.examples)), best[name]) for name, (_, source) in runs.items()}


def _told(rows: int, best: dict[int, np.ndarray]) -> Speed:
    per_second = {size: rows / float(best[size].sum()) for size in SIZES}
    fastest = max(SIZES, key=per_second.__getitem__)
    return {
        "latency_ms": 1000 * float(np.median(best[1])),
        "latency_p95_ms": 1000 * float(np.quantile(best[1], 0.95)),
        "examples_per_second": per_second[32],
        "best_examples_per_second": per_second[fastest],
        "best_batch": fastest,
    }


def _seconds(run: Run, view: View) -> float:
    begun = time.perf_counter()
    run(view.inputs)
    return time.perf_counter() - begun


def _views(source: Source, size: int) -> list[View]:
    rows = np.arange(min(ALONE if size == 1 else ROWS, len(source.examples)))
    rows = rows[np.argsort(source.lengths[rows], kind="stable")]
    pieces = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [source.batch(piece, source.count(piece)).student for piece in pieces]
