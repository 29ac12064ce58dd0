"""Labels find their classes, by name or by number, or the user is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from potstill.errors import InputError
from potstill.tasks.classify import TextClassification
from potstill.tasks.label_matching import make_task
from potstill.tasks.regress import Regression
from tests.support.faults import peak_memory
from tests.support.small_models import ARCHITECTURES, NEGATIVE, NEUTRAL, POSITIVE, small_tokenizer


def head(*names: str, problem: str | None = "single_label_classification") -> Any:
    return SimpleNamespace(num_labels=len(names), id2label=dict(enumerate(names)), problem_type=problem)


def test_names_match_by_name_whatever_their_order_or_case() -> None:
    task, told = make_task(None, head("negative", "positive"), ["Positive", "negative"], None, "train.csv")
    assert [task.encode(label, "") for label in ("Positive", "positive", "negative")] == [[1.0], [1.0], [0.0]]
    assert "by name" in told


def test_numbers_match_by_index_and_are_shown() -> None:
    task, told = make_task(None, head("negative", "positive"), ["1", "0"], None, "train.csv")
    assert task.encode("1", "") == [1.0]
    assert "0 = negative, 1 = positive" in told


@pytest.mark.parametrize(("found", "where"), [(["2"], "train.csv:7"), (["neutral"], "train.csv:9"), (["-1"], "x")])
def test_an_unknown_label_is_an_error_at_its_line(found: list[str], where: str) -> None:
    task, _ = make_task(None, head("negative", "positive"), ["negative", *found], None, "train.csv")
    with pytest.raises(InputError, match=f"{where}: unknown label '{found[0]}'"):
        task.encode(found[0], where)


def test_names_without_names_on_the_other_side_ask_for_labels() -> None:
    with pytest.raises(InputError, match="--labels"):
        make_task(None, head("LABEL_0", "LABEL_1"), ["bad", "good"], None, "train.csv")
    task, _ = make_task(None, head("LABEL_0", "LABEL_1"), ["bad", "good"], ["bad", "good"], "train.csv")
    assert task.encode("good", "") == [1.0]
    with pytest.raises(InputError, match="another order"):
        make_task(None, head("bad", "good"), ["bad", "good"], ["good", "bad"], "train.csv")


@pytest.mark.parametrize(
    ("found", "outcome", "labels"),
    [
        (["b", "a"], "class", ("a", "b")),
        (["10", "9", "0"], "class", ("0", "9", "10")),
        (["3.8", "5.0", "0"], "value", ("value",)),
        ([str(n) for n in range(100)], "value", ("value",)),
        ([("x",), ("y", "x")], "classes", ("x", "y")),
    ],
)
def test_a_task_without_a_model_is_told_by_its_labels(found: list[Any], outcome: str, labels: tuple[str, ...]) -> None:
    task, _ = make_task(None, None, found, None, "train.csv")
    assert (task.outcome, task.labels) == (outcome, labels)


def test_one_label_is_no_task() -> None:
    with pytest.raises(InputError, match="at least two"):
        make_task(None, None, ["a"], None, "train.csv")


@pytest.mark.parametrize("label", ["x", "nan", "inf", "1,5", ""])
def test_values_are_finite_numbers(label: str) -> None:
    with pytest.raises(InputError, match="not a number"):
        Regression().encode(label, "f:3")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_far_too_long_are_read_as_if_they_had_not_been_cut_before(
    architecture: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(architecture)
    tokenizer.truncation_side = side
    task = TextClassification(("no", "yes"))
    words = [*POSITIVE, *NEGATIVE, *NEUTRAL]
    texts = [
        (" ".join(words[n % len(words)] for n in range(size)), " ".join(words[: size // 2])) for size in (5, 80, 300)
    ]
    plain = task.tokenize(texts, tokenizer, 16)
    monkeypatch.setattr("potstill.tasks.truncation.FAR_TOO_LONG", 1)
    assert task.tokenize(texts, tokenizer, 16) == plain and plain.shortened >= 2


def test_two_texts_of_a_hundred_thousand_letters_need_little_memory() -> None:
    with peak_memory() as most:
        made = TextClassification(("no", "yes")).tokenize([("good " * 20_000,) * 2] * 3, small_tokenizer("bert"), 16)
    assert made.shortened == 3 and most[0] < 200


@pytest.mark.parametrize(
    "labels",
    [
        ("IT", "it"),
        ("US", "us", "de"),
        ("True", "true"),
        ("K", "\u212a"),
        ("007", "7", "8"),
        ("1e1", "10"),
        ("1", "1.0"),
        ("+1", "1"),
        ("0", "00"),
        ("12345678901234567890", "12345678901234567891", "12345678901234567892"),
        ("²", "2"),
        ("①", "②"),
    ],
)
def test_two_labels_that_differ_are_two_classes(labels: tuple[str, ...]) -> None:
    for config, names in ((None, None), (None, labels), (head(*labels), None), (head(*labels), labels)):
        task, _ = make_task(None, config, labels, names, "train.csv")
        assert sorted(task.labels) == sorted(labels)
        assert [task.labels[int(task.encode(label, "")[0])] for label in labels] == list(labels)


def test_another_spelling_is_taken_where_nothing_else_is_meant() -> None:
    task, _ = make_task(None, head("IT", "other"), ["IT", "it", "other"], None, "train.csv")
    with pytest.raises(InputError, match="unknown label 'it'"):
        task.encode("it", "train.csv:3")
    task, _ = make_task(None, head("IT", "it"), ["It"], None, "train.csv")
    with pytest.raises(InputError, match="unknown label 'It'"):
        task.encode("It", "train.csv:3")
    task, _ = make_task(None, None, ["pos", "neg"], None, "train.csv")
    dev = task.with_spellings_of(["Pos", "Neg"])
    assert [dev.encode(label, "")[0] for label in ("Pos", "pos", "Neg")] == [1, 1, 0]
    with pytest.raises(InputError, match="unknown label 'Pos'"):
        task.with_spellings_of(["Pos", "pos"]).encode("Pos", "dev.csv:3")


def test_numbers_of_pandas_columns_with_gaps_match_by_index_where_no_two_are_one() -> None:
    task, told = make_task(None, head("negative", "positive"), ["1.0", "0.0"], None, "train.csv")
    assert task.encode("1.0", "") == task.encode("1", "") == [1.0] and "by number" in told
    assert make_task(None, None, ["1.0", "2.0"], None, "train.csv")[0].with_spellings_of(["2"]).encode("2", "") == [1.0]
    with pytest.raises(InputError, match=r"labels '1' and '1\.0' differ"):
        make_task(None, head("negative", "positive"), ["0", "1", "1.0"], None, "train.csv")


def test_a_label_map_says_labels_and_classes_in_any_spelling_that_is_clear() -> None:
    task, _ = make_task(None, None, ["a", "B", "c"], None, "train.csv", label_map={"A": "b"})
    assert task.labels == ("B", "c") and task.encode("a", "") == task.encode("B", "") == [0.0]
    task, _ = make_task(None, None, ["a", "b"], None, "train.csv", label_map={"a": "²"})
    assert task.labels == ("b", "²")
    with pytest.raises(InputError, match="there is no class '²'"):
        make_task(None, head("x", "y"), ["a", "x"], None, "train.csv", label_map={"a": "²"})


def test_codes_with_zeros_in_front_are_classes_however_many_there_are() -> None:
    task, _ = make_task(None, None, [f"{number:03d}" for number in range(50)], None, "train.csv")
    assert task.outcome == "class" and task.classes == 50


def test_a_config_that_does_not_name_its_classes_from_0_on_is_refused() -> None:
    config = SimpleNamespace(num_labels=2, id2label={5: "a", 7: "b"}, problem_type=None)
    with pytest.raises(InputError, match="from 0 to 1"):
        make_task(None, config, ["a", "b"], None, "train.csv")


def test_too_many_labels_are_told_with_the_limit() -> None:
    with pytest.raises(InputError, match="more than 10,000 different labels"):
        make_task(None, None, [f"label {number}" for number in range(10_001)], None, "train.csv")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_enormous_texts_are_read_as_if_they_were_tokenised_whole(
    architecture: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(architecture)
    tokenizer.truncation_side = side
    words = [*POSITIVE, *NEGATIVE, *NEUTRAL]
    texts = [" ".join(words[n * n % len(words)] for n in range(size)) for size in (3, 400, 2000)]
    texts += [" " * 3000 + "good film " * 3, "good" * 900]
    rows: list[list[tuple[str, str | None]]] = [[(text, None) for text in texts]]
    rows.append([(a, b) for a in texts[:3] for b in texts[:3]])  # of the others the longer one has fewer tokens
    task = TextClassification(("no", "yes"))
    plain = [task.tokenize(one, tokenizer, 16) for one in rows]
    monkeypatch.setattr("potstill.models.tokenizers.long_texts.LONG", 50)
    assert [task.tokenize(one, tokenizer, 16) for one in rows] == plain


def test_a_text_of_ten_million_letters_needs_little_memory() -> None:
    with peak_memory() as most:
        made = TextClassification(("no", "yes")).tokenize(
            [("good film " * 1_000_000, None)], small_tokenizer("bert"), 64
        )
    assert made.shortened == 1 and len(made.ids[0]) == 64 and most[0] < 200
