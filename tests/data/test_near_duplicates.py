"""Near-duplicates are found by their definition: compared with a plain computation by sets, and with small edits of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.data import near_duplicates
from potstill.data.examples import Examples, ExampleWriter
from potstill.data.near_duplicates import NearDuplicates, row_keys, words_of
from potstill.system.column_files import ColumnFiles
from potstill.tasks.label_matching import make_task

TASK = make_task(None, None, ["no", "yes"], None, "rows")[0]
WORDS = [f"word{number}" for number in range(60)]
FEW = st.lists(st.sampled_from(["a", "b", "c"]), max_size=14).map(" ".join)  # texts that share many sequences
DIFFERENT = st.permutations(WORDS)
EDITS = settings(deadline=None, max_examples=60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def rows_of(place: Path, texts: Sequence[tuple[str, str | None]]) -> Examples:
    place = place / str(len(list(place.iterdir())))
    place.mkdir()
    writer = ExampleWriter(ColumnFiles(place), 1)
    writer.add(texts, np.zeros((len(texts), 1)), np.zeros(len(texts), np.bool_))
    writer.finish()
    return Examples("rows", place, np.arange(len(texts)))


def found(place: Path, texts: Sequence[str], rows: Sequence[str]) -> set[tuple[int, int]]:
    duplicates = NearDuplicates([rows_of(place, [(row, None) for row in rows])], TASK, False)
    matches = duplicates.find(duplicates.sequences([(text, None) for text in texts]))
    return set(zip(matches.texts.tolist(), matches.rows.tolist(), strict=True))


def by_definition(text: str, row: str) -> bool:
    ours, theirs = words_of(text), words_of(row)
    if "".join(ours) == "".join(theirs) != "":
        return True
    a, b = ({tuple(words[i : i + 3]) for i in range(len(words) - 2)} for words in (ours, theirs))
    short = min(len(a), len(b))
    return (short >= 6 and 2 * len(a & b) >= short) or (2 <= len(a) < 6 and a <= b)


@EDITS
@given(
    texts=st.lists(FEW.filter(bool), min_size=1, max_size=6), rows=st.lists(FEW.filter(bool), min_size=1, max_size=6)
)
def test_what_is_found_is_what_the_definition_says(place: Path, texts: list[str], rows: list[str]) -> None:
    expected = {(i, j) for i, text in enumerate(texts) for j, row in enumerate(rows) if by_definition(text, row)}
    assert found(place, texts, rows) == expected


def test_counting_in_small_groups_finds_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(0)
    texts, rows = ([" ".join(chance.choice(["a", "b", "c", "d"], 12)) for _ in range(40)] for _ in range(2))
    expected = found(place, texts, rows)
    monkeypatch.setattr(near_duplicates, "AT_ONCE", 5)
    assert found(place, texts, rows) == expected and 0 < len(expected) < 1600


@EDITS
@given(words=DIFFERENT, count=st.integers(1, 40), data=st.data())
def test_case_punctuation_and_spaces_do_not_matter(
    place: Path, words: list[str], count: int, data: st.DataObject
) -> None:
    row = " ".join(words[:count])
    parts = [
        data.draw(st.sampled_from([word, word.upper(), word.title()]))
        + data.draw(st.sampled_from([" ", ", ", " … ", "\t"]))
        for word in words[:count]
    ]
    assert (0, 0) in found(place, ["".join(parts)], [row])


@EDITS
@given(
    words=DIFFERENT, count=st.integers(8, 40), at=st.integers(0, 39), kind=st.sampled_from(["other", "less", "more"])
)
def test_a_word_that_is_changed_left_out_or_added_does_not_matter_from_eight_words_on(
    place: Path, words: list[str], count: int, at: int, kind: str
) -> None:
    row, at = words[:count], at % count
    edited = {
        "other": [*row[:at], "new", *row[at + 1 :]],
        "less": row[:at] + row[at + 1 :],
        "more": [*row[:at], "new", *row[at:]],
    }
    text = edited[kind]
    if len(text) >= 8:
        assert found(place, [" ".join(text)], [" ".join(row)]) == {(0, 0)}


@EDITS
@given(words=DIFFERENT, count=st.integers(14, 40), first=st.integers(0, 39), second=st.integers(0, 39))
def test_two_words_that_are_changed_do_not_matter_from_fourteen_words_on(
    place: Path, words: list[str], count: int, first: int, second: int
) -> None:
    text = words[:count]
    text[first % count], text[second % count] = "new", "newer"
    assert found(place, [" ".join(text)], [" ".join(words[:count])]) == {(0, 0)}


@EDITS
@given(words=DIFFERENT, begin=st.integers(0, 30), length=st.integers(4, 20))
def test_a_part_of_a_row_is_found_and_a_row_within_a_text(
    place: Path, words: list[str], begin: int, length: int
) -> None:
    part, whole = " ".join(words[begin : begin + length]), " ".join(words[:50])
    assert found(place, [part], [whole]) == {(0, 0)}
    long = len(words[begin : begin + length]) >= 8
    assert found(place, [whole], [part]) == ({(0, 0)} if long else set())  # short rows may be part of anything


@EDITS
@given(words=DIFFERENT, cut=st.integers(1, 59))
def test_texts_without_a_common_word_are_not_found(place: Path, words: list[str], cut: int) -> None:
    assert found(place, [" ".join(words[:cut])], [" ".join(words[cut:])]) == set()


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("It doesn't work, it's DULL!", "it does n't work , it 's dull"),
        ("Don’t go", "do n't go"),
        ("STRASSE", "straße"),
        ("!!!", " ! ! !"),
        ("", ""),
        ("\ufffd", "\ufffd"),
        ("映画は良い。", "映画は良い"),
    ],
)
def test_texts_that_are_written_otherwise_are_equal(place: Path, text: str, row: str) -> None:
    assert found(place, [text], [row]) == {(0, 0)}


def test_texts_without_words_are_compared_as_they_are(place: Path) -> None:
    assert found(place, ["😀", "😡", "…"], ["😀"]) == {(0, 0)}


def test_of_pairs_both_texts_must_be_near(place: Path) -> None:
    one, other = " ".join(WORDS[:10]), " ".join(WORDS[20:30])
    duplicates = NearDuplicates([rows_of(place, [(one, other), ("short", one)])], TASK, True)
    texts = [(one.upper(), other.replace("word25", "new")), (one, "short"), ("short", one + "!"), (other, one)]
    matches = duplicates.find(duplicates.sequences(texts))
    assert list(zip(matches.texts, matches.rows, matches.equal, strict=True)) == [(0, 0, False), (2, 1, True)]
    keys = row_keys(duplicates.sequences([("A b", "c"), ("ab", "C."), ("a", "bc"), ("c", "ab")]))
    assert keys[0] == keys[1] and len(set(keys.tolist())) == 3


def test_a_text_of_a_million_characters_is_compared(place: Path) -> None:
    long = "x" * 100_000 + " 😀 \u202e " + "the film was good " * 60_000
    assert found(place, [long, long[:-9]], [long]) >= {(0, 0)}
    assert re.fullmatch(r"x+", words_of(long)[0])
