"""Speed of models. All models take turns in one process, and the best turn of each counts: a busy machine only slows.

Networks of one architecture must be equally fast, and turns must agree; otherwise the machine was too busy to measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from potstill.data.batches import TokenisedSet
from potstill.inference.answers import Generator, open_decoder
from potstill.measuring.measurements import BFLOAT16, Speed
from potstill.models.generation.decoding import Decoder, engine_for
from potstill.models.inference import Forward
from potstill.signals import View
from potstill.tasks.metrics.texts import BEAM, search_name
from potstill.tasks.task import Task

ROWS, SINGLE = 128, 48  # rows timed in batches; rows timed one by one
SIZES, QUOTED_SIZE = (8, 32, 128), 32  # of batches; the size that models are compared at
STREAMS = "onnx in streams"  # an ONNX file whose threads take rows of their own of a batch
LEAST_TURNS, MOST_TURNS, SECONDS = 2, 5, 8.0  # more turns are taken until these seconds are spent
NEARLY = 1.25  # times the seconds of the fastest size: slower ones take one turn only
MOST_APART = 1.10  # ratio of two networks of one architecture
MOST_SPREAD = 1.25  # ratio of the median turn to the best one

Key = TypeVar("Key", bound=Hashable)
Engine = tuple[str, str]
"""A model and its engine."""


@dataclass(frozen=True)
class Workload:
    """The calls that are timed of one model: with single examples, and with batches by their size."""

    call: Callable[[Any], object]
    single: Sequence[Any]
    batches: Mapping[int, Sequence[Any]]
    quoted_size: int
    rows: int


def forward_speeds(models: Mapping[Key, tuple[Forward, TokenisedSet[Task]]]) -> dict[Key, Speed]:
    """Time networks on some rows of their sources, which must not be empty. Texts of a batch have similar lengths."""
    return speeds({name: forward_workload(run, source) for name, (run, source) in models.items()})


def engine_speeds(models: Mapping[Engine, tuple[Forward, TokenisedSet[Task]]]) -> dict[Engine, Speed]:
    """The same by model and engine. A network that cannot compute in bfloat16 has no speed in it, and an ONNX file has
    that of its streams only where these are faster than threads at their best."""
    measured = forward_speeds({key: each for key, each in models.items() if key[1] != BFLOAT16 or _works(*each)})
    found = {key: speed for key, speed in measured.items() if key[1] != STREAMS}
    for (name, engine), speed in measured.items():
        if engine == STREAMS and rate_at_best(speed) > rate_at_best(found[name, "onnx"]):
            best = {key: speed[key] for key in ("best_examples_per_second", "best_batch")}
            found[name, "onnx"] |= {**best, "best_streams": torch.get_num_threads()}
    return found


def _works(forward: Forward, source: TokenisedSet[Task]) -> bool:
    try:
        forward(_views(source, np.zeros(1, np.int64), 1)[0].inputs)
    except RuntimeError:  # a mask may hold the lowest number of float32, which is too low for bfloat16
        return False
    return True


def decoding_speeds(models: Mapping[Key, tuple[Generator, TokenisedSet[Task]]]) -> dict[tuple[Key, str], Speed]:
    """Time generative models with greedy and with beam search, by (name, search)."""
    workloads = {}
    with ExitStack() as stack:
        for name, (model, source) in models.items():
            decode = stack.enter_context(open_decoder(model, source))
            texts = [text for text, _ in source.examples.take(timed_rows(len(source.examples))).texts()]
            for beam in (1, BEAM):
                workloads[name, search_name(beam)] = decoding_workload(decode, texts, beam)
        return speeds(workloads)


def forward_workload(forward: Forward, source: TokenisedSet[Task]) -> Workload:
    rows = timed_rows(len(source.examples))
    batches = {size: _views(source, rows, size) for size in SIZES}
    return Workload(
        lambda view: forward(view.inputs), _views(source, rows[:SINGLE], 1), batches, QUOTED_SIZE, min(ROWS, len(rows))
    )


def decoding_workload(decode: Decoder, texts: list[str], beam: int) -> Workload:
    single = [[text] for text in texts[:SINGLE]]
    return Workload(lambda batch: decode(batch, beam, 1), single, {len(texts): [texts]}, len(texts), len(texts))


def speeds(workloads: Mapping[Key, Workload]) -> dict[Key, Speed]:
    """Time all workloads in turns. The first turn makes one call of each kind to warm up and is not counted."""
    single: dict[Key, list[list[float]]] = {name: [] for name in workloads}
    batches: dict[Key, dict[int, list[list[float]]]] = {
        name: {size: [] for size in workload.batches} for name, workload in workloads.items()
    }
    start, turn = time.perf_counter(), 0
    while turn <= LEAST_TURNS or (turn <= MOST_TURNS and time.perf_counter() - start < SECONDS):
        for name, work in workloads.items():
            kept = None if turn else 1
            seconds = [_seconds(work.call, example) for example in work.single[:kept]]
            by_size = {
                size: [_seconds(work.call, batch) for batch in batch_list[:kept]]
                for size, batch_list in work.batches.items()
                if _may_count(size, work, batches[name])
            }
            if turn:
                single[name].append(seconds)
                for size, times in by_size.items():
                    batches[name][size].append(times)
        turn += 1
    return {name: _summary(work, single[name], batches[name]) for name, work in workloads.items()}


def _may_count(size: int, work: Workload, turns: Mapping[int, Sequence[Sequence[float]]]) -> bool:
    """Whether batches of this size are quoted, or were nearly the fastest in the first turn that counts."""
    first = {each: sum(taken[0]) for each, taken in turns.items() if taken}
    return size == work.quoted_size or not first or first[size] <= NEARLY * min(first.values())


def fastest_forms(speed: Mapping[tuple[str, str], Speed]) -> dict[str, str]:
    """By model, the engine that reads most examples a second at its best batch."""
    best: dict[str, str] = {}
    for name, engine in speed:
        if name not in best or rate_at_best(speed[name, engine]) > rate_at_best(speed[name, best[name]]):
            best[name] = engine
    return best


def rate_at_best(measured: Speed) -> float:
    return measured.get("best_examples_per_second", measured["examples_per_second"])


def timed_rows(rows: int) -> np.ndarray:
    """Return the positions of the timed rows, a fixed random sample: files may be sorted by length or class."""
    return np.random.default_rng(0).permutation(rows)[:ROWS]


def latency(turns: Sequence[Sequence[float]]) -> Speed:
    """`turns`: (turns, examples) seconds of single calls."""
    return {
        "latency_ms": 1000 * float(np.median(np.min(turns, axis=0))),
        "latency_p95_ms": 1000 * float(np.quantile(turns, 0.95)),
    }


def too_busy(speed: Mapping[Key, Speed], alike: Iterable[tuple[Key, Key]]) -> str | None:
    """Return why these speeds cannot be trusted, or None. `alike`: pairs that must be equally fast."""
    ratios = [speed[left]["examples_per_second"] / speed[right]["examples_per_second"] for left, right in alike]
    worst = max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)
    if worst > MOST_APART:
        percent = 100 * (worst - 1)
        return f"two networks of the same architecture differ by {percent:.0f} % in speed: the machine was too busy"
    spread = max((measured["spread"] for measured in speed.values()), default=1.0)
    if spread > MOST_SPREAD:
        percent = 100 * (spread - 1)
        return f"a network took {percent:.0f} % longer in one turn than in another: the machine was too busy"
    return None


def engine_of(model: Generator) -> str:
    """Return the name of the engine that decodes a model."""
    return "ctranslate2" if isinstance(model, Path) else engine_for(model)


def _summary(work: Workload, single: list[list[float]], batches: Mapping[int, list[list[float]]]) -> Speed:
    """`single`: (turns, examples) seconds; `batches`: (turns, batches) seconds by batch size."""
    per_second = {size: work.rows / float(np.min(turns, axis=0).sum()) for size, turns in batches.items()}
    fastest = max(per_second, key=per_second.__getitem__)
    turns = [sum(turn) for turn in batches[work.quoted_size]]
    return {
        **latency(single),
        "examples_per_second": per_second[work.quoted_size],
        "best_examples_per_second": per_second[fastest],
        "best_batch": fastest,
        "spread": float(np.median(turns) / min(turns)) if min(turns) > 0 else 1.0,
    }


def _seconds(call: Callable[[Any], object], batch: Any) -> float:
    start = time.perf_counter()
    call(batch)
    return time.perf_counter() - start


def _views(source: TokenisedSet[Task], rows: np.ndarray, size: int) -> list[View]:
    rows = rows[np.argsort(source.lengths[rows], kind="stable")]
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [source.batch(batch, source.count(batch)).student for batch in batches]
