"""Stages, one after the other: each asks the teacher for what its method wants, trains the student and keeps the result."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.data.making import Context
from potstill.errors import InputError
from potstill.inference import answers as measure
from potstill.measuring import quality
from potstill.models.anatomy import has_layers, kind, layer_count, width
from potstill.models.student import Student
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Stage
from potstill.runs.build import build, reshape
from potstill.runs.data_set import DataSet, selection_metric, teacher_predictions
from potstill.runs.learning_check import still_rising
from potstill.runs.planning.timing import expected_time
from potstill.signals import Wants
from potstill.system import ranks
from potstill.system.display import Display
from potstill.system.randomness import mix
from potstill.training import checkpoints
from potstill.training.checkpoints import Checkpoint
from potstill.training.logs import dev_scores, follow
from potstill.training.loop import Step, train
from potstill.training.method import Method
from potstill.training.setup import Training, teacher_layers
from potstill.training.target_scale import target_scale_of

log = logging.getLogger(__name__)

Make = Callable[[Any, Examples, Context], Examples]  # of a data maker that asks the teacher


def ask_and_make(maker: Any, examples: Examples, context: Context) -> Examples:
    made: Examples = maker.make(examples, context)
    return made


@dataclass
class Trained:
    """A student with its heads, and the score on dev that it was chosen by."""

    models: list[PreTrainedModel]  # one per data set
    tokenizer: PreTrainedTokenizerBase
    dev: float


def train_student(
    recipe: Recipe, data: list[DataSet], folder: Path, accelerator: Accelerator, show: Display, start_at: Path | None
) -> Trained:
    """All stages, one after the other; a finished one is read instead of trained again."""
    models, tokenizer = build(recipe, data)
    finished = folder / "finished"
    dev = 0.0
    for number, stage in enumerate(recipe.stage):
        done = finished_stage(finished / str(number))
        models, tokenizer = reshape(stage, recipe, models, tokenizer, data)
        if done is None:
            dev = train_stage(
                recipe,
                stage,
                number,
                models,
                tokenizer,
                data,
                folder / "stages" / str(number),
                accelerator,
                show,
                start_at,
            )
            if ranks.is_first():
                tensors = {str(head): dict(model.state_dict()) for head, model in enumerate(models)}
                checkpoints.save(finished / str(number), 1, tensors, {"dev": dev})
                shutil.rmtree(folder / "stages" / str(number) / "checkpoints", ignore_errors=True)
                shutil.rmtree(folder / "stages" / str(number) / "best", ignore_errors=True)
                shutil.rmtree(folder / "stages" / str(number) / "ends", ignore_errors=True)
            ranks.wait()
        else:
            for head, model in enumerate(models):
                model.load_state_dict(done.tensors(str(head)))
            dev = float(done.state["dev"])
    return Trained(models, tokenizer, dev)


@ranks.on_first
def finished_stage(folder: Path) -> Checkpoint | None:
    """The result of a stage that an earlier call finished."""
    return checkpoints.newest(folder)


def train_stage(
    recipe: Recipe,
    stage: Stage,
    number: int,
    models: list[PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    data: list[DataSet],
    folder: Path,
    accelerator: Accelerator,
    show: Display,
    start_at: Path | None,
) -> float:
    """Train the models in place by one stage; returns the score on dev of the weights that were kept."""
    training, asks = make_training(recipe, stage, number, models, tokenizer, data, folder, accelerator, show)
    for one, source, asked in zip(data, training.sources, asks, strict=True):
        if not source.changes:
            with show.bar(f"asking the teacher ({one.name})", len(source.examples)) as bar:
                one.teacher.remember(source, asked, bar.advance)
    resume = chosen_checkpoint(folder, number, start_at, stage)
    if resume:
        show.say(f"continuing at step {resume.step} from {resume.folder}")
    if not show.quiet:
        show.say(expected_time(training, resume.step if resume else 0))
    steps = train(training, resume)
    if not ranks.is_first():
        return unseen(steps)
    found = follow(steps, folder, resume, recipe.tracker, show)
    if told := still_rising(dev_scores(folder), stage.optimizer.full_rate, stage.passes):
        show.say(told)
    return found


def make_training(
    recipe: Recipe,
    stage: Stage,
    number: int,
    models: list[PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    data: list[DataSet],
    folder: Path,
    accelerator: Accelerator,
    show: Display | None = None,
    make: Make = ask_and_make,
) -> tuple[Training, list[Wants]]:
    """All that a stage's training follows from, refused where it does not fit; and what each teacher must be asked before."""
    method = short_forms.made("methods", stage.method)
    refuse_without_layers(stage.method["name"], method, models, data)
    asks = [
        method.wants(layer_count(model), teacher_layers(one.teacher, model))[1]
        for model, one in zip(models, data, strict=True)
    ]
    if stage.stop_teaching is not None and all(asked == Wants() for asked in asks):
        raise InputError(
            f"stop_teaching: method '{stage.method['name']}' never asks a teacher; use 'soft_targets', or leave stop_teaching out"
        )
    changes = tuple(maker.change for maker in makers(stage) if hasattr(maker, "change"))
    sources = [
        replace(
            one.tokenised(made(stage, one, asked, recipe.seed, show, make), tokenizer, "train"),
            changes=changes,
            seed=(recipe.seed, number),
            target_scale=target_scale_of(one.task, model, one.train, one.dev),
        )
        for one, model, asked in zip(data, models, asks, strict=True)
    ]
    for one, source, asked in zip(data, sources, asks, strict=True):
        refuse_unfit(stage.method["name"], method, one, source, asked)
    widths = {width(one.teacher.model) for one in data if one.teacher.model is not None}
    if len(widths) > 1 and any(asked.cls or asked.per_token for asked in asks):
        raise InputError(
            f"the teachers are of different widths {sorted(widths)}; use a method of logits alone, such as 'soft_targets'"
        )
    scored_by = [selection_metric(recipe, one) for one in data]
    watched = watched_rows(data, sources, tokenizer)

    def score() -> dict[str, float]:
        means: dict[str, float] = {}
        each: dict[str, float] = {}
        for split, seen in watched.items():
            found = [scores_of(Student(model, tokenizer), source) for model, source in zip(models, seen, strict=True)]
            means[split] = float(np.mean([scores[metric] for scores, metric in zip(found, scored_by, strict=True)]))
            for one, scores in zip(data, found, strict=True):
                each |= {f"{split}.{one.name}.{name}": value for name, value in scores.items()}
        return {**means, **each}

    teachers, rest = [one.teacher for one in data], (recipe.seed, number, folder, accelerator, score, recipe.save_every)
    to_pass = bounds(stage.stop_teaching, data, scored_by)
    return Training(models, teachers, sources, method, stage, *rest, to_pass), asks


