"""Bad input gets an answer with file and line, good input gives the right rows, and no file is held in memory."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potstill.data.row import Row
from potstill.data.rows import Columns, open_table
from potstill.errors import InputError

SHARED = Path(__file__).parents[3] / "shared" / "data"
real_data = pytest.mark.skipif(not SHARED.is_dir(), reason="real data sets are not at ../shared/data")


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts_and_labels(path: Path | str, columns: Columns = Columns(), need_label: bool = False) -> list[tuple]:  # noqa: B008
    return [(row.text, row.label) for row in open_table(path, columns, need_label).rows()]


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("train.csv", "text,label\na,1\n")
    return buffer.getvalue()


def parquet_bytes(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def with_another_level(parquet: bytes) -> bytes:
    """The text column is called required, which it is not: pyarrow ends the process if it is asked for the chunk's size."""
    place = parquet.rindex(b"\x15\x0c\x25\x02\x18\x04text") + 3
    return parquet[:place] + b"\x00" + parquet[place + 1 :]


# fmt: off
RIGHT = {  # name, content: the rows it must give
    "bom": ("a.csv", b"\xef\xbb\xbftext,label\nfine,1\n", [("fine", "1")]),
    "crlf": ("a.csv", "text,label\r\nfine,1\r\nbad,0\r\n", [("fine", "1"), ("bad", "0")]),
    "no last line break": ("a.tsv", "text\tlabel\nfine\t1", [("fine", "1")]),
    "NA and null are texts": ("a.csv", "text,label\nNA,NA\nnull,null\nNone,None\nnan,nan\n",
        [("NA", "NA"), ("null", "null"), ("None", "None"), ("nan", "nan")]),
    "NA in json": ("a.jsonl", '{"text": "NA", "label": "null"}\n', [("NA", "null")]),
    "tsv called csv": ("a.csv", "text\tlabel\na, b\t1\nc\t0\n", [("a, b", "1"), ("c", "0")]),
    "csv called tsv": ("a.tsv", 'text,label\n"a, b",1\nc\td,0\n', [("a, b", "1"), ("c\td", "0")]),
    "gzip under a plain name": ("a.csv", gzip.compress(b"text,label\nfine,1\n"), [("fine", "1")]),
    "plain under a gzip name": ("a.csv.gz", "text,label\nfine,1\n", [("fine", "1")]),
    "missing labels": ("a.csv", "text,label\nfine,\nbad, 0 \n", [("fine", None), ("bad", "0")]),
    "missing labels in json": ("a.jsonl",
        '{"text": "a"}\n\n{"text": "b", "label": null}\n{"text": "c", "label": "x"}\n',
        [("a", None), ("b", None), ("c", "x")]),
    "mixed types of labels": ("a.jsonl",
        "\n".join(json.dumps({"text": "t", "label": label}) for label in (1, "1", 1.0, 2.5, True, " b ", [1, "x"], [])),
        [("t", label) for label in ("1", "1", "1", "2.5", "true", "b", ("1", "x"), ())]),
    "empty lines": ("a.csv", "text,label\n\na,1\n\n\nb,0\n\n", [("a", "1"), ("b", "0")]),
    "empty lines at the end of one column": ("a.csv", 'text\na\n""\n\n\n', [("a", None), ("", None)]),
    "lines": ("a.txt", "one, two\n\nthree\t4\n\n", [("one, two", None), ("", None), ("three\t4", None)]),
    "quotes": ("a.csv", 'text,label\n"he said ""no"", twice",1\n5" disk "x",0\n',
        [('he said "no", twice', "1"), ('5" disk "x"', "0")]),
    "other separators are not line breaks": ("a.csv", "text,label\na\u2028b\x0bc\x85d,1\n",
        [("a\u2028b\x0bc\x85d", "1")]),
    "json in a file called json": ("a.json", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n',
        [("a", "1"), ("b", "0")]),
    "parquet": ("a.parquet", parquet_bytes(text=["NA", ""], label=[1.0, None]), [("NA", "1"), ("", None)]),
}

