"""Measure a run at its end: teacher, baseline and student side by side, also as ONNX and int8."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.data.row import split_parts
from potstill.inference.answers import answers, model_answers, network, plain_answers
from potstill.inference.onnx_forms import onnx_files
from potstill.measuring import quality
from potstill.measuring.breakdown import breakdown
from potstill.measuring.comparisons import write_predictions
from potstill.measuring.measurements import (
    BASELINE,
    BFLOAT16,
    GOLD,
    NETWORK_ENGINES,
    STUDENT,
    TEACHER,
    Deployed,
    Disagreement,
    Leak,
    MeasuredModel,
    Measurements,
    Speed,
)
from potstill.measuring.speed import (
    STREAMS,
    decoding_speeds,
    engine_of,
    engine_speeds,
    fastest_forms,
    rate_at_best,
    too_busy,
)
from potstill.models.anatomy import is_spread
from potstill.models.architectures.registration import PREFIX
from potstill.models.fingerprints import weights_hash
from potstill.models.folders import stored_temperature
from potstill.models.inference import Forward, bfloat16_forward, onnx_forward, streams_forward, torch_forward
from potstill.models.student import Student
from potstill.recipe.schema import Recipe, Stage
from potstill.runs import input_files
from potstill.runs.baseline import initial_weights
from potstill.runs.data_set import DataSet, selection_metric, teacher_predictions
from potstill.runs.deploy import deploy_student, has_forms, missing_form, wants_form
from potstill.runs.stage_setup import Run
from potstill.runs.stages import Trained
from potstill.runs.teacher_knowledge import teacher_knowledge
from potstill.system.paths import RunFolder
from potstill.system.processor import described
from potstill.tasks.chance import judge, near_chance
from potstill.tasks.metrics.texts import signatures
from potstill.tasks.task import Task

SHOWN_DISAGREEMENTS, SHOWN_CHARACTERS = 12, 400

Predictions = dict[tuple[str, str, str], np.ndarray]
"""Predictions in the task's format, by model, data set and split."""
Speeds = Mapping[tuple[str, str], Speed]
"""By model and engine."""
Splits = list[tuple[DataSet, str, Examples]]
"""Dev and the tests of each data set."""


@dataclass
class Candidate:
    """A model to measure: one line of the table of results."""

    size: dict[str, Any]
    tokenizer: PreTrainedTokenizerBase
    predict: Mapping[
        str, Callable[[TokenisedSet], np.ndarray]
    ]  # by data set; none of the teacher, which has its memory
    engines: dict[str, Forward]  # by "pytorch" and "onnx", for timing on the first data set
    temperature: Mapping[str, float] = field(default_factory=dict)  # by data set; 1 where there is none

    def task_of(self, data: DataSet) -> Task:
        """Return the task with this model's temperature."""
        return replace(data.task, temperature=self.temperature.get(data.name, 1.0))


