"""Pools of unlabelled texts: several files, folders and packages, without what dev, test and train have already."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from potstill.data.examples import Examples, store
from potstill.data.pools import Pool, open_unlabelled, with_unlabelled
from potstill.data.records import clean_text
from potstill.data.rows import Columns, open_table
from potstill.errors import InputError
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import to_toml
from potstill.tasks.label_matching import make_task
from tests.data.test_rows import RIGHT, WRONG, written
from tests.reliability.test_22_texts import TEXTS
from tests.support.small_models import write_csv

TASK = make_task(None, None, ["no", "yes"], None, "rows")[0]
LONG = "the plot of this film is a long and winding road to nowhere"
ROWS = {
    "train": [("an honest film", "yes"), ("a dull film", "no")],
    "dev": [(LONG, "no"), ("good", "yes")],
    "test": [("a film about two sisters in a small house by the sea", "yes"), ("bad", "no"), ("fine", "yes")],
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, rows in ROWS.items():
        write_csv(tmp_path / f"{name}.csv", rows)
    return tmp_path


def added(home: Path, *sources: str | Path) -> tuple[list[str], list[str]]:
    """The texts that are added to train, and what is said."""
    tables = {name: open_table(home / f"{name}.csv") for name in ROWS}
    rows: dict[str, Examples] = {name: store(table, TASK) for name, table in tables.items()}
    train = rows.pop("train")
    told: list[str] = []
    made = with_unlabelled(train, Pool([str(each) for each in sources], tables["train"]), TASK, rows, told.append)
    assert made.labelled[made.index].tolist() == [True, True] + [False] * (len(made) - 2)
    return [text for text, _ in made.texts()][2:], told


def test_several_files_of_several_formats_follow_each_other(home: Path) -> None:
    (home / "a.txt").write_text("one\ntwo\n")
    (home / "b.txt.gz").write_bytes(gzip.compress(b"three\nTWO!\n"))
    write_csv(home / "c.csv", [("four", "spam"), ("an honest film.", "")], ("review", "label"))
    (home / "d.jsonl").write_text(json.dumps({"text": "five"}))
    texts, told = added(home, *(home / name for name in ("a.txt", "b.txt.gz", "c.csv", "d.jsonl")))
    assert texts == ["one", "two", "three", "four", "five"]
    assert told == [
        f"{home}/b.txt.gz: 1 rows are in train already, or occur twice, and are left out",
        f"{home}/c.csv: 1 rows are in train already, or occur twice, and are left out",
    ]


def test_a_folder_is_read_file_by_file(home: Path) -> None:
    folder = home / "more"
    (folder / "below").mkdir(parents=True)
    (folder / "b.txt").write_text("one\ntwo")
    (folder / "below" / "a.txt").write_text("three")
    (folder / "README.md").write_text("not a text")
    (folder / ".hidden.txt").write_text("hidden")
    write_csv(folder / "c.csv", [("four", "x")], ("sentence", "label"))
    write_csv(folder / "d.csv", [("five", "x")], ("review", "label"))
    texts, told = added(home, folder)
    assert texts == ["one", "two", "three", "four", "five"]
    assert told == [f"{folder}: not read, since the ending is of no known format: README.md"]
    (folder / "b.txt").write_text("one\ntwo\nsix")  # the folder is read again
    assert added(home, folder)[0] == ["one", "two", "six", "three", "four", "five"]


def test_an_error_in_a_folder_names_file_and_line(home: Path) -> None:
    (home / "more").mkdir()
    with pytest.raises(InputError, match="there is no file of texts in the folder"):
        added(home, home / "more")
    (home / "more" / "a.jsonl").write_text('{"text": "one"}\n')
    (home / "more" / "b.jsonl").write_text('{"text": "one"}\n{"text": 3}\n')
    with pytest.raises(InputError, match=r"b.jsonl:2: 'text' is 3, not a text"):
        added(home, home / "more")
    (home / "more" / "b.jsonl").unlink()
    (home / "more" / "c.txt").write_bytes(b"good\n\xff\n")
    with pytest.raises(InputError, match=r"c.txt:2: byte 0xff"):
        added(home, home / "more")


LABELS_ALONE = {"object as label", "NaN as label"}  # labels of unlabelled rows are not read


@pytest.mark.parametrize("case", [*RIGHT, *WRONG])
def test_odd_files_are_read_as_strictly_as_train(home: Path, case: str) -> None:
    name, content, *expected = (RIGHT | WRONG)[case]
    path = written(home, name, content)
    like = open_table(home / "train.csv")
    if case in RIGHT or case in LABELS_ALONE:
        texts = [row.text for row in open_unlabelled(str(path), like).rows()]
        assert texts == ([text for text, _ in expected[0]] if case in RIGHT else ["a"])
        return
    with pytest.raises(InputError) as refused:
        list(open_unlabelled(str(path), like).rows())
    assert str(refused.value).startswith(f"{path}:{expected[0]}: ")


@pytest.mark.parametrize("sentences", [False, True])
def test_awkward_texts_are_read_compared_and_cut(home: Path, sentences: bool) -> None:
    path = home / "more.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in [*TEXTS, "This is new. " * 9]))
    train = open_table(home / "train.csv")
    rows = {name: store(open_table(home / f"{name}.csv"), TASK) for name in ("dev", "test")}
    pool = Pool([str(path)], train, sentences)
    made = [text for text, _ in with_unlabelled(store(train, TASK), pool, TASK, rows, lambda line: None).texts()][2:]
    assert len(made) == len(set(made)) > 0
    if not sentences:
        assert {clean_text(text) for text in ("🎬" * 1000, "x" * 100_000, "أهلا good", "\ud800")} <= set(made)


def test_rows_of_dev_and_test_and_what_is_nearly_the_same_never_enter(home: Path) -> None:
    texts = [
        "a new text",
        LONG.upper() + "!!",  # of dev
        LONG.replace("road", "street"),  # nearly the same
        "a film about two sisters",  # a part of a row of test
        f"So: {ROWS['test'][0][0]}, and then nothing happens for an hour.",  # a row of test is a part of it
        "BAD.",
        "bad films are not left out",  # a short row is not looked for within others
    ]
    (home / "more.txt").write_text("\n".join(texts))
    found, told = added(home, home / "more.txt")
    assert found == [texts[0], texts[-1]]
    assert told == [
        f"{home}/more.txt: 5 of 7 rows are also in dev or test and are left out; it holds 1 of the 2 rows of dev and "
        "1 (and nearly 1 more) of the 3 rows of test",
        f"warning: dev or test probably come from {home}/more.txt; make sure that the teacher was not trained on it, or it "
        "knows the rows on which it is measured",
    ]


def test_nothing_new_is_refused(home: Path) -> None:
    (home / "more.txt").write_text("good\nA dull film\n")
    with pytest.raises(InputError, match="all rows are also in dev or test, or in train; give other texts"):
        added(home, home / "more.txt")


def test_pairs_are_left_out_by_both_texts(tmp_path: Path) -> None:
    names = ("premise", "hypothesis", "label")
    write_csv(tmp_path / "train.csv", [("a", "b", "yes"), ("c", "d", "no")], names)
    write_csv(tmp_path / "dev.csv", [(LONG, "It is short.", "no")], names)
    write_csv(tmp_path / "more.csv", [(LONG, "it is short", ""), (LONG, "It is long.", ""), ("A", "B", "")], names)
    train, dev = (open_table(tmp_path / f"{name}.csv", Columns()) for name in ("train", "dev"))
    pool = Pool([str(tmp_path / "more.csv")], train)
    made = with_unlabelled(store(train, TASK), pool, TASK, {"dev": store(dev, TASK)}, print)
    assert list(made.texts())[2:] == [(LONG, "It is long.")]
    with pytest.raises(InputError, match="sentences = true is for tasks that read one text"):
        with_unlabelled(store(train, TASK), pool._replace(sentences=True), TASK, {"dev": store(dev, TASK)}, print)


def test_recipes_name_one_source_or_several(tmp_path: Path) -> None:
    given = ["train=a.csv", "unlabelled=b.txt"]
    one = resolve(None, None, [f"data.{each}" for each in given]).recipe
    assert one.data[0].unlabelled == "b.txt" and one.data[0].pools == ["b.txt"] and one.data[0].sentences == "auto"
    both = resolve(None, None, ["data.train=a.csv", 'data.unlabelled=["b.txt","c"]', "data.sentences=false"]).recipe
    assert both.data[0].pools == ["b.txt", "c"] and both.data[0].sources == ["a.csv", "b.txt", "c"]
    (tmp_path / "again.toml").write_text(to_toml(both))
    assert resolve(str(tmp_path / "again.toml"), None, []).recipe == both
    assert resolve(None, None, ["data.train=a.csv"]).recipe.data[0].pools == []


def test_a_part_of_a_run_reads_the_texts_back(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out was compared once; a later run says the same without comparing."""
    (home / "more.txt").write_text("bad\nnew\n")
    first = added(home, home / "more.txt")
    monkeypatch.setattr("potstill.data.pools.NearDuplicates", None)
    assert added(home, home / "more.txt") == first and first[0] == ["new"]
