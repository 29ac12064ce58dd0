"""How fast: all models take turns in one run, and each one's best turn counts, since a busy machine only ever slows.

Networks of one shape must be equally fast, and turns alike; where they are not, the machine was too busy to tell.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from potstill.data.batches import TokenisedSet
from potstill.models.inference import Run
from potstill.signals import View

ROWS, ALONE = 128, 48  # timed in batches; timed one by one
SIZES = (8, 32, 128)
LEAST_TURNS, MOST_TURNS, SECONDS = 2, 5, 20.0  # further turns are taken while these seconds are not spent
MOST_APART = 1.10  # of two networks of one shape
MOST_SPREAD = 1.25  # of a usual turn and the best one

Key = TypeVar("Key", bound=Hashable)
Speed = dict[str, float]
"""latency_ms: the median over texts of each one's best time alone; latency_p95_ms: within which 95 % of all single calls ended;
examples_per_second at batch 32; best_examples_per_second, best_batch; spread: the median turn at batch 32 by the best one."""


def speeds(runs: Mapping[Key, tuple[Run, TokenisedSet]]) -> dict[Key, Speed]:
    """Of each model on some rows of a source, which must not be empty. Texts of a batch are of like length."""
    plans = {name: {size: _views(source, size) for size in (1, *SIZES)} for name, (_, source) in runs.items()}
    spent: dict[Key, dict[int, list[list[float]]]] = {name: {size: [] for size in plan} for name, plan in plans.items()}
    begun, turn = time.perf_counter(), 0
    while turn <= LEAST_TURNS or (turn <= MOST_TURNS and time.perf_counter() - begun < SECONDS):
        for name, (run, _) in runs.items():
            for size, views in plans[name].items():
                seconds = [_seconds(run, view) for view in (views if turn else views[:1])]  # the first turn warms up
                if turn:
                    spent[name][size].append(seconds)
        turn += 1
    return {name: _told(min(ROWS, len(source.examples)), spent[name]) for name, (_, source) in runs.items()}


def timed_places(rows: int) -> np.ndarray:
    """Which rows are timed: drawn once for every file of that many rows, since files may be sorted by length or class."""
    return np.random.default_rng(0).permutation(rows)[:ROWS]


def alone_and_tail(turns: Sequence[Sequence[float]]) -> Speed:
    """(turns, texts) seconds of single calls."""
    found = np.asarray(turns)
    return {
        "latency_ms": 1000 * float(np.median(found.min(0))),
        "latency_p95_ms": 1000 * float(np.quantile(found, 0.95)),
    }


def spread(turns: Sequence[float]) -> float:
    """How much longer a usual turn took than the best."""
    return float(np.median(turns) / min(turns)) if min(turns) > 0 else 1.0


def too_busy(speed: Mapping[Key, Speed], alike: Iterable[tuple[Key, Key]]) -> str | None:
    """Why these speeds tell nothing, or None. `alike`: two of one shape in one engine, which must be equally fast."""
    apart = [speed[one]["examples_per_second"] / speed[other]["examples_per_second"] for one, other in alike]
    worst = max((max(ratio, 1 / ratio) for ratio in apart), default=1.0)
    if worst > MOST_APART:
        return (
            f"two networks of one shape differ by {100 * (worst - 1):.0f} % in speed: the machine was too busy to tell"
        )
    usual = max((one["spread"] for one in speed.values()), default=1.0)
    if usual > MOST_SPREAD:
        return f"one network took {100 * (usual - 1):.0f} % longer in one turn than in another: the machine was too busy to tell"
    return None


def _told(rows: int, spent: Mapping[int, list[list[float]]]) -> Speed:
    per_second = {size: rows / float(np.min(spent[size], axis=0).sum()) for size in SIZES}
    fastest = max(SIZES, key=per_second.__getitem__)
    return {
        **alone_and_tail(spent[1]),
        "examples_per_second": per_second[32],
        "best_examples_per_second": per_second[fastest],
        "best_batch": fastest,
        "spread": spread([sum(turn) for turn in spent[32]]),
    }


def _seconds(run: Run, view: View) -> float:
    begun = time.perf_counter()
    run(view.inputs)
    return time.perf_counter() - begun


def _views(source: TokenisedSet, size: int) -> list[View]:
    rows = timed_places(len(source.examples))[: ALONE if size == 1 else ROWS]
    rows = rows[np.argsort(source.lengths[rows], kind="stable")]
    pieces = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [source.batch(piece, source.count(piece)).student for piece in pieces]
