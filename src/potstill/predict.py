"""Answers of a model for texts, row by row, and its scores on files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from potstill import measure
from potstill.batches import Source
from potstill.examples import store, tokenise
from potstill.networks import Network, load_network
from potstill.rows import Columns, open_table
from potstill.tasks import Task, make_task
from potstill.timing import speeds

AT_ONCE = 256  # texts read ahead: few enough for a pipe to flow, enough to sort by length


def predict(
    model: str | Path, texts: Iterable[str | tuple[str, str]], length: int | None = None
) -> Iterator[dict[str, Any]]:
    """One answer per text or pair, in their order, by a student's folder or an exported one.

    {"label", "probability", "probabilities"}, {"labels", "probabilities"} for label sets, or {"value"}.
    """
    network = load_network(model)
    task, _ = make_task(None, network.config, [], None, str(model))
    iterator = iter(texts)
    while chunk := list(islice(iterator, AT_ONCE)):
        for logits in _answers(network, chunk, min(length or network.longest, network.longest)):
            yield answer(task, logits)


def _answers(network: Network, texts: list[str | tuple[str, str]], length: int) -> np.ndarray:
    """(texts, classes) logits. Lone surrogates cannot be written as UTF-8 and become question marks."""
    clean = [
        tuple(part.encode("utf-8", "replace").decode() for part in ((text,) if isinstance(text, str) else text))
        for text in texts
    ]
    order = sorted(range(len(clean)), key=lambda place: -sum(map(len, clean[place])))
    found: dict[int, np.ndarray] = {}
    for begin in range(0, len(order), 32):
        places = order[begin : begin + 32]
        parts = [list(side) for side in zip(*(clean[place] for place in places), strict=True)]
        inputs = network.tokenizer(*parts, truncation=True, max_length=length, padding=True, return_tensors="pt")
        found |= zip(places, network.run(dict(inputs)), strict=True)
    return np.stack([found[place] for place in range(len(clean))])


def answer(task: Task, logits: np.ndarray) -> dict[str, Any]:
    """One row of logits in words."""
    probabilities = task.probabilities(logits[None])[0]
    if task.outcome == "value":
        return {"value": float(probabilities[0])}
    named = {label: round(float(p), 6) for label, p in zip(task.labels, probabilities, strict=True)}
    if task.outcome == "classes":
        held = [label for label, logit in zip(task.labels, logits, strict=True) if logit > 0]
        return {"labels": held, "probabilities": named}
    best = int(logits.argmax())
    return {"label": task.labels[best], "probability": named[task.labels[best]], "probabilities": named}


def measure_models(
    models: list[str], data: str, columns: Columns | None = None, labels: list[str] | None = None, length: int = 128
) -> dict[str, Any]:
    """Scores, sizes and speeds on one labelled file, in one run; the first is the one that others are compared with."""
    table = open_table(data, columns or Columns(), need_label=True)
    seen: list[str | tuple[str, ...]] = list({row.label for row in table.rows() if row.label is not None})
    found: dict[str, Any] = {}
    timed: dict[str, Any] = {}
    engines: dict[str, str] = {}
    metrics: list[str] = []
    first: np.ndarray | None = None
    for path in models:
        network = load_network(path)
        task, _ = make_task(None, network.config, seen, labels, table.source)
        examples = store(table, task)
        tokens = tokenise(examples, network.tokenizer, min(length, network.longest))
        source = Source(task, examples, tokens, tokens)
        logits = measure.answers(network.run, source)
        told = {"quality": measure.quality(task, examples, logits, first)}
        told |= measure.details(task, task.metrics[0], examples, logits)
        first = logits if first is None else first
        metrics = task.metrics
        found[path] = {kind: {"task": {"test": value}} for kind, value in told.items()}
        found[path] |= {"parameters": network.parameters, "bytes": network.bytes}
        timed[path] = (network.run, source)
        engines[path] = network.engine
    fast = speeds(timed)
    for path, speed in fast.items():
        found[path]["speed"] = {engines[path]: speed}
        found[path]["times_faster"] = speed["examples_per_second"] / fast[models[0]]["examples_per_second"]
    return {"data": data, "metrics": {"task": metrics}, "models": found}
