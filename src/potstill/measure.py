"""What we found: quality, size and speed, always in one run beside the teacher and the baseline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from potstill.batches import Source
from potstill.networks import Run
from potstill.signals import View
from potstill.tasks import Task

SCORED_AT_ONCE = 8192  # padded tokens
TIMED_ROWS, TIMED_BATCH, ROUNDS = 256, 32, 3


def answers(run: Run, source: Source) -> np.ndarray:
    """(n, classes) logits in the order of the examples."""
    found: np.ndarray | None = None
    for positions, batch in source.in_order(SCORED_AT_ONCE):
        logits = run(batch.student.inputs)
        if found is None:
            found = np.empty((len(source.examples), logits.shape[1]), np.float32)
        found[positions] = logits
    return found if found is not None else np.empty((0, source.task.classes), np.float32)


def quality(task: Task, source: Source, logits: np.ndarray, teacher: np.ndarray | None = None) -> dict[str, float]:
    """Scores over the labelled rows, and agreement with the teacher over all."""
    rows = source.examples.index
    labelled = np.asarray(source.examples.labelled[rows])
    scores: dict[str, float] = {"rows": int(labelled.sum())}
    if labelled.any():
        scores |= task.score(np.asarray(source.examples.targets[rows[labelled]]), logits[labelled])
    if teacher is not None:
        scores["agreement"] = agreement(task, logits, teacher)
    return scores


def agreement(task: Task, ours: np.ndarray, theirs: np.ndarray) -> float:
    """Share of rows with the same answer; for values, Pearson's correlation."""
    if task.outcome == "value":
        from potstill.metrics import pearson

        return pearson(theirs[:, 0], ours[:, 0])
    same = task.decode(ours) == task.decode(theirs)
    return float(same.mean() if same.ndim == 1 else same.all(1).mean())


def size(model: PreTrainedModel) -> dict[str, int]:
    """Parameters, and the bytes of their float32 file."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "bytes": 4 * parameters}


def speeds(runs: Mapping[str, tuple[Run, Source]]) -> dict[str, float]:
    """Examples a second at batch 32: all take turns in one run, and the best of three rounds counts."""
    views = {name: _timed_views(source) for name, (_, source) in runs.items()}
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(ROUNDS + 1):  # the first warms up
        for name, (run, _) in runs.items():
            begun = time.perf_counter()
            for view in views[name]:
                run(view.inputs)
            if turn:
                best[name] = min(best[name], time.perf_counter() - begun)
    return {name: sum(len(view.real) for view in views[name]) / spent for name, spent in best.items() if views[name]}


def _timed_views(source: Source) -> list[View]:
    """The first rows of a test set in batches of 32 of like length."""
    rows = np.arange(min(TIMED_ROWS, len(source.examples)))
    rows = rows[np.argsort(source.lengths[rows], kind="stable")]
    pieces = [rows[i : i + TIMED_BATCH] for i in range(0, len(rows), TIMED_BATCH)]
    return [source.batch(piece, source.count(piece)).student for piece in pieces]


def table(measurements: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the one table that every run ends in."""
    models: Mapping[str, Any] = measurements["models"]
    student = list(models.values())[-1]  # a teacher that is a file may lack answers for some splits
    places = [(data, split) for data, splits in student["quality"].items() for split in splits]
    several = len({data for data, _ in places}) > 1
    shown = {place: _shown(measurements["metrics"][place[0]]) for place in places}
    names = [(place, metric) for place in places for metric in shown[place]]
    header = [
        "",
        *(f"{f'{data} ' if several else ''}{split} {metric}" for (data, split), metric in names),
        "same as teacher",
        "parameters",
        "MB",
        "faster",
    ]
    rows = []
    for name, model in models.items():
        cells = [_percent(model["quality"].get(data, {}).get(split, {}).get(metric)) for (data, split), metric in names]
        last = list(model["quality"].values())[-1]
        agreed = list(last.values())[-1].get("agreement") if last else None
        faster = model.get("times_faster")
        rows.append(
            [
                name,
                *cells,
                _percent(agreed),
                _in_millions(model["parameters"], " M"),
                _in_millions(model["bytes"]),
                f"{faster:.1f}×" if faster else "–",
            ]
        )
    return header, rows


def _shown(metrics: Sequence[str]) -> list[str]:
    """What was chosen by, and one more that is usually quoted."""
    usual = [
        metric for metric in metrics[1:] if metric in ("accuracy", "f1", "f1_micro", "f1_macro", "pearson", "spearman")
    ]
    return [metrics[0], *usual[:1]]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _in_millions(count: int | None, unit: str = "") -> str:
    return "–" if count is None else f"{count / 1e6:.1f}{unit}"
