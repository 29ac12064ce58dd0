"""Everything that is measured at the end of a run: teacher, baseline and student, also as ONNX and int8, side by side."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedTokenizerBase

import potstill
from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.data.rows import BETWEEN
from potstill.inference import answers as measure
from potstill.inference.export import onnx_files
from potstill.measuring import quality
from potstill.measuring.comparisons import write_predictions
from potstill.measuring.measurements import BASELINE, GOLD, STUDENT, TEACHER
from potstill.measuring.speed import decoding_speeds, engine_of, forward_speeds, too_busy
from potstill.models.anatomy import layer_count
from potstill.models.architectures.registration import PREFIX
from potstill.models.fingerprints import weights_hash
from potstill.models.inference import Run, onnx_run, torch_run
from potstill.models.student import Student, is_spread
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe
from potstill.runs.data_set import DataSet, selection_metric, teacher_predictions
from potstill.runs.learning_check import left_chance, what_to_try
from potstill.runs.stages import Trained
from potstill.system.display import Display
from potstill.system.paths import RunFolder
from potstill.tasks.metrics.texts import signatures

SHOWN_DISAGREEMENTS, SHOWN_LETTERS = 12, 400

Answers = dict[tuple[str, str, str], np.ndarray]
"""What was said, as the task reads it, by model, data set and split."""


@dataclass
class Line:
    """A model of the table: what it weighs, how it reads, how it answers each data set, and what of it is timed."""

    size: dict[str, Any]
    tokenizer: PreTrainedTokenizerBase | None  # None: a file of answers
    says: Mapping[str, Callable[[TokenisedSet], np.ndarray]]  # by data set; empty where the answers are remembered
    engines: dict[str, Run]  # by "pytorch" and "onnx", on the first data set


def measured(
    recipe: Recipe,
    data: list[DataSet],
    students: Mapping[str, Trained | None],
    folder: RunFolder,
    timed: bool,
    show: Display,
) -> dict[str, Any]:
    """The measurements of one run; the answers they come from are kept beside them. `timed`: also speeds and ONNX."""
    made = {name: trained for name, trained in students.items() if trained is not None}
    ours = list(made)[-1]
    lines = table_lines(recipe, data, made, folder)
    remembered = teachers_answers(data, made[ours]) if TEACHER in lines else {}
    exportable = {ours: Student(made[ours].models[0], made[ours].tokenizer)}
    if data[0].loaded_teacher is not None and not is_spread(data[0].loaded_teacher.model):
        exportable[TEACHER] = data[0].loaded_teacher
    speed: dict[tuple[str, str], dict[str, float]] = {}
    exported = timed and recipe.timing == "all" and not data[0].task.generates
    with onnx_files(exportable if exported else {}, kept=TEACHER, show=show) as files:
        for name, (plain, small) in files.items():
            run, line = onnx_run(small), lines[name]
            line.engines["onnx"] = onnx_run(plain)
            weight = {**line.size, "bytes": small.stat().st_size}
            says = {data[0].name: partial(measure.answers, measure.network(run))}
            lines[f"{name} int8"] = Line(weight, line.tokenizer, says, {"onnx": run})
        said = {**remembered, **all_answers(data, lines)}
        if timed and recipe.timing != "none" and data[0].task.decodes:
            show.say("timing all models in turns")
            timed_on = timed_rows(data[0])
            whole = whole_models(data, made)
            speed = decoding_speeds(
                {name: (student, data[0].for_scoring(timed_on, student.tokenizer)) for name, student in whole.items()}
            )
            for name, student in whole.items():
                lines[name].size["engine"] = engine_of(student)
        elif timed and recipe.timing != "none":
            show.say("timing all models in turns")
            speed = forward_speeds(
                {
                    (name, engine): (run, data[0].for_scoring(timed_rows(data[0]), line.tokenizer))
                    for name, line in lines.items()
                    if line.tokenizer is not None
                    for engine, run in line.engines.items()
                }
            )
    gold = {(GOLD, one.name, split): one.task.golds(rows) for one in data for split, rows in splits(one).items()}
    write_predictions(folder.answers, {**said, **gold})
    order = [TEACHER, f"{TEACHER} int8", *made, f"{ours} int8"]
    writes = any(one.task.decodes for one in data)
    return {
        "name": recipe.name,
        "seeds": [recipe.seed],
        "metrics": {one.name: list(dict.fromkeys([selection_metric(recipe, one), *one.task.metrics])) for one in data},
        "labels": {one.name: list(one.task.labels) for one in data},
        "tasks": {one.name: one.task.name for one in data},
        "forms": {one.name: one.task.form for one in data},
        "leaks": {one.name: one.leaks for one in data if one.leaks},
        "models": {
            name: {**lines[name].size, **qualities(recipe, data, name, said), **speed_of(name, speed)}
            | ({"learned": learned(recipe, data, name, said, show)} if name in made else {})
            for name in order
            if name in lines
        },
        **({"too_busy": why} if (why := too_busy(speed, of_one_shape(lines, speed))) else {}),
        "disagreements": {one.name: disagreements(one, said, ours) for one in data if TEACHER in lines},
        "layer_map": layer_maps(recipe, data[0], layer_count(made[ours].models[0])),
        "needs_potstill": made[ours].models[0].config.model_type.startswith(PREFIX),
        "teacher_seconds": sum(one.teacher.seconds for one in data),
        "versions": versions(writes),
        **({"signatures": signatures()} if writes else {}),
        "hashes": {name: weights_hash(student.model) for name, student in exportable.items()},
        "device": f"{data[0].teacher.device}, {torch.get_num_threads()} threads, {platform.machine()}",
    }


def versions(writes: bool) -> dict[str, str]:
    """Of what decides the figures; of models that write also what writes and what counts, where it is installed."""
    found = {"potstill": potstill.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    for name in ("sacrebleu", "ctranslate2") if writes else ():
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {**found, "python": platform.python_version()}


def table_lines(recipe: Recipe, data: list[DataSet], made: Mapping[str, Trained], folder: RunFolder) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    if any(one.has_teacher for one in data):
        lines[TEACHER] = Line({"parameters": None, "parts": {}, "bytes": None}, None, {}, {})
    if (taught_by := data[0].loaded_teacher) is not None:
        weight = quality.size(taught_by.model, str(recipe.data[0].teacher or recipe.teacher))
        lines[TEACHER] = Line(weight, taught_by.tokenizer, {}, {"pytorch": torch_run(taught_by.model)})
    for name, trained in made.items():
        place = folder.student if name == list(made)[-1] else folder.baseline
        says = {
            one.name: partial(measure.model_answers, Student(model, trained.tokenizer), beam=True)
            for one, model in zip(data, trained.models, strict=True)
        }
        engines = {"pytorch": torch_run(trained.models[0])}
        lines[name] = Line(quality.size(trained.models[0], place), trained.tokenizer, says, engines)
    return lines


def whole_models(data: list[DataSet], made: Mapping[str, Trained]) -> dict[str, Student]:
    """The teacher and all students, on the first data set."""
    first = {} if data[0].loaded_teacher is None else {TEACHER: data[0].loaded_teacher}
    return {**first, **{name: Student(one.models[0], one.tokenizer) for name, one in made.items()}}


def splits(data: DataSet) -> dict[str, Examples]:
    return {"dev": data.dev, **data.tests}


def timed_rows(data: DataSet) -> Examples:
    """The first test set, or dev where there is none."""
    return next(iter(data.tests.values()), data.dev)


def teachers_answers(data: list[DataSet], reader: Trained) -> Answers:
    """Out of memory. A teacher that is a file may lack answers for some splits."""
    found: Answers = {}
    for one in data:
        tokenizer = one.loaded_teacher.tokenizer if one.loaded_teacher else reader.tokenizer
        for split, examples in splits(one).items():
            if one.loaded_teacher is not None or (split in one.answered and one.answered[split][examples.index].all()):
                found[TEACHER, one.name, split] = teacher_predictions(one, one.tokenised(examples, tokenizer, split))
    return found


def all_answers(data: list[DataSet], lines: Mapping[str, Line]) -> Answers:
    found: Answers = {}
    for name, line in lines.items():
        for one in data:
            if one.name in line.says and line.tokenizer is not None:
                for split, examples in splits(one).items():
                    source = one.for_scoring(examples, line.tokenizer)
                    found[name, one.name, split] = line.says[one.name](source)
    return found


def qualities(recipe: Recipe, data: list[DataSet], name: str, said: Answers) -> dict[str, Any]:
    """Quality and details of one model: {"quality": {data set: {split: …}}, "intervals": …, "confusion": …, …}."""
    found: dict[str, dict[str, dict[str, Any]]] = {"quality": {}}
    for one in data:
        for split, examples in splits(one).items():
            logits = said.get((name, one.name, split))
            if logits is None:
                continue
            teacher = said.get((TEACHER, one.name, split)) if name != TEACHER else None
            scores = quality.quality(one.task, examples, logits, teacher)
            more = quality.details(one.task, selection_metric(recipe, one), examples, logits)
            for kind, value in {"quality": scores, **more}.items():
                found.setdefault(kind, {}).setdefault(one.name, {})[split] = value
    return found


def learned(recipe: Recipe, data: list[DataSet], name: str, said: Answers, show: Display) -> bool:
    """Whether a student left chance on dev, on every data set; what to try is said where it did not."""
    lost = [one for one in data if not left_chance(one.task, one.dev, said[name, one.name, "dev"])]
    for one in lost:
        show.say(what_to_try(name, one.name, recipe.stage[-1]))
    return not lost


def speed_of(name: str, speed: Mapping[tuple[str, str], dict[str, float]]) -> dict[str, Any]:
    """By engine or search; and how many times as fast as the teacher, like with like: at batch 32 in the same engine, of those
    that write without a beam on both sides."""
    mine = {engine: told for (owner, engine), told in speed.items() if owner == name}
    if not mine:
        return {}
    found: dict[str, Any] = {"speed": mine}
    engine = next(iter(mine))
    if (teacher := speed.get((TEACHER, engine))) is not None:
        found["times_faster"] = mine[engine]["examples_per_second"] / teacher["examples_per_second"]
    return found


def of_one_shape(
    lines: Mapping[str, Line], speed: Mapping[tuple[str, str], dict[str, float]]
) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Student and baseline, which are one network with other weights, in each engine that both were timed in."""
    if not {STUDENT, BASELINE} <= lines.keys() or lines[STUDENT].size["parts"] != lines[BASELINE].size["parts"]:
        return []
    engines = [engine for owner, engine in speed if owner == STUDENT and (BASELINE, engine) in speed]
    return [((STUDENT, engine), (BASELINE, engine)) for engine in engines]