def bounds(margin: float | None, data: list[DataSet], scored_by: list[str]) -> tuple[tuple[str, float], ...]:
    """For each data set the name of its score on dev, and what the student must exceed for its teacher to fall silent."""
    if margin is None:
        return ()
    found = []
    for one, metric in zip(data, scored_by, strict=True):
        if one.loaded_teacher is None:
            raise InputError(f"stop_teaching: {one.name} has no teacher to pass; give one, or leave stop_teaching out")
        rows = one.dev.labelled_only
        said = said_of_dev(one, rows)
        found.append(
            (f"dev.{one.name}.{metric}", one.task.score(*quality.labelled(one.task, rows, said))[metric] + margin)
        )
    return tuple(found)


def said_of_dev(data: DataSet, rows: Examples) -> np.ndarray:
    assert data.loaded_teacher is not None
    source = data.tokenised(rows, data.loaded_teacher.tokenizer, "dev")
    return (
        measure.model_answers(data.loaded_teacher, source) if data.task.generates else teacher_predictions(data, source)
    )


def watched_rows(
    data: list[DataSet], sources: list[TokenisedSet], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[TokenisedSet]]:
    """What is scored at the end of every epoch, by split: dev and, so that over-fitting can be seen, some of train."""
    watched = {"dev": [one.for_scoring(one.dev.labelled_only, tokenizer) for one in data]}
    learned = [source.examples.labelled_only for source in sources]
    if all(map(len, learned)) and not any(one.task.decodes for one in data):  # decoding would take longer than it tells
        watched["train"] = [one.for_scoring(sampled(rows), tokenizer) for one, rows in zip(data, learned, strict=True)]
    return watched


