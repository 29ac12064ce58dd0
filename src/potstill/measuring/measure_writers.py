"""Scores, sizes and speeds of models that write, on one file and in one run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.batches import Source
from potstill.data.examples import store
from potstill.data.rows import Columns, open_table
from potstill.data.tokens import tokenise
from potstill.errors import InputError
from potstill.inference import answers as measure
from potstill.inference.texts import Writer, engine_of, search, with_texts, writing_speeds
from potstill.measuring.speed import too_busy
from potstill.models.anatomy import longest_input
from potstill.models.generation.ctranslate2 import ABOUT, is_exported
from potstill.models.generation.languages import language_prefix
from potstill.models.loading import load_tokenizer
from potstill.models.student import Student, load_student
from potstill.system.paths import given
from potstill.tasks.generate import Answer, Generating
from potstill.tasks.metrics.texts import signatures


def measure_writers(
    models: list[str], data: str, columns: Columns, kind: type[Generating], length: int, language: str | None = None
) -> dict[str, Any]:
    """What they write is scored, and the writing timed; the first is the one that others are compared with.

    Of an exported model the texts alone are scored: the probability of the gold ones is not asked for.
    """
    task = kind("class", ())
    found: dict[str, Any] = {}
    read: dict[str, tuple[Writer, Source]] = {}
    first: np.ndarray | None = None
    for path in models:
        writer: Writer = given(path) if is_exported(path) else load_student(path)
        tokenizer = load_tokenizer(path) if isinstance(writer, Path) else writer.tokenizer
        table = open_table(data, replace(columns, before=language_prefix(language, tokenizer, path)), True, kind.form)
        examples = store(table, task)
        tokens = tokenise(task, examples, tokenizer, min(length, _longest(writer, tokenizer)))
        source = Source(task, examples, tokens, tokens)
        said = _said(writer, source)
        told = {"quality": measure.quality(task, examples, said, first)}
        told |= measure.details(task, task.metrics[0], examples, said)
        first = said if first is None else first
        read[path] = writer, source
        found[path] = {part: {"task": {"test": value}} for part, value in told.items()}
        found[path] |= _size(writer, path)
    speed = writing_speeds(read) if task.decodes else {}
    for path in models if speed else ():
        found[path]["speed"] = {way: one for (owner, way), one in speed.items() if owner == path}
        rates = [speed[owner, search(1)]["examples_per_second"] for owner in (path, models[0])]
        found[path]["times_faster"] = rates[0] / rates[1]
        found[path]["engine"] = engine_of(read[path][0])
    counted = {"signatures": signatures()} if task.decodes else {}
    busy = {"too_busy": why} if (why := too_busy(speed, [])) else {}
    return {"data": data, "metrics": {"task": task.metrics}, **counted, **busy, "models": found}


def _said(writer: Writer, source: Source) -> np.ndarray:
    if isinstance(writer, Student):
        return measure.said_by(writer, source, beam=True)
    if not source.task.decodes or not (writer / "shared_vocabulary.json").exists():
        raise InputError(f"{writer} is an exported language model, which is not scored; give the student's own folder")
    unknown = np.stack([Answer(0.0, 0.0, 0.0).packed()] * len(source.examples))
    return measure.filled(with_texts(unknown, writer, source, beam=True))


def _longest(writer: Writer, tokenizer: PreTrainedTokenizerBase) -> int:
    if isinstance(writer, Student):
        return longest_input(writer.model, tokenizer)
    return int(tokenizer.model_max_length)  # its decoder knows where its positions end


def _size(writer: Writer, path: str) -> dict[str, Any]:
    if isinstance(writer, Student):
        return measure.size(writer.model, path)
    about = json.loads((writer / ABOUT).read_text(encoding="utf-8"))
    return {"parameters": about.get("parameters"), "bytes": (writer / "model.bin").stat().st_size}