def disagreements(data: DataSet, said: Answers, student: str) -> list[dict[str, Any]]:
    """Rows of the first test on which student and teacher differ, those first of which the teacher is surest."""
    split = next(iter(data.tests), "dev")
    examples = splits(data)[split]
    theirs, ours = said.get((TEACHER, data.name, split)), said.get((student, data.name, split))
    if theirs is None or ours is None:
        return []
    task, rank = data.task, data.task.dissent(ours, theirs)
    found = []
    for place in np.argsort(-rank, kind="stable")[:SHOWN_DISAGREEMENTS]:
        if rank[place] <= 0:
            break
        row = examples.index[place]
        text, pair = examples.text(row)
        picture = task.picture(text)
        teacher_said, their_probability = task.in_words(theirs[place], text, pair)
        student_said, our_probability = task.in_words(ours[place], text, pair)
        gold = examples.gold(row)
        found.append(
            {
                "split": split,
                **({"text": shown(text)} if picture is None else {"text": None, "picture": picture}),
                "pair": None if pair is None or task.generates else shown(pair),  # what is to be written is the label
                "label": None if gold is None else task.gold_in_words(gold, text, pair),
                "teacher": teacher_said,
                "student": student_said,
                "teacher_probability": their_probability,
                "student_probability": our_probability,
            }
        )
    return found


