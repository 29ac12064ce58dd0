"""Answers of a model for texts, row by row, and its scores on files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potstill import measure
from potstill.batches import Source, cut, view
from potstill.cells import second_text
from potstill.errors import InputError
from potstill.examples import store
from potstill.networks import Network, load_network
from potstill.prepare import labels_of
from potstill.rows import BETWEEN, Columns, Form, open_table
from potstill.tasks import Task, make_task
from potstill.tasks.matching import kind_of
from potstill.timing import speeds
from potstill.tokens import in_memory, tokenise

AT_ONCE = 256  # rows read ahead: few enough for a pipe to flow, enough to sort by length
PADDED = 4096  # tokens of a batch

Asked = str | tuple[str, str] | Sequence[str] | Mapping[str, Any]
WORDS = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")  # of running text, about as newspapers' corpora split it
NEEDS: dict[Form, str] = {
    "answers": '{"question": "when did it begin ?", "context": "It began in May ."}',
    "choices": '{"text": "It rained .", "question": "it was _", "choices": ["wet", "dry"]}',
}


def predict(model: str | Path, texts: Iterable[Asked], length: int | None = None) -> Iterator[dict[str, Any]]:
    """One answer per text, in their order, by a student's folder or an exported one; see `told` of the model's task.

    A text is a string, a pair a tuple of two; words to be tagged are a list, or a string that is split at spaces and
    signs; a question is {"question", "context"}, multiple choice {"text", "question", "choices"}, as objects or as JSON.
    """
    network = load_network(model)
    form = kind_of(network.config).form
    iterator = iter(texts)
    while chunk := [as_row(form, one) for one in islice(iterator, AT_ONCE)]:
        candidates = {len(str(pair).split(BETWEEN)) for _, pair in chunk}
        if len(candidates) > 1:
            raise InputError(f"questions have {sorted(candidates)} candidates; give as many for each")
        task, _ = make_task(None, network.config, [], None, str(model), form, *candidates)
        for (text, pair), said in zip(chunk, _said(network, task, chunk, length), strict=True):
            yield task.told(said, text, pair)


def asked_in(file: str, columns: Columns) -> Iterator[Asked]:
    """The rows of a file."""
    table = open_table(file, columns)
    for row in table.rows():
        if table.form == "words":
            yield row.text.split(BETWEEN)
        else:
            yield row.text if row.pair is None else (row.text, row.pair)


def as_row(form: Form, asked: Asked) -> tuple[str, str | None]:
    """Text and pair, as rows of this form have them. Lone surrogates cannot be written as UTF-8: they become question marks."""
    if form in NEEDS and isinstance(asked, str):
        try:
            asked = json.loads(asked)
        except ValueError:
            asked = {}
    if isinstance(asked, Mapping):
        try:
            if form == "answers":
                asked = (asked["question"], asked["context"])
            else:
                seconds = [second_text(str(asked.get("question", "")), str(one)) for one in asked["choices"]]
                asked = (str(asked.get("text", "")), BETWEEN.join(seconds))
        except (KeyError, TypeError):
            raise InputError(
                f"the model answers questions; write each as JSON, such as {NEEDS[form if form in NEEDS else 'answers']}"
            ) from None
    if form == "words":
        asked = BETWEEN.join(WORDS.findall(asked) or [""]) if isinstance(asked, str) else BETWEEN.join(map(str, asked))
    text, pair = (asked, None) if isinstance(asked, str) else asked
    clean = [None if part is None else str(part).encode("utf-8", "replace").decode() for part in (text, pair)]
    return str(clean[0]), clean[1]


@dataclass(frozen=True)
class _Unlabelled:
    rows: list[tuple[str, str | None]]

    def text(self, row: int) -> tuple[str, str | None]:
        return self.rows[row]

    def gold(self, row: int) -> None:
        return None


def _said(network: Network, task: Task, rows: list[tuple[str, str | None]], length: int | None) -> list[np.ndarray]:
    tokens = in_memory(task, rows, network.tokenizer, min(length or network.longest, network.longest))
    found: dict[int, np.ndarray] = {}
    every = np.arange(len(rows))
    for piece in cut(every, tokens.lengths(every), PADDED):
        reading = view(task, tokens, piece)
        logits = reading.predictions(torch.from_numpy(network.run(reading.inputs))).numpy()
        found |= zip(piece.tolist(), task.read(logits, tokens, piece, _Unlabelled(rows)), strict=True)
    return [found[place] for place in range(len(rows))]


def measure_models(
    models: list[str], data: str, columns: Columns | None = None, labels: list[str] | None = None, length: int = 128
) -> dict[str, Any]:
    """Scores, sizes and speeds on one labelled file, in one run; the first is the one that others are compared with."""
    table = open_table(data, columns or Columns(), need_label=True)
    seen = labels_of(table)
    found: dict[str, Any] = {}
    timed: dict[str, Any] = {}
    engines: dict[str, str] = {}
    metrics: list[str] = []
    first: np.ndarray | None = None
    for path in models:
        network = load_network(path)
        task, _ = make_task(None, network.config, seen, labels, table.source, table.form, table.choices)
        examples = store(table, task)
        tokens = tokenise(task, examples, network.tokenizer, min(length, network.longest))
        source = Source(task, examples, tokens, tokens)
        said = measure.answers(measure.network(network.run), source)
        told = {"quality": measure.quality(task, examples, said, first)}
        told |= measure.details(task, task.metrics[0], examples, said)
        first = said if first is None else first
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
