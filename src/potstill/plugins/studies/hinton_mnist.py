"""What do soft targets carry? Errors on digits, a digit left out, learning rates and entropy (arXiv:1503.02531)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from safetensors.numpy import load

from potstill.api import Above, Answer, Field, InputError, Recipe, Section, Study, StudyRun
from potstill.measuring.comparisons import Predictions
from potstill.measuring.measurements import BASELINE, DEV, GOLD, STUDENT, TEACHER
from potstill.measuring.run_folder import seed_folders
from potstill.measuring.significance import contrast
from potstill.reporting.figures import Curve, heat_map, lines
from potstill.reporting.scatter import Point, scatter
from potstill.reporting.svg import BASELINE as BASELINE_COLOUR
from potstill.reporting.svg import COLOURS
from potstill.system.paths import RunFolder
from potstill.tasks.metrics.labels import softmax

Several = Annotated[list[Above], Field(min_length=2)]
SHOWN_AT = 5.0  # temperature of the mean answers


@dataclass(frozen=True)
class HintonMnist(Study):
    """omitted: the class that is left out of the transfer set.
    rates: learning rates that are tried, on soft targets and on labels.
    epochs: of each of these runs.
    temperatures: at which the entropy of the teacher's answers is shown.
    """

    omitted: str = "3"
    rates: Several = field(default_factory=lambda: [0.01, 0.03, 0.1, 0.3, 1.0])
    epochs: Above = 3.0
    temperatures: Several = field(default_factory=lambda: [1.0, 2.0, 5.0, 10.0, 20.0, 40.0])

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        stage = recipe.stage[-1]
        if len(recipe.stage) > 1 or "temperature" not in stage.method:
            raise InputError("study hinton_mnist needs one stage with soft targets; write --set method=soft_targets")
        without = [*stage.data, {"make": "without", "labels": [self.omitted]}]
        changes: dict[str, dict[str, Any]] = {"omitted": {"data": without}}  # of the stage, by the name of the run
        for rate in self.rates:
            for kind, method in (("soft", stage.method), ("hard", {"name": "hard_labels"})):
                optimizer = stage.optimizer.model_copy(update={"rate": rate, "rates": []})
                short = {"epochs": self.epochs, "min_steps": 0}
                changes[f"{kind}-{rate:g}"] = {"method": method, "optimizer": optimizer, **short}
        recipes = {"whole": recipe.model_copy(update={"name": "whole"})}
        for name, change in changes.items():
            seeds = recipe.seeds if name == "omitted" else 1
            alone = {"seeds": seeds, "baseline": False, "timing": "none"}  # the first run has a baseline and is timed
            recipes[name] = recipe.model_copy(
                update={"name": name, "stage": [stage.model_copy(update=change)], **alone}
            )
        return recipes

    def may_diverge(self, name: str) -> bool:
        """The rates are tried to see which are too high."""
        return name.startswith(("soft-", "hard-"))

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        whole = runs["whole"]
        models = {"teacher": TEACHER, "student alone": BASELINE, "student taught": STUDENT}
        colours = (COLOURS[1], BASELINE_COLOUR, COLOURS[0])
        teacher, alone, taught = (_predictions(whole, model) for model in models.values())
        rows, points = [], []
        for name, predictions, colour in zip(models, (teacher, alone, taught), colours, strict=True):
            wrong, size = error_counts(predictions), whole.parameters(models[name]) / 1e6
            rows.append([name, f"{size:.2f} M", _mean_and_deviation(wrong), ", ".join(map(str, wrong))])
            points.append(Point(name, size, float(np.mean(wrong)), float(min(wrong)), float(max(wrong)), colour))
        share, low, high = (f"{100 * each:.0f}" for each in gap_closed(alone, taught, teacher))
        gap = f"Soft targets remove {share} % of the errors between student alone and teacher"
        title = f"errors of {len(teacher.targets):,}"
        figure = scatter("hinton-mnist", "Errors", "parameters (millions)", title, points)
        header = ["network", "parameters", title, "by seed"]
        parts = (self._omitted(runs["omitted"]), self._rates(runs), self._entropy(teacher), self._similar(teacher))
        sentences = [f"{gap} (95 % interval {low} to {high}).", *(sentence for sentence, _ in parts)]
        sections = [section for _, section in parts]
        return Answer("Soft targets on digits", sentences, header, rows, figure, sections)

    def _omitted(self, run: StudyRun) -> tuple[str, Section]:
        """Count errors before and after the class's bias is raised until its share of the predictions on dev is right."""
        number = next(iter(run.measurements.labels.values())).index(self.omitted)
        dev, classes = _dev_logits(run.folder)
        share = float((classes == number).mean())
        # labels are not used: the bias is what makes so many of all predictions this class
        gaps = [np.delete(logits, number, axis=1).max(1) - logits[:, number] for logits in dev]
        biases = [float(np.quantile(gap, share)) for gap in gaps]
        test = _predictions(run, STUDENT)
        is_omitted = test.targets.astype(int) == number
        its_logit = np.arange(len(test.task.labels)) == number
        raised = [logits + bias * its_logit for logits, bias in zip(test.logits, biases, strict=True)]
        rows, recognised = [], []
        for kind, seeds in {"as taught": test.logits, "with its bias raised": raised}.items():
            wrong = [logits.argmax(1) != test.targets for logits in seeds]
            among = [int(each[is_omitted].sum()) for each in wrong]
            recognised.append(100 * (1 - float(np.mean(among)) / int(is_omitted.sum())))
            counts = [int(each.sum()) for each in wrong]
            rows.append([kind, _mean_and_deviation(counts), _mean_and_deviation(among), f"{recognised[-1]:.1f} %"])
        sentence = (
            f"A student that never saw a {self.omitted} recognises {recognised[0]:.1f} % of {int(is_omitted.sum()):,}; "
            f"with its bias raised by {np.mean(biases):.1f}, {recognised[1]:.1f} %."
        )
        header = ["", "errors", f"of them {self.omitted}", f"{self.omitted} recognised"]
        return sentence, Section(f"Without any {self.omitted} in the transfer set", header, rows)

    def _rates(self, runs: Mapping[str, StudyRun]) -> tuple[str, Section]:
        curves: dict[str, dict[float, float]] = {"soft": {}, "hard": {}}  # errors by rate, without runs that diverged
        for rate, (kind, model) in itertools.product(self.rates, (("soft", STUDENT), ("hard", BASELINE))):
            if (run := runs.get(f"{kind}-{rate:g}")) is not None:
                predictions = _predictions(run, model)
                errors, targets = float(np.mean(error_counts(predictions))), predictions.targets.astype(int)
                if errors < len(targets) - np.bincount(targets).max():  # better than the best constant prediction
                    curves[kind][rate] = errors
        both = [rate for rate in self.rates if all(rate in curve for curve in curves.values())]
        if not both:
            raise InputError(f"study hinton_mnist: every rate of {self.rates} is too high; write lower ones")
        from potstill.plugins.studies._gradient_noise import gradient_noise  # loads torch

        folders = {kind: runs[f"{kind}-{both[-1]:g}"].folder for kind in curves}
        noise = {
            kind: [gradient_noise(folder, trained) for trained in (False, True)] for kind, folder in folders.items()
        }
        rows = []
        for rate in self.rates:
            cells = [f"{curve[rate]:.0f}" if rate in curve else "diverged" for curve in curves.values()]
            rows.append([f"errors at rate {rate:g}", *cells])
        for place, when in enumerate(("at the first step", f"after {self.epochs:g} epochs")):
            rows.append([f"noise of the gradient {when}", *(f"{noise[kind][place]:.3g}" for kind in curves)])
        best = {kind: min(curve, key=curve.__getitem__) for kind, curve in curves.items()}
        sentence = (
            f"After {self.epochs:g} epochs the best rate is {best['soft']:g} on soft targets and {best['hard']:g} on labels, "
            f"and the highest that does not diverge is {max(curves['soft']):g} and {max(curves['hard']):g}; the variance of "
            f"the gradient divided by its squared norm is {noise['soft'][0]:.3g} and {noise['hard'][0]:.3g} at the first step."
        )
        colours = {"soft": COLOURS[0], "hard": BASELINE_COLOUR}
        drawn = [Curve(list(curve), list(curve.values()), colours[kind]) for kind, curve in curves.items()]
        figure = lines("rates", "Errors by learning rate", "rate", "errors", drawn, ["soft targets", "labels"])
        header = ["", "soft targets", "labels"]
        return sentence, Section("Noise of the gradient, and the rate it allows", header, rows, figure)

    def _entropy(self, teacher: Predictions) -> tuple[str, Section]:
        from scipy.stats import entropy  # here, so that `potstill list` shows studies without it

        answers = [softmax(teacher.logits[0] / temperature) for temperature in self.temperatures]
        bits = [float(entropy(each, base=2, axis=-1).mean()) for each in answers]
        sentence = (
            f"The teacher's answers contain {bits[0]:.2f} bits at T = {self.temperatures[0]:g} "
            f"and {bits[-1]:.2f} at T = {self.temperatures[-1]:g}; a label contains none."
        )
        rows = [[f"{temperature:g}", f"{each:.2f}"] for temperature, each in zip(self.temperatures, bits, strict=True)]
        curve = Curve(self.temperatures, bits, COLOURS[0])
        figure = lines("entropy", "Entropy of the answers", "temperature", "bits", [curve])
        return sentence, Section("Entropy of the teacher's answers", ["temperature", "bits"], rows, figure)

    def _similar(self, teacher: Predictions) -> tuple[str, Section]:
        """Show which classes the teacher finds similar: its mean answer to the rows of each class."""
        labels, p = list(teacher.task.labels), softmax(teacher.logits[0] / SHOWN_AT)
        means = np.stack([p[teacher.targets.astype(int) == number].mean(0) for number in range(len(labels))])
        rows = [[label, *(f"{100 * value:.1f}" for value in means[n])] for n, label in enumerate(labels)]
        heat = heat_map("near", f"Mean answer at T = {SHOWN_AT:g}, percent", labels, means.tolist(), "class")
        others = means - np.diag(np.diag(means))
        nearest = ", ".join(f"{label} → {labels[int(others[n].argmax())]}" for n, label in enumerate(labels))
        sentence = f"Most similar to each class, according to the teacher: {nearest}."
        return sentence, Section("Which classes are similar", ["", *labels], rows, heat)