WRONG = {  # name, content: line, words of the message
    "utf-16": ("a.csv", "text,label\na,1\n".encode("utf-16"), 1, "save it as UTF-8"),
    "utf-16 without its mark": ("a.csv", "text,label\na,1\n".encode("utf-16-le"), 1, "UTF-16"),
    "latin-1": ("a.csv", "text,label\nfine,1\ncafé,0\n".encode("latin-1"), 3,
        "0xe9 at position 4 is not UTF-8; save it as UTF-8"),
    "latin-1 json": ("a.jsonl", '{"text": "a"}\n{"text": "é"}\n'.encode("latin-1"), 2, "save it as UTF-8"),
    "unclosed quote": ("a.csv", 'text,label\nfine,1\n"bad,0\nworse,0\n', 3, "never closed"),
    "quote closed too early": ("a.csv", 'text,label\n"fine,1\n"bad",0\n', 2, "after the closing quote"),
    "unclosed quote after a line break": ("a.csv", 'text,label\n"a\nb","never\n', 3, "never closed"),
    "short row": ("a.csv", 'text,label\n"a\nb",1\nshort\n', 4, "1 cell where the header has 2"),
    "long row": ("a.csv", "text,label\nfine, really,1\n", 2, "put quotes around"),
    "long row of tsv": ("a.tsv", "text\tlabel\nfine\treally\t1\n", 2, "3 cells where the header has 2"),
    "duplicate header": ("a.csv", "text,label,text\na,1,b\n", 1, "two columns are called 'text'"),
    "empty file": ("a.csv", "", 1, "the file is empty"),
    "only a byte order mark": ("a.csv", b"\xef\xbb\xbf", 1, "the file is empty"),
    "empty json": ("a.jsonl", "\n\n", 1, "the file is empty"),
    "empty lines only": ("a.txt", "\n\n", 1, "no rows"),
    "header only": ("a.csv", "text,label\n\n", 1, "no rows"),
    "no header": ("a.csv", "a fine film,1\na bad one,0\n", 1, "if the first line is a row already"),
    "one unknown column": ("a.csv", "phrase,label\na,1\n", 1, "name it with --text NAME"),
    "semicolons": ("a.csv", "text;label\na;1\n", 1, "save it with commas"),
    "carriage returns": ("a.csv", "text,label\ra,1\rb,0\r", 1, "line feeds"),
    "empty line in one column": ("a.csv", "text\na\n\nb\n", 3, 'write "" for an empty text'),
    "no text in json": ("a.jsonl", '{"text": "a"}\n{"txet": "b"}\n', 2, "there is no 'text'"),
    "null text": ("a.jsonl", '{"text": "a"}\n{"text": null}\n', 2, "'text' is None, not a text"),
    "number as text": ("a.jsonl", '{"text": 5}\n', 1, "not a text"),
    "list as text": ("a.jsonl", '{"text": ["a"]}\n', 1, "not a text"),
    "object as label": ("a.jsonl", '{"text": "a", "label": {"a": 1}}\n', 1, "is not a label"),
    "NaN as label": ("a.jsonl", '{"text": "a", "label": NaN}\n', 1, "is not a label"),
    "broken json": ("a.jsonl", '{"text": "a"}\n{"text": "b"\n', 2, "this is not JSON"),
    "deep json": ("a.jsonl", '{"text": ' + "[" * 100_000 + "\n", 1, "this is not JSON"),
    "repeated key": ("a.jsonl", '{"text": "a", "text": "b"}\n', 1, "a key occurs twice"),
    "json array": ("a.json", '[\n{"text": "a"}\n]\n', 1, "write JSON lines"),
    "json called csv": ("a.csv", '{"text": "a", "label": 1}\n', 1, "rename it to end in .jsonl"),
    "csv called jsonl": ("a.jsonl", "text,label\na,1\n", 1, "write JSON lines"),
    "parquet called csv": ("a.csv", parquet_bytes(text=["a"]), 1, "rename it to end in .parquet"),
    "csv called parquet": ("a.parquet", "text,label\na,1\n", 1, "not a Parquet file"),
    "cut parquet": ("a.parquet", parquet_bytes(text=["a"])[:-20], 1, "not a Parquet file"),
    "a flipped bit in parquet's schema": ("a.parquet", with_another_level(parquet_bytes(text=["a", "b"])), 1, "it is damaged"),
    "a date beyond the calendar": ("a.parquet", parquet_bytes(text=["a"], label=pa.array([10**9], pa.date32())), 1,
        "it is damaged"),
    "null text in parquet": ("a.parquet", parquet_bytes(text=["a", None]), 2, "not a text"),
    "zip": ("a.csv", zipped(), 1, "zip archive"),
    "pickle": ("a.tsv", pickle.dumps([("a", 1)]), 1, "a Python pickle, which is never opened"),
    "cut gzip": ("a.csv.gz", gzip.compress(b"text,label\n" + b"fine,1\n" * 99)[:-9], 101, "damaged"),
}
# fmt: on