def measure_run(run: Run, students: Mapping[str, Trained], timed: bool) -> Measurements:
    """Return the measurements of a run, and write the predictions that they are computed from.

    `students`: the student and its baseline, or the fine-tuned model alone; `timed`: also measure speed, and ONNX.
    """
    recipe, data_sets, display, folder = run.recipe, run.data_sets.last, run.display, RunFolder(run.folder)
    main = STUDENT if STUDENT in students else BASELINE
    first, trained = data_sets[0], students[main]
    splits: Splits = [
        (data, split, examples) for data in data_sets for split, examples in data.evaluation_splits.items()
    ]
    models = models_to_measure(recipe, data_sets, students, folder)
    deploys = main == STUDENT and wants_form(recipe.deploy, recipe.timing)
    exportable = {main: trained.students[0]}
    if timed and first.predicting_teacher is not None and not is_spread(first.predicting_teacher.model):
        exportable[TEACHER] = first.predicting_teacher
    predictions: Predictions = {}
    plain: Predictions = {}  # the same at a temperature of 1
    speeds: Speeds = {}
    timed_in_onnx = timed and recipe.timing == "all"
    exported = exportable if timed_in_onnx else {main: exportable[main]} if deploys else {}
    to_onnx = has_forms(first.task)
    if main == STUDENT and (said := missing_form(recipe.deploy, first.task)):
        display.say(said)
    deployed: Deployed | None = None
    with onnx_files(exported if to_onnx else {}, cached=TEACHER, show=display) as files:
        add_onnx_models(models, files, first)
        for data, split, examples in splits:
            if (answered := teacher_answers(data, split, examples, trained.tokenizer)) is not None:
                predictions[TEACHER, data.name, split] = answered
            for name, model in models.items():
                if data.name in model.predict:
                    task, predict = model.task_of(data), model.predict[data.name]
                    source = replace(data.for_scoring(examples, model.tokenizer), task=task)
                    predictions[name, data.name, split] = found = predict(source)
                    plain[name, data.name, split] = plain_answers(found, source, predict)
        if timed and recipe.timing != "none":
            display.say("timing all models in turns")
            speeds = measure_speeds(first, students, models)
            add_breakdowns(models, first, exportable)
        if deploys and main in files:
            teacher = MeasuredModel.from_json(models[TEACHER].size) if TEACHER in models else None
            same = int8_agreement(first, predictions)
            deployed = deploy_student(recipe.deploy, files[main], folder.deployed, same, speeds, teacher)
    gold = {(GOLD, data.name, split): data.task.golds(examples) for data, split, examples in splits}
    write_predictions(folder.answers, {**predictions, **gold})
    results: dict[str, MeasuredModel] = {}
    for name in (TEACHER, f"{TEACHER} int8", *students, f"{main} int8"):
        if name in models:
            scored = qualities(recipe, splits, name, models[name], predictions, plain)
            measured = models[name].size | scored | speed_of(name, speeds)
            measured["temperature"] = dict(models[name].temperature)
            if name in students:
                dev = [(data, predictions[name, data.name, "dev"]) for data in data_sets]
                stage = students[name].as_trained(recipe.stage[-1])
                learned = [has_learned(stage, data, name, ours, display.say) for data, ours in dev]
                measured["learned"] = all(learned)
                measured["begun_from"] = initial_weights(recipe) if name != main else None
                measured["rates"] = list(students[name].rates)
            results[name] = MeasuredModel.from_json(measured)
    decodes = any(data.task.decodes for data in data_sets)
    return Measurements(
        name=recipe.name,
        seeds=[recipe.seed],
        metrics={
            data.name: list(dict.fromkeys([selection_metric(recipe, data), *data.task.metrics])) for data in data_sets
        },
        labels={data.name: list(data.task.labels) for data in data_sets},
        tasks={data.name: data.task.name for data in data_sets},
        forms={data.name: data.task.form for data in data_sets},
        leaks={data.name: [Leak(**leak) for leak in data.leaks] for data in data_sets if data.leaks},
        teacher_knows={
            data.name: known
            for data in data_sets
            if STUDENT in students and (known := teacher_knowledge(recipe, data)) is not None
        },
        models=results,
        deployed=deployed,
        too_busy=too_busy(speeds, same_networks(models, speeds)),
        disagreements={
            data.name: disagreements(data, predictions, main, models[main].task_of(data))
            for data in data_sets
            if TEACHER in models
        },
        layer_map=list(trained.layer_maps),
        needs_potstill=trained.models[0].config.model_type.startswith(PREFIX),
        teacher_seconds=run.data_sets.teacher_seconds,
        versions=versions(decodes),
        signatures=signatures() if decodes else {},
        hashes={name: weights_hash(student.model) for name, student in exportable.items()},
        device=f"{first.teacher.device}, {platform.machine()}, {described(torch.get_num_threads())}",
    )


def int8_agreement(data: DataSet, predictions: Predictions) -> float | None:
    """The share of dev and test rows of the first data set on which the student predicts the same in eight bits."""
    shares, rows = [], []
    for split, examples in data.evaluation_splits.items():
        ours, int8 = (predictions[name, data.name, split] for name in (STUDENT, f"{STUDENT} int8"))
        if (share := data.task.agreement(int8, ours)) is not None:
            shares.append(share)
            rows.append(len(examples))
    return float(np.average(shares, weights=rows)) if sum(rows) else None


def has_learned(stage: Stage, data: DataSet, name: str, predictions: np.ndarray, say: Callable[[str], None]) -> bool:
    """True if a student's predictions on dev are better than chance; otherwise say what to try."""
    targets, predictions = quality.labelled(data.task, data.dev, predictions)
    if not len(targets) or near_chance(judge(data.task, [(targets, predictions)])) is None:
        return True
    rate, epochs = stage.optimizer.full_rate, stage.passes
    say(
        f"{name} did not learn {data.name}: on dev it is no better than chance. Its rate was {rate:g} for {epochs:g} epochs; "
        f"try --rate {4 * rate:g}, then --epochs {2 * epochs:g}, or give more rows"
    )
    return False


