"""Augmented copies: what each is made of, and that nothing else decides them."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potstill.data.augment.tagging import WORD, load_tagger
from potstill.data.examples import Examples, store
from potstill.data.making import MakeContext
from potstill.data.rows import open_table
from potstill.data.tokens import MASK, tokenise_texts
from potstill.errors import InputError
from potstill.models.student import Student
from potstill.plugins.data import augmented
from potstill.plugins.data.augmented import Augmented
from potstill.recipe import plugins
from potstill.system import interrupts, paths
from potstill.tasks.classify import TextClassification
from potstill.tasks.label_matching import labels_of, make_task
from tests.support.commands import potstill
from tests.support.small_models import choices, questions, sentences, small_model, small_tokenizer, tagged, write_csv
from tests.support.taggers import by_length

QUICK = {"tagger": "tests.support.taggers:by_length"}


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The taggers of these tests are our own; who else may name one: tests/recipe/test_user_functions.py."""
    monkeypatch.setenv("POTSTILL_COMMANDS", "allowed")


TASK = TextClassification(("0", "1"), {"0": 0, "1": 1})

word = st.sampled_from(
    ["a", "an", "the", "film", "films", "actor", ",", ".", "!", "great", "boring", "and", "lovely", "n't", "'s", "7"]
)
text = st.lists(word, max_size=12).map(" ".join)
texts = st.lists(text, min_size=1, max_size=12)
pairs = st.lists(st.tuples(text, text), min_size=1, max_size=8)
often = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))


def examples_of(folder: Path, rows: list[Any]) -> Examples:
    """Texts or pairs, with labels 0, 1, 0 …"""
    folder.mkdir(exist_ok=True)
    path = folder / f"{abs(hash(json.dumps(rows)))}.csv"
    two = isinstance(rows[0], tuple)
    cells = [(*(row if two else (row,)), place % 2) for place, row in enumerate(rows)]
    write_csv(path, cells, ("text1", "text2", "label") if two else ("text", "label"))
    return store(open_table(path), TASK)


def made_of(
    examples: Examples, teacher: Student | None = None, **fields: Any
) -> tuple[Examples, list[tuple[int, str, str | None]]]:
    """The result, and of each copy its origin and texts."""
    about = MakeContext(0, TASK, teacher=teacher)
    made = plugins.make("data", "augmented", {**QUICK, **fields}).make(examples, about)
    owners = made.origins
    return made, [(int(owners[row]), *made.text(row)) for row in made.index[len(examples) :]]


def words_of(text: str) -> list[str]:
    return WORD.findall(text.replace(MASK, "MASK"))


@often
@given(rows=texts, order=st.randoms(use_true_random=False), draw=st.integers(0, 5))
def test_copies_follow_from_draw_and_text_alone(rows: list[str], order: Any, draw: int, tmp_path: Path) -> None:
    """Whatever the order, and how many are made together."""
    examples = examples_of(tmp_path / "rows", rows)
    _, copies = made_of(examples, draw=draw, copies=4)
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    before, augmented.AT_ONCE = augmented.AT_ONCE, 7
    try:
        _, again = made_of(examples.take(np.array(shuffled)), draw=draw, copies=4)
        # one after the other, in a cache of their own, so that nothing is read that was written above
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("POTSTILL_CACHE", str(tmp_path / f"other{time.monotonic_ns()}"))
            _, small = made_of(examples, draw=draw, copies=4)
    finally:
        augmented.AT_ONCE = before
    assert sorted(text for _, text, _ in again) == sorted(text for _, text, _ in copies)
    assert small == copies


@often
@given(rows=texts)
def test_no_copy_is_a_text_that_is_there_already(rows: list[str], tmp_path: Path) -> None:
    made, copies = made_of(examples_of(tmp_path / "rows", rows), p_ng=1.0, longest=2)
    assert [made.text(row)[0] for row in made.index[: len(rows)]] == rows
    found = [text for _, text, _ in copies]
    assert len(set(found)) == len(found) and not set(found) & set(rows)


