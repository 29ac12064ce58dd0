"""What runs say, read back from their folders: every model's answers, means over seeds, and differences in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from potstill.errors import InputError
from potstill.measuring.measurements import AVERAGED, BASELINE, GOLD, STUDENT, TEACHER, main_student, quoted_splits
from potstill.measuring.run_folder import measurements_of, run_names, seed_folders
from potstill.measuring.significance import DEV, NOT_TESTED, mcnemar, mean_interval, paired, told_together
from potstill.system.files import write_atomically
from potstill.system.paths import RunFolder

if TYPE_CHECKING:  # torch is not needed to read measurements
    from potstill.tasks.metrics.labels import Score
    from potstill.tasks.task import Task


@dataclass(frozen=True)
class Said:
    """One model's answers on the labelled rows of one split, one array per seed."""

    task: Task
    metric: str
    targets: np.ndarray
    logits: list[np.ndarray]
    split: str = "test"

    @property
    def varies(self) -> bool:
        """Whether seeds made different models of it; a teacher is the same in all of them."""
        return any(not np.array_equal(one, self.logits[0], True) for one in self.logits[1:])

    def scores(self) -> list[Score]:
        return [self.task.scorer(self.metric, self.targets, one) for one in self.logits]

    def mean(self) -> float:
        """Of the scores over seeds, on all rows."""
        return float(np.mean([score(np.arange(len(self.targets))) for score in self.scores()]))

    def interval(self) -> tuple[float, float]:
        """95 % interval of the method's score, over other rows and other seeds."""
        low, high = mean_interval(self.scores(), len(self.targets))
        return (max(0.0, low), min(1.0, high)) if self.task.is_share(self.metric) else (low, high)


Spoken = dict[tuple[str, str, str], Said]
"""By model, data set and split."""


def write_answers(file: Path, answers: Mapping[tuple[str, str, str], np.ndarray]) -> None:
    """(rows, classes) logits by model, data set and split; the targets stand under the model's name "targets", NaN = no label."""
    write_atomically(file, save({"/".join(key): np.ascontiguousarray(value) for key, value in answers.items()}))


def spoken(run: Path, told: Mapping[str, Any]) -> Spoken:
    """Everything that was said in a run of one or several seeds, on the splits that are quoted. `told`: its measurements."""
    kept = [RunFolder(folder).answers for _, folder in seed_folders(run)]
    try:
        return _spoken([load(file.read_bytes()) for file in kept if file.exists()], told)
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"what {run} measured does not fit the answers beside it ({type(error).__name__}: {error}): "
            "measurements.json or answers.safetensors is damaged; write the run's command once more with --overwrite"
        ) from error


def _spoken(files: Sequence[Mapping[str, np.ndarray]], told: Mapping[str, Any]) -> Spoken:
    from potstill.tasks.registry import saved_task  # loads torch

    found: Spoken = {}
    for key in files[0] if files else ():
        model, data, split = key.split("/")
        if model == GOLD or split not in quoted_splits(told, data):
            continue
        task = saved_task(told["tasks"][data], told["labels"][data])
        gold = files[0][f"{GOLD}/{data}/{split}"]
        there = ~np.isnan(gold.reshape(len(gold), -1)).any(1)
        same = [file for file in files if key in file and np.array_equal(file[f"{GOLD}/{data}/{split}"], gold, True)]
        if there.any():
            logits = [file[key][there] for file in same]
            said = Said(task, told["metrics"][data][0], gold[there], logits, split)
            said.scores()[0](np.arange(len(said.targets)))  # what is damaged fails here, where its files are known
            found[model, data, split] = said
    return found


def dev_score(run: Path) -> float:
    """The student's, by what dev is judged by, mean over data sets."""
    told = measurements_of(run)
    student = told["models"][main_student(told)]
    return float(np.mean([by["dev"][told["metrics"][data][0]] or 0.0 for data, by in student["quality"].items()]))


def difference(ours: Said, theirs: Said) -> dict[str, Any]:
    """Of two models on the same rows, over other rows and other seeds, and McNemar's exact p for each seed.

    What was chosen by some rows is not tested on them: of many cells the best is above its worth there.
    """
    if ours.split == DEV:
        apart = ours.mean() - theirs.mean()
        return {"mean": None if math.isnan(apart) else apart, "words": NOT_TESTED}
    found = paired(ours.scores(), theirs.scores(), len(ours.targets))
    if math.isnan(found.p):
        return {"mean": None, "words": found.words}
    told: dict[str, Any] = {"mean": found.mean, "words": found.words}
    told |= {"low": found.low, "high": found.high, "p": found.p, "seeds": found.seeds}
    if ours.task.outcome == "value" or ours.task.generates:  # texts are seldom right word for word
        return told
    left, right = ([one.task.right(one.targets, logits) for logits in one.logits] for one in (ours, theirs))
    return {**told, "mcnemar": [mcnemar(a, b) for a, b in zip(left, right, strict=False)]}


