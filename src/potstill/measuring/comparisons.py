"""Comparisons of models within and between runs: their stored predictions, means over seeds, and tested differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from potstill.errors import InputError
from potstill.measuring.gap import closed_gap
from potstill.measuring.measurements import (
    BASELINE,
    DEV,
    GOLD,
    STUDENT,
    TEACHER,
    ClosedGap,
    Comparison,
    Matrix,
    MeasuredModel,
    Measurements,
    Place,
)
from potstill.measuring.run_folder import read_measurements, run_names, seed_folders
from potstill.measuring.significance import NOT_TESTED, correct_comparisons, mcnemar_p, mean_interval, paired
from potstill.system.files import write_atomically
from potstill.system.paths import RunFolder

if TYPE_CHECKING:  # without torch: studies and reports read predictions
    from potstill.recipe.schema import TaskName
    from potstill.tasks.metrics.labels import Score
    from potstill.tasks.task import Task


@dataclass(frozen=True)
class Predictions:
    """Predictions of one model for the labelled rows of one split, one array per seed."""

    task: Task
    metric: str
    targets: np.ndarray
    logits: list[np.ndarray]
    split: str = "test"

    @property
    def varies(self) -> bool:
        """Whether the seeds have different models; the teacher is the same for all."""
        return any(not np.array_equal(logits, self.logits[0], True) for logits in self.logits[1:])

    def scores(self) -> list[Score]:
        return [self.task.scorer(self.metric, self.targets, logits) for logits in self.logits]

    def mean(self) -> float:
        """Return the mean score over seeds, on all rows."""
        return float(np.mean([score(np.arange(len(self.targets))) for score in self.scores()]))

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the mean score, over other rows and other seeds."""
        low, high = mean_interval(self.scores(), len(self.targets))
        return (max(0.0, low), min(1.0, high)) if self.metric in self.task.row_metrics else (low, high)


RunPredictions = dict[tuple[str, str, str], Predictions]
"""By model, data set and split."""


def write_predictions(file: Path, predictions: Mapping[tuple[str, str, str], np.ndarray]) -> None:
    """Write (rows, classes) logits by model, data set and split. Targets are those of the model "targets"; NaN: no label."""
    arrays = {"/".join(place): np.ascontiguousarray(logits) for place, logits in predictions.items()}
    write_atomically(file, save(arrays))


def read_predictions(run: Path, measurements: Measurements) -> RunPredictions:
    """Read all predictions of a run, of one or more seeds, on the splits that are quoted."""
    files = [RunFolder(folder).answers for _, folder in seed_folders(run)]
    try:
        return _predictions([load(file.read_bytes()) for file in files if file.exists()], measurements)
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"measurements.json and answers.safetensors of {run} do not fit together ({type(error).__name__}: {error}): "
            "one of them is damaged; write the run's command again with --overwrite"
        ) from error


def _predictions(files: Sequence[Mapping[str, np.ndarray]], measurements: Measurements) -> RunPredictions:
    from potstill.tasks.registry import TASKS  # loads torch

    found: RunPredictions = {}
    for key in files[0] if files else ():
        model, data, split = key.split("/")
        if model == GOLD or split not in measurements.quoted_splits(data):
            continue
        task = TASKS[cast("TaskName", measurements.tasks[data])](tuple(measurements.labels[data]))
        gold = files[0][f"{GOLD}/{data}/{split}"]
        has_label = ~np.isnan(gold.reshape(len(gold), -1)).any(1)
        same = [file for file in files if key in file and np.array_equal(file[f"{GOLD}/{data}/{split}"], gold, True)]
        if has_label.any():
            logits = [file[key][has_label] for file in same]
            predictions = Predictions(task, measurements.metrics[data][0], gold[has_label], logits, split)
            predictions.scores()[0](
                np.arange(len(predictions.targets))
            )  # damaged arrays fail here, where the run is known
            found[model, data, split] = predictions
    return found


def dev_score(run: Path) -> float:
    """Return the student's score on dev by the first metric, averaged over data sets."""
    measurements = read_measurements(run)
    student = measurements.models[measurements.student_name]
    places = [Place(data, DEV, measurements.metrics[data][0]) for data in student.quality]
    return float(np.mean([student.score(place) or 0.0 for place in places]))


def compare(names: tuple[str, str], data: str, ours: Predictions, theirs: Predictions) -> Comparison:
    """Compare two models on the same rows, over other rows and other seeds, with McNemar's exact p for each seed.

    Nothing is tested on dev: the best of many grid cells is selected there, so its score is too high.
    """
    model, against = names
    untested = Comparison(
        model=model, against=against, data=data, split=ours.split, metric=ours.metric, words=NOT_TESTED
    )
    if ours.split == DEV:
        mean = ours.mean() - theirs.mean()
        return replace(untested, mean=None if math.isnan(mean) else mean)
    difference = paired(ours.scores(), theirs.scores(), len(ours.targets))
    if math.isnan(difference.p):
        return replace(untested, words=difference.words)
    exact: list[float] = []
    if ours.task.outcome != "value" and not ours.task.vocabulary:  # texts are seldom right word for word
        right = [[side.task.is_correct(side.targets, logits) for logits in side.logits] for side in (ours, theirs)]
        exact = [mcnemar_p(*both) for both in zip(*right, strict=False)]
    tested = {name: getattr(difference, name) for name in ("mean", "words", "low", "high", "p", "seeds", "smallest")}
    return replace(untested, **tested, mcnemar=exact)