@pytest.mark.parametrize("case", RIGHT)
def test_odd_files_give_the_right_rows(case: str, tmp_path: Path) -> None:
    name, content, expected = RIGHT[case]
    assert texts_and_labels(written(tmp_path, name, content)) == expected


@pytest.mark.parametrize("case", WRONG)
def test_malformed_files_are_refused_with_file_and_line(case: str, tmp_path: Path) -> None:
    name, content, line, words = WRONG[case]
    path = written(tmp_path, name, content)
    with pytest.raises(InputError) as refused:
        texts_and_labels(path)
    message = str(refused.value)
    place = f"{path}:{line}: "
    assert message.startswith(place), message
    assert words in message
    assert ";" in message.removeprefix(place), "says what to do"


def test_lines_are_counted_through_quoted_line_breaks(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'text,label\n"one\ntwo\r\n\nthree",1\n\nfour,2\n')
    assert list(open_table(path).rows()) == [
        Row(2, "one\ntwo\r\n\nthree", None, "1", None),
        Row(7, "four", None, "2", None),
    ]


ODD_TEXTS = ["", "👩‍👩‍👧 é", "שלום עולם \u202eabc", "a" * 100_000, " spaces ", "\ufeff", "語" * 50_000, '"', "'", "\\"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "csv.gz"])
def test_odd_texts_pass_unchanged(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": ODD_TEXTS, "label": ["x"] * len(ODD_TEXTS)}), path)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps({"text": text, "label": "x"}) + "\n" for text in ODD_TEXTS))
    else:
        buffer = io.StringIO()
        writer = csv.writer(buffer, delimiter="\t" if ending == "tsv" else ",")
        writer.writerows([("text", "label"), *((text, "x") for text in ODD_TEXTS)])
        content = buffer.getvalue().encode()
        path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert texts_and_labels(path) == [(text, "x") for text in ODD_TEXTS]


def test_nul_and_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    assert texts_and_labels(written(tmp_path, "a.csv", "text,label\na\0b,1\n")) == [("a\ufffdb", "1")]
    lines = '{"text": "a\\ud800b\\u0000", "label": "\\udfff"}\n{"text": "\\ud83d\\ude00"}\n'
    assert texts_and_labels(written(tmp_path, "a.jsonl", lines)) == [("a\ufffdb\ufffd", "\ufffd"), ("😀", None)]


def test_a_cell_of_more_than_16_mib_is_refused_at_its_line(tmp_path: Path) -> None:
    line = "a" * 2**14
    one_line, one_quote = line * 2**10 + "b,1\n", '"' + f"{line}\n" * 2**10
    for name, cell in (("a.csv", one_line), ("b.csv", one_quote)):
        with pytest.raises(InputError, match=rf"{name}:3: .*16,777,216"):
            texts_and_labels(written(tmp_path, name, "text,label\nb,1\n" + cell))


# no surrogates, which UTF-8 cannot hold, and no NUL, which is replaced
texts = st.text(
    st.one_of(st.sampled_from("\",\t\n\r '\\;|"), st.characters(codec="utf-8", exclude_characters="\0")), max_size=20
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=5), tab=st.booleans(), everything=st.booleans())
def test_what_csv_writes_is_read_back(rows: list[tuple[str, str]], tab: bool, everything: bool, tmp_path: Path) -> None:
    """CSV in either way of quoting, and TSV whose header is quoted: those say themselves that quotes are quotes."""
    path = tmp_path / ("a.tsv" if tab else "a.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        quoting = csv.QUOTE_ALL if everything or tab else csv.QUOTE_MINIMAL
        writer = csv.writer(file, delimiter="\t" if tab else ",", quoting=quoting)
        writer.writerows([("text1", "text2", "id"), *((one, two, "0") for one, two in rows)])
    table = open_table(path)
    assert [(row.text, row.pair) for row in table.rows()] == rows
    with path.open(encoding="utf-8", newline="") as file:  # lines as anyone counts them
        whole = file.read()
    starts = [row.line for row in table.rows()]
    assert starts == sorted(set(starts)) and starts[0] == 2 and starts[-1] <= whole.count("\n")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.text(st.sampled_from('"\n\r a'), max_size=5), min_size=1, max_size=5), tab=st.booleans())
