"""Distillation or data? Gold labels, the teacher's choices or its logits, with and without copies (arXiv:1903.12136)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potstill.api import Answer, InputError, Recipe, Study, StudyRun
from potstill.measuring.measurements import TEACHER
from potstill.plugins.studies._differences import corrected, differences_text, forest_figure, weighted_difference
from potstill.recipe import short_forms
from potstill.recipe.schema import Stage

TARGETS = {"gold": "gold labels", "choice": "the teacher's choice", "logits": "the teacher's logits"}
DATA = {"rows": "rows alone", "copies": "rows and copies"}
RULES = {"p_mask": "masking", "p_pos": "replacing", "p_ng": "n-grams"}  # probabilities of `augmented`
COPIES = 20  # of a text, if the recipe does not say
KEPT = {"labels": "kept"}  # of copies, where gold labels are learned; otherwise the recipe decides


@dataclass(frozen=True)
class KdOrAugmentation(Study):
    """Six runs of the recipe: its own method learns the logits, and its data maker `augmented` makes the copies. Rows alone
    are read as many times more as there are copies, so that all runs take about as many steps.

    further: also run soft targets, half of the gold labels, and each rule of the copies left out.
    """

    further: bool = False

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        stage = recipe.stage[-1]
        if len(recipe.stage) > 1 or stage.method["name"] in ("hard_labels", "teacher_labels"):
            raise InputError(
                "study kd_or_augmentation needs one stage that learns logits; write --set method=logit_regression"
            )
        methods = {"gold": {"name": "hard_labels"}, "choice": {"name": "teacher_labels"}, "logits": stage.method}
        recipes: dict[str, Recipe] = {}

        def add(name: str, method: Mapping[str, Any], copies: bool, **fields: Any) -> None:
            changed = _with_copies(stage, copies, **fields)
            changed = changed.model_copy(update={"method": short_forms.complete_method(dict(method))})
            recipes[name] = recipe.model_copy(update={"name": name, "baseline": False, "stage": [changed]})

        for target, method in methods.items():
            for data in DATA:
                add(f"{target}-{data}", method, data == "copies", **(KEPT if target == "gold" else {}))
        if self.further:
            other = "soft_targets" if stage.method["name"] != "soft_targets" else "logit_regression"
            add(other.replace("_", "-"), {"name": other}, True)
            if "alpha" in stage.method:
                add("half-gold", {**stage.method, "alpha": 0.5}, True, **KEPT)
            for rule in RULES:
                add(f"without-{rule}", stage.method, True, **{rule: 0.0})
        return recipes

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        rows = []
        for target, title in TARGETS.items():
            both = [runs[f"{target}-{data}"] for data in DATA]
            alone, copied = (run.score() for run in both)
            gain = "–" if alone is None or copied is None else f"{copied[0] - alone[0]:+.1f}"
            rows.append([title, *(run.score_text() for run in both), gain])
        for name in list(runs)[6:]:
            rows.append([_title(name), "–", runs[name].score_text(), "–"])
        questions = {
            question: [(weight, runs[name].predictions()) for name, weight in weights.items()]
            for question, weights in _questions(list(runs)).items()
        }
        tested = corrected({question: weighted_difference(sides) for question, sides in questions.items()})
        figure = forest_figure("kd-or-augmentation", "Difference in points", tested)
        header = ["targets", *DATA.values(), f"gain (teacher: {runs['logits-copies'].score_text(TEACHER)})"]
        return Answer("Distillation or augmentation", differences_text(tested), header, rows, figure)


def _with_copies(stage: Stage, copies: bool, **fields: Any) -> Stage:
    """Return the stage with the recipe's copies, or the default ones; or without them, with more epochs instead."""
    makers = [maker for maker in stage.data if maker["make"] != "augmented"]
    augmenters = [maker for maker in stage.data if maker["make"] == "augmented"]
    augmented = short_forms.complete("data", augmenters or "augmented")[0]
    if copies:
        return stage.model_copy(update={"data": [*makers, {**augmented, **fields}]})
    return stage.model_copy(update={"data": makers, "epochs": stage.passes * (1 + (augmented["copies"] or COPIES))})


def _title(name: str) -> str:
    left_out = name.removeprefix("without-")
    return f"without {RULES[left_out]}" if left_out in RULES else name.replace("-", " ")


def _questions(names: list[str]) -> dict[str, dict[str, float]]:
    """Return the questions, each with the weight of every run in its answer."""

    def over(targets: Mapping[str, float], data: Mapping[str, float]) -> dict[str, float]:
        return {f"{t}-{d}": w * v for t, w in targets.items() for d, v in data.items()}

    more, each = {"copies": 1.0, "rows": -1.0}, {"copies": 0.5, "rows": 0.5}
    questions = {
        "Copies instead of rows alone, over all targets": over(dict.fromkeys(TARGETS, 1 / 3), more),
        "The teacher's choice instead of gold labels": over({"choice": 1.0, "gold": -1.0}, each),
        "Its logits instead of its choice": over({"logits": 1.0, "choice": -1.0}, each),
        "Its logits instead of gold labels": over({"logits": 1.0, "gold": -1.0}, each),
        "What copies gain with its choice more than with gold labels": over({"choice": 1.0, "gold": -1.0}, more),
        "What copies gain with its logits more than with gold labels": over({"logits": 1.0, "gold": -1.0}, more),
        "All together: logits and copies instead of gold labels alone": {"logits-copies": 1.0, "gold-rows": -1.0},
    }
    for name in names[6:]:
        questions[f"{_title(name).capitalize()} instead of logits and copies"] = {name: 1.0, "logits-copies": -1.0}
    return questions
