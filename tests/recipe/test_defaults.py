"""The table of default students and methods: which fact decides what, and the reason that is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from potstill.errors import InputError
from potstill.recipe import short_forms
from potstill.recipe.defaults import KEPT_TOKENS, METHODS, Facts, default_method, default_student

SENTIMENT = Facts("t", "classify", 2, 6, 30_522)


@pytest.mark.parametrize(
    ("task", "classes", "temperature", "reason"),
    [
        ("classify", 2, "auto", "too sure of itself"),
        ("classify", 77, "auto", "too sure of itself"),
        ("classify", None, "auto", "too sure of itself"),
        ("multilabel", 6, "auto", "too sure of itself"),
        ("next_sentence", None, 1.0, "each answer is a yes or a no"),
        ("regress", 1, None, "squared error"),
        ("tag", 9, "auto", "too sure of itself"),
        ("answer", None, "auto", "too sure of itself"),
        ("choose", None, "auto", "too sure of itself"),
        ("translate", None, 1.0, "predicts tokens"),
        ("write", None, 1.0, "predicts tokens"),
        ("mask", None, 1.0, "predicts tokens"),
    ],
)
def test_the_task_chooses_the_method(
    task: str, classes: int | None, temperature: float | str | None, reason: str
) -> None:
    choice = default_method(replace(SENTIMENT, task=task, classes=classes))
    (method,) = choice.tables
    complete = short_forms.complete_method(method)  # a method that exists, with fields that it has
    assert (complete["name"], complete["temperature"], complete["alpha"]) == ("soft_targets", temperature, 0.9)
    assert reason in choice.reason
    said = choice.said("method")
    assert said.startswith("method: soft_targets") and said.endswith(choice.reason)
    words = {"auto": "at the teacher's temperature", 1.0: "at T = 1", None: "soft_targets, α"}
    assert words[temperature] in choice.words


@pytest.mark.parametrize(("layers", "kept"), [(1, 1), (2, 1), (3, 2), (6, 3), (12, 6), (25, 13)])
def test_half_of_the_layers_are_kept_rounded_up(layers: int, kept: int) -> None:
    choice = default_student(replace(SENTIMENT, layers=layers))
    assert choice.tables == [
        {"build": "keep_layers", "layers": kept},
        {"build": "trim_vocabulary", "tokens": KEPT_TOKENS},
    ]
    assert choice.words == f"{kept} of {layers} layers, and the 11,000 most frequent of 30,522 tokens"
    assert short_forms.complete("students", choice.tables)[0]["layers"] == kept


@pytest.mark.parametrize(
    ("fact", "reason"),
    [({"tokens": KEPT_TOKENS}, "is small"), ({"keeps_tokens": "its tokens are what it predicts"}, "what it predicts")],
)
def test_a_vocabulary_that_is_small_or_predicted_stays_whole(fact: dict[str, int | str], reason: str) -> None:
    choice = default_student(replace(SENTIMENT, **fact))  # type: ignore[arg-type]
    assert choice.tables == [{"build": "keep_layers", "layers": 3}]
    assert choice.words == "3 of 6 layers and all tokens" and reason in choice.reason


@pytest.mark.parametrize("layers", [0, None])
def test_where_layers_cannot_be_halved_it_is_told_what_to_write(layers: int | None) -> None:
    with pytest.raises(InputError, match=r"--student bilstm"):
        default_student(replace(SENTIMENT, layers=layers))


def test_every_method_of_the_table_is_one_whose_fields_may_be_set_without_its_name() -> None:
    assert METHODS == ("soft_targets",)
    assert short_forms.complete_method({"alpha": 0.5}) == {"name": "auto", "alpha": 0.5}