def test_one_column_of_csv_writer_is_read_back_without_being_told_how_it_is_quoted(
    rows: list[str], tab: bool, tmp_path: Path
) -> None:
    path = tmp_path / ("a.tsv" if tab else "a.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t" if tab else ",").writerows([["text"], *([one] for one in rows)])
    assert [row.text for row in open_table(path).rows()] == rows


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_carriage_return_alone_ends_a_row_as_it_does_for_csv_and_pandas(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"a.{ending}", 'text\r\none\rtwo\n"""a"" b\rc"\nthree\r\n')
    with path.open(newline="") as file:
        expected = [row[0] for row in csv.reader(file, delimiter="," if ending == "csv" else "\t")][1:]
    assert [row.text for row in open_table(path).rows()] == expected == ["one", "two", '"a" b\rc', "three"]
    other = "," if ending == "csv" else "\t"
    with pytest.raises(InputError, match="1 cell where the header has 2"):
        list(open_table(written(tmp_path, f"b.{ending}", f"text{other}label\na\rb{other}1\n")).rows())


def test_an_empty_text_of_a_tsv_with_one_column_is_written_as_two_quotes(tmp_path: Path) -> None:
    assert [row.text for row in open_table(written(tmp_path, "a.tsv", 'text\na\n""\nb\n')).rows()] == ["a", "", "b"]
    with pytest.raises(InputError, match=r'a\.tsv:3: the line is empty; delete it, or write ""'):
        list(open_table(written(tmp_path, "a.tsv", "text\na\n\nb\n")).rows())


def test_tsv_with_stray_quotes_and_tsv_with_quoting(tmp_path: Path) -> None:
    glue = 'sentence\tlabel\n"Yes" , he said\t1\n" quoted "\t0\n"never closed\t1\nit ends"\t0\n'
    assert texts_and_labels(written(tmp_path, "glue.tsv", glue)) == [
        ('"Yes" , he said', "1"),
        ('" quoted "', "0"),
        ('"never closed', "1"),
        ('it ends"', "0"),
    ]
    for name, cell, text in (
        ("doubled", '"he said ""no"""', 'he said "no"'),
        ("tab", '"a\tb"', "a\tb"),
        ("break", '"a\nb"', "a\nb"),
    ):
        sheet = f'sentence\tlabel\n{cell}\t1\n"plain"\t0\nnone\t1\n'
        assert texts_and_labels(written(tmp_path, f"{name}.tsv", sheet)) == [(text, "1"), ("plain", "0"), ("none", "1")]
        glue = sheet + '"Yes" , he said\t1\n'  # one misplaced quote: then no quote is one
        if name == "doubled":
            assert texts_and_labels(written(tmp_path, "g.tsv", glue))[0] == (cell, "1")
        else:  # and the tab or line break is an error, not a silent other row
            with pytest.raises(InputError, match=r"g\.tsv:2: "):
                texts_and_labels(written(tmp_path, "g.tsv", glue))
    header = '"sentence"\t"label"\n"plain"\t"0"\n'
    assert texts_and_labels(written(tmp_path, "header.tsv", header)) == [("plain", "0")]
    # two stray quotes that happen to look like one cell over two lines: each line alone has the header's cells
    across = 'sentence\tlabel\n"open\t1\nclose"\t0\n'
    assert texts_and_labels(written(tmp_path, "across.tsv", across)) == [('"open', "1"), ('close"', "0")]


