"""What do soft targets carry? Digits by teacher, student alone and student taught, one digit left out, entropy, rates (arXiv:1503.02531)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from potstill.errors import InputError
from potstill.measuring.comparisons import Predictions
from potstill.measuring.measurements import BASELINE, STUDENT, TEACHER
from potstill.plugins.studies import _soft_answers as soft_answers
from potstill.recipe.bounds import Above
from potstill.recipe.schema import Recipe
from potstill.reporting.figures import Curve, heat_map, lines
from potstill.reporting.scatter import Point, scatter
from potstill.reporting.svg import BASELINE as BASELINE_COLOUR
from potstill.reporting.svg import COLOURS
from potstill.runs.study_types import Answer, Found, Part, Study

MANY = Annotated[list[Above], Field(min_length=2)]


@dataclass(frozen=True)
class HintonMnist(Study):
    """`omitted`: the class that the transfer set lacks; `rates` are tried for `epochs`, on soft targets and on labels;
    answers are shown at `temperatures`."""

    omitted: str = "3"
    rates: MANY = field(default_factory=lambda: [0.01, 0.03, 0.1, 0.3, 1.0])
    epochs: Above = 3.0
    temperatures: MANY = field(default_factory=lambda: [1.0, 2.0, 5.0, 10.0, 20.0, 40.0])

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        stage = recipe.stage[-1]
        if len(recipe.stage) > 1 or "temperature" not in stage.method:
            raise InputError("study hinton_mnist needs a recipe of one stage by method 'soft_targets'")
        gone = [*stage.data, {"make": "without", "labels": [self.omitted]}]
        found = {"whole": _changed(recipe, "whole"), "omitted": _changed(recipe, "omitted", {"data": gone}, alone=True)}
        for rate in self.rates:
            for name, method in (("soft", stage.method), ("hard", {"name": "hard_labels"})):
                optimizer = stage.optimizer.model_copy(update={"rate": rate})
                changes = {"method": method, "optimizer": optimizer, "epochs": self.epochs}
                called = f"{name}-{rate:g}"
                found[called] = _changed(recipe, called, changes, alone=True).model_copy(update={"seeds": 1})
        return found

    def may_diverge(self, name: str) -> bool:
        """The rates are tried to see which are too high."""
        return name.startswith(("soft-", "hard-"))

    def answer(self, found: Mapping[str, Found]) -> Answer:
        whole = found["whole"]
        teacher, alone, taught = (_said(whole, model) for model in (TEACHER, BASELINE, STUDENT))
        share, low, high = soft_answers.gap_closed(alone, taught, teacher)
        rows, points = [], []
        for place, (name, said) in enumerate(
            (("teacher", teacher), ("student alone", alone), ("student taught", taught))
        ):
            wrong = soft_answers.errors(said)
            size = whole.parameters((TEACHER, BASELINE, STUDENT)[place]) / 1e6
            rows.append([name, f"{size:.2f} M", _spread(wrong), ", ".join(map(str, wrong))])
            colour = (COLOURS[1], BASELINE_COLOUR, COLOURS[0])[place]
            points.append(Point(name, size, float(np.mean(wrong)), float(min(wrong)), float(max(wrong)), colour))
        title = f"errors of {len(teacher.targets):,}"
        omitted, omitted_part = self._omitted(found["omitted"])
        rates, rates_part = self._rates(found)
        near, near_part = self._near(whole)
        sentences = [
            f"Of the errors between student alone and teacher, soft targets take away {100 * share:.0f} % "
            f"(95 % interval {100 * low:.0f} to {100 * high:.0f}).",
            *omitted,
            *rates,
            *near,
        ]
        figure = scatter("hinton-mnist", "Errors", "parameters (millions)", title, points)
        header = ["network", "parameters", title, "by seed"]
        return Answer("Soft targets on digits", sentences, header, rows, figure, [omitted_part, rates_part, *near_part])

    def _omitted(self, run: Found) -> tuple[list[str], Part]:
        """Before and after the class's bias is raised until its share of the answers on dev is its share of dev."""
        labels = next(iter(run.measurements.labels.values()))
        number = labels.index(self.omitted)
        dev, classes = soft_answers.kept_answers(run.folder, STUDENT, "dev")
        test = _said(run, STUDENT)
        expected = float((classes == number).mean())
        kinds: dict[str, list[np.ndarray]] = {"as taught": test.logits, "with its bias raised": []}
        biases = [soft_answers.bias_for(one, number, expected) for one in dev]
        for logits, bias in zip(test.logits, biases, strict=True):
            kinds["with its bias raised"].append(soft_answers.with_bias(logits, number, bias))
        rows, there = [], test.targets.astype(int) == number
        recognised = {}
        for kind, each in kinds.items():
            wrong = [int((one.argmax(1) != test.targets).sum()) for one in each]
            among = [int((one.argmax(1) != test.targets)[there].sum()) for one in each]
            recognised[kind] = 100 * (1 - float(np.mean(among)) / int(there.sum()))
            rows.append([kind, _spread(wrong), _spread(among), f"{recognised[kind]:.1f} %"])
        first, last = recognised.values()
        told = (
            f"A student that never saw a {self.omitted} recognises {first:.1f} % of {int(there.sum()):,}; "
            f"with its bias raised by {np.mean(biases):.1f}, {last:.1f} %."
        )
        header = ["", "errors", f"of them {self.omitted}", f"{self.omitted} recognised"]
        return [told], Part(f"Without any {self.omitted} in the transfer set", header, rows)

    def _rates(self, found: Mapping[str, Found]) -> tuple[list[str], Part]:
        curves: dict[str, dict[float, float]] = {}
        for kind in ("soft", "hard"):
            there = {rate: found[f"{kind}-{rate:g}"] for rate in self.rates if f"{kind}-{rate:g}" in found}
            said = {rate: _said(run, STUDENT if kind == "soft" else BASELINE) for rate, run in there.items()}
            wrong = {rate: float(np.mean(soft_answers.errors(one))) for rate, one in said.items()}
            curves[kind] = {rate: wrong[rate] for rate, one in said.items() if wrong[rate] < _errors_of_one_answer(one)}
        both = [rate for rate in self.rates if all(rate in curve for curve in curves.values())]
        if not both:
            raise InputError(f"study hinton_mnist: every rate of {self.rates} is too high; write lower ones")
        from potstill.plugins.studies._gradient_noise import gradient_noise  # loads torch

        best = {kind: min(curve, key=curve.__getitem__) for kind, curve in curves.items()}
        runs = {kind: found[f"{kind}-{both[-1]:g}"].folder for kind in curves}
        noise = {kind: [gradient_noise(runs[kind], trained) for trained in (False, True)] for kind in runs}
        rows = [
            [
                f"errors at rate {rate:g}",
                *(f"{one[rate]:.0f}" if rate in one else "diverged" for one in curves.values()),
            ]
            for rate in self.rates
        ]
        for place, when in enumerate(("at the first step", f"after {self.epochs:g} epochs")):
            rows.append([f"noise of the gradient {when}", *(f"{noise[kind][place]:.3g}" for kind in curves)])
        highest = {kind: max(curve) for kind, curve in curves.items()}
        told = (
            f"After {self.epochs:g} epochs the best rate is {best['soft']:g} on soft targets and {best['hard']:g} on labels, "
            f"the highest that does not diverge {highest['soft']:g} and {highest['hard']:g}; "
            f"the gradient's variance by its squared length is {noise['soft'][0]:.3g} and {noise['hard'][0]:.3g} at the first step."
        )
        drawn = [
            Curve(list(curves[kind]), list(curves[kind].values()), colour)
            for kind, colour in (("soft", COLOURS[0]), ("hard", BASELINE_COLOUR))
        ]
        figure = lines("rates", "Errors by learning rate", "rate", "errors", drawn, ["soft targets", "labels"])
        return [told], Part(
            "Noise of the gradient, and the rate it allows", ["", "soft targets", "labels"], rows, figure
        )

    def _near(self, run: Found) -> tuple[list[str], list[Part]]:
        said = _said(run, TEACHER)
        logits, classes, labels = said.logits[0], said.targets.astype(int), list(said.task.labels)
        bits = soft_answers.entropies(logits, self.temperatures)
        cells = [[f"{temperature:g}", f"{one:.2f}"] for temperature, one in zip(self.temperatures, bits, strict=True)]
        figure = lines(
            "entropy", "Entropy of the answers", "temperature", "bits", [Curve(self.temperatures, bits, COLOURS[0])]
        )
        entropy = Part("Entropy of the teacher's answers", ["temperature", "bits"], cells, figure)
        at = 5.0
        means = soft_answers.mean_answers(logits, classes, at)
        rows = [[label, *(f"{100 * value:.1f}" for value in means[n])] for n, label in enumerate(labels)]
        shown = heat_map("near", f"Mean answer at T = {at:g}, percent", labels, means.tolist(), "class")
        off = means - np.diag(np.diag(means))
        nearest = ", ".join(f"{label} → {labels[int(off[n].argmax())]}" for n, label in enumerate(labels))
        told = [
            f"The teacher's answers hold {bits[0]:.2f} bits at T = {self.temperatures[0]:g} "
            f"and {bits[-1]:.2f} at T = {self.temperatures[-1]:g}; a label holds none.",
            f"Nearest to each class, by the teacher: {nearest}.",
        ]
        return told, [entropy, Part("Which class is near which", ["", *labels], rows, shown)]


def _said(run: Found, model: str) -> Predictions:
    found = run.said(model)
    if found is None:
        raise InputError(
            f"{run.folder} has no answers of the {model} model; give a recipe with a teacher and a test set"
        )
    return found


def _errors_of_one_answer(said: Predictions) -> int:
    """Of a network that says the same to everything, be it the best: what a rate far too high leaves, if anything."""
    return len(said.targets) - int(np.bincount(said.targets.astype(int)).max())


def _spread(counts: list[int]) -> str:
    """146 ± 5"""
    return f"{np.mean(counts):.0f}" + (f" ± {np.std(counts, ddof=1):.0f}" if len(counts) > 1 else "")


def _changed(recipe: Recipe, name: str, stage: dict[str, Any] | None = None, alone: bool = False) -> Recipe:
    """With a changed stage; `alone`: without the baseline and timing, which the first run has."""
    changes: dict[str, Any] = {"name": name, "stage": [recipe.stage[-1].model_copy(update=stage or {})]}
    if alone:
        changes |= {"baseline": False, "timing": "none"}
    return recipe.model_copy(update=changes)