def shown(text: str) -> str:
    return text.replace(BETWEEN, " ")[:SHOWN_LETTERS]


def layer_maps(recipe: Recipe, data: DataSet, student_layers: int) -> list[dict[str, Any]]:
    """Which layer of the teacher teaches which of the student, stage by stage; no pairs where logits alone are compared."""
    if data.loaded_teacher is None or 0 in (student_layers, layer_count(data.loaded_teacher.model)):
        return []
    layers = layer_count(data.loaded_teacher.model)
    found = []
    for number, stage in enumerate(recipe.stage):
        ours, theirs = short_forms.made("methods", stage.method).wants(student_layers, layers)
        left, right = (one.cls + one.hidden + one.attention for one in (ours, theirs))
        pairs = [list(pair) for pair in zip(left, right, strict=False)] if len(left) == len(right) else []
        name = {"stage": number, "method": stage.method["name"]}
        shape = {"student_layers": student_layers, "teacher_layers": layers, "pairs": pairs}
        found.append({**name, **shape, "kept": kept_layers(recipe, layers)})
    return found


def kept_layers(recipe: Recipe, layers: int) -> list[int] | None:
    """Which layers of the teacher the student began as; None where it began as something else."""
    if recipe.start is not None or len(recipe.student) != 1 or any(stage.reshape for stage in recipe.stage):
        return None
    builder = short_forms.made("students", recipe.student[0])
    return builder.kept(layers) if hasattr(builder, "kept") else None