def versions(decodes: bool) -> dict[str, str]:
    """Versions of the packages that decide the figures; for generative models also those that decode and score."""
    packages = input_files.versions()
    for name in ("sacrebleu", "ctranslate2") if decodes else ():
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {**packages, "python": platform.python_version()}


def models_to_measure(
    recipe: Recipe, data_sets: list[DataSet], students: Mapping[str, Trained], folder: RunFolder
) -> dict[str, Candidate]:
    models: dict[str, Candidate] = {}
    if (teacher := data_sets[0].predicting_teacher) is not None:
        size = quality.size(teacher.model, str(recipe.last_data[0].teacher))
        models[TEACHER] = Candidate(size, teacher.tokenizer, {}, torch_engines(teacher.model, recipe))
    elif any(data.has_teacher and data.loaded_teacher is None for data in data_sets):
        tokenizer = next(iter(students.values())).tokenizer
        models[TEACHER] = Candidate({"parameters": None, "parts": {}, "bytes": None}, tokenizer, {}, {})
    for name, trained in students.items():
        saved = folder.baseline if name == BASELINE and STUDENT in students else folder.student
        predict = {
            data.name: partial(model_answers, student, beam=True)
            for data, student in zip(data_sets, trained.students, strict=True)
        }
        engines, size = torch_engines(trained.models[0], recipe), quality.size(trained.models[0], saved)
        stored = zip(data_sets, trained.models, strict=True)
        temperatures = {data.name: stored_temperature(model.config, saved) for data, model in stored}
        models[name] = Candidate(size, trained.tokenizer, predict, engines, differing(temperatures))
    return models


def differing(temperatures: Mapping[str, float]) -> dict[str, float]:
    return {data: temperature for data, temperature in temperatures.items() if temperature != 1}


def torch_engines(model: PreTrainedModel, recipe: Recipe) -> dict[str, Forward]:
    """PyTorch in float32, and in bfloat16 where the device multiplies faster in it."""
    faster = bfloat16_forward(model) if recipe.timing != "none" else None
    return {"pytorch": torch_forward(model), **({BFLOAT16: faster} if faster else {})}


def add_onnx_models(models: dict[str, Candidate], files: Mapping[str, tuple[Path, Path]], first: DataSet) -> None:
    """Add an engine for each ONNX file, and a model for each int8 file."""
    for name, (plain, int8) in files.items():
        forward, model = onnx_forward(int8), models[name]
        model.engines["onnx"] = onnx_forward(plain)
        engines = {"onnx": forward}
        for own, file in ((model.engines, plain), (engines, int8)):
            if (streams := streams_forward(file)) is not None:
                own[STREAMS] = streams
        size = {**model.size, "bytes": int8.stat().st_size}
        predict = {first.name: partial(answers, network(forward))}
        models[f"{name} int8"] = Candidate(size, model.tokenizer, predict, engines, model.temperature)


def teacher_answers(
    data: DataSet, split: str, examples: Examples, student_tokenizer: PreTrainedTokenizerBase
) -> np.ndarray | None:
    """The teacher's predictions from its memory; None where a file of answers does not cover the split."""
    if data.loaded_teacher is not None:
        if data.predicting_teacher is None:
            return None
        return teacher_predictions(data, data.tokenised(examples, data.loaded_teacher.tokenizer, split))
    if split in data.answered and data.answered[split][examples.index].all():
        return teacher_predictions(data, data.tokenised(examples, student_tokenizer, split))
    return None


def measure_speeds(data: DataSet, students: Mapping[str, Trained], models: Mapping[str, Candidate]) -> Speeds:
    """On the first test set, or on dev without one."""
    rows = next(iter(data.tests.values()), data.dev)
    if not data.task.decodes:
        timed = {
            (name, engine): (forward, data.for_scoring(rows, model.tokenizer))
            for name, model in models.items()
            for engine, forward in model.engines.items()
        }
        return engine_speeds(timed)
    decoders = {TEACHER: data.predicting_teacher} if data.predicting_teacher else {}
    decoders |= {name: trained.students[0] for name, trained in students.items()}
    for name, decoder in decoders.items():
        models[name].size["engine"] = engine_of(decoder)
    return decoding_speeds({name: (model, data.for_scoring(rows, model.tokenizer)) for name, model in decoders.items()})


