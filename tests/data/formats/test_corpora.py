"""Words with tags, questions with answers and candidates to choose from: every shape in which they come gives the same
rows, and what does not fit is refused at its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potstill.data.formats import json_files
from potstill.data.row import PART_SEPARATOR, Row, Span
from potstill.data.rows import Columns, open_table
from potstill.errors import InputError
from potstill.recipe.task_words import Form

SHARED = Path(__file__).parents[4] / "shared" / "data"
real_data = pytest.mark.skipif(not SHARED.is_dir(), reason="real data sets are not at ../shared/data")


def written(folder: Path, name: str, content: str | bytes | list[dict[str, Any]]) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
        content = "".join(json.dumps(record) + "\n" for record in content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(source: Path | str, place: str, words: str, *more: Any) -> None:
    """Opening and reading it fails at this place, with these words and with what to do."""
    with pytest.raises(InputError) as caught:
        list(open_table(source, *more).rows())
    message = str(caught.value)
    assert f"{place}: " in message and words in message, message
    assert ";" in message.partition(f"{place}: ")[2], "says what to do"


# words with a tag each


def sentence(line: int, words: str, tags: str | None) -> Row:
    return Row(line, words.replace(" ", PART_SEPARATOR), None, None if tags is None else tuple(tags.split()), None)


# fmt: off
CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
# NN I-NP O
. . O O

-DOCSTART- -X- -X- O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER


"""
WORDS: dict[str, Any] = {  # name, content: rows
    "conll": ("a.conll", CONLL,
        [sentence(3, "EU rejects # .", "I-ORG O O O"), sentence(10, "Peter Blackburn", "I-PER I-PER")]),
    "name of the task's own files": ("eng.testa", "EU NNP I-ORG\n", [sentence(1, "EU", "I-ORG")]),
    "zipped under its own name": ("eng.train.gz", gzip.compress(b"EU I-ORG\n"), [sentence(1, "EU", "I-ORG")]),
    "tabs": ("a.iob2.gz", gzip.compress(b"New York\tB-LOC\r\n 5\tO\r\n\r\n#\tO"),
        [Row(1, f"New York{PART_SEPARATOR} 5", None, ("B-LOC", "O"), None), sentence(4, "#", "O")]),
    "spaces in a row and at the end": ("a.bio", "EU   I-ORG \nis  O\n", [sentence(1, "EU is", "I-ORG O")]),
    "comments": ("a.iob", "# by its makers in Antwerp\n\n# id 7\tdomain=en\n# text = is it\nis _ _ O\nit _ _ O\n\n# _ _ O\n\n# license CC BY\n",
        [sentence(5, "is it", "O O"), sentence(8, "#", "O")]),
    "no tags": ("a.iobes", "EU\nrejects\n\nit\n", [sentence(1, "EU rejects", None), sentence(4, "it", None)]),
    "some without tags": ("a.conll2003", "EU\n\nit O\n", [sentence(1, "EU", None), sentence(3, "it", "O")]),
    "lists": ("a.jsonl", [{"tokens": ["EU", "is"], "pos_tags": ["N", "V"], "ner": ["B", "O"]}, {"tokens": ["a"]},
        {"tokens": ["b"], "ner": []}], [sentence(1, "EU is", "B O"), sentence(2, "a", None), sentence(3, "b", None)]),
    "numbers as tags": ("a.jsonl", [{"id": 1, "Words": ["a", "b"], "labels": [0, 3.0]}], [sentence(1, "a b", "0 3")]),
    "a text beside the words": ("a.jsonl", [{"text": "a b", "tokens": ["a", "b"], "ner_tags": ["O", "X"]}],
        [sentence(1, "a b", "O X")]),
    "a space in a word": ("a.jsonl", [{"words": ["a b", "c\0d"], "tags": ["O", "X"]}],
        [Row(1, f"a b{PART_SEPARATOR}c\ufffdd", None, ("O", "X"), None)]),
    "cells": ("a.csv", 'tokens,tags\n"a , b",O O X\nc,\n', [sentence(2, "a , b", "O O X"), sentence(3, "c", None)]),
    "cells of tsv": ("a.tsv", "tokens\tlabel\na b\tO X\n", [sentence(2, "a b", "O X")]),
}