def scores_of(student: Student, source: TokenisedSet) -> dict[str, float]:
    """An undefined correlation, that of a constant, counts as none here: a network that learned nothing is not chosen by it."""
    said = measure.model_answers(student, source)
    scores = source.task.score(*quality.labelled(source.task, source.examples, said))
    return {name: 0.0 if math.isnan(value) else value for name, value in scores.items()}


def unseen(steps: Generator[Step, None, float]) -> float:
    """Take every step without a word, as ranks do that are not the first."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return float(end.value)


def refuse_without_layers(name: str, method: Method, models: list[PreTrainedModel], data: list[DataSet]) -> None:
    """An error where layers are to be compared that one side has not, or of which no state stands for a whole text."""
    wanted, _ = method.wants(99, 99)  # more than a list of layers names
    if not (wanted.cls or wanted.per_token):
        return
    instead = "use 'soft_targets' or 'logit_regression'"
    for task in (one.task for one in data if one.task.generates):
        if wanted.cls:
            reason = "compares the state of [CLS], which stands for a whole text, and models that write have none"
            also = ", or 'hints'" if task.head == "CausalLM" else ""
            raise InputError(f"method '{name}' {reason}; {instead}{also}")
        if task.head == "Seq2SeqLM":
            reason = "compares the layers of one stack, and a translator has two, for two texts"
            raise InputError(f"method '{name}' {reason}; {instead}")
    teachers = [one.teacher.model for one in data if one.teacher.model is not None]
    without = next((model for model in (*models, *teachers) if not has_layers(model)), None)
    if without is not None:
        raise InputError(f"method '{name}' compares layers, which a {kind(without)} has not; {instead}")


def refuse_unfit(name: str, method: Method, data: DataSet, source: TokenisedSet, asked: Wants) -> None:
    """An error where the method cannot be used with this task, teacher or student."""
    outcome = data.task.outcome
    if outcome not in getattr(method, "outcomes", (outcome,)):
        also = "" if data.task.generates else "'patient' or "
        raise InputError(f"method '{name}' is not made for task '{data.task.name}'; use {also}'soft_targets'")
    if asked != Wants() and not data.has_teacher:
        raise InputError(f"method '{name}' needs a teacher; give one with --teacher, or write method = 'hard_labels'")
    if (asked.cls or asked.per_token) and data.task.form == "pixels":
        raise InputError(
            f"method '{name}' compares layers, which networks of images are not asked for; use 'soft_targets'"
        )
    if source.changes and asked != Wants() and data.teacher.model is None:
        raise InputError(
            "the examples change in every epoch, but the teacher is a file of answers; give a model, or leave that data maker out"
        )
    if (asked.cls or asked.per_token) and data.teacher.model is None:
        raise InputError(
            f"method '{name}' asks for the teacher's layers, but the teacher is a file of answers; "
            "use a method of logits alone, such as 'soft_targets'"
        )
    generates = data.task.generates
    by_token = asked.per_token or (asked.logits and (outcome == "span" or generates))
    ours, theirs = source.student, source.teacher
    alike = np.array_equal(ours.offsets, theirs.offsets)
    if alike and generates:
        alike = np.array_equal(ours.ids, theirs.ids)
    if alike and ours.characters is not None and theirs.characters is not None:
        alike = np.array_equal(ours.characters, theirs.characters)
    if by_token and not alike:
        todo = (
            "give the student the teacher's tokenizer, or learn from what it writes: stage.data = 'teacher_outputs'"
            if generates
            else "let the student begin from the teacher"
            if outcome == "span"
            else "use 'patient' or 'soft_targets'"
        )
        raise InputError(
            f"method '{name}' compares token by token, but student and teacher split texts differently; {todo}"
        )


@ranks.on_first
def chosen_checkpoint(folder: Path, number: int, start_at: Path | None, stage: Stage) -> Checkpoint | None:
    """The named checkpoint for the stage it lies in (one of another run: for the first), else the newest whole one."""
    mine = folder / "checkpoints"
    if start_at is not None and (
        start_at.parent.resolve() == mine.resolve()
        or (number == 0 and folder.parent.resolve() not in start_at.resolve().parents)
    ):
        return checkpoints.load(start_at)
    newest = checkpoints.newest(mine)
    if newest is not None and (lost := lost_epochs(folder, newest, stage)):
        log.warning("%s; this stage is trained again from its beginning", lost)
        for place in ("checkpoints", "best", "ends"):  # later steps than those to come would be taken for the newest
            shutil.rmtree(folder / place, ignore_errors=True)
        return None
    return newest


def lost_epochs(folder: Path, newest: Checkpoint, stage: Stage) -> str | None:
    """Which weights of earlier epochs the end of the stage will need and cannot have; None where all are whole."""
    progress = newest.state["progress"]
    ends = [int(epoch["step"]) for epoch in progress["history"]]
    needed = {
        "best": ("best", [progress["best_step"]] if progress["best_step"] else []),
        "average": ("ends", ends[-stage.averaged :]),
        "last": ("", []),
    }
    place, steps = needed[stage.keep]
    for step in steps:
        try:
            checkpoints.load(folder / place / f"step-{step:08d}")
        except InputError as error:
            return str(error).partition(";")[0]
    return None


def makers(stage: Stage) -> list[Any]:
    return [short_forms.made("data", fields) for fields in stage.data]


def made(
    stage: Stage, data: DataSet, asked: Wants, seed: int, show: Display | None = None, make: Make = ask_and_make
) -> Examples:
    """The stage's examples. Where the teacher is not asked, only labelled rows can teach. `make`: for those it writes."""
    examples = data.train
    for maker in makers(stage):
        context = Context(seed, data.task, show, data.loaded_teacher, data.length)
        if getattr(maker, "asks_teacher", False):  # the ranks share the work
            examples = make(maker, examples, context)
        else:
            examples = ranks.first_before_others(maker.make)(examples, context)
    if asked == Wants():
        everything, examples = len(examples), examples.labelled_only
        if show and stage.data and len(examples) < everything:
            show.say(f"{everything - len(examples)} of {everything} examples have no label and are left out")
    if stage.reads != 1:
        examples = repeated(examples, stage.reads)
    if not len(examples):
        raise InputError(
            f"{data.train.source}: no row is left to learn from; give labelled rows, or a teacher and a method that asks it, such as 'soft_targets'"
        )
    return examples


def repeated(examples: Examples, times: float) -> Examples:
    """Each so many times, one after the other; of what is left of a number that is not whole, a seeded sample."""
    rows = round(times * len(examples))
    whole, rest = divmod(rows, max(len(examples), 1))
    more = np.random.default_rng(mix("repeated")).permutation(len(examples))[:rest]
    return examples.take(np.concatenate([np.tile(np.arange(len(examples)), whole), np.sort(more)]))


def rows_of(stage: Stage, data: list[DataSet], seed: int) -> int:
    """How many rows an epoch of the stage reads, over all data sets."""
    _, asked = short_forms.made("methods", stage.method).wants(99, 99)
    return sum(len(made(stage, one, asked, seed)) for one in data)


def sampled(examples: Examples) -> Examples:
    """A tenth of the rows that are learned from, 200 to 1000: enough for a curve, cheap beside the epoch."""
    return examples.sample(max(200, min(1000, len(examples) // 10)), seed=0)