@pytest.mark.parametrize(
    ("header", "text", "pair", "label"),
    [
        ("id,sentence1,sentence2,label", "sentence1", "sentence2", "label"),
        ("Premise,HYPOTHESIS,Gold_Label", "Premise", "HYPOTHESIS", "Gold_Label"),
        ("index,question,sentence,label", "question", "sentence", "label"),
        ("question,label", "question", None, "label"),
        ("text,label,title", "text", None, "label"),
        ("class,label,text", "text", None, "label"),
        ("Text,text,score,rating", "text", None, "score"),
        (" text , label ", "text", None, "label"),
        ("text", "text", None, None),
    ],
)
def test_usual_names_are_recognised(
    header: str, text: str, pair: str | None, label: str | None, tmp_path: Path
) -> None:
    path = written(tmp_path, "a.csv", header + "\n" + ",".join("x" * len(header.split(","))) + "\n")
    assert open_table(path).columns == Columns(text, pair, label)


def test_columns_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "sentence1,sentence2,label,mood\na,b,1,good\n")
    assert next(open_table(path, Columns("sentence2")).rows()) == Row(2, "b", None, "1", None), "no pair is guessed"
    assert next(open_table(path, Columns("sentence2", "sentence1", "mood")).rows()) == Row(2, "b", "a", "good", None)
    for columns, words in (
        (Columns("sentence3"), "did you mean --text sentence2?"),
        (Columns(label="Mood"), "did you mean --label mood?"),
        (Columns(label="zzz"), "'sentence1', 'sentence2', 'label', 'mood'; write --label"),
        (Columns(pair="sentence2"), "add --text NAME"),
    ):
        with pytest.raises(InputError) as refused:
            open_table(path, columns)
        assert words in str(refused.value) and "a.csv:1: " in str(refused.value)
    with pytest.raises(InputError, match="--label NAME"):
        open_table(written(tmp_path, "b.csv", "text,colour\na,red\n"), need_label=True)


def test_several_labels(tmp_path: Path) -> None:
    cells = written(tmp_path, "a.csv", "text,label\na,x | y\nb,x\nc,\nd,|\n")
    labels = [("a", ("x", "y")), ("b", ("x",)), ("c", None), ("d", ())]
    assert texts_and_labels(cells, Columns(separator="|")) == labels
    assert texts_and_labels(cells)[0] == ("a", "x | y"), "only when asked"
    marks = written(tmp_path, "b.csv", "text,joy,fear\na,1,0\nb,true,TRUE\nc,0,0\nd,,\ne,2,0\n")
    rows = open_table(marks, Columns(label=("joy", "fear"))).rows()
    assert [next(rows).label for _ in range(4)] == [("joy",), ("joy", "fear"), (), None]
    with pytest.raises(InputError, match=r"b\.csv:6: 'joy' is '2'; write 0 or 1 in a column per label"):
        next(rows)


