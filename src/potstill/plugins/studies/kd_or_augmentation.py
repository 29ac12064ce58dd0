"""Distillation or data? Gold labels, the teacher's choices or its logits, with and without copies (arXiv:1903.12136)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potstill.api import Answer, InputError, Recipe, Study, StudyRun
from potstill.measuring.measurements import TEACHER
from potstill.measuring.significance import ONE_SEED, Difference
from potstill.plugins.studies._differences import (
    corrected,
    correction_notes,
    forest_figure,
    points_text,
    score_text,
    weighted_difference,
)
from potstill.recipe import short_forms
from potstill.recipe.schema import Stage

TARGETS = {"gold": "gold labels", "choice": "the teacher's choice", "logits": "the teacher's logits"}
DATA = {"rows": "rows alone", "copies": "rows and copies"}
RULES = {"p_mask": "masking", "p_pos": "replacing", "p_ng": "n-grams"}  # probabilities of `augmented`
COPIES = 20  # of a text, if the recipe does not say


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
                "study kd_or_augmentation needs a recipe of one stage with a method of logits; write --set method=logit_regression"
            )
        methods = {"gold": {"name": "hard_labels"}, "choice": {"name": "teacher_labels"}, "logits": stage.method}
        recipes: dict[str, Recipe] = {}

        def add(name: str, method: Mapping[str, Any], copies: bool, **fields: Any) -> None:
            changed = _with_copies(stage, copies, **fields)
            changed = changed.model_copy(update={"method": short_forms.complete_method(dict(method))})
            recipes[name] = recipe.model_copy(update={"name": name, "baseline": False, "stage": [changed]})

        for target, method in methods.items():
            for data in DATA:
                add(f"{target}-{data}", method, data == "copies", **_keep_labels(target == "gold"))
        if self.further:
            for name, method in _other_methods(stage.method).items():
                add(name, method, True, **_keep_labels(name == "half-gold"))
            for rule in RULES:
                add(f"without-{rule}", stage.method, True, **{rule: 0.0})
        return recipes

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        rows = []
        for target, title in TARGETS.items():
            alone, copied = (runs[f"{target}-{data}"].score() for data in DATA)
            gain = "–" if alone is None or copied is None else f"{copied[0] - alone[0]:+.1f}"
            rows.append([title, score_text(alone), score_text(copied), gain])
        for name in list(runs)[6:]:
            rows.append([_title(name), "–", score_text(runs[name].score()), "–"])
        teacher = score_text(runs["logits-copies"].score(TEACHER))
        differences = corrected(
            {question: _contrast(runs, weights) for question, weights in _questions(list(runs)).items()}
        )
        sentences = [f"{question}: {points_text(each)}; {_verdict(each)}." for question, each in differences.items()]
        figure = forest_figure("kd-or-augmentation", "Difference in points", differences)
        header = ["targets", DATA["rows"], DATA["copies"], f"gain (teacher: {teacher})"]
        sentences += correction_notes(differences)
        return Answer("Distillation or augmentation", sentences, header, rows, figure)


def _keep_labels(keep: bool) -> dict[str, str]:
    """Copies keep gold labels if these are learned; otherwise the recipe decides."""
    return {"labels": "kept"} if keep else {}


def _with_copies(stage: Stage, copies: bool, **fields: Any) -> Stage:
    """Return the stage with the recipe's copies, or the default ones; or without them, with more epochs instead."""
    makers = [maker for maker in stage.data if maker["make"] != "augmented"]
    recipe_maker = next((maker for maker in stage.data if maker["make"] == "augmented"), {"make": "augmented"})
    augmented = short_forms.complete("data", [recipe_maker])[0]
    if copies:
        return stage.model_copy(update={"data": [*makers, {**augmented, **fields}]})
    return stage.model_copy(update={"data": makers, "epochs": stage.passes * (1 + (augmented["copies"] or COPIES))})


def _other_methods(method: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    other = "soft_targets" if method["name"] != "soft_targets" else "logit_regression"
    halved = {"half-gold": {**method, "alpha": 0.5}} if "alpha" in method else {}
    return {other.replace("_", "-"): {"name": other}, **halved}


def _title(name: str) -> str:
    left_out = name.removeprefix("without-")
    return f"without {RULES[left_out]}" if left_out in RULES else name.replace("-", " ")


def _verdict(difference: Difference) -> str:
    if difference.is_shown:
        return difference.words
    return "not shown to differ from zero" + (f"; {ONE_SEED}" if difference.seeds < 2 else "")


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


def _contrast(runs: Mapping[str, StudyRun], weights: Mapping[str, float]) -> Difference | None:
    sides = [(weight, runs[name].predictions()) for name, weight in weights.items()]
    present = [(weight, predictions) for weight, predictions in sides if predictions is not None]
    return weighted_difference(present) if len(present) == len(sides) else None