@often
@given(rows=texts, longest=st.integers(1, 6))
def test_a_kept_n_gram_stands_in_its_text_as_it_is(rows: list[str], longest: int, tmp_path: Path) -> None:
    _, copies = made_of(examples_of(tmp_path / "rows", rows), p_mask=0.0, p_pos=0.0, p_ng=1.0, longest=longest)
    for origin, copy, _ in copies:
        assert copy in rows[origin]
        assert 1 <= len(words_of(copy)) <= longest


@often
@given(rows=texts, longest=st.integers(1, 6))
def test_a_masked_n_gram_is_one_run_of_masks(rows: list[str], longest: int, tmp_path: Path) -> None:
    _, copies = made_of(
        examples_of(tmp_path / "rows", rows), p_mask=0.0, p_pos=0.0, p_ng=1.0, longest=longest, ngram="mask"
    )
    for origin, copy, _ in copies:
        whole, now = rows[origin].split(), copy.split()
        masked = [place for place, one in enumerate(now) if one == MASK]
        assert len(now) == len(whole)
        assert masked == list(range(masked[0], masked[-1] + 1)) and len(masked) <= longest
        assert all(one in (before, MASK) for one, before in zip(now, whole, strict=True))


@often
@given(rows=texts)
def test_a_replaced_word_has_the_tag_and_stands_in_the_examples(rows: list[str], tmp_path: Path) -> None:
    _, copies = made_of(examples_of(tmp_path / "rows", rows), p_mask=0.0, p_pos=1.0, p_ng=0.0)
    known = {(tag, one) for row in rows for tag, one in zip(by_length(row.split()), row.split(), strict=True)}
    for origin, copy, _ in copies:
        tags = by_length(rows[origin].split())
        assert set(zip(tags, copy.split(), strict=True)) <= known


@often
@given(rows=pairs)
def test_of_pairs_the_first_the_second_and_both_are_changed_in_turn(
    rows: list[tuple[str, str]], tmp_path: Path
) -> None:
    _, copies = made_of(examples_of(tmp_path / "rows", rows), p_mask=1.0, p_pos=0.0, p_ng=0.0, copies=3)

    def masked(text: str) -> str:
        return " ".join(MASK for _ in text.split())

    expected = []
    for place, (first, second) in enumerate(rows):
        expected += [
            (place, masked(first), second),
            (place, first, masked(second)),
            (place, masked(first), masked(second)),
        ]
    seen = set(rows)
    new = []
    for place, first, second in expected:
        if (first, second) not in seen:
            seen.add((first, second))
            new.append((place, first, second))
    assert copies == new


def test_twenty_copies_of_a_text_and_ten_of_a_pair(tmp_path: Path) -> None:
    long = [" ".join(f"{a}{b}" for b in "abcdefghijklmnopqrstuvwxyz") for a in "xyz"]
    _, single = made_of(examples_of(tmp_path, long), p_mask=0.5, p_ng=0.0)
    _, paired = made_of(examples_of(tmp_path, [(one, one[::-1]) for one in long]), p_mask=0.5, p_ng=0.0)
    assert set(Counter(origin for origin, *_ in single).values()) == {20}
    assert set(Counter(origin for origin, *_ in paired).values()) == {10}


def test_spaces_and_marks_stay_where_they_are(tmp_path: Path) -> None:
    """Marks are words of their own, so that raw text is tagged as text that was cut into words before."""
    row = 'He said:  "a (very) good film, is n\'t it?" ...'
    found = [one[0] for one in WORD.finditer(row)]
    marks = ["He", "said", ":", '"', "a", "(", "very", ")", "good", "film", ",", "is", "n't", "it", '?"', "..."]
    assert found == marks
    _, copies = made_of(examples_of(tmp_path, [row]), p_mask=1.0, p_pos=0.0, p_ng=0.0, copies=1)
    assert copies[0][1] == re.sub(r"\s+", " ", WORD.sub(MASK, row))
    _, none = made_of(examples_of(tmp_path, [row]), p_mask=0.0, p_pos=0.0, p_ng=0.0)
    assert none == []  # two spaces became one: no other text


