"""Rows that were read once are read from the cache: as they were written, or they are read again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from potstill.data.examples import Examples, store
from potstill.data.pools import open_unlabelled
from potstill.data.rows import Columns, Table, open_table
from potstill.data.tokens import tokenise
from potstill.errors import InputError
from potstill.signals import Wants
from potstill.system import column_files, ranks
from potstill.tasks.label_matching import make_task
from potstill.tasks.regress import Regression
from tests.support.small_models import small_tokenizer
from tests.support.training_world import make_world

TASK = make_task(None, None, ["no", "yes"], None, "rows")[0]


def rows_csv(folder: Path, name: str = "rows.csv", text: str = "film") -> Path:
    path = folder / name
    path.write_text("text,label\n" + "".join(f"{text} {n},{'yes' if n % 3 else 'no'}\n" for n in range(40)))
    return path


def content(examples: Examples) -> list[object]:
    golds = [int(gold) for row in examples.index if (gold := examples.gold(row)) is not None]
    return [list(examples.texts()), golds, np.asarray(examples.keys).tolist()]


def flipped(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a label's bit": lambda folder: flipped(folder / "targets.bin"),
    "a text's bit": lambda folder: flipped(folder / "texts.bin"),
    "an offset's bit": lambda folder: flipped(folder / "text_offsets.bin"),
    "cut": lambda folder: os.truncate(folder / "keys.bin", 9),
    "emptied": lambda folder: (folder / "targets.bin").write_bytes(b""),
    "a file gone": lambda folder: (folder / "labelled.bin").unlink(),
    "an empty meta": lambda folder: (folder / "meta.json").write_bytes(b""),
    "a meta that is no object": lambda folder: (folder / "meta.json").write_bytes(b"[]\n"),
    "another number of rows": lambda folder: (folder / "meta.json").write_bytes(
        json.dumps(json.loads((folder / "meta.json").read_text()) | {"rows": 39}).encode()
    ),
    "no meta": lambda folder: (folder / "meta.json").unlink(),
    "an empty folder": lambda folder: [shutil.rmtree(folder), folder.mkdir()][0],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_noticed_and_made_again(damage: str, tmp_path: Path) -> None:
    table = open_table(rows_csv(tmp_path))
    first = store(table, TASK)
    before, modified = content(first), (first.folder / "keys.bin").stat().st_mtime_ns
    DAMAGES[damage](first.folder)
    assert content(store(table, TASK)) == before
    again = (first.folder / "keys.bin").stat().st_mtime_ns
    assert again > modified and content(store(table, TASK)) == before
    assert (first.folder / "keys.bin").stat().st_mtime_ns == again, "what is whole is not made again"
    assert not list(first.folder.parent.glob(".tmp-*"))


def test_damaged_tokens_are_made_again(tmp_path: Path) -> None:
    examples = store(open_table(rows_csv(tmp_path)), TASK)
    tokenizer = small_tokenizer("bert")
    before = np.array(tokenise(TASK, examples, tokenizer, 16).ids)
    (file,) = examples.folder.glob("tokens-*/ids.bin")
    flipped(file)
    assert np.array_equal(tokenise(TASK, examples, tokenizer, 16).ids, before)


def test_checksums_are_compared_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(rows_csv(tmp_path))
    store(table, TASK)
    monkeypatch.setattr(column_files, "file_xxh3", lambda path: pytest.fail("read again"))
    store(table, TASK)


def test_a_file_that_changes_while_it_is_read_is_refused_and_not_kept(tmp_path: Path) -> None:
    path = rows_csv(tmp_path, text="alpha")
    old = path.read_bytes()
    table = open_table(path)
    rows_csv(tmp_path, text="BRAVO")
    with pytest.raises(InputError, match="changed while it was read"):
        store(table, TASK)
    path.write_bytes(old)
    assert store(open_table(path), TASK).text(0)[0] == "alpha 0"


def test_the_same_bytes_are_other_rows_in_a_file_of_another_kind(tmp_path: Path) -> None:
    task = Regression()
    found = []
    for name in ("a.csv", "a.txt"):
        (tmp_path / name).write_text('text\n"a ""fine"" film"\nb\n')
        found.append([text for text, _ in store(open_table(tmp_path / name), task).texts()])
    assert found == [['a "fine" film', "b"], ["text", '"a ""fine"" film"', "b"]]


def test_answers_that_were_not_read_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "logits": [1, 2]}\n{"text": "b", "logits": [2, 1]}\n')
    like: Table = open_table(path, Columns())
    assert not store(open_unlabelled(str(path), like), TASK).meta["answers"]
    assert store(like, TASK).answers.tolist() == [[1, 2], [2, 1]]


def test_rows_with_long_texts_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer("bert")
    plain = store(open_table(rows_csv(tmp_path)), TASK)
    before, ids = content(plain), np.array(tokenise(TASK, plain, tokenizer, 16).ids)
    monkeypatch.setattr("potstill.data.examples.CHUNK_CHARACTERS", 20)
    assert all(len(rows) <= 3 for rows in plain.chunks()) and sum(map(len, plain.chunks())) == len(plain)
    shutil.rmtree(plain.folder)
    again = store(open_table(tmp_path / "rows.csv"), TASK)
    assert content(again) == before and np.array_equal(tokenise(TASK, again, tokenizer, 16).ids, ids)


def test_processes_that_do_not_share_their_cache_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, rows=8)
    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "number", lambda: 1)  # the first asks all of so few rows, and writes to another folder
    monkeypatch.setattr(ranks, "_result_of_first", lambda work: work())
    monkeypatch.setattr(ranks, "wait", lambda: None)
    with pytest.raises(InputError, match=r"do not share a cache.*POTSTILL_CACHE"):
        world.remembering().remember(world.source(), Wants(logits=True))