NO_WORDS: dict[str, Any] = {  # name, content: line, words of the message
    "another number of columns": ("a.conll", "a b c\n\na b c\nd c\n", 4, "2 columns in a sentence that began with 3"),
    "comment inside a sentence that is none": ("a.conll", "a O\n#b c d\n", 2, "3 columns in a sentence"),
    "both separators": ("a.conll", "a\tN O\n", 1, "the tag 'N O' contains a space"),
    "empty column": ("a.conll", "a\tO\n\tO\n", 2, "the first or the last column is empty"),
    "no tag": ("a.conll", "a\tO\nb\t\n", 2, "the first or the last column is empty"),
    "no sentence": ("a.conll", "-DOCSTART- O\n\n", 1, "there are no rows"),
    "latin-1": ("a.conll", "a O\ncafé O\n".encode("latin-1"), 2, "save it as UTF-8"),
    "cut gzip": ("a.conll.gz", gzip.compress(b"a O\n" * 99)[:-9], 100, "damaged"),
    "fewer tags": ("a.jsonl", [{"tokens": ["a"], "tags": ["O"]}, {"tokens": ["a", "b"], "tags": ["O"]}], 2,
        "there are 2 words, but 1 in 'tags'"),
    "one label": ("a.jsonl", [{"tokens": ["a", "b"], "label": 1}], 1, "not tags"),
    "label text": ("a.jsonl", [{"tokens": ["a", "b"], "label": "x"}], 1, "there are 2 words, but 1 in 'label'"),
    "empty sentence": ("a.jsonl", [{"tokens": ["a"]}, {"tokens": []}], 2, "there are no words in 'tokens'"),
    "no sentence in the row": ("a.jsonl", [{"tokens": ["a"]}, {"tags": ["a"]}], 2, "there are no words in 'tokens'"),
    "empty word": ("a.jsonl", [{"tokens": ["a", " "], "tags": ["O", "O"]}], 1, "word 2 of 2 is empty"),
    "number as word": ("a.jsonl", [{"tokens": ["a", 5], "tags": ["O", "O"]}], 1, "word 2 is 5, not a text"),
    "number as words": ("a.jsonl", [{"tokens": ["a"]}, {"tokens": 5}], 2, "'tokens' is 5, not words"),
    "list as tag": ("a.jsonl", [{"tokens": ["a"], "tags": [["O"]]}], 1, "is not a label"),
    "empty tag": ("a.jsonl", [{"tokens": ["a", "b"], "tags": ["O", ""]}], 1, "word 2 has no tag"),
    "missing tag": ("a.jsonl", [{"tokens": ["a", "b"], "tags": [None, "O"]}], 1, "word 1 has no tag"),
    "two spaces": ("a.csv", "tokens,tags\na  b,O O O\n", 2, "word 2 of 3 is empty; write one space"),
}
# fmt: on


@pytest.mark.parametrize(
    ("content", "words", "tags"),
    [
        ("# sent_id = 1\nEU\tNNP\tB-NP\tB-ORG\nrejects\tVB\tB-VP\tO\n", "EU rejects", "B-ORG O"),
        ("# id 7f3a domain=en\nthe _ _ O\nEU _ _ B-ORG\n", "the EU", "O B-ORG"),
        ("# sent_id = 1\n# text = x\nthe _ _ O\n# _ _ O\n", "the #", "O O"),
        ("# _ _ O\nthe _ _ O\n", "# the", "O O"),
        ("# a b\nEU\tB-ORG\n#\tO\n", "EU #", "B-ORG O"),
    ],
)
def test_comments_of_conll_are_no_words(content: str, words: str, tags: str, tmp_path: Path) -> None:
    (row,) = open_table(written(tmp_path, "a.conll", content)).rows()
    assert (row.text.split(PART_SEPARATOR), row.label) == (words.split(), tuple(tags.split()))


@pytest.mark.parametrize("case", WORDS)
def test_words_and_tags(case: str, tmp_path: Path) -> None:
    name, content, rows = WORDS[case]
    path = written(tmp_path, name, content)
    table = open_table(path)
    assert (table.form, table.choices, table.columns.pair) == ("words", 0, None)
    assert list(table.rows()) == rows == list(open_table(path, form="words").rows())
    if case.startswith(("conll", "no tags")):
        assert table.columns == Columns("tokens", None, "tags" if case == "conll" else None)


@pytest.mark.parametrize("case", NO_WORDS)
def test_words_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    name, content, line, words = NO_WORDS[case]
    path = written(tmp_path, name, content)
    refused(path, f"{path}:{line}", words)


def test_a_sentence_without_end_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.conll", b"b O\n\n" + (b"a" * 2**20 + b" O\n") * 17)
    refused(path, f"{path}:3", "the sentence that begins here has more than 16,777,216 characters")