@pytest.mark.parametrize(
    ("labels", "taught", "held"),
    [("kept", True, True), ("dropped", False, False), (None, False, True), (None, True, False)],
)
def test_labels_of_copies(labels: str | None, taught: bool, held: bool, tmp_path: Path) -> None:
    """A teacher teaches the copies alone, where nothing else is said."""
    examples = examples_of(tmp_path, [text for text, _ in sentences(20, 1)])
    made, copies = made_of(examples, small_model("bert") if taught else None, labels=labels)
    assert len(made.labelled_only) == (len(made) if held else len(examples))
    for row, (origin, *_) in zip(made.index[len(examples) :], copies, strict=True):
        gold = made.gold(row)
        assert (float(gold) if gold is not None else None) == (origin % 2 if held else None)
    assert made.meta["labelled"] == len(made.labelled) - (0 if held else len(copies))


def test_other_tasks_and_wrong_fields_are_refused(tmp_path: Path) -> None:
    examples = examples_of(tmp_path, ["a fine film"])
    for rows, name in ((tagged, "tag"), (questions, "answer"), (choices, "choose")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(4, 1)))
        table = open_table(path)
        task, _ = make_task(None, None, labels_of(table), None, "x", table.form, table.choices)
        with pytest.raises(InputError, match=f"not for task '{name}'; omit it"):
            Augmented(**QUICK).make(store(table, task), MakeContext(0, task))
    for fields, told in (
        ({"p_mask": 0.6, "p_pos": 0.6}, "more than 1"),
        ({"tagger": "nobody"}, 'write "textblob"'),
        ({"tagger": "spacy"}, "not installed; run pip install spacy"),
        ({"tagger": "subprocess:call"}, 'write "textblob"'),
        ({"tagger": "tests.support.taggers:nobody"}, "name a function"),
        ({"tagger": "tests.support.taggers:one_too_few"}, "gives 2 tags for the 3 words"),
    ):
        if fields.get("tagger") == "spacy" and importlib.util.find_spec("spacy"):
            continue
        with pytest.raises(InputError, match=told):
            made_of(examples, **fields)


def test_textblob_tags_every_word() -> None:
    tag = load_tagger("textblob")
    assert tag(["the", "quick", "dog", "/", "n't", "ran", "and/or", "5", "&slash;", "日本", "slept", "."])[:3] == [
        "DT",
        "JJ",
        "NN",
    ]
    for words in (["/"], ["a/b", "//"], ["\u00a0x"], ["x"] * 300, ["-"], ["|", "\\"]):
        assert len(tag(words)) == len(words)


def test_a_signal_stops_it_and_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = examples_of(tmp_path, [text for text, _ in sentences(300, 1)])
    before = set((paths.cache() / "examples").iterdir())
    monkeypatch.setattr(augmented, "AT_ONCE", 1000)
    answers = iter([None] * 5 + [signal.SIGTERM] * 99)
    monkeypatch.setattr(interrupts, "received", lambda: next(answers))
    with pytest.raises(interrupts.Interrupted):
        made_of(examples)
    assert set((paths.cache() / "examples").iterdir()) == before
    monkeypatch.setattr(interrupts, "received", lambda: None)
    whole, copies = made_of(examples)
    assert len(copies) > 3000 and set((paths.cache() / "examples").iterdir()) == {*before, whole.folder}


def test_ten_thousand_sentences_a_second(tmp_path: Path) -> None:
    examples = examples_of(tmp_path, [text for text, _ in sentences(1000, 1)])
    made_of(examples, draw=1)  # tagged
    begun = time.process_time()
    made = Augmented(**QUICK).make(examples, MakeContext(0, TASK))
    assert (len(made) - len(examples)) / (time.process_time() - begun) > 10_000


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet", "modernbert"])
def test_every_tokenizer_reads_its_own_mask(architecture: str) -> None:
    tokenizer = small_tokenizer(architecture)
    for row in (f"a {MASK} film", None), (f"a {MASK}", f"{MASK} good"):
        tokens = tokenise_texts(TASK, [row], tokenizer, 32)
        assert list(tokens.ids).count(tokenizer.mask_token_id) == "".join(map(str, row)).count(MASK)


