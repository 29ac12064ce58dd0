"""Running text: where a document ends, and that windows hold every word once, in order, without crossing that end."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.data.derived import AddedRows, add_rows
from potstill.data.examples import Examples, store
from potstill.data.pools import open_pool
from potstill.data.rows import Columns
from potstill.data.running_text import in_windows, open_running_text
from potstill.data.sentences import sentences_of
from potstill.data.splits import split_off_dev
from potstill.errors import InputError
from potstill.tasks.mask import MaskedLanguageModelling
from potstill.tasks.next_sentence import NextSentence
from tests.support.small_models import NEUTRAL, small_tokenizer, write_csv

TASK = MaskedLanguageModelling()
WORDS = [word for word in NEUTRAL if word.isalpha()]


def read(path: Path) -> Examples:
    return store(open_running_text(str(path), Columns()), TASK)


def texts(examples: Examples) -> list[str]:
    return [text for text, _ in examples.texts()]


def documents(examples: Examples) -> list[int]:
    return [int(number) for number in examples.documents[examples.index]]


def test_an_empty_line_ends_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\none .\ntwo .\n\n \nthree .\n\nfour .\n")
    rows = read(tmp_path / "a.txt")
    assert texts(rows) == ["one .", "two .", "three .", "four ."] and documents(rows) == [0, 0, 1, 2]


def test_an_article_of_wikitext_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.tokens").write_text(" \n = One = \n \n a .\n b .\n \n = = Part = = \n \n c .\n \n = Two = \n d .\n")
    assert documents(read(tmp_path / "a.tokens")) == [0, 0, 0, 0, 0, 1, 1]


def test_a_row_of_a_table_is_a_document(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [("one .", ""), ("two .", "")])
    assert documents(read(tmp_path / "a.csv")) == [0, 1]


def test_the_files_of_a_folder_are_read_in_order_and_end_documents(tmp_path: Path) -> None:
    (tmp_path / "all/part").mkdir(parents=True)
    (tmp_path / "all/b.txt").write_text("three .\n\nfour .\n")
    (tmp_path / "all/a.txt.gz").write_bytes(gzip.compress(b"one .\ntwo .\n"))
    (tmp_path / "all/part/c.txt").write_text("five .\n")
    rows = read(tmp_path / "all")
    assert texts(rows) == ["one .", "two .", "three .", "four .", "five ."] and documents(rows) == [0, 0, 1, 2, 3]
    write_csv(tmp_path / "all/d.csv", [("six .", "")])
    with pytest.raises(InputError, match=r"are of several kinds, csv .*, lines .*; give one of them"):
        read(tmp_path / "all")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.sampled_from([8, 16, 33]), pairs=st.booleans())
def test_windows_hold_every_word_once_in_order(
    seed: int, length: int, pairs: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each fits, none crosses the end of a document, and no two neighbours of one document would fit into one."""
    random = np.random.default_rng(seed)
    said = [
        [
            " ".join(
                f"{' '.join(random.choice(WORDS, random.integers(1, 40)))} ." for _ in range(random.integers(1, 5))
            )
            for _ in range(random.integers(1, 4))
        ]
        for _ in range(4)
    ]
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("\n\n".join("\n".join(paragraphs) for paragraphs in said))
    rows, tokenizer = read(path), small_tokenizer("bert")
    windows = in_windows(rows, tokenizer, length, pairs)
    sizes = [len(tokenizer(*parts)["input_ids"]) for parts in windows.texts()]
    assert max(sizes) <= length
    found: dict[int, list[str]] = {}
    for number, parts in zip(documents(windows), windows.texts(), strict=True):
        found.setdefault(number, []).extend(" ".join(part for part in parts if part).split())
    for number, paragraphs in enumerate(said):
        words = " ".join(paragraphs).split()
        mine = found.get(number, [])
        assert words[: len(mine)] == mine if pairs else words == mine
    if not pairs:
        room = length - 2
        longest = max(len(tokenizer.tokenize(one)) for text in texts(rows) for one in sentences_of(text))
        for place in range(len(sizes) - 1):
            if documents(windows)[place] == documents(windows)[place + 1]:
                assert sizes[place] - 2 > room - min(longest, room)


def test_windows_are_written_once_and_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"the film number {n} was good ." for n in range(50)))
    rows, tokenizer = read(tmp_path / "a.txt"), small_tokenizer("bert")
    whole = in_windows(rows, tokenizer, 64)
    assert in_windows(rows, tokenizer, 64).folder == whole.folder
    monkeypatch.setattr("potstill.data.examples.CHUNK", 3)
    monkeypatch.setattr("potstill.data.running_text.FORMAT", -1)
    parts = in_windows(rows, tokenizer, 64)
    assert parts.folder != whole.folder and texts(parts) == texts(whole)


def test_two_documents_are_held_out_where_one_tells_nothing(tmp_path: Path) -> None:
    """Whether a text is the next one can be asked of two documents at least."""
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(["one film ."] * 8) for _ in range(12)))
    rows = read(tmp_path / "a.txt")
    assert len(set(documents(split_off_dev(rows, TASK, documents=True)[1]))) == 1
    train, dev = split_off_dev(rows, NextSentence(), documents=True)
    assert len(set(documents(dev))) == 2 and not set(documents(train)) & set(documents(dev))


def test_whole_documents_are_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(["one film ."] * (1 + n % 4)) for n in range(40)))
    train, dev = split_off_dev(read(tmp_path / "a.txt"), TASK, documents=True)
    assert 5 <= len(dev) <= 10 and not set(documents(train)) & set(documents(dev))
    (tmp_path / "b.txt").write_text("\n".join(f"film {n} ." for n in range(40)))
    train, dev = split_off_dev(read(tmp_path / "b.txt"), TASK, documents=True)
    assert texts(dev) == [f"film {n} ." for n in range(36, 40)] and len(train) == 36


def test_a_folder_that_was_a_pool_before_still_has_documents_that_end_with_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "a.txt").write_text("one .\ntwo .\n")
    (folder / "b.txt").write_text("three .\n")
    like = open_running_text(str(folder / "a.txt"), Columns())
    (pool,) = open_pool(str(folder), like, print)
    assert documents(store(pool, TASK)) == [0, 0, 0]  # those of a pool are not asked for
    assert documents(read(folder)) == [0, 0, 1]


def test_files_of_a_folder_that_no_format_reads_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one .\n")
    (tmp_path / "b.docx").write_text("two .\n")
    told: list[str] = []
    open_running_text(str(tmp_path), Columns(), told.append)
    assert told == [f"{tmp_path}: not read, since the ending is of no known format: b.docx"]


def test_rows_that_were_added_belong_to_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one .\ntwo .\n")
    more = add_rows(read(tmp_path / "a.txt"), ["copies"], lambda: iter([AddedRows([("three .", None)], np.array([0]))]))
    with pytest.raises(InputError, match="belong to no document; omit unlabelled"):
        in_windows(more, small_tokenizer("bert"), 16)