def test_answers_of_a_teacher(tmp_path: Path) -> None:
    listed = open_table(written(tmp_path, "a.csv", 'text,logits\na,"[1, -2.5]"\nb,\n'))
    assert listed.answers and listed.answer_labels is None
    assert [row.answer for row in listed.rows()] == [(1.0, -2.5), None]
    named = open_table(written(tmp_path, "b.csv", "text,logit_Good,label,logit_bad\na,1e1,Good,-2\nb,,bad,\n"))
    assert named.answer_labels == ("Good", "bad")
    assert [row.answer for row in named.rows()] == [(10.0, -2.0), None]
    lines = written(tmp_path, "c.jsonl", '{"text": "a", "probabilities": [0.25, 0.75, 0]}\n{"text": "b"}\n')
    answers = [row.answer for row in open_table(lines).rows()]
    assert answers[0] == pytest.approx((math.log(0.25), math.log(0.75), math.log(1e-12))) and answers[1] is None
    pq.write_table(pa.table({"text": ["a"], "prob_x": [0.5], "prob_y": [0.5]}), tmp_path / "d.parquet")
    table = open_table(tmp_path / "d.parquet")
    assert table.answer_labels == ("x", "y")
    assert [row.answer for row in table.rows()] == [pytest.approx((math.log(0.5),) * 2)]
    assert not open_table(written(tmp_path, "e.csv", "text,probability\na,1\n")).answers


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("logits", "[1, NaN]"),
        ("logits", "[1, Infinity]"),
        ("logits", "[1, null]"),
        ("logits", "[1, true]"),
        ("logits", "[]"),
        ("logits", "3"),
        ("logits", "[1 2]"),
        ("logits", "[1, 2, 3]"),  # the first row has two
        ("probabilities", "[0.5, 0.6]"),
        ("probs", "[1.5, -0.5]"),
    ],
)
def test_answers_that_are_none_are_refused(column: str, cell: str, tmp_path: Path) -> None:
    first = "[0, 1]"
    path = written(tmp_path, "a.csv", f'text,{column}\na,"{first}"\nb,"{cell}"\n')
    with pytest.raises(InputError, match=r"a\.csv:3: .*; "):
        list(open_table(path).rows())


def test_half_an_answer_is_refused(tmp_path: Path) -> None:
    for cell in ("", "nan", "x"):
        with pytest.raises(InputError, match=r"a\.csv:2: .*; write a finite number in each"):
            list(open_table(written(tmp_path, "a.csv", f"text,logit_a,logit_b\na,1,{cell}\n")).rows())


def test_parquet_types(tmp_path: Path) -> None:
    data = {
        "text": pa.array(["a", "b", "a"]).dictionary_encode(),
        "label": pa.array([["x", "y"], [], None]),
        "other": pa.array([b"\xff"] * 3),
        "logits": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(data), tmp_path / "a.parquet")
    assert list(open_table(tmp_path / "a.parquet").rows()) == [
        Row(1, "a", None, ("x", "y"), (1.0, 2.0)),
        Row(2, "b", None, (), None),
        Row(3, "a", None, None, (3.0, 4.0)),
    ]
    for values in ([1, -3], [True, False], ["1", " x "], pa.array([1, None], pa.int8())):
        pq.write_table(pa.table({"text": ["a", "b"], "label": values}), tmp_path / "b.parquet")
        expected = [None if v is None else str(v).strip().lower() for v in pa.array(values).to_pylist()]
        assert [row.label for row in open_table(tmp_path / "b.parquet").rows()] == expected