def error_counts(predictions: Predictions) -> list[int]:
    """Return the number of wrong predictions of each seed."""
    task, targets = predictions.task, predictions.targets
    return [int((~task.is_correct(targets, logits)).sum()) for logits in predictions.logits]


def gap_closed(alone: Predictions, taught: Predictions, teacher: Predictions) -> tuple[float, float, float]:
    """Return which share of the errors between student alone and teacher distillation removed, with its 95 % interval.

    The interval covers other rows and other seeds, by the first derivatives of the share with respect to the three scores
    (delta method).
    """
    alone, taught, teacher = (replace(predictions, metric="accuracy") for predictions in (alone, taught, teacher))
    gap = teacher.mean() - alone.mean()
    if gap == 0:
        return math.nan, math.nan, math.nan
    share = (taught.mean() - alone.mean()) / gap
    sides = ((1 / gap, taught), ((share - 1) / gap, alone), (-share / gap, teacher))
    change = contrast([(weight, predictions.scores()) for weight, predictions in sides], len(alone.targets))
    return share, share + change.low - change.mean, share + change.high - change.mean


def _predictions(run: StudyRun, model: str) -> Predictions:
    if (predictions := run.predictions(model)) is None:
        raise InputError(f"{run.folder} has no predictions of the {model} model; give a teacher and a test set")
    return predictions


def _dev_logits(run: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the student's logits of each seed on the labelled rows of dev, and the classes of these rows."""
    files = [load(RunFolder(folder).answers.read_bytes()) for _, folder in seed_folders(run)]
    data = next(iter(files[0])).split("/")[1]
    gold = files[0][f"{GOLD}/{data}/{DEV}"]
    labelled = ~np.isnan(gold)
    return [file[f"{STUDENT}/{data}/{DEV}"][labelled] for file in files], gold[labelled].astype(int)


def _mean_and_deviation(counts: list[int]) -> str:
    """146 ± 5"""
    return f"{np.mean(counts):.0f}" + (f" ± {np.std(counts, ddof=1):.0f}" if len(counts) > 1 else "")
