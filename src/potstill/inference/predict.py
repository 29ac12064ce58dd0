"""Answers of a model for texts, row by row, and its scores on files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potstill.data.batches import TokenisedSet, split_by_tokens, view
from potstill.data.examples import store
from potstill.data.formats.text import clean_text, short_repr
from potstill.data.pixel_reader import describe_size
from potstill.data.records import fill_candidate
from potstill.data.row import Form, Row, join_parts, pixels_to_text, split_parts
from potstill.data.rows import Columns, open_table
from potstill.data.tokens import tokenise, tokenise_texts
from potstill.errors import InputError
from potstill.inference import answers as measure
from potstill.measuring.speed import speeds, too_busy
from potstill.models.generation.ctranslate2 import is_exported
from potstill.models.inference import Network, load_network
from potstill.models.loading import load_config
from potstill.tasks.classify_images import Pixels
from potstill.tasks.generate import Generating
from potstill.tasks.label_matching import labels_of, make_task
from potstill.tasks.positive_class import with_positive
from potstill.tasks.registry import WHAT, kind_of
from potstill.tasks.task import Task
from potstill.tasks.translate import Translating

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
    signs; a question is {"question", "context"}, multiple choice {"text", "question", "choices"}, as objects or as JSON;
    an image is an array or list of its pixels, 0 to 255.
    """
    network = load_network(model)
    form = kind_of(network.config).form
    if issubclass(kind_of(network.config), Generating):
        raise InputError(f"{model} writes texts instead of answering; write potstill translate {model}")
    iterator = iter(texts)
    while chunk := [as_row(form, one) for one in islice(iterator, AT_ONCE)]:
        several = {len(split_parts(str(pair))) for _, pair in chunk} if form == "choices" else {0}
        if len(several) > 1:
            raise InputError(f"questions have {sorted(several)} candidates; give as many for each")
        task, _ = make_task(None, network.config, [], None, str(model), form, choices=several.pop())
        if isinstance(task, Pixels):
            refuse_other_sizes(chunk, task)
        for (text, pair), said in zip(chunk, _said(network, task, chunk, length), strict=True):
            yield task.told(said, text, pair)


def rows_for(config: Any, file: str, text: str | None = None, pair: str | None = None) -> Iterator[Row]:
    """The rows of a file, which must be of the form that the model reads."""
    kind = kind_of(config)
    form = kind.form
    # two texts could mean many things, and one alone as well
    table = open_table(file, Columns(text, pair), form=form if issubclass(kind, Generating) else None)
    if table.form != form:
        raise InputError(f"{file}: the rows are {WHAT[table.form]}, but the model is made for {WHAT[form]}; give these")
    return table.rows()


def asked_in(model: str | Path, file: str, text: str | None = None, pair: str | None = None) -> Iterator[Any]:
    """The rows of a file, to be answered by this model."""
    config = load_config(model)
    for row in rows_for(config, file, text, pair):
        yield split_parts(row.text) if kind_of(config).form == "words" else (row.text, row.pair)


def as_row(form: Form, asked: Asked) -> tuple[str, str | None]:
    """Text and pair, as rows of this form have them."""
    if form == "pixels":
        return as_pixels(asked), None
    try:
        if form == "words":
            words = [asked] if isinstance(asked, tuple) else asked
            words = WORDS.findall(words) if isinstance(words, str) else [str(word) for word in words]
            return join_parts(map(_clean, words)), None
        if form in NEEDS and isinstance(asked, str):
            asked = json.loads(asked)
        if form == "answers" and isinstance(asked, Mapping):
            asked = (asked["question"], asked["context"])
        if form == "choices" and isinstance(asked, Mapping):
            if isinstance(asked["choices"], str):
                raise ValueError
            question = _clean(asked.get("question") or "")
            seconds = [fill_candidate(question, _clean(one)) for one in asked["choices"]]
            return _clean(asked.get("text") or ""), join_parts(seconds)
        text, pair = (asked, None) if isinstance(asked, str) else asked
        if not isinstance(text, str) or (form in NEEDS and not isinstance(pair, str)):
            raise ValueError
        # candidates of a file's row are joined already
        return _clean(text), None if pair is None else pair if form == "choices" else _clean(pair)
    except (KeyError, TypeError, ValueError):
        what = f"a question, written as JSON such as {NEEDS[form]}" if form in NEEDS else "a text, or a pair of texts"
        raise InputError(f"{short_repr(asked)} is not what the model answers; write {what}") from None


