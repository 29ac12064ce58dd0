"""Distillation or data? Gold labels, the teacher's choices and its logits, each with and without augmented copies (arXiv:1903.12136)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potstill.errors import InputError
from potstill.measuring.measurements import BASELINE, TEACHER
from potstill.measuring.significance import ONE_SEED, Difference
from potstill.recipe import plugins
from potstill.recipe.schema import Recipe, Stage
from potstill.reporting.figures import forest
from potstill.runs.study_types import Answer, Found, Study, how_tested, in_points, shown, told_together, weighed

TARGETS = {"gold": "gold labels", "choice": "the teacher's choice", "logits": "the teacher's logits"}
DATA = {"rows": "rows alone", "copies": "rows and copies"}
RULES = {"p_mask": "masking", "p_pos": "replacing", "p_ng": "n-grams"}  # probabilities of `augmented`
COPIES = 20  # where the recipe does not say, as for single texts


@dataclass(frozen=True)
class KdOrAugmentation(Study):
    """Six runs of the recipe, whose own method teaches logits and whose data maker `augmented` makes the copies. Rows alone are
    read as many times more as there are copies, so that all take about as many steps. `further`: also soft targets,
    half of the gold labels, and each rule left out."""

    further: bool = False

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        stage = recipe.stage[-1]
        if len(recipe.stage) > 1 or stage.method["name"] in ("hard_labels", "teacher_labels"):
            raise InputError(
                "study kd_or_augmentation takes a recipe of one stage with a method of logits; write --set method=logit_regression"
            )
        methods = {"gold": {"name": "hard_labels"}, "choice": {"name": "teacher_labels"}, "logits": stage.method}
        found = {
            f"{target}-{data}": _changed(
                recipe, f"{target}-{data}", method, _copied(stage, data == "copies", **_labels(target == "gold"))
            )
            for target, method in methods.items()
            for data in DATA
        }
        if self.further:
            for name, method in _other_methods(stage.method).items():
                found[name] = _changed(recipe, name, method, _copied(stage, True, **_labels(name == "half-gold")))
            for rule in RULES:
                found[f"without-{rule}"] = _changed(
                    recipe, f"without-{rule}", stage.method, _copied(stage, True, **{rule: 0.0})
                )
        return found

    def answer(self, found: Mapping[str, Found]) -> Answer:
        rows = []
        for target, words in TARGETS.items():
            cells = [_score(found[f"{target}-{data}"]) for data in DATA]
            gain = "–" if None in cells else f"{cells[1][0] - cells[0][0]:+.1f}"  # type: ignore[index]
            rows.append([words, *map(shown, cells), gain])
        for name in list(found)[6:]:
            rows.append([_words(name), "–", shown(_score(found[name])), "–"])
        teacher = found["logits-copies"].score(TEACHER)
        verdicts = {words: _contrast(found, sides) for words, sides in _questions(list(found)).items()}
        kept = told_together(verdicts)
        sentences = [f"{words}: {in_points(one)}; {_told(one)}." for words, one in kept.items()] + how_tested(kept)
        ranges = [(100 * one.mean, 100 * one.low, 100 * one.high, one.is_shown) for one in kept.values()]
        figure = forest("kd-or-augmentation", "Difference in points, with 95 % intervals", list(kept), ranges)
        header = ["targets", DATA["rows"], DATA["copies"], f"gain (teacher: {shown(teacher)})"]
        return Answer("Distillation or augmentation", sentences, header, rows, figure)


def _labels(carried: bool) -> dict[str, str]:
    """Gold labels that are carried to the copies; else as the recipe has it."""
    return {"labels": "kept"} if carried else {}


def _copied(stage: Stage, copies: bool, **fields: Any) -> Stage:
    """The stage with the recipe's copies, or the usual ones; or without them, and more epochs for it."""
    makers = [one for one in stage.data if one["make"] != "augmented"]
    given = next((one for one in stage.data if one["make"] == "augmented"), {"make": "augmented"})
    full = {
        "make": "augmented",
        **plugins.complete("data", "augmented", {k: v for k, v in given.items() if k != "make"}),
    }
    if copies:
        return stage.model_copy(update={"data": [*makers, {**full, **fields}]})
    return stage.model_copy(update={"data": makers, "epochs": stage.passes * (1 + (full["copies"] or COPIES))})


def _changed(recipe: Recipe, name: str, method: Mapping[str, Any], stage: Stage) -> Recipe:
    full = {
        "name": method["name"],
        **plugins.complete("methods", method["name"], {k: v for k, v in method.items() if k != "name"}),
    }
    return recipe.model_copy(
        update={"name": name, "baseline": False, "stage": [stage.model_copy(update={"method": full})]}
    )


def _other_methods(method: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    other = "soft_targets" if method["name"] != "soft_targets" else "logit_regression"
    halved = {"half-gold": {**method, "alpha": 0.5}} if "alpha" in method else {}
    return {other.replace("_", "-"): {"name": other}, **halved}


def _score(one: Found) -> tuple[float, float] | None:
    """A run on gold labels is a fine-tuned student, the others are distilled."""
    return one.score() or one.score(BASELINE)


def _words(name: str) -> str:
    left_out = name.removeprefix("without-")
    return f"without {RULES[left_out]}" if left_out in RULES else name.replace("-", " ")


def _told(one: Difference) -> str:
    if one.is_shown:
        return one.words
    return "not shown to differ from zero" + (f"; {ONE_SEED}" if one.seeds < 2 else "")


def _questions(names: list[str]) -> dict[str, dict[str, float]]:
    """What is asked, as the weight of each run in the answer."""

    def over(targets: Mapping[str, float], data: Mapping[str, float]) -> dict[str, float]:
        return {f"{t}-{d}": w * v for t, w in targets.items() for d, v in data.items()}

    more, each = {"copies": 1.0, "rows": -1.0}, {"copies": 0.5, "rows": 0.5}
    asked = {
        "Copies instead of rows alone, over all targets": over(dict.fromkeys(TARGETS, 1 / 3), more),
        "The teacher's choice instead of gold labels": over({"choice": 1.0, "gold": -1.0}, each),
        "Its logits instead of its choice": over({"logits": 1.0, "choice": -1.0}, each),
        "Its logits instead of gold labels": over({"logits": 1.0, "gold": -1.0}, each),
        "What copies gain with its choice more than with gold labels": over({"choice": 1.0, "gold": -1.0}, more),
        "What copies gain with its logits more than with gold labels": over({"logits": 1.0, "gold": -1.0}, more),
        "All together: logits and copies instead of gold labels alone": {"logits-copies": 1.0, "gold-rows": -1.0},
    }
    for name in names[6:]:
        asked[f"{_words(name).capitalize()} instead of logits and copies"] = {name: 1.0, "logits-copies": -1.0}
    return asked


def _contrast(found: Mapping[str, Found], weights: Mapping[str, float]) -> Difference | None:
    said = {name: found[name].said() or found[name].said(BASELINE) for name in weights}
    known = {name: one for name, one in said.items() if one is not None}
    if len(known) < len(said):
        return None
    return weighed([(weight, known[name]) for name, weight in weights.items()])
