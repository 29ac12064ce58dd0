"""The study of ingredients: each run differs in one part, and each is compared with the whole recipe."""

from __future__ import annotations

import pytest

from potstill.errors import InputError
from potstill.plugins.studies.ingredients import LEFT_OUT, WHOLE, Ingredients
from potstill.recipe.resolve import leaves, resolve
from potstill.recipe.schema import Recipe

SETS = ["teacher=t", "data.train=a.csv", "data.unlabelled=more.txt", "method=soft_targets"]
STUDENT = "student=keep_layers:2+trim_vocabulary"


def recipe(*sets: str) -> Recipe:
    return resolve(None, None, [*SETS, STUDENT, *sets]).recipe


def changed(one: Recipe, other: Recipe) -> set[str]:
    ours, theirs = (dict(leaves(each.model_dump())) for each in (one, other))
    return {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)} - {"name", "baseline"}


@pytest.mark.parametrize(
    ("part", "paths"),
    [
        ("text", {"data.0.unlabelled"}),
        ("search", {"stage.0.optimizer.rates"}),
        ("steps", {"stage.0.min_steps"}),
        ("temperature", {"stage.0.method.temperature", "stage.0.method.alpha"}),
        ("fitted", {"stage.0.method.temperature"}),
        ("first", {"student.0.layers"}),
        ("trimming", {"student.1.build"}),
    ],
)
def test_a_part_is_left_out_and_nothing_else(part: str, paths: set[str]) -> None:
    whole = recipe("method.temperature=auto", "method.alpha=0.9")
    runs = Ingredients(parts=[part]).runs(whole)
    assert list(runs) == [WHOLE, f"no-{part}"]
    found = changed(runs[WHOLE], runs[f"no-{part}"])
    roots = {path.rpartition(".")[0] if part in ("trimming", "temperature") else path for path in paths}
    assert paths <= found and all(any(path.startswith(root) for root in roots) for path in found)
    assert runs[WHOLE].baseline and not runs[f"no-{part}"].baseline


def test_parts_that_the_recipe_lacks_are_passed_over_and_unknown_ones_refused() -> None:
    assert not {"no-makers", "no-fitted"} & set(Ingredients().runs(recipe()))
    every = recipe("stage.0.data=['sample:9']", "method.temperature=auto")
    assert set(Ingredients().runs(every)) == {WHOLE, *(f"no-{part}" for part in LEFT_OUT)}
    with pytest.raises(InputError, match="knows no part 'salt'; write some of text, search"):
        Ingredients(parts=["salt"]).runs(recipe())
    with pytest.raises(InputError, match="has none of these parts"):
        Ingredients(parts=["makers"]).runs(recipe())
