"""What a teacher knows before training: how right and sure it is on samples of rows, at which temperature its answers are
learned, and what the test file can show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from potstill.data.examples import Examples
from potstill.inference.answers import Predicted, predicted
from potstill.measuring.calibration import fit_temperature, how_sure
from potstill.measuring.measurements import TeacherKnowledge, TeacherRows
from potstill.measuring.quality import labelled
from potstill.measuring.significance import row_covariance
from potstill.recipe.defaults import AUTO, FEW_CLASSES
from potstill.recipe.schema import Recipe, Round
from potstill.runs.data_set import DataSet, selection_metric, teacher_logits, teacher_predictions
from potstill.runs.stage_setup import Run

ASKED = 300  # rows of a split, the same ones for every seed: they are answered once
LEAST_ROWS = 50  # of dev: fewer say little about a temperature
LEAST, LEAST_OF_MANY, HIGHEST = 1.0, 2.0, 10.0  # temperatures that a student learns at


def teacher_knowledge(recipe: Recipe, data: DataSet) -> TeacherKnowledge | None:
    """Ask the teacher for some rows; None if it is not asked."""
    if not is_asked(data):
        return None
    splits = {}
    for name, (split, examples) in groups_of_rows(data).items():
        if len(sample := examples.sample(ASKED, seed=0)):
            known = how_sure(answered_rows(data, sample, split), data.task.outcome)
            splits[name] = TeacherRows(len(sample), len(examples), **known)
    tests = [len(examples.labelled_only) for examples in data.tests.values()]
    classes = data.task.classes if data.task.names_outputs and data.task.outcome != "value" else None
    return TeacherKnowledge(classes, splits, tests[0] if tests else None, row_variance(recipe, data), fits_dev_at(data))


def is_asked(data: DataSet) -> bool:
    """False for a teacher that predicts nothing, or tokens of a vocabulary, which are too many to remember."""
    return not data.task.vocabulary and data.has_teacher and not (data.loaded_teacher and not data.predicting_teacher)


def rows_to_ask(data: DataSet) -> Iterator[tuple[str, Examples]]:
    """Yield each split with rows of it that `teacher_knowledge` asks the teacher for, in the same order."""
    if is_asked(data):
        groups = groups_of_rows(data)
        for split, examples in groups.values():
            yield split, examples.sample(ASKED, seed=0)
        if (labelled_dev := dev_sample(groups)) is not None:
            yield "dev", labelled_dev


def groups_of_rows(data: DataSet) -> dict[str, tuple[str, Examples]]:
    """By name the split and the rows of it that the teacher can answer: train with labels, train without, and dev."""
    has_label = np.asarray(data.train.labelled[data.train.index])
    groups = {
        "train": ("train", data.train.take(np.flatnonzero(has_label))),
        "unlabelled": ("train", data.train.take(np.flatnonzero(~has_label))),
        "dev": ("dev", data.dev),
    }
    if data.loaded_teacher is not None:
        return groups
    covered = {split: rows for split, rows in data.answered.items() if split in ("train", "dev")}
    return {
        name: (split, examples.take(np.flatnonzero(covered[split][examples.index])))
        for name, (split, examples) in groups.items()
        if split in covered
    }


def answered_rows(data: DataSet, examples: Examples, split: str) -> Iterator[Predicted]:
    """Yield the teacher's logits from its memory, or from the file that has its answers."""
    if data.loaded_teacher is None:
        targets, has_label = data.task.golds(examples), np.asarray(examples.labelled[examples.index])
        yield Predicted(np.asarray(examples.answers[examples.index]), targets, has_label)
        return
    source = data.tokenised(examples, data.loaded_teacher.tokenizer, split)
    yield from predicted(teacher_logits(data, source), source)


def dev_sample(groups: Mapping[str, tuple[str, Examples]]) -> Examples | None:
    """Labelled rows of dev; None if there are fewer than two, or no answers for dev."""
    sample = groups["dev"][1].labelled_only.sample(ASKED, seed=0) if "dev" in groups else None
    return sample if sample is not None and len(sample) > 1 else None


def fits_dev_at(data: DataSet) -> float | None:
    """Return the temperature at which the teacher's probabilities fit the labels of dev best; None if it has none, or too few."""
    if not is_asked(data) or data.task.outcome == "value":
        return None
    sample = dev_sample(groups_of_rows(data))
    if sample is None or len(sample) < LEAST_ROWS:
        return None
    return fit_temperature(list(answered_rows(data, sample, "dev")), data.task.outcome)


def row_variance(recipe: Recipe, data: DataSet) -> float | None:
    """Return the variance of the teacher's score over rows of dev, times their number; None if it is not known.

    A share of right rows is estimated with two more right and two more wrong (Agresti & Coull 1998), so that a few rows
    that are all right do not promise that any difference is shown.
    """
    sample = dev_sample(groups_of_rows(data))
    if sample is None:
        return None
    if data.loaded_teacher is None:
        outputs = np.asarray(sample.answers[sample.index])
    else:
        outputs = teacher_predictions(data, data.tokenised(sample, data.loaded_teacher.tokenizer, "dev"))
    metric, (targets, outputs) = selection_metric(recipe, data), labelled(data.task, sample, outputs)
    score = data.task.scorer(metric, targets, outputs)
    if metric in data.task.row_metrics:
        right = (score(np.arange(len(sample))) * len(sample) + 2) / (len(sample) + 4)
        return right * (1 - right)
    variance = float(row_covariance([score], len(sample))[0, 0]) * len(sample)
    return variance if variance > 0 else None


def at_teachers_temperature(run: Run, round_: Round) -> Round:
    """The round with a number as its method's temperature, if the recipe leaves that to the teacher.

    A teacher that is too sure of itself hardly tells its answers from labels. Divided by the temperature at which they fit dev,
    its logits say how probable it should find each class. Of several data sets the geometric mean is taken. Every rank must call it.
    """
    method = round_.stage.method
    if method.get("temperature") != AUTO:
        return round_
    data_sets = run.data_sets.of(round_.stage)
    fitted = [teachers_temperature(data, run.display.say if round_.repetition == 1 else None) for data in data_sets]
    mean = math.exp(sum(map(math.log, fitted)) / len(fitted))
    stage = round_.stage.model_copy(update={"method": {**method, "temperature": round(mean, 2)}})
    return round_._replace(stage=stage)


def teachers_temperature(data: DataSet, say: Callable[[str], None] | None) -> float:
    """The temperature at which this teacher's answers are learned."""
    task = data.task
    few = task.vocabulary or task.outcome == "classes" or (task.names_outputs and task.classes <= FEW_CLASSES)
    least = LEAST if few else LEAST_OF_MANY
    fits = fits_dev_at(data)
    found = least if fits is None else min(max(least, fits), HIGHEST)
    if say is not None:
        of = f"of the teacher of {data.name}" if data.name != "task" else "of the teacher"
        if task.vocabulary or task.outcome == "value":
            reason = "since its answers are not a few classes"
        elif fits is None:
            reason = f"since fewer than {LEAST_ROWS} rows of dev have labels and answers to fit another"
        elif fits < least:
            reason = f"the least, since its probabilities on dev are unsure enough (they fit at T = {fits:.2f})"
        elif fits > HIGHEST:
            reason = f"the most, since its probabilities on dev say little (they fit at T = {fits:.2f})"
        else:
            reason = "at which its probabilities fit the labels of dev"
        say(f"temperature {of}: {found:.2f}, {reason}")
    return found