def as_pixels(asked: Any) -> str:
    """A file's row is a text of pixels already; an array or list of numbers from 0 to 255, or its JSON, becomes one."""
    if isinstance(asked, tuple) and len(asked) == 2 and asked[1] is None:
        return str(asked[0])
    try:
        numbers = np.asarray(json.loads(asked) if isinstance(asked, str) else asked, float).ravel()
        if not len(numbers) or not ((numbers >= 0) & (numbers <= 255) & (numbers % 1 == 0)).all():
            raise ValueError
    except (TypeError, ValueError):
        told = f"{short_repr(asked)} is no image"
        raise InputError(f"{told}; write its pixels as a list of whole numbers from 0 to 255, or name a file") from None
    return pixels_to_text(numbers.astype(np.uint8).tobytes())


def refuse_other_sizes(rows: list[tuple[str, str | None]], task: Pixels) -> None:
    wanted = math.prod(task.shape)
    for text, _ in rows:
        if len(text) != wanted:
            raise InputError(
                f"an image has {len(text)} pixels, the model reads {describe_size(task.shape)}; give such images"
            )


def _clean(text: Any) -> str:
    """Without what tokenizers and rows cannot hold."""
    if not isinstance(text, str):
        raise ValueError
    return clean_text(text)


@dataclass(frozen=True)
class _Unlabelled:
    rows: list[tuple[str, str | None]]

    def text(self, row: int) -> tuple[str, str | None]:
        return self.rows[row]

    def gold(self, row: int) -> None:
        return None


def _said(network: Network, task: Task, rows: list[tuple[str, str | None]], length: int | None) -> list[np.ndarray]:
    tokens = tokenise_texts(task, rows, network.tokenizer, min(length or network.usual, network.longest))
    found: dict[int, np.ndarray] = {}
    every = np.arange(len(rows))
    for piece in split_by_tokens(every, tokens.lengths(every), PADDED):
        reading = view(task, tokens, piece)
        logits = reading.predictions(torch.from_numpy(network.run(reading.inputs))).numpy()
        found |= zip(piece.tolist(), task.read(logits, tokens, piece, _Unlabelled(rows)), strict=True)
    return [found[place] for place in range(len(rows))]


def measure_models(
    models: list[str],
    data: str,
    columns: Columns | None = None,
    labels: list[str] | None = None,
    length: int = 128,
    language: str | None = None,
) -> dict[str, Any]:
    """Scores, sizes and speeds on one labelled file, in one run; the first is the one that others are compared with."""
    kind = Translating if is_exported(models[0]) else kind_of(load_config(models[0]))
    if issubclass(kind, Generating):
        from potstill.measuring.measure_writers import measure_writers

        return measure_writers(models, data, columns or Columns(), kind, length, language)
    table = open_table(data, columns or Columns(), need_label=True)
    seen = labels_of(table)
    found: dict[str, Any] = {}
    timed: dict[str, Any] = {}
    engines: dict[str, str] = {}
    metrics: list[str] = []
    first: np.ndarray | None = None
    for path in models:
        network = load_network(path)
        task, _ = make_task(None, network.config, seen, labels, table.source, table.form, table.choices, table.shape)
        examples = store(table, task)
        task = with_positive(task, None, examples.labelled_only)
        tokens = tokenise(task, examples, network.tokenizer, min(length, network.longest))
        source = TokenisedSet(task, examples, tokens, tokens)
        said = measure.answers(measure.network(network.run), source)
        told = {"quality": measure.quality(task, examples, said, first)}
        told |= measure.details(task, task.metrics[0], examples, said)
        first = said if first is None else first
        metrics = task.metrics
        found[path] = {kind: {"task": {"test": value}} for kind, value in told.items()}
        found[path] |= {"parameters": network.parameters, "bytes": network.bytes, "engine": network.engine}
        timed[path] = (network.run, source)
        engines[path] = network.engine
    fast = speeds(timed)
    for path, speed in fast.items():
        found[path]["speed"] = {engines[path]: speed}
        found[path]["times_faster"] = speed["examples_per_second"] / fast[models[0]]["examples_per_second"]
    busy = {"too_busy": why} if (why := too_busy(fast, [])) else {}
    return {"data": data, "metrics": {"task": metrics}, **busy, "models": found}
