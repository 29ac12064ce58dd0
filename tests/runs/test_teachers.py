"""In which form the teachers of a recipe are asked depends on all of them, and on all that any method asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from potstill.models.student import Student, save_student
from potstill.recipe.schema import Recipe
from potstill.runs import prepare
from potstill.runs.teachers import asked_of
from potstill.signals import Wants
from potstill.training.teacher.forms import Comparison
from tests.support.prepared import prepared_sets
from tests.support.small_models import LABELS, sentences, small_model, write_csv


def asked_by(*methods: dict[str, Any]) -> Wants:
    """Of a teacher with twelve layers, by one stage after the other."""
    stages = [{"method": method} for method in methods]
    recipe = Recipe.model_validate({"teacher": "large", "data": {"train": "rows.csv"}, "stage": stages})
    return asked_of(recipe, recipe.data_of(recipe.stage[0])[0], 12)


SOFT = {"name": "soft_targets"}


def test_logits_are_all_that_some_methods_ask() -> None:
    assert asked_by(SOFT) == asked_by({"name": "hard_labels"}, SOFT) == Wants(logits=True)
    assert asked_by(SOFT | {"top": 4}) == Wants(logits=True, top=4)
    assert asked_by({"name": "hard_labels"}) == Wants()


@pytest.mark.parametrize(
    "method", [{"name": "patient"}, {"name": "tinybert"}, {"name": "patient", "map": [4, 8]}], ids=str
)
def test_a_method_that_compares_states_asks_for_them_whatever_its_map(method: dict[str, Any]) -> None:
    wants = asked_by(SOFT, method)
    assert wants.logits and wants.layers


def test_teachers_of_later_stages_have_a_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has one form: what the second teacher answers differently in is out of question for the first one."""
    write_csv(tmp_path / "rows.csv", sentences(40, 1))
    for name in ("first", "second"):
        save_student(small_model("bert", layers=1, labels=LABELS["classify"], seed=len(name)), tmp_path / name)
    seen: list[Student] = []

    def compare(recipe: Recipe, data: Any, loaded: Student, *others: object) -> tuple[int, Comparison]:
        seen.append(loaded)
        forms = {"float32": 100.0, "bfloat16": 200.0, "int8": 300.0}
        apart = {"int8": 0.5 if len(seen) == 2 else 0.0}
        return 5000, {
            form: {"rate": rate, "apart": apart.get(form, 0.0), "same": 1.0, "rows": 128}
            for form, rate in forms.items()
        }  # type: ignore[return-value]

    monkeypatch.setattr(prepare, "how_forms_compare", compare)
    named = {"teacher": f"{tmp_path}/first", "data": {"train": f"{tmp_path}/rows.csv"}, "force": True}
    for later, chosen in (([], "int8"), ([{"method": SOFT, "teacher": f"{tmp_path}/second"}], "bfloat16")):
        seen.clear()
        stages = {"stage": [{"method": SOFT}, *later], "teacher_precision": "auto"}
        asked = Recipe.model_validate(named | stages)
        sets = prepared_sets(asked)
        (data,) = sets.of(asked.stage[0])
        assert len(seen) == 1 + len(later) and sets.recipe.teacher_precision == data.teacher.form == chosen
        assert data.teacher.memory is not None and data.teacher.memory.folder.name.endswith(f"-{chosen}")