def differences(predictions: RunPredictions, pairs: Iterable[tuple[str, str]]) -> list[Comparison]:
    """Compare each pair of models on every split where both answered the same rows; p is corrected for their number."""
    places = list(dict.fromkeys((data, split) for _, data, split in predictions))
    compared = []
    for pair in pairs:
        for data, split in places:
            ours, theirs = (predictions.get((model, data, split)) for model in pair)
            if ours and theirs and np.array_equal(ours.targets, theirs.targets):
                compared.append(compare(pair, data, ours, theirs))
    return correct_comparisons(compared)


def own_differences(predictions: RunPredictions) -> list[Comparison]:
    """Compare the student of a run with its baseline and with its teacher."""
    return differences(predictions, [(STUDENT, BASELINE), (STUDENT, TEACHER)])


def with_tests(measurements: Measurements, predictions: RunPredictions) -> Measurements:
    """Add what is computed from the stored predictions: differences, and the share of the gap that the student closes."""
    models = dict(measurements.models)
    if STUDENT in models:
        gaps: dict[str, dict[str, ClosedGap]] = {}
        for data, split, _ in measurements.quoted():
            sides = [predictions.get((model, data, split)) for model in (STUDENT, BASELINE, TEACHER)]
            if split != DEV and all(sides) and (gap := gap_between(*sides)):  # type: ignore[arg-type]
                gaps[data] = {split: gap}
        models[STUDENT] = replace(models[STUDENT], closed_gap=gaps)
    return replace(measurements, models=models, differences=own_differences(predictions))


def gap_between(ours: Predictions, baseline: Predictions, teacher: Predictions) -> ClosedGap | None:
    """Return the share of the gap between two models that a third one closes; None if they answered other rows."""
    if not all(np.array_equal(ours.targets, other.targets) for other in (baseline, teacher)):
        return None
    return closed_gap(ours.scores(), baseline.scores(), teacher.scores(), len(ours.targets))


def comparisons(runs: Sequence[Path]) -> list[Comparison]:
    """Compare the student of each run with its own baseline, then every two students with each other.

    Baselines with equal predictions are one; others are told apart by the name of their run.
    """
    together: RunPredictions = {}
    pairs: list[tuple[str, str]] = []
    measurements = [read_measurements(run) for run in runs]
    names = run_names(runs, measurements)
    for name, run, measured in zip(names, runs, measurements, strict=True):
        predictions = read_predictions(run, measured)
        own, first = _of_model(predictions, BASELINE), _of_model(together, BASELINE)
        baseline = BASELINE if not first or _equal(own, first) else f"{BASELINE} ({name})"
        together |= {(baseline, *place): values for place, values in own.items()}
        together |= {(name, *place): values for place, values in _of_model(predictions, STUDENT).items()}
        pairs.append((name, baseline))
    return differences(together, [*pairs, *((later, earlier) for earlier, later in combinations(names, 2))])


def _of_model(predictions: RunPredictions, model: str) -> dict[tuple[str, str], Predictions]:
    return {(data, split): values for (name, data, split), values in predictions.items() if name == model}


def _equal(ours: Mapping[Any, Predictions], theirs: Mapping[Any, Predictions]) -> bool:
    return ours.keys() == theirs.keys() and all(
        len(values.logits) == len(theirs[place].logits)
        and all(np.array_equal(a, b, True) for a, b in zip(values.logits, theirs[place].logits, strict=True))
        for place, values in ours.items()
    )


def over_seeds(run: Path) -> Measurements:
    """Average the measurements of a run's seeds, with deviations and intervals. Sizes and speeds are the first seed's."""
    seeds = [read_measurements(folder) for _, folder in seed_folders(run)]
    averaged = replace(
        seeds[0],
        seeds=[number for seed in seeds for number in seed.seeds],
        models={
            name: _average([seed.models[name] for seed in seeds if name in seed.models]) for name in seeds[0].models
        },
        teacher_seconds=sum(seed.teacher_seconds or 0.0 for seed in seeds),
    )
    predictions = read_predictions(run, averaged)
    for (name, data, split), values in predictions.items():
        if values.varies:
            low, high = values.interval()
            ends = {} if math.isnan(low) else {values.metric: (low, high)}
            averaged.models[name].intervals.setdefault(data, {})[split] = ends
    return with_tests(averaged, predictions)


def _average(models: Sequence[MeasuredModel]) -> MeasuredModel:
    first = models[0]
    several = {"deviation": _deviation([model.quality for model in models])} if len(models) > 1 else {}
    return replace(
        first,
        quality=_mean([model.quality for model in models]),
        per_class=_mean([model.per_class for model in models]),
        confusion=_mean([model.confusion for model in models]),
        mean_probabilities=_mean([model.mean_probabilities for model in models]),
        temperature=_mean([model.temperature for model in models]),
        rates=[trial for model in models for trial in model.rates],
        learned=None if first.learned is None else all(model.learned for model in models),
        **several,
    )


def _mean(trees: Sequence[Any]) -> Any:
    """Average trees of one shape, leaf by leaf."""
    if isinstance(trees[0], dict):
        return {key: _mean([tree[key] for tree in trees if key in tree]) for key in trees[0]}
    if isinstance(trees[0], Matrix):
        return replace(trees[0], rows=_mean([tree.rows for tree in trees]))
    if None in trees:
        return None  # undefined for a seed
    return np.mean(np.asarray(trees), axis=0).tolist()


def _deviation(trees: Sequence[Any]) -> Any:
    """Return the sample standard deviation of each leaf."""
    if isinstance(trees[0], dict):
        return {key: _deviation([tree[key] for tree in trees if key in tree]) for key in trees[0]}
    return float(np.std(trees, ddof=1)) if len(set(trees)) > 1 and None not in trees else 0.0