def test_words_of_data_sets_have_the_names_of_their_tags(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-LOC"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    cells = {"tokens": [["to", "Rome"], ["no"]], "ner_tags": [[0, 1], [-1]]}
    data = datasets.Dataset.from_dict(cells, features)
    data.save_to_disk(tmp_path / "saved")
    data.to_parquet(tmp_path / "a.parquet")
    for source in ("saved", "a.parquet"):
        rows = list(open_table(tmp_path / source).rows())
        assert rows == [sentence(1, "to Rome", "O B-LOC"), sentence(2, "no", None)]


letters = st.characters(codec="utf-8", exclude_characters="\0\n\r\t ", exclude_categories=["Zs"])
word = st.text(letters, min_size=1, max_size=6).filter(
    lambda text: text == text.strip() and not text.startswith("-DOCSTART-")
)
taggings = st.lists(st.lists(st.tuples(word | st.just("#"), word), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sentences=taggings, tab=st.booleans(), middle=st.booleans(), blank=st.integers(1, 3))
def test_what_is_written_in_columns_is_read_back(
    sentences: list[list[tuple[str, str]]], tab: bool, middle: bool, blank: int, tmp_path: Path
) -> None:
    tags = sorted({tag for pairs in sentences for _, tag in pairs})
    sentences = [[("the", tag) for tag in tags], *sentences]  # so that # with such a tag is known to be a word
    cells = [[(token, *(["_"] if middle else []), tag) for token, tag in pairs] for pairs in sentences]
    blocks = ["".join(("\t" if tab else " ").join(row) + "\n" for row in rows) for rows in cells]
    path = written(tmp_path, "a.conll", ("\n" * blank).join(blocks))
    rows = list(open_table(path).rows())
    assert [list(zip(row.text.split(PART_SEPARATOR), row.label or (), strict=True)) for row in rows] == sentences
    lines = path.read_bytes().decode().split("\n")
    assert [lines[row.line - 1].split("\t" if tab else " ")[0] for row in rows] == [rows[0][0] for rows in sentences]


# questions whose answers stand in a context

CONTEXT = "In October the oil crisis began. October it was."
ROW = Row(1, "When?", CONTEXT, (Span(3, "October"), Span(33, "October")), None)
ASKED = {"question": "When?", "context": CONTEXT}


def squad(*paragraphs: object) -> str:
    return json.dumps({"version": "1.1", "data": [{"title": "Oil", "paragraphs": list(paragraphs)}]}, indent=1)


def question(**more: object) -> dict[str, object]:
    return {"id": "q", "question": "When?", **more}


SPANS = [{"text": "October", "answer_start": 3}, {"text": "October", "answer_start": 33}]
# fmt: off
ANSWERS: dict[str, Any] = {  # record: label
    "of the hub": ({"answers": {"text": ["October", "October"], "answer_start": [3, 33]}}, ROW.label),
    "of squad": ({"answers": SPANS}, ROW.label),
    "starts beside": ({"answers": ["October", "October"], "answer_starts": [3, 33]}, ROW.label),
    "start beside": ({"answers": "October", "answer_start": 33}, (Span(33, "October"),)),
    "one object": ({"answers": {"text": "October", "answer_start": 33}}, (Span(33, "October"),)),
    "no starts": ({"answers": ["October", "oil"]}, (Span(3, "October"), Span(15, "oil"))),
    "one text": ({"answers": "oil"}, (Span(15, "oil"),)),
    "answerable": ({"answers": "oil", "is_impossible": False}, (Span(15, "oil"),)),
    "empty lists": ({"answers": {"text": [], "answer_start": []}}, None),
    "empty list": ({"answers": []}, None),
    "null": ({"answers": None}, None),
}

NO_ANSWERS: dict[str, Any] = {  # record: words of the message
    "wrong place": ({"answers": {"text": ["October"], "answer_start": [4]}},
        "at character 4 the context has 'ctober ', not the answer 'October'"),
    "behind the end": ({"answers": {"text": ["October"], "answer_start": [99]}}, "the context has '', not the answer"),
    "before the beginning": ({"answers": {"text": ["was."], "answer_start": [-4]}}, "at character -4"),
    "not in the context": ({"answers": ["November"]}, "the answer 'November' is not in the context"),
    "unanswerable": ({"answers": [], "is_impossible": True}, "which is not supported; omit such rows"),
    "empty answer": ({"answers": [""]}, "an answer is ''"),
    "number": ({"answers": [5]}, "an answer is 5"),
    "object without text": ({"answers": [{"answer_start": 3}]}, "an answer is None"),
    "place that is none": ({"answers": ["oil"], "answer_starts": ["here"]}, "an answer begins at 'here'"),
    "half a place": ({"answers": ["oil"], "answer_starts": [1.5]}, "an answer begins at 1.5"),
    "too few places": ({"answers": ["oil", "oil"], "answer_starts": [15]}, "there are 2 answers, but 1 positions"),
    "no context": ({"context": None, "answers": ["oil"]}, "'context' is None, not a text"),
}
# fmt: on


@pytest.mark.parametrize("case", ANSWERS)
def test_answers_in_a_context(case: str, tmp_path: Path) -> None:
    record, label = ANSWERS[case]
    path = written(tmp_path, "a.jsonl", [{"id": 5, "title": "t", **ASKED, **record}])
    table = open_table(path)
    assert (table.form, table.columns) == ("answers", Columns("question", "context", "answers"))
    assert list(table.rows()) == [ROW._replace(label=label)]
    if case in ("of the hub", "starts beside"):
        pq.write_table(pa.Table.from_pylist([{**ASKED, **record}]), tmp_path / "a.parquet")
        assert list(open_table(tmp_path / "a.parquet").rows()) == [ROW]


@pytest.mark.parametrize("case", NO_ANSWERS)
def test_answers_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    record, words = NO_ANSWERS[case]
    path = written(tmp_path, "a.jsonl", [{**ASKED, "answers": "oil"}, {**ASKED, **record}])
    refused(path, f"{path}:2", words)


def test_replaced_characters_move_no_answer(tmp_path: Path) -> None:
    record = {"question": "?", "context": "\0\ud800 b\udfff", "answers": [{"text": "b\udfff", "answer_start": 3}]}
    row = next(open_table(written(tmp_path, "a.jsonl", [record])).rows())
    assert (row.pair, row.label) == ("\ufffd\ufffd b\ufffd", (Span(3, "b\ufffd"),))


def test_answers_in_columns_of_other_names(tmp_path: Path) -> None:
    columns = Columns("q", "page", "gold")
    named = {"q": "When?", "page": CONTEXT}
    for gold in (SPANS, {"text": ["October", "October"], "answer_start": [3, 33]}):
        path = written(tmp_path, "a.jsonl", [{**named, "gold": gold}])
        assert list(open_table(path, columns).rows()) == [ROW]
    path = written(tmp_path, "b.jsonl", [{**named, "gold": ["October"]}])
    assert open_table(path, columns).form == "text", "a list of labels, unless something else is said"
    assert next(open_table(path, columns, form="answers").rows()).label == (Span(3, "October"),)
    sheet = written(tmp_path, "c.csv", f"question,context,answers,answer_start\nWhen?,{CONTEXT},October,33\nWho?,x,,\n")
    assert [row.label for row in open_table(sheet).rows()] == [(Span(33, "October"),), None]
    unlabelled = written(tmp_path, "d.csv", "question,context\nWhen?,x\n")
    assert open_table(unlabelled).form == "text"
    assert next(open_table(unlabelled, form="answers").rows()) == Row(2, "When?", "x", None, None)


def test_the_file_of_squad(tmp_path: Path) -> None:
    other = {"context": "b", "qas": [question(answers=[]), question(answers=[{"text": "b", "answer_start": 0}])]}
    content = squad({"context": CONTEXT, "qas": [question(answers=SPANS)]}, other)
    for name, data in (("a.json", content), ("a.json.gz", gzip.compress(content.encode()))):
        table = open_table(written(tmp_path, name, data))
        assert (table.form, table.columns) == ("answers", Columns("question", "context", "answers"))
        assert list(table.rows()) == [
            ROW,
            Row(2, "When?", "b", None, None),
            Row(3, "When?", "b", (Span(0, "b"),), None),
        ]


# fmt: off
NO_SQUAD = [
    (squad({"context": "a", "qas": [question(), question(answers=[{"text": "b", "answer_start": 0}])]}), 2, "the context has 'a'"),
    (squad({"context": "a", "qas": [question(), question(is_impossible=True)]}), 2, "omit such rows"),
    (squad({"context": "a", "qas": [question()]}, {"context": "a"}), 2, "'qas' is None, not a list of objects"),
    (squad({"context": "a", "qas": [question(), {"id": "1"}]}), 2, "there is no 'question'"),
    (squad(5), 1, "'paragraphs' is [5], not a list of objects"),
    (squad()[:-5], 7, "this is not JSON"),
    (squad(), 1, "there are no rows"),
]
# fmt: on


@pytest.mark.parametrize(("content", "line", "words"), NO_SQUAD)
def test_a_file_of_squad_that_does_not_fit_is_refused(content: str, line: int, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", content)
    refused(path, f"{path}:{line}", words)


def test_a_file_of_squad_is_not_read_without_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = squad({"context": "a" * 5000, "qas": [question()]})
    path = written(tmp_path, "a.json.gz", gzip.compress(content.encode()))
    monkeypatch.setattr(json_files, "LARGEST", 5500)
    assert next(open_table(path).rows()).line == 1
    monkeypatch.setattr(json_files, "LARGEST", 5100)
    refused(path, str(path), "the file has more than 5,100 characters")
    monkeypatch.setattr(json_files, "LARGEST", 4900)
    refused(path, f"{path}:8", "the line is longer than 4,900 bytes")


# candidates of which one is right

FOUR = ["red", "green", "blue", "no colour"]
SECONDS = PART_SEPARATOR.join(f"Which? {candidate}" for candidate in FOUR)
CHOICE = Row(1, "A sky.", SECONDS, "C", None)
SKY = {"article": "A sky.", "question": "Which?"}
# fmt: off
CHOICES: dict[str, Any] = {  # records: row
    "letter": ({**SKY, "options": FOUR, "answer": "C"}, CHOICE),
    "number": ({"context": "A sky.", "query": "Which?", "endings": FOUR, "label": 2}, CHOICE),
    "number as a text": ({"premise": "A sky.", "question": "Which?", "choices": FOUR, "gold": "2"}, CHOICE),
    "the text": ({"passage": "A sky.", "question": "Which?", "candidates": FOUR, "answer": " blue"}, CHOICE),
    "no answer": ({**SKY, "options": FOUR}, CHOICE._replace(label=None)),
    "empty answer": ({**SKY, "options": FOUR, "answer": ""}, CHOICE._replace(label=None)),
    "no passage": ({"id": "1", "question": "Which?", "choices": {"label": ["1", "2", "3", "4"], "text": FOUR},
        "answerKey": "3"}, CHOICE._replace(text="")),
    "null passage": ({**SKY, "article": None, "options": FOUR, "answer": "C"}, CHOICE._replace(text="")),
    "columns": ({"sent1": "A sky.", "sent2": "Which?", **{f"ending{i}": text for i, text in enumerate(FOUR)},
        "label": 2}, CHOICE),
    "columns from 1": ({**SKY, **{f"choice{i}": text for i, text in enumerate(FOUR, 1)}, "answer_idx": 2}, CHOICE),
    "lettered columns": ({**SKY, **dict(zip(("opa", "opb", "opc", "opd"), FOUR, strict=True)), "answer": "C"}, CHOICE),
    "no question": ({"premise": "A sky.", "choice1": "It is.", "choice2": "Is it?", "label": 1},
        Row(1, "A sky.", f"It is.{PART_SEPARATOR}Is it?", "B", None)),
    "gap": ({"article": "", "question": "It is   __  or _.", "options": ["red", "blue"], "answer": "A"},
        Row(1, "", f"It is   red  or _.{PART_SEPARATOR}It is   blue  or _.", "A", None)),
    "the teacher's": ({**SKY, "options": FOUR, "answer": "C", "logits": [0, 1, 2, 3]},
        CHOICE._replace(answer=(0.0, 1.0, 2.0, 3.0))),
    "numbers as candidates": ({**SKY, "options": ["1998", "2001"], "answer": "2001"},
        Row(1, "A sky.", f"Which? 1998{PART_SEPARATOR}Which? 2001", "B", None)),
}

NO_CHOICES: dict[str, Any] = {  # record: words of the message
    "letter out of range": ({"options": FOUR, "answer": "E"}, "a letter from A to D"),
    "number out of range": ({"options": FOUR, "answer": 4}, "a number from 0 to 3"),
    "below zero": ({"options": FOUR, "answer": -1}, "-1 does not say which of 4 candidates is right"),
    "letters": ({"options": FOUR, "answer": "AB"}, "'AB' does not say"),
    "another text": ({"options": FOUR, "answer": "pink"}, "'pink' does not say"),
    "text of two": ({"options": ["a", "b", "b", "c"], "answer": "b"}, "the text of exactly one"),
    "name of none": ({"options": {"text": FOUR, "label": ["a", "b", "c", "d"]}, "answer": "A"}, "write one of"),
    "names too few": ({"options": {"text": FOUR, "label": ["a"]}, "answer": "a"}, "do not name 4 candidates"),
    "another number": ({"options": FOUR[:3], "answer": "A"}, "there are 3 candidates, the first row has 4"),
    "one": ({"options": ["a"], "answer": "A"}, "there are 1 candidates; write from 2 to 26"),
    "too many": ({"options": ["a"] * 27, "answer": "A"}, "there are 27 candidates"),
    "not a list": ({"options": "red or green", "answer": "A"}, "'options' is 'red or green', not a list"),
    "none": ({"answer": "A"}, "'options' is None, not a list"),
    "number as candidate": ({"options": [1, 2, 3, 4], "answer": "A"}, "candidate A is 1"),
    "empty candidate": ({"options": ["a", "b", "c", ""], "answer": "A"}, "candidate D is ''"),
    "list as answer": ({"options": FOUR, "answer": ["A"]}, "is not a label"),
    "number as question": ({"question": 5, "options": FOUR}, "'question' is 5, not a text"),
    "teacher of fewer": ({"options": FOUR, "logits": [1, 2, 3]}, "the answer has 3 numbers, there are 4 candidates"),
}
# fmt: on


@pytest.mark.parametrize("case", CHOICES)
def test_choices(case: str, tmp_path: Path) -> None:
    record, row = CHOICES[case]
    path = written(tmp_path, "a.jsonl", [record])
    table = open_table(path)
    assert (table.form, table.choices) == ("choices", (row.pair or "").count(PART_SEPARATOR) + 1)
    assert list(table.rows()) == [row] == list(open_table(path, form="choices").rows())
    if case in ("letter", "no passage", "columns"):
        pq.write_table(pa.Table.from_pylist([record]), tmp_path / "a.parquet")
        assert list(open_table(tmp_path / "a.parquet").rows()) == [row]


@pytest.mark.parametrize("case", NO_CHOICES)
def test_choices_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    record, words = NO_CHOICES[case]
    path = written(tmp_path, "a.jsonl", [{**SKY, "options": FOUR, "answer": "A"}, {**SKY, **record}])
    refused(path, f"{path}:2", words)


def test_choices_in_columns_of_other_names(tmp_path: Path) -> None:
    sheet = written(tmp_path, "a.csv", "page,ask,one,two,right,answer\nA sky.,Which?,red,blue,B,x\n")
    table = open_table(sheet, Columns("page", "ask", "right", choices=("one", "two")))
    row = Row(2, "A sky.", f"Which? red{PART_SEPARATOR}Which? blue", "B", None)
    assert (table.form, table.choices, list(table.rows())) == ("choices", 2, [row])
    swag = written(tmp_path, "b.csv", "sent1,sent2,ending0,ending1,label\nA sky.,Which?,red,blue,1\n")
    table = open_table(swag)
    assert table.columns == Columns("sent1", "sent2", "label", choices=("ending0", "ending1"))
    assert list(table.rows()) == [row]
    refused(sheet, f"{sheet}:1", "did you mean --choices two?", Columns("page", choices="twoo"))
    refused(sheet, f"{sheet}:2", "'one' is 'red', not a list", Columns("page", choices="one"))
    refused(sheet, f"{sheet}:1", "no column has a usual name for passages or questions", Columns(choices="one"))
    refused(sheet, f"{sheet}:1", "name one", Columns("page", label=("one", "two"), choices="one"), False, "choices")


PASSAGE = {
    "answers": ["C", "A"],
    "options": [FOUR, ["a", "b", "c", "d"]],
    "questions": ["Which?", "It is _ ."],
    "article": "A sky.",
    "id": "middle1.txt",
}
SECOND = PART_SEPARATOR.join(f"It is {letter} ." for letter in "abcd")


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.json", "a.ndjson.gz"])
def test_passages_of_race(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, [PASSAGE, {**PASSAGE, "answers": None, "article": "Sea."}])
    table = open_table(path)
    assert (table.form, table.choices) == ("choices", 4)
    assert table.columns == Columns("article", "questions", "answers", choices="options")
    expected = [CHOICE, Row(1, "A sky.", SECOND, "A", None)]
    assert list(table.rows()) == expected + [row._replace(line=2, text="Sea.", label=None) for row in expected]
    pq.write_table(pa.Table.from_pylist([PASSAGE]), tmp_path / "a.parquet")
    assert list(open_table(tmp_path / "a.parquet").rows()) == expected


# fmt: off
NO_PASSAGES = [
    ({"questions": ["Which?"]}, "there are 1 questions, 2 options, 2 answers"),
    ({"options": "none"}, "'options' is 'none', not a list"),
    ({"options": ["ab", "cd"]}, "'options' is 'ab', not a list"),
    ({"answers": "CA"}, "'answers' is 'CA', not a list"),
    ({"answers": ["C", "E"]}, "'E' does not say which of 4 candidates is right"),
    ({"questions": ["Which?", 7]}, "'questions' is 7, not a text"),
    ({"article": 7}, "'article' is 7, not a text"),
]
# fmt: on


@pytest.mark.parametrize(("change", "words"), NO_PASSAGES)
def test_passages_of_race_that_do_not_fit_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", [PASSAGE, PASSAGE | change])
    refused(path, f"{path}:2", words)


def test_a_folder_of_race(tmp_path: Path) -> None:
    folder = tmp_path / "RACE" / "train"
    written(folder, "middle/2.txt", json.dumps(PASSAGE | {"article": "Sea."}, indent=1))
    written(folder, "high/9.txt", [PASSAGE])
    table = open_table(folder)
    rows = list(table.rows())
    assert (table.form, table.choices) == ("choices", 4)
    assert [(row.line, row.text, row.label) for row in rows] == [
        (1, "A sky.", "C"),
        (2, "A sky.", "A"),
        (3, "Sea.", "C"),
        (4, "Sea.", "A"),
    ]
    before = table.fingerprint
    assert open_table(folder).fingerprint == before
    (folder / "middle" / "2.txt").rename(folder / "middle" / "3.txt")
    renamed = open_table(folder).fingerprint
    written(folder, "high/9.txt", [PASSAGE | {"article": "A hill"}])
    assert len({before, renamed, open_table(folder).fingerprint}) == 3, "of the names and of the bytes"
    refused(f"{tmp_path}/RACE:train", "RACE:train", f"write {folder}")
    wrong = written(folder, "middle/1.txt", [PASSAGE | {"answers": ["C", "E"]}])
    refused(folder, f"{wrong}:2", "'E' does not say which of 4")
    written(folder, "middle/1.txt", [PASSAGE | {"answers": ["C"]}])
    refused(folder, f"{wrong}:1", "there are 2 questions, 2 options, 1 answers")
    written(folder, "middle/1.txt", "Read this first.\n")
    refused(folder, f"{wrong}:1", "this is not JSON")


# anything at all

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.sampled_from(["", " ", "A", "a b", "_", "3", "O"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["text", "label", "answer_start"]), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = """tokens tags ner label question context answers answer_starts is_impossible options choice0 choice1 answer article
questions text logits"""
names = st.sampled_from(NAMES.split())


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.dictionaries(names, values, min_size=2, max_size=8), min_size=1, max_size=3),
    form=st.sampled_from([None, "text", "words", "answers", "choices"]),
)
def test_any_record_gives_rows_or_is_refused(records: list[dict[str, Any]], form: Form | None, tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", records)
    try:
        table = open_table(path, form=form)
        rows = list(table.rows())
    except InputError as error:
        assert str(error).startswith(f"{path}:") and ";" in str(error)
        return
    assert form in (None, table.form)
    for row in rows:
        if table.form == "words" and row.label is not None:
            assert len(row.label) == row.text.count(PART_SEPARATOR) + 1
        if table.form == "answers":
            assert row.label is None or row.label
        if table.form == "choices":
            assert (row.pair or "").count(PART_SEPARATOR) + 1 == table.choices


# which form it is


# fmt: off
PLAIN = [
    ("a.csv", "question,sentence,label\na,b,1\n", Columns("question", "sentence", "label"), "1"),
    ("a.csv", "question,answer,label\na,b,1\n", Columns("question", None, "label"), "1"),
    ("a.csv", "question,context,answer,label\na,b,c,1\n", Columns("question", None, "label"), "1"),
    ("a.csv", "question,context,answers,label\na,b,c,1\n", Columns("question", None, "label"), "1"),
    ("a.csv", "text,options,choice1,label\na,b,c,1\n", Columns("text", None, "label"), "1"),
    ("a.csv", "text,words,label\na b,2,1\n", Columns("text", None, "label"), "1"),
    ("a.csv", "text,words,tags\na b,2,c d\n", Columns("text"), None),
    ("a.jsonl", [{"text": "a b", "tokens": ["a", "b"], "tags": ["x"]}], Columns("text"), None),
    ("a.csv", "article,questions,options,text,label\na,b,c,d,1\n", Columns("text", None, "label"), "1"),
    ("a.jsonl", [{"text": "a b", "labels": ["x", "y"]}], Columns("text", None, "labels"), ("x", "y")),
    ("a.jsonl", [{"text": "a b", "tokens": ["a", "b"], "labels": ["x", "y"]}], Columns("text", None, "labels"),
        ("x", "y")),
    ("a.jsonl", [{"text": "a b", "tokens": ["a", "b"]}], Columns("text"), None),
    ("a.jsonl", [{"premise": "a", "hypothesis": "b", "tokens": ["a"], "label": 1}],
        Columns("premise", "hypothesis", "label"), "1"),
    ("a.txt", '{"article": "a"}\n', Columns("text"), None),
    ("a.json", '{"data": [1], "text": "a"}\n{"data": [2], "text": "b"}\n', Columns("text"), None),
]
# fmt: on


@pytest.mark.parametrize(("name", "content", "columns", "label"), PLAIN)
def test_plain_texts_stay_plain_texts(name: str, content: Any, columns: Columns, label: object, tmp_path: Path) -> None:
    table = open_table(written(tmp_path, name, content))
    assert (table.form, table.choices, table.columns) == ("text", 0, columns)
    assert next(table.rows()).label == label


def test_a_column_called_tokens_may_hold_a_text(tmp_path: Path) -> None:
    for cells, form in (("a fine film,good", "text"), ("film,good", "text"), ("a film,O O", "words")):
        path = written(tmp_path, "a.csv", f"tokens,label\n{cells}\n")
        assert open_table(path, Columns("tokens")).form == form
    assert open_table(written(tmp_path, "b.csv", "words,ner\nRome,LOC\n"), Columns("words")).form == "words"
    assert open_table(written(tmp_path, "c.jsonl", [{"x": ["a"], "y": ["O"]}]), Columns("x", label="y")).form == "words"


def test_a_form_that_is_asked_for_is_enforced(tmp_path: Path) -> None:
    plain = written(tmp_path, "a.csv", "text,label\na b,O X\n")
    assert next(open_table(plain, form="words").rows()) == sentence(2, "a b", "O X")
    lines = written(tmp_path, "a.txt", "a b\nc\n")
    assert [row.text for row in open_table(lines, form="words").rows()] == [f"a{PART_SEPARATOR}b", "c"]
    words = written(tmp_path, "a.conll", "a O\n")
    asked: list[tuple[Path, Form, str]] = [
        (plain, "answers", "no column has a usual name for questions"),
        (plain, "choices", "no column has a usual name for candidates"),
        (words, "text", "no column has a usual name for text"),
        (words, "choices", "no column has a usual name for candidates"),
    ]
    for path, form, message in asked:
        refused(path, f"{path}:1", message, Columns(), False, form)
    refused(plain, f"{plain}:1", "name it with --pair NAME", Columns("text"), False, "answers")
    refused(plain, f"{plain}:1", "omit --pair", Columns("text", "label"), False, "words")
    mixed = written(tmp_path, "b.csv", "text,label\na b,X\n")
    refused(mixed, f"{mixed}:2", "there are 2 words, but 1", Columns(), False, "words")
    refused(written(tmp_path, "b.conll", "a\n"), "b.conll:1", "with --label NAME", Columns(), True)


def test_answers_of_a_teacher_are_for_texts_and_choices(tmp_path: Path) -> None:
    for record in ({"tokens": ["a"], "tags": ["O"]}, {**ASKED, "answers": SPANS}):
        table = open_table(written(tmp_path, "a.jsonl", [record | {"logits": [1, 2]}]))
        assert not table.answers and [row.answer for row in table.rows()] == [None]


# real files


@real_data
@pytest.mark.parametrize(
    ("name", "sentences", "words"), [("train", 14_041, 203_621), ("dev", 3250, 51_362), ("test", 3453, 46_435)]
)
def test_real_words(name: str, sentences: int, words: int, tmp_path: Path) -> None:
    """Counts as published with CoNLL-2003; written out in columns, they are the same rows."""
    table = open_table(SHARED / f"conll2003/{name}.jsonl.gz")
    assert (table.form, table.columns) == ("words", Columns("tokens", None, "ner"))
    rows = list(table.rows())
    assert (len(rows), sum(len(row.label or ()) for row in rows)) == (sentences, words)
    kinds = {"LOC", "MISC", "ORG", "PER"}
    allowed = {"O", *(f"{prefix}-{kind}" for prefix in "IB" for kind in kinds)}
    assert {tag for row in rows for tag in row.label or ()} <= allowed
    pairs = [zip(row.text.split(PART_SEPARATOR), row.label or (), strict=True) for row in rows]
    path = written(
        tmp_path, f"eng.{name}.conll", "\n".join("".join(f"{word} _ {tag}\n" for word, tag in row) for row in pairs)
    )
    again = list(open_table(path).rows())
    assert [row[1:] for row in again] == [row[1:] for row in rows]


@real_data
@pytest.mark.parametrize(("name", "questions"), [("middle.dev", 1436), ("middle.train", 25_421), ("high.dev", 3451)])
def test_real_choices(name: str, questions: int) -> None:
    table = open_table(SHARED / f"race/{name}.jsonl.gz")
    assert (table.form, table.choices) == ("choices", 4)
    labels = [row.label for row in table.rows()]
    assert len(labels) == questions and set(labels) == set("ABCD")


@real_data
def test_real_answers() -> None:
    table = open_table(SHARED / "squad11_dev/dev.jsonl.gz")
    assert (table.form, table.columns) == ("answers", Columns("question", "context", "answers"))
    rows = list(table.rows())
    assert len(rows) == 10_570
    for row in rows:
        assert row.label and row.pair
        assert all(isinstance(span, Span) and row.pair.startswith(span.text, span.start) for span in row.label)