# the command


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_the_command_keeps_columns_and_rows(tmp_path: Path) -> None:
    rows = [(place, text, label, "x,\ty") for place, (text, label) in enumerate(sentences(30, 1))]
    write_csv(tmp_path / "rows.csv", rows, ("id", "text", "label", "more"))
    words = ["augment", tmp_path / "rows.csv", "--seed", "3", "--copies", "4", "--quiet"]
    words += ["--with", "tagger=tests.support.taggers:by_length"]
    for name in ("out.csv", "out.tsv", "out.jsonl"):
        assert potstill(*words, "--out", tmp_path / name) == 0
    assert potstill(*words, "--out", tmp_path / "again.csv.gz") == 0
    found = rows_of(tmp_path / "out.csv")
    assert found == rows_of(tmp_path / "out.tsv")
    assert found == [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert gzip.decompress((tmp_path / "again.csv.gz").read_bytes()) == (tmp_path / "out.csv").read_bytes()
    assert found[:30] == rows_of(tmp_path / "rows.csv")
    assert list(found[0]) == ["id", "text", "label", "more"] and len(found) > 100
    for copy in found[30:]:
        origin = found[int(copy["id"])]
        assert copy["text"] != origin["text"] and copy | {"text": ""} == origin | {"text": ""}
    ids = [int(copy["id"]) for copy in found[30:]]
    assert ids == sorted(ids) and max(Counter(ids).values()) <= 4
    table = open_table(tmp_path / "out.tsv")
    assert [row.text for row in table.rows()] == [row["text"] for row in found]


def test_the_command_drops_labels_and_a_teachers_answers(tmp_path: Path) -> None:
    rows = [(text, label, "[0.1, 0.2]") for text, label in sentences(5, 1)]
    write_csv(tmp_path / "rows.csv", rows, ("text", "label", "logits"))
    words = ["augment", tmp_path / "rows.csv", "--out", tmp_path / "out.csv", "--with", "labels=dropped", "--quiet"]
    assert potstill(*words, "--with", "tagger=tests.support.taggers:by_length") == 0
    found = rows_of(tmp_path / "out.csv")
    assert {row["label"] for row in found[5:]} == {row["logits"] for row in found[5:]} == {""}
    assert {row["label"] for row in found[:5]} == {"0", "1"}


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(tmp_path / "rows.csv", sentences(4, 1))
    (tmp_path / "tags.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in tagged(4, 1)))
    (tmp_path / "there.csv").write_text("mine")
    for words, told in (
        (["rows.csv", "--out", "there.csv"], "--overwrite to replace it"),
        (["rows.csv", "--out", "rows.csv", "--overwrite"], "write to another file"),
        (["rows.csv", "--out", "out.xlsx"], "end it in .csv"),
        (["rows.csv", "--out", "nowhere/out.csv"], "make it first"),
        (["tags.jsonl", "--out", "out.csv"], "only rows of one text or a pair"),
        (["rows.csv", "--out", "out.csv", "--ngram", "drop"], '"keep" or "mask"'),
        (["rows.csv", "--out", "out.csv", "--with", "p_msk=1"], "did you mean 'p_mask'"),
        (["rows.csv", "--out", "out.csv", "--seed", "-1"], "--seed"),
        (["rows.csv", "--out", "out.csv", "--seed", "9" * 23], "--seed"),
    ):
        given = [str(tmp_path / one) if "." in one or "/" in one else one for one in words]
        assert potstill("augment", *given) == 2
        assert told in capsys.readouterr().err
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert potstill("augment", tmp_path / "rows.csv", "--out", tmp_path / "there.csv", "--overwrite", "--quiet") == 0
    assert len(rows_of(tmp_path / "there.csv")) > 4
    assert not list(tmp_path.glob(".tmp-*"))