def test_data_sets_saved_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    data = datasets.Dataset.from_dict({"text": ["a", "NA", "c"], "label": [1, 0, -1]}, features)
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=data, test=data.select([1])).save_to_disk(tmp_path / "two")
    data.to_parquet(tmp_path / "a.parquet")
    expected = [("a", "good"), ("NA", "bad"), ("c", None)]
    for source in ("one", "two:train", "a.parquet"):
        assert texts_and_labels(str(tmp_path / source)) == expected
    assert texts_and_labels(f"{tmp_path}/two:test") == expected[1:2]
    assert open_table(tmp_path / "one").fingerprint == datasets.load_from_disk(str(tmp_path / "one"))._fingerprint
    for source, words in (
        ("two", r"two:train or .*two:test"),
        ("two:dev", "two:train"),
        ("one:train", "has no splits"),
    ):
        with pytest.raises(InputError, match=words):
            open_table(f"{tmp_path}/{source}")
    (tmp_path / "plain").mkdir()
    with pytest.raises(InputError, match="not a data set saved by save_to_disk"):
        open_table(tmp_path / "plain")

    asked = []

    def load_dataset(*names: object, **more: object) -> object:
        asked.append((*names, more))
        if names[0] == "owner/name":
            return data
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts_and_labels("owner/name:train") == expected
    assert texts_and_labels("owner/name:en:train") == expected
    assert asked == [("owner/name", None, {"split": "train"}), ("owner/name", "en", {"split": "train"})]
    with pytest.raises(InputError, match=r"glue:sst2:train: .*Couldn't reach the Hub.*; .*use a local file"):
        open_table("glue:sst2:train")


def test_a_wrong_path_gets_a_suggestion(tmp_path: Path) -> None:
    written(tmp_path, "train.tsv", "text\na\n")
    with pytest.raises(InputError, match=r"did you mean '.*/train\.tsv'\?"):
        open_table(tmp_path / "trian.tsv")
    with pytest.raises(InputError, match="no folder"):
        open_table(tmp_path / "nowhere" / "train.tsv")
    with pytest.raises(InputError, match=r"cannot be read|no such file"):
        open_table("a" * 5000 + ".csv")
    with pytest.raises(InputError, match="no folder"):
        open_table("~nobody-of-this-name/train.csv")
    with pytest.raises(InputError, match=r"rename it to end in .*\.csv"):
        open_table(written(tmp_path, "train.xlsx", zipped()))


def test_rows_can_be_read_again_and_the_fingerprint_is_of_the_bytes(tmp_path: Path) -> None:
    content = b"text,label\na,1\nb,0\n"
    table = open_table(written(tmp_path, "a.csv", content))
    half = table.rows()
    next(half)
    assert list(table.rows()) == list(table.rows()) and next(half).text == "b"
    assert table.fingerprint == xxhash.xxh3_128_hexdigest(content)
    assert open_table(written(tmp_path, "b.csv", content + b"c,1\n")).fingerprint != table.fingerprint


