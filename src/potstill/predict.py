"""Answers of a model for texts, row by row, and its scores on files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from potstill import measure
from potstill.anatomy import longest_input
from potstill.batches import Source
from potstill.examples import Examples, store, tokenise
from potstill.rows import Columns, open_table
from potstill.students import Student, load_student
from potstill.tasks import Task, make_task

AT_ONCE = 256  # texts read ahead: few enough for a pipe to flow, enough to sort by length


def predict(
    model: str | Path, texts: Iterable[str | tuple[str, str]], length: int | None = None
) -> Iterator[dict[str, Any]]:
    """One answer per text or pair, in their order: {"label", "probability", "probabilities"}, {"labels", "probabilities"} or {"value"}."""
    student = load_student(model)
    student.model.to(Accelerator().device)
    task, _ = make_task(None, student.model.config, [], None, str(model))
    room = length or longest_input(student.model, student.tokenizer)
    iterator = iter(texts)
    while chunk := list(islice(iterator, AT_ONCE)):
        for logits in _answers(student, chunk, room):
            yield answer(task, logits)


def _answers(student: Student, texts: list[str | tuple[str, str]], length: int) -> np.ndarray:
    """(texts, classes) logits. Lone surrogates cannot be written as UTF-8 and become U+FFFD."""
    clean = [
        tuple(part.encode("utf-8", "replace").decode() for part in ((text,) if isinstance(text, str) else text))
        for text in texts
    ]
    order = sorted(range(len(clean)), key=lambda place: -sum(map(len, clean[place])))
    found: dict[int, np.ndarray] = {}
    with torch.inference_mode():
        for begin in range(0, len(order), 32):
            places = order[begin : begin + 32]
            parts = [list(side) for side in zip(*(clean[place] for place in places), strict=True)]
            inputs = student.tokenizer(*parts, truncation=True, max_length=length, padding=True, return_tensors="pt")
            for place, logits in zip(
                places, student.model(**inputs.to(student.model.device)).logits.float().cpu().numpy(), strict=True
            ):
                found[place] = logits
    return np.stack([found[place] for place in range(len(clean))])


def answer(task: Task, logits: np.ndarray) -> dict[str, Any]:
    """One row of logits in words."""
    probabilities = task.probabilities(logits[None])[0]
    if task.outcome == "value":
        return {"value": float(probabilities[0])}
    named = {label: round(float(p), 6) for label, p in zip(task.labels, probabilities, strict=True)}
    if task.outcome == "classes":
        return {
            "labels": [label for label, logit in zip(task.labels, logits, strict=True) if logit > 0],
            "probabilities": named,
        }
    best = int(logits.argmax())
    return {"label": task.labels[best], "probability": named[task.labels[best]], "probabilities": named}


def measure_models(
    models: list[str], data: str, columns: Columns | None = None, labels: list[str] | None = None, length: int = 128
) -> dict[str, Any]:
    """Scores, sizes and speeds of models on one labelled file, in one run; the first is the one that others are compared with."""
    table = open_table(data, columns or Columns(), need_label=True)
    seen: list[str | tuple[str, ...]] = list({row.label for row in table.rows() if row.label is not None})
    found: dict[str, Any] = {}
    timed: dict[str, Any] = {}
    metrics: list[str] = []
    first: np.ndarray | None = None
    for folder in models:
        student = load_student(folder)
        student.model.to(Accelerator().device)
        task, _ = make_task(None, student.model.config, seen, labels, table.source)
        examples: Examples = store(table, task)
        tokens = tokenise(examples, student.tokenizer, min(length, longest_input(student.model, student.tokenizer)))
        source = Source(task, examples, tokens, tokens)
        logits = measure.answers(student.model, source)
        quality = measure.quality(task, source, logits, first)
        first = logits if first is None else first
        metrics = task.metrics
        found[folder] = {
            "quality": {"task": {"test": quality}},
            **measure.size(student.model, Path(folder) if Path(folder).is_dir() else None),
        }
        timed[folder] = (student.model, source)
    per_second = measure.speeds(timed)
    for folder, speed in per_second.items():
        found[folder] |= {"examples_per_second": speed, "times_faster": speed / per_second[models[0]]}
    return {"data": data, "metrics": {"task": metrics}, "models": found}
