"""Scores, sizes and speeds of finished models on one labelled file: `potstill measure`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet
from potstill.data.examples import store
from potstill.data.rows import Columns, open_table
from potstill.data.tokens import tokenise
from potstill.errors import InputError
from potstill.inference.answers import Generator, answers, model_answers, network, padded, plain_answers, with_texts
from potstill.measuring import quality
from potstill.measuring.measurements import BFLOAT16
from potstill.measuring.speed import (
    STREAMS,
    Speed,
    decoding_speeds,
    engine_of,
    engine_speeds,
    fastest_forms,
    rate_at_best,
    too_busy,
)
from potstill.models.anatomy import longest_input
from potstill.models.folders import stored_temperature
from potstill.models.generation.ctranslate2 import ABOUT, is_exported
from potstill.models.generation.languages import language_prefix
from potstill.models.inference import Forward, load_network
from potstill.models.loading import load_config, load_tokenizer
from potstill.models.student import Student, load_student
from potstill.system import processor
from potstill.system.paths import expand_user
from potstill.tasks.generate import Generated
from potstill.tasks.label_matching import labels_of, make_task, with_positive
from potstill.tasks.metrics.texts import signatures
from potstill.tasks.registry import TASKS, task_of
from potstill.tasks.task import Task

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Candidate:
    """A model that has answered the file and can be timed."""

    path: str
    task: Task
    source: TokenisedSet[Task]
    predictions: np.ndarray
    plain: np.ndarray  # the same as they are read at a temperature of 1
    size: dict[str, Any]
    model: Forward | Generator
    engine: str
    forms: dict[str, Forward] = field(default_factory=dict)  # of a network, by engine


def measure_models(
    models: list[str],
    data: str,
    columns: Columns | None = None,
    labels: list[str] | None = None,
    length: int = 128,
    language: str | None = None,
) -> dict[str, Any]:
    """Measure models on one labelled file. Agreement and speed are relative to the first model."""
    columns = columns or Columns()
    kind = TASKS["translate"] if is_exported(models[0]) else task_of(load_config(models[0]))
    if kind.generates:
        candidates = list(_generators(models, data, columns, kind(()), length, language))
    else:
        candidates = list(_networks(models, data, columns, kind, labels, length))
    task, first = candidates[-1].task, candidates[0].predictions
    measured: dict[str, dict[str, Any]] = {}
    for candidate in candidates:
        other = None if candidate is candidates[0] else first
        scored = candidate.task, candidate.source.examples, candidate.predictions
        parts = {"quality": quality.quality(*scored, other, candidate.plain)}
        parts |= quality.details(candidate.task, candidate.task.metrics[0], *scored[1:])
        measured[candidate.path] = {part: {"task": {"test": value}} for part, value in parts.items()} | candidate.size
        if candidate.task.temperature != 1:
            measured[candidate.path]["temperature"] = {"task": candidate.task.temperature}
    speeds = _speeds(candidates)
    for candidate in candidates if speeds else ():
        own = {engine: speed for (path, engine), speed in speeds.items() if path == candidate.path}
        rate, first_rate = (next(iter(each))["examples_per_second"] for each in (own.values(), speeds.values()))
        measured[candidate.path] |= {"engine": candidate.engine, "speed": own, "times_faster": rate / first_rate}
        if candidate.forms:
            fastest = fastest_forms(speeds)
            at_best = {path: rate_at_best(speeds[path, engine]) for path, engine in fastest.items()}
            times = at_best[candidate.path] / at_best[candidates[0].path]
            measured[candidate.path] |= {"fastest": fastest[candidate.path], "times_faster_at_best": times}
    busy = too_busy(speeds, [])
    return {
        "data": data,
        "device": processor.described(torch.get_num_threads()),
        "metrics": {"task": list(task.metrics)},
        **({"signatures": signatures()} if task.decodes else {}),
        **({"too_busy": busy} if busy else {}),
        "models": measured,
    }


def _networks(
    models: list[str], data: str, columns: Columns, kind: type[Task], labels: list[str] | None, length: int
) -> Iterator[Candidate]:
    table = open_table(data, columns, need_label=not kind.own_targets)
    seen = labels_of(table, kind.name)
    for path in models:
        model = load_network(path)
        task, _ = make_task(None, model.config, seen, labels, table.source, table.form, table.choices, table.shape)
        examples = store(table, task)
        temperature = stored_temperature(model.config, path)
        task = replace(with_positive(task, None, examples.labelled_only), temperature=temperature)
        tokens = tokenise(task, examples, model.tokenizer, min(length, model.longest))
        source = TokenisedSet(task, examples, tokens, tokens)
        size = _sizes(model.parameters, model.bytes, in_float32=model.engine == "pytorch")
        forms: dict[str, Forward] = {model.engine: model.forward}
        if (faster := model.bfloat16()) is not None:
            forms[BFLOAT16] = faster
        if (streams := model.in_streams()) is not None:
            forms[STREAMS] = streams
        ask = network(model.forward)
        predictions = answers(ask, source)
        plain = plain_answers(predictions, source, partial(answers, ask))
        yield Candidate(path, task, source, predictions, plain, size, model.forward, model.engine, forms)


def _generators(
    models: list[str], data: str, columns: Columns, task: Task, length: int, language: str | None
) -> Iterator[Candidate]:
    for path in models:
        model: Generator = expand_user(path) if is_exported(path) else load_student(path)
        tokenizer = load_tokenizer(path) if isinstance(model, Path) else model.tokenizer
        table = open_table(data, replace(columns, before=language_prefix(language, tokenizer, path)), True, task.form)
        examples = store(table, task)
        tokens = tokenise(task, examples, tokenizer, min(length, _longest(model, tokenizer)))
        source = TokenisedSet(task, examples, tokens, tokens)
        texts = _texts(model, source)
        yield Candidate(path, task, source, texts, texts, _size(model, path), model, engine_of(model))


def _speeds(candidates: list[Candidate]) -> dict[tuple[str, str], Speed]:
    """Return speeds by path and by engine or search; none of language models, which do not generate here."""
    generators = {each.path: (each.model, each.source) for each in candidates if isinstance(each.model, Student | Path)}
    if generators:
        return decoding_speeds(generators) if candidates[0].task.decodes else {}
    return engine_speeds(
        {(each.path, engine): (form, each.source) for each in candidates for engine, form in each.forms.items()}
    )


def _texts(model: Generator, source: TokenisedSet[Task]) -> np.ndarray:
    """Return the predictions of a generative model; an exported one gives texts only, no probabilities of the gold texts."""
    if isinstance(model, Student):
        return model_answers(model, source, beam=True)
    if not source.task.decodes or not (model / "shared_vocabulary.json").exists():
        raise InputError(
            f"{model} is an exported language model, which cannot be scored; give the folder of the student instead"
        )
    unknown = np.stack([Generated(0.0, 0.0, 0.0).pack()] * len(source.examples))
    return padded(with_texts(unknown, model, source, beam=True))


def _longest(model: Generator, tokenizer: PreTrainedTokenizerBase) -> int:
    if isinstance(model, Student):
        return longest_input(model.model, tokenizer)
    return int(tokenizer.model_max_length)  # an exported decoder limits itself to its positions


def _size(model: Generator, path: str) -> dict[str, Any]:
    if isinstance(model, Student):
        size = quality.size(model.model, path)
        return size | _sizes(size["parameters"], size["bytes"], in_float32=True)
    about = json.loads((model / ABOUT).read_text(encoding="utf-8"))
    return _sizes(about.get("parameters"), (model / "model.bin").stat().st_size, in_float32=False)


def _sizes(parameters: int | None, stored: int, in_float32: bool) -> dict[str, Any]:
    """`in_float32`: PyTorch holds weights in float32, however they are stored; other engines hold them as they are."""
    dense = FLOAT * parameters if parameters else None
    memory = dense if in_float32 else stored
    return {"parameters": parameters, "bytes": stored, "dense_bytes": dense, "memory_bytes": memory}