def add_breakdowns(models: Mapping[str, Candidate], data: DataSet, students: Mapping[str, Student]) -> None:
    """Add where the bytes and the milliseconds of the teacher and of the student are."""
    rows = next(iter(data.tests.values()), data.dev)
    for name, student in students.items():
        if (found := breakdown(student.model, data.for_scoring(rows, models[name].tokenizer))) is not None:
            models[name].size["breakdown"] = found


def qualities(
    recipe: Recipe, splits: Splits, name: str, model: Candidate, predictions: Predictions, plain: Predictions
) -> dict[str, Any]:
    """Quality of one model, and details: {"quality": {data set: {split: …}}, "intervals": …, "confusion": …, …}."""
    results: dict[str, dict[str, dict[str, Any]]] = {"quality": {}}
    for data, split, examples in splits:
        if (ours := predictions.get((name, data.name, split))) is not None:
            teachers = predictions.get((TEACHER, data.name, split)) if name != TEACHER else None
            task = model.task_of(data)
            scores = quality.quality(task, examples, ours, teachers, plain.get((name, data.name, split)))
            details = quality.details(task, selection_metric(recipe, data), examples, ours)
            for kind, value in {"quality": scores, **details}.items():
                results.setdefault(kind, {}).setdefault(data.name, {})[split] = value
    return results


def speed_of(name: str, speeds: Speeds) -> dict[str, Any]:
    """A model's speed by engine or search; and the ratio to the teacher's, at batch 32 in the same engine or search."""
    own = {engine: speed for (model, engine), speed in speeds.items() if model == name}
    if not own:
        return {}
    engine, speed = next(iter(own.items()))
    found: dict[str, Any] = {"speed": own}
    if (teacher := speeds.get((TEACHER, engine))) is not None:
        found["times_faster"] = speed["examples_per_second"] / teacher["examples_per_second"]
    if set(own) <= set(NETWORK_ENGINES):
        found["fastest"] = fastest_forms(speeds)[name]
        of_teacher = [
            rate_at_best(each) for (model, _), each in speeds.items() if model in (TEACHER, f"{TEACHER} int8")
        ]
        if of_teacher:
            found["times_faster_at_best"] = rate_at_best(own[found["fastest"]]) / max(of_teacher)
    return found


def same_networks(models: Mapping[str, Candidate], speeds: Speeds) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Student and baseline, if they differ only in their weights, in each engine in which both were timed."""
    if not {STUDENT, BASELINE} <= models.keys() or models[STUDENT].size["parts"] != models[BASELINE].size["parts"]:
        return []
    engines = [engine for model, engine in speeds if model == STUDENT and (BASELINE, engine) in speeds]
    return [((STUDENT, engine), (BASELINE, engine)) for engine in engines]


def disagreements(data: DataSet, predictions: Predictions, student: str, of_student: Task) -> list[Disagreement]:
    """Rows of the first test set on which student and teacher differ, where the teacher is surest first.

    `of_student`: the task with the student's temperature.
    """
    split = next(iter(data.tests), "dev")
    examples, task = data.evaluation_splits[split], data.task
    theirs, ours = predictions.get((TEACHER, data.name, split)), predictions.get((student, data.name, split))
    if theirs is None or ours is None:
        return []
    rank = task.disagreement(ours, theirs)
    rows = []
    for position in np.argsort(-rank, kind="stable")[:SHOWN_DISAGREEMENTS]:
        if rank[position] <= 0:
            break
        row = examples.index[position]
        text, pair = examples.text(row)
        picture, gold = task.picture(text), examples.gold(row)
        by_teacher, teacher_probability = task.summary(theirs[position], text, pair)
        by_student, student_probability = of_student.summary(ours[position], text, pair)
        rows.append(
            Disagreement(
                split=split,
                text=shown(text) if picture is None else None,
                picture=picture,
                pair=None if pair is None or task.generates else shown(pair),  # the text to generate is the label
                label=None if gold is None else task.describe_gold(gold, text, pair),
                teacher=by_teacher,
                student=by_student,
                teacher_probability=teacher_probability,
                student_probability=student_probability,
            )
        )
    return rows


def shown(text: str) -> str:
    return " ".join(split_parts(text))[:SHOWN_CHARACTERS]