def differences(said: Spoken, asked: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Each asked pair of models on every split where both answered the same rows; p is corrected for their number."""
    found = []
    places = list(dict.fromkeys((data, split) for _, data, split in said))
    for model, against in asked:
        for data, split in places:
            ours, theirs = said.get((model, data, split)), said.get((against, data, split))
            if ours and theirs and np.array_equal(ours.targets, theirs.targets):
                named = {"model": model, "against": against, "data": data, "split": split, "metric": ours.metric}
                found.append({**named, **difference(ours, theirs)})
    return told_together(found)


def own_differences(said: Spoken) -> list[dict[str, Any]]:
    """A run's student against its baseline and against its teacher."""
    return differences(said, [(STUDENT, BASELINE), (STUDENT, TEACHER)])


def comparisons(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Runs side by side: each student against its own baseline, then each two students against each other.

    Baselines that answered alike are one and stand once; others are told apart by the run's name.
    """
    together: Spoken = {}
    pairs: list[tuple[str, str]] = []
    found = [measurements_of(run) for run in runs]
    called = run_names(runs, found)
    for name, run, told in zip(called, runs, found, strict=True):
        said = spoken(run, told)
        own = {key[1:]: one for key, one in said.items() if key[0] == BASELINE}
        known = {key[1:]: one for key, one in together.items() if key[0] == BASELINE}
        baseline = BASELINE if not known or _alike(own, known) else f"{BASELINE} ({name})"
        together |= {(baseline, *place): one for place, one in own.items()}
        together |= {(name, *key[1:]): one for key, one in said.items() if key[0] == STUDENT}
        pairs.append((name, baseline))
    return differences(together, [*pairs, *((b, a) for a, b in combinations(called, 2))])


def _alike(ours: Mapping[Any, Said], theirs: Mapping[Any, Said]) -> bool:
    return ours.keys() == theirs.keys() and all(
        len(one.logits) == len(theirs[key].logits)
        and all(np.array_equal(a, b, True) for a, b in zip(one.logits, theirs[key].logits, strict=True))
        for key, one in ours.items()
    )


def over_seeds(run: Path) -> dict[str, Any]:
    """One table of several: means, deviations, and intervals of the means. Sizes and speeds are the first seed's."""
    every = [measurements_of(folder) for _, folder in seed_folders(run)]
    found = {**every[0], "seeds": [seed for one in every for seed in one["seeds"]]}
    found["models"] = {}
    for name, first in every[0]["models"].items():
        alike = [one["models"][name] for one in every if name in one["models"]]
        means = {kind: _mean([one[kind] for one in alike]) for kind in AVERAGED if kind in first}
        found["models"][name] = {**first, **means}
        if "learned" in first:
            found["models"][name]["learned"] = all(one["learned"] for one in alike)
        if len(alike) > 1:
            found["models"][name]["deviation"] = _deviation([one["quality"] for one in alike])
    said = spoken(run, found)
    for (name, data, split), one in said.items():
        if one.varies:
            ends = one.interval()
            found["models"][name]["intervals"][data][split] = {} if math.isnan(ends[0]) else {one.metric: ends}
    found["differences"] = own_differences(said)
    found["teacher_seconds"] = sum(one["teacher_seconds"] for one in every)
    return found


def _mean(trees: Sequence[Any]) -> Any:
    """Of trees of one shape, leaf by leaf."""
    if isinstance(trees[0], dict):
        return {key: _mean([tree[key] for tree in trees if key in tree]) for key in trees[0]}
    if None in trees:
        return None  # undefined for a seed
    return np.mean(np.asarray(trees), axis=0).tolist()


def _deviation(trees: Sequence[Any]) -> Any:
    """Sample deviation of each leaf."""
    if isinstance(trees[0], dict):
        return {key: _deviation([tree[key] for tree in trees if key in tree]) for key in trees[0]}
    return float(np.std(trees, ddof=1)) if len(set(trees)) > 1 and None not in trees else 0.0
