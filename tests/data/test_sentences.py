"""Documents are cut into sentences that are as long as the rows, if they are much longer than these."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from potstill.data.examples import Examples, store
from potstill.data.rows import open_table
from potstill.data.sentences import AT_ONCE, cut_documents, sentences_of
from potstill.errors import InputError


def stored(path: Path, texts: list[str]) -> Examples:
    path.write_text("\n".join(texts))
    return store(open_table(path))


def rows(tmp_path: Path) -> Examples:
    """100 rows of 3 to 12 words."""
    return stored(tmp_path / "rows.txt", [" ".join(["word"] * (3 + place % 10)) for place in range(100)])


SENTENCES = [
    "Yes!",
    "It is a good film.",
    "Mr. Smith paid $3.50 for it!",
    "Who would not like to see it again " + "and again " * 5 + "?",
]


def documents(count: int) -> list[str]:
    chance = random.Random(0)
    return [" ".join(chance.choices(SENTENCES, k=20)) for _ in range(count)]


def test_long_texts_are_cut_and_sentences_of_other_lengths_left_out(tmp_path: Path) -> None:
    told: list[str] = []
    cut = cut_documents(stored(tmp_path / "pool.txt", documents(50)), rows(tmp_path), "auto", told.append)
    used = [sentence for text in documents(50) for sentence in re.findall(r"It is a good film\.|Mr\. Smith .*?!", text)]
    assert [text for text, _ in cut.texts()] == used and len(used) > 300 and not len(cut.labelled_only)
    assert told[0].startswith(f"{tmp_path}/pool.txt: its texts (half of them over ")
    assert told[0].endswith(
        f" words) are longer than the rows (12 words or less, all but 5 %); they are cut into sentences, and the {len(used)} "
        "of 3 to 12 words are used"
    )


def test_texts_like_the_rows_are_kept_whole_and_the_recipe_decides_otherwise(tmp_path: Path) -> None:
    pool = stored(tmp_path / "pool.txt", ["It is a good film. I like it a lot."] * 3 + [" ".join(["word"] * 300)])
    told: list[str] = []
    assert cut_documents(pool, rows(tmp_path), "auto", told.append) is pool and not told
    cut = cut_documents(pool, rows(tmp_path), True, told.append)
    assert [text for text, _ in cut.texts()] == ["It is a good film.", "I like it a lot."] * 3 and len(told) == 1


def test_no_sentence_of_such_a_length_is_refused(tmp_path: Path) -> None:
    pool = stored(tmp_path / "pool.txt", ["Yes! " * 100])
    with pytest.raises(InputError, match=r"has 3 to 12 words, as the rows have; .* sentences = false"):
        cut_documents(pool, rows(tmp_path), "auto", print)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It ends.<br /><br />It begins, again", ["It ends.", "It begins, again"]),
        ("One line\nanother\n\n  line", ["One line", "another", "line"]),
        ("Mr. Young paid  $3.50, i.e. nothing. See it!", ["Mr. Young paid $3.50, i.e. nothing.", "See it!"]),
        ("", []),
        (" \n\t", []),
        ("映画は良い。また見たい。", ["映画は良い。", "また見たい。"]),
        ("هل أعجبك الفيلم؟ نعم.", ["هل أعجبك الفيلم؟", "نعم."]),
    ],
)
def test_sentences_of_a_text(text: str, expected: list[str]) -> None:
    assert list(sentences_of(text)) == expected


@pytest.mark.parametrize("unit", ["a", '"', "(", "\ufffd", "😀. ", "\u202e", "good film. ", "\n", "'\"", "<br />"])
def test_nothing_is_lost_of_odd_texts(unit: str) -> None:
    """Also of 100,000 characters, in little time: quotes that are never closed are read in parts."""
    text = unit * (100_000 // len(unit))
    found = "".join("".join(sentences_of(text)).split())
    assert found == ("" if unit == "<br />" else "".join(text.split()))
    assert len(text) > AT_ONCE