def most_memory(path: Path) -> int:
    """Of a large file, which is not held after its first reading: here, large is what has more than 4,096 characters."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("potstill.data.rows.HELD_CHARACTERS", 2**12)
        return most_memory_of_a_reading(path)


def most_memory_of_a_reading(path: Path) -> int:
    tracemalloc.start()
    try:
        for _ in open_table(path).rows():
            pass
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return most


@pytest.mark.parametrize("line", [b"a" * 4000 + b",1\n", b"a" * 4096], ids=["many lines", "one line"])
def test_a_decompression_bomb_is_refused_in_little_memory(line: bytes, tmp_path: Path) -> None:
    """0.24 MB that would become 240 MB."""
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"text,label\n")
        for _ in range(60):
            file.write(line * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"a\.csv\.gz:\d+: .*(decompression bomb|longer than)"):
            for _ in open_table(path).rows():
                pass
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


def test_a_cell_of_parquet_has_the_same_bound(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b" * (2**24 + 1)]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet:2: .*16,777,217 characters.*split the text"):
        list(open_table(tmp_path / "a.parquet").rows())


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt", "jsonl", "tsv.gz"])
def test_memory_does_not_grow_with_rows(ending: str, tmp_path: Path) -> None:
    words = [xxhash.xxh3_128_hexdigest(str(i).encode()) for i in range(5000)]
    frame = '{"text": "%s"}\n' if ending == "jsonl" else "%s\n"
    content = "".join(frame % text for text in ("text", *(word + " word" * 200 for word in words))).encode()
    few = content[:50_000].rpartition(b"\n")[0]
    pack = gzip.compress if ending == "tsv.gz" else bytes
    used = [most_memory(written(tmp_path, f"a.{ending}", pack(part))) for part in (few, few, content)]  # first: imports
    assert used[2] < used[1] + 2**17, "50 kB and 5 MB take the same memory"


def test_what_was_held_is_let_go_where_a_file_turns_out_to_be_large(tmp_path: Path) -> None:
    """At most 2^24 characters are held, of one byte each or more; a table below that is parsed once."""
    content = "".join(f"{number} " + "word " * 400 + "\n" for number in range(12_000)).encode()  # 24 MB
    rows = open_table(written(tmp_path, "a.txt", content)).rows()
    tracemalloc.start()
    try:
        for _ in rows:
            held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**20 and most < 2 * 2**24
    small = open_table(written(tmp_path, "b.txt", content[:50_000]))
    first, again = list(small.rows()), list(small.rows())
    assert all(ours is theirs for ours, theirs in zip(first, again, strict=True))


def test_memory_does_not_grow_with_rows_of_parquet(tmp_path: Path) -> None:
    text = [f"{i} " + "word " * 200 for i in range(20_000)]
    table = pa.table({"text": text, "label": ["x"] * 20_000})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20_000, use_dictionary=False, compression="none")
    del table
    before, most = pa.total_allocated_bytes(), 0
    for row in open_table(tmp_path / "a.parquet").rows():
        if row.line % 500 == 0:
            most = max(most, pa.total_allocated_bytes() - before)
    assert row.line == 20_000
    assert 0 < most < 8 * 2**20, "of a file of 20 MB in one row group"


def test_importing_is_light() -> None:
    heavy = "print(*{'torch', 'pyarrow', 'datasets', 'pandas', 'numpy'} & set(sys.modules))"
    code = f"import sys, potstill.data.rows; {heavy}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


@real_data
@pytest.mark.parametrize(
    ("name", "rows", "columns", "labels"),
    [  # numbers of rows as published with the data sets
        ("mrpc/train.tsv", 3668, Columns("sentence1", "sentence2", "label"), {"0", "1"}),
        ("stsb/train.tsv", 5749, Columns("sentence1", "sentence2", "score"), None),
        ("sst2_sentence/train.tsv", 6920, Columns("sentence", None, "label"), {"0", "1"}),
        ("qqp_part/all.tsv.gz", 23_497, Columns("question1", "question2", "label"), {"0", "1"}),
        ("rte/test.tsv", 3000, Columns("sentence1", "sentence2", None), {None}),
        ("rte/train.tsv", 2490, Columns("sentence1", "sentence2", "label"), {"entailment", "not_entailment"}),
        ("agnews_part/train.tsv", 10_001, Columns("text", None, "label"), {"Business", "Sci/Tech", "Sports", "World"}),
        ("agnews_part/test.tsv", 7600, Columns("text", None, "label"), {"Business", "Sci/Tech", "Sports", "World"}),
        ("cola/train.tsv", 8551, Columns("sentence", None, "label"), {"0", "1"}),
        ("snips/train.tsv.gz", 13_084, Columns("text", None, "intent"), None),
    ],
)
def test_real_files(name: str, rows: int, columns: Columns, labels: set[str | None] | None) -> None:
    table = open_table(SHARED / name)
    assert table.columns == columns
    found = Counter(row.label for row in table.rows())
    assert found.total() == rows
    if labels is not None:
        assert set(found) == labels
    if name == "stsb/train.tsv":
        assert all(0 <= float(str(score)) <= 5 for score in found)


@real_data
def test_real_tsv_files_of_both_kinds() -> None:
    """MRPC has stray quotes, which stay; the part of AG News was written by pandas, whose quotes go."""
    mrpc = [text for row in open_table(SHARED / "mrpc/train.tsv").rows() for text in (row.text, row.pair or "")]
    assert sum(text.startswith('"') for text in mrpc) > 400
    news = [row.text for row in open_table(SHARED / "agnews_part/train.tsv").rows()]
    assert not any('""' in text and text.startswith('"') for text in news)
    assert 'Iraqi interim Prime Minister Ayad Allawi said on Tuesday "major neglect" by U.S.-led' in news[35]
