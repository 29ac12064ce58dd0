"""Texts with their translation, and texts to be written: the right rows, or a refusal with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potstill.data.row import Row
from potstill.data.row_forms import FORMS
from potstill.data.rows import Columns, open_table
from potstill.errors import InputError
from potstill.recipe.task_words import EVERY, TASK_WORDS, Form
from tests.data.test_rows import SHARED, most_memory, parquet_bytes, real_data, written

GENERATED = [name for name, form in FORMS.items() if form.target_part == "pair"]
DE = Columns("en", "de")
TOGETHER = [{"en": "a dog", "de": "ein Hund"}, {"en": "NA", "de": "null"}]
PARQUET = parquet_bytes(id=["1", "2"], translation=TOGETHER, score=[1.0, 0.5])
MANY = '{"translation": {"en": "a", "de": "b", "fr": "c"}, "title": "t"}\n'


class Case(NamedTuple):
    form: Form
    source: str
    files: dict[str, str | bytes]
    columns: Columns = Columns()
    rows: list[tuple[str, str, str | None]] = []  # noqa: RUF012
    at: tuple[str, int] = ("", 0)  # file and line of a refusal
    words: str = ""
    need_target: bool = False


def right(form: Form, source: str, content: str | bytes, *rows: tuple[str, str], **more: Any) -> Case:
    """A target of "" is one that is not there."""
    return Case(form, source, {source: content}, rows=[(*row, "" if row[1] else None) for row in rows], **more)


def wrong(form: Form, source: str, content: str | bytes, line: int, words: str, **more: Any) -> Case:
    return Case(form, source, {source: content}, at=(source, line), words=words, **more)


def both(first: str | bytes, second: str | bytes, **more: Any) -> Case:
    return Case("translation", "t.en,t.de", {"t.en": first, "t.de": second}, **more)


# fmt: off
RIGHT = {
    "source and target": right("translation", "a.csv", 'id,Source,TARGET\n1,"a, b","c ""d"""\n', ("a, b", 'c "d"')),
    "src and tgt": right("translation", "a.tsv", 'src\ttgt\n"Yes" , he\tja\n', ('"Yes" , he', "ja")),
    "src and trg": right("translation", "a.jsonl", '{"src": "a", "trg": "b", "x": 1}\n', ("a", "b")),
    "NA and null are translations": right("translation", "a.csv", "source,target\nNA,null\n", ("NA", "null")),
    "translations that are missing": right("translation", "a.jsonl",
        '{"source": "a"}\n{"source": "b", "target": null}\n{"source": "c", "target": " "}\n{"source": "d", "target": "e"}\n',
        ("a", ""), ("b", ""), ("c", ""), ("d", "e")),
    "tsv called csv": right("translation", "a.csv", "source\ttarget\na, b\tc\n", ("a, b", "c")),
    "columns of languages": right("translation", "a.tsv", "en\tde\tfr\na\tb\tc\n", ("a", "c"),
        columns=Columns("en", "fr")),
    "together": right("translation", "a.jsonl",
        '{"translation": {"de": "b", "en": "a"}}\n{"translation": {"en": "c", "de": "d"}}\n', ("b", "a"), ("d", "c")),
    "together, the other way": right("translation", "a.jsonl", '{"translation": {"de": "b", "en": "a"}}\n', ("a", "b"),
        columns=DE),
    "one of many": right("translation", "a.jsonl", MANY, ("c", "a"), columns=Columns("fr", "en")),
    "together in parquet": right("translation", "a.parquet", PARQUET, ("a dog", "ein Hund"), ("NA", "null")),
    "one language is not there": right("translation", "a.parquet",
        parquet_bytes(translation=[{"en": "a", "de": None}, {"en": "b", "de": "c"}]), ("a", ""), ("b", "c"), columns=DE),
    "translation as a text": right("translation", "a.csv", "text,translation\na,b\n", ("a", "b")),
    "texts alone": right("translation", "a.txt", "one\n\ntwo\n\n", ("one", ""), ("", ""), ("two", "")),
    "sources alone": right("translation", "a.csv", "id,source\n1,one\n", ("one", "")),
    "two files": both("a\nb c\n", b"\xef\xbb\xbfd\r\ne \xe2\x80\xa8 f", rows=[("a", "d", ""), ("b c", "e \u2028 f", "")]),
    "two files, one compressed": both("a\n", gzip.compress(b"b\n"), rows=[("a", "b", "")]),
    "a file with a comma": right("translation", "a,b.csv", "source,target\nc,d\n", ("c", "d")),
    "prompt and completion": right("writing", "a.jsonl", '{"prompt": "p", "completion": " c\\n"}\n', ("p", " c\n")),
    "prompt and response": right("writing", "a.csv", "prompt,response\nNA,null\n,r\np,\n",
        ("NA", "null"), ("", "r"), ("p", "")),
    "prompt and answer": right("writing", "a.csv", "answer,prompt\na,p\n", ("p", "a")),
    "instruction and output": right("writing", "a.csv", "instruction,output\ni,o\n", ("i", "o")),
    "named prompt and answer": right("writing", "a.tsv", "mr\tref\nm\tr\n", ("m", "r"), columns=Columns("mr", "ref")),
    "inputs that are left out": right("writing", "a.csv", "instruction,input,output\ni,x,o\n", ("i", "o"),
        columns=Columns("instruction", "output")),
    "running text": right("writing", "a.txt", "\n = One = \n \na b\n\n\nc\n", ("", " = One = "), ("", "a b"), ("", "c")),
    "running text in a table": right("writing", "a.parquet", parquet_bytes(text=["", "a", " ", "b"], label=[1, 2, 3, 4]),
        ("", "a"), ("", "b")),
    "named running text": right("writing", "a.csv", "story,x\na,1\n", ("", "a"), columns=Columns("story")),
    "running text, named as what is written": right("writing", "a.csv", "story,x\na,1\n", ("", "a"),
        columns=Columns(pair="story")),
    "prompts alone": right("writing", "a.csv", 'prompt\np\n""\n', ("p", ""), ("", "")),
    "running text as WikiText calls it": right("writing", "wiki.train.tokens.gz", gzip.compress(b" \n a \n"), ("", " a ")),
}

WRONG = {
    "columns of languages, none named": wrong("translation", "a.tsv", "en\tde\tfr\na\tb\tc\n", 1,
        "the columns are 'en', 'de', 'fr'; name them and their translations, as in --text en --pair de"),
    "too many languages": wrong("translation", "a.jsonl", MANY, 1, "3 languages, en, de, fr; name two of them"),
    "no such language": wrong("translation", "a.jsonl", MANY, 1, "no column 'cs'", columns=Columns("en", "cs")),
    "no header": wrong("translation", "a.tsv", "Hello there.\tHallo.\nYes.\tJa.\n", 1, "such as source,target"),
    "no translation where it is needed": wrong("translation", "a.csv", "source\na\n", 1, "for translations",
        need_target=True),
    "texts alone where translations are needed": wrong("translation", "a.txt", "a\n", 1, "two files of translated lines",
        need_target=True),
    "the first text alone is named": wrong("translation", "a.tsv", "fr\ten\tde\tcs\na\tb\tc\td\n", 1,
        "the column of the translations is missing; name it with --pair: fr, de or cs", need_target=True,
        columns=Columns("en")),
    "the second text alone is named": wrong("translation", "a.csv", "en,de\na,b\n", 1, "add --text NAME",
        columns=Columns(pair="de")),
    "a label": wrong("translation", "a.csv", "source,target\na,b\n", 1, "name it with --pair", columns=Columns(label="target")),
    "nothing to be translated": wrong("translation", "a.csv", "source,target\na,b\n ,c\n", 3, "'source' is empty"),
    "null as a source": wrong("translation", "a.jsonl", '{"source": "a"}\n{"source": null, "target": "b"}\n', 2, "not a text"),
    "number as a translation": wrong("translation", "a.jsonl", '{"source": "a", "target": 5}\n', 1, "'target' is 5, not a text"),
    "list as a translation": wrong("translation", "a.parquet", parquet_bytes(source=["a", "b"], target=[["c"], ["d"]]), 1,
        "not a text"),
    "no object of languages": wrong("translation", "a.jsonl",
        '{"translation": {"en": "a", "de": "b"}}\n{"translation": "c"}\n', 2, "not a text per language"),
    "null for both languages": wrong("translation", "a.parquet",
        parquet_bytes(translation=[{"en": "a", "de": "b"}, None]), 2, "not a text per language"),
    "another pair of languages": wrong("translation", "a.jsonl",
        '{"translation": {"en": "a", "de": "b"}}\n{"translation": {"fr": "c", "cs": "d"}}\n', 2, "there is no 'en'"),
    "languages within one": wrong("translation", "a.jsonl",
        '{"translation": {"en": {"x": "a"}, "de": "b"}}\n', 1, "'en' is {'x': 'a'}, not a text"),
    "a language that is a column too": wrong("translation", "a.jsonl",
        '{"translation": {"en": "a", "de": "b"}, "en": "c"}\n', 1, "two columns are called 'en'"),
    "short row": wrong("translation", "a.tsv", "source\ttarget\na\tb\nc\n", 3, "1 cell where the header has 2"),
    "an unequal pair": both("a\nb\nc\nd\n", "a\nb\n", at=("t.de", 2), words="has 2 lines, {folder}/t.en has 4; "),
    "an unequal pair, the first shorter": both("a\n", "a\nb", at=("t.en", 1), words="has 1 lines, {folder}/t.de has 2; "),
    "an empty file beside a full one": both("a\nb\n", "", at=("t.de", 1), words="has 0 lines, {folder}/t.en has 2; "),
    "an empty line in one file": both("a\nb\nc\n", "a\n \nc\n", at=("t.de", 2),
        words="the line is empty, but line 2 of {folder}/t.en is not; "),
    "an empty line in the first": both("a\n\nc\n", "a\nb\nc\n", at=("t.en", 2), words="line 2 of {folder}/t.de is not; "),
    "an empty line in both": both("a\n\nc\n", "a\n\nc\n", at=("t.en", 2), words="empty in both files; delete it in both"),
    "an empty line at the end of both": both("a\n\n", "a\n\n", at=("t.en", 2), words="empty in both files"),
    "latin-1 beside UTF-8": both("a\nb\n", "a\ncafé\n".encode("latin-1"), at=("t.de", 2), words="save it as UTF-8"),
    "a damaged second file": both("a\n", gzip.compress(b"b\n")[:-9], at=("t.de", 2), words="damaged"),
    "two empty files": both("", "", at=("t.en,t.de", 1), words="no rows"),
    "no prompt, no text": wrong("writing", "a.csv", "mr,ref\na,b\n", 1, "for texts to be written, the columns are 'mr', 'ref'"),
    "a sentence as header": wrong("writing", "a.csv", "A fine day.\nIt rained.\n", 1, "such as prompt,completion"),
    "inputs beside instructions": wrong("writing", "a.jsonl", '{"instruction": "i", "input": "x", "output": "o"}\n', 1,
        "--text instruction --pair output to omit the inputs"),
    "nothing at all": wrong("writing", "a.csv", "prompt,completion\na,b\n,\n , \n", 3, "'prompt' and 'completion' are both empty"),
    "a talk in place of a prompt": wrong("writing", "a.jsonl", '{"prompt": [{"role": "user"}], "completion": "c"}\n', 1,
        "not a text"),
    "number as an answer": wrong("writing", "a.jsonl", '{"prompt": "a", "completion": 5}\n', 1, "'completion' is 5, not a text"),
    "null in running text": wrong("writing", "a.parquet", parquet_bytes(text=["a", None]), 2, "'text' is None, not a text"),
    "no answer where it is needed": wrong("writing", "a.csv", "prompt\na\n", 1, "for texts to be written",
        need_target=True),
    "empty lines alone": wrong("writing", "a.txt", "\n \n\n", 1, "no rows"),
    "a label beside running text": wrong("writing", "a.csv", "text,label\na,b\n", 1, "omit --label",
        columns=Columns(label="label")),
}
# fmt: on


def opened(case: Case, folder: Path) -> list[Row]:
    for name, content in case.files.items():
        written(folder, name, content)
    return list(open_table(source_of(case, folder), case.columns, case.need_target, case.form).rows())


def source_of(case: Case, folder: Path) -> str:
    return ",".join(f"{folder}/{name}" for name in case.files)


def check_right(case: Case, folder: Path) -> None:
    assert [(row.text, row.pair, row.label) for row in opened(case, folder)] == case.rows


def check_wrong(case: Case, folder: Path) -> None:
    with pytest.raises(InputError) as refused:
        opened(case, folder)
    name, line = case.at
    place = f"{source_of(case, folder) if name == case.source else f'{folder}/{name}'}:{line}: "
    message = str(refused.value)
    assert message.startswith(place), message
    assert case.words.replace("{folder}", str(folder)) in message, message
    assert ";" in message.removeprefix(place), "says what to do"


@pytest.mark.parametrize("case", RIGHT)
def test_odd_files_give_the_right_rows(case: str, tmp_path: Path) -> None:
    check_right(RIGHT[case], tmp_path)


@pytest.mark.parametrize("case", WRONG)
def test_malformed_files_are_refused_with_file_and_line(case: str, tmp_path: Path) -> None:
    check_wrong(WRONG[case], tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "form", "columns"),
    [
        ("a.csv", "source,target\na,b\n", "translation", Columns("source", "target")),
        ("a.tsv", "id\tsrc\ttgt\n1\ta\tb\n", "translation", Columns("src", "tgt")),
        ("a.csv", "SRC,TRG\na,b\n", "translation", Columns("SRC", "TRG")),
        ("a.jsonl", '{"score": 1, "translation": {"en": "a", "de": "b"}}\n', "translation", DE),
        ("a.parquet", PARQUET, "translation", DE),
        ("a.csv", "prompt,completion\na,b\n", "writing", Columns("prompt", "completion")),
        ("a.csv", "prompt,response\na,b\n", "writing", Columns("prompt", "response")),
        # what was a text before stays one
        ("a.csv", "text,source,target\na,b,c\n", "text", Columns("text", None, "target")),
        ("a.csv", "text,translation\na,b\n", "text", Columns("text")),
        ("a.jsonl", '{"text": "a", "translation": {"text": "b"}}\n', "text", Columns("text")),
        ("a.csv", "prompt,response,question,label\na,b,c,d\n", "text", Columns("question", None, "label")),
        ("a.txt", "a\n", "text", Columns("text")),
        ("a.csv", "text\na\n", "text", Columns("text")),
        ("a.csv", "sentence1,sentence2,prompt,completion\na,b,c,d\n", "text", Columns("sentence1", "sentence2")),
    ],
)
def test_only_sure_names_tell_the_form(name: str, content: Any, form: Form, columns: Columns, tmp_path: Path) -> None:
    table = open_table(written(tmp_path, name, content))
    assert (table.form, table.columns) == (form, columns)


@pytest.mark.parametrize("header", ["source,target,label", "prompt,completion,label", "prompt,answer", "en,de"])
def test_unsure_names_are_asked_for(header: str, tmp_path: Path) -> None:
    """(prompt, completion, label) tells which completions were liked; a label makes a pair of texts out of others too."""
    path = written(tmp_path, "a.csv", f"{header}\n" + ",".join("x" for _ in header.split(",")) + "\n")
    with pytest.raises(InputError, match=r"a\.csv:1: no column has a usual name for text, .*; name it with"):
        open_table(path)
    first, second, *_ = header.split(",")
    assert open_table(path, Columns(first, second)).form == "text", "two named columns are a pair, as they were"


def test_the_columns_that_are_named_are_languages(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", MANY)
    table = open_table(path, Columns("de", "en"))
    assert (table.form, next(table.rows())) == ("translation", Row(1, "b", "a", "", None))
    assert open_table(path).form == "text", "there is a title, which was a text before"
    with pytest.raises(InputError, match="the columns are 'translation', 'title'"):
        open_table(path, Columns("de", "en"), form="text")


def test_two_files_are_found_by_one_comma(tmp_path: Path) -> None:
    first, second = written(tmp_path, "t.en", "a\nb\n"), written(tmp_path, "t.de", "c\nd\n")
    table = open_table(f"{first},{second}")
    assert (table.form, table.columns) == ("translation", Columns("source", "target"))
    assert list(table.rows()) == [Row(1, "a", "c", "", None), Row(2, "b", "d", "", None)] == list(table.rows())
    assert open_table(f"{second},{first}").fingerprint != table.fingerprint
    written(tmp_path, "t.de", "c\ne\n")
    assert open_table(f"{first},{second}").fingerprint != table.fingerprint
    for source, words in (
        (f"{first},{tmp_path}/t.fr", rf"there is no file '{tmp_path}/t\.fr'; write both"),
        (f"{tmp_path}/t.fr,{first}", "there is no file"),
        (f"{first},{second},{first}", "there is no such file"),
        (f"{tmp_path}/x,y.csv", "there is no such file"),
        (
            f"{first},{written(tmp_path, 'a.tsv.gz', 'x')}",
            "is a table, and its lines are not sentences; give one table",
        ),
    ):
        with pytest.raises(InputError, match=words):
            open_table(source)
    whole = written(tmp_path, "t.en,t.csv", "text\nc\n")
    assert open_table(whole).columns == Columns("text"), "a file of the whole name comes first"


def test_data_sets_of_translations(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    features = datasets.Features({"id": datasets.Value("string"), "translation": datasets.Translation(["de", "en"])})
    data = datasets.Dataset.from_dict({"id": ["1", "2"], "translation": TOGETHER}, features)
    data.save_to_disk(tmp_path / "data")
    data.to_parquet(tmp_path / "a.parquet")
    for source in ("data", "a.parquet"):
        table = open_table(tmp_path / source)
        assert (table.form, table.columns) == ("translation", Columns("de", "en"))
        assert next(open_table(tmp_path / source, DE).rows()) == Row(1, "a dog", "ein Hund", "", None)


def test_only_needed_columns_are_read(tmp_path: Path) -> None:
    """A column of which no value could be turned into Python is none that is read."""
    broken = pa.array([2**60], pa.timestamp("ms"))
    for columns, form in (
        ({"source": ["a"], "target": ["b"]}, "translation"),
        ({"translation": TOGETHER[:1]}, "translation"),
        ({"prompt": ["a"], "completion": ["b"]}, "writing"),
        ({"text": ["a"]}, "writing"),
    ):
        pq.write_table(pa.table({**columns, "when": broken}), tmp_path / "a.parquet")
        assert len(list(open_table(tmp_path / "a.parquet", form=form).rows())) == 1
    with pytest.raises((OverflowError, ValueError)):
        pq.read_table(tmp_path / "a.parquet").to_pydict()


def test_memory_does_not_grow_with_lines_of_two_files(tmp_path: Path) -> None:
    def pair(lines: int) -> str:
        content = "".join(f"{number} " + "word " * 200 + "\n" for number in range(lines))
        return ",".join(str(written(tmp_path, f"{lines}.{name}", content)) for name in ("en", "de"))

    used = [most_memory(pair(lines)) for lines in (50, 50, 5000)]  # type: ignore[arg-type]  # first: imports
    assert used[2] < used[1] + 2**17


cells = st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(["", " ", "a"])
values = cells | st.lists(cells, max_size=2) | st.dictionaries(st.sampled_from(["en", "de", "text"]), cells, max_size=3)
names = st.sampled_from(
    [
        "source",
        "target",
        "src",
        "translation",
        "prompt",
        "completion",
        "instruction",
        "input",
        "output",
        "text",
        "label",
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.dictionaries(names, values, min_size=1, max_size=6), min_size=1, max_size=3),
    form=st.sampled_from([None, *GENERATED]),
)
def test_any_record_gives_rows_or_is_refused(records: list[dict[str, Any]], form: Form | None, tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    try:
        table = open_table(path, form=form)
        rows = list(table.rows())
    except InputError as error:
        assert str(error).startswith(f"{path}:") and ";" in str(error)
        return
    assert form in (None, table.form)
    if table.form not in GENERATED:
        return
    for row in rows:
        assert isinstance(row.pair, str) and row.label == ("" if row.pair else None) and row.answer is None
        assert row.text.strip() or row.pair.strip() or table.columns.pair is None
    if table.columns.text:
        assert len(rows) == len(records), "only running text has lines that are no rows"


# no line feeds within a line, and no NUL, which is replaced
lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1, max_size=20).filter(
    lambda text: text.strip() and not text.endswith("\r") and not text.startswith("\ufeff")
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(lines, lines), min_size=1, max_size=5), end=st.sampled_from(["\n", "\r\n"]))
def test_what_two_files_hold_is_read(pairs: list[tuple[str, str]], end: str, tmp_path: Path) -> None:
    files = [
        written(tmp_path, name, "".join(pair[side] + end for pair in pairs)) for side, name in enumerate(("a", "b"))
    ]
    assert [(row.text, row.pair) for row in open_table(f"{files[0]},{files[1]}").rows()] == pairs


def test_every_form_is_a_file_that_some_task_reads() -> None:
    assert {words.form for words in EVERY} == FORMS.keys()
    assert TASK_WORDS["translate"].rows == "texts with their translation"


@real_data
@pytest.mark.parametrize(
    ("name", "columns", "form", "rows"),
    [  # numbers of rows as published; of WikiText the 3,760 lines without the 1,299 that are empty
        ("multi30k/train.tsv.gz", DE, "translation", 29_000),
        ("multi30k/val.tsv", Columns("cs", "fr"), "translation", 1014),
        ("newstest_en_de/wmt16.tsv", DE, "translation", 2999),
        ("e2e_nlg/dev.tsv.gz", Columns("mr", "ref"), "writing", 4672),
        ("wikitext2/wiki.valid.tokens.gz", Columns(), "writing", 2461),
    ],
)
def test_real_files(name: str, columns: Columns, form: Form, rows: int) -> None:
    found = list(open_table(SHARED / name, columns, True, form).rows())
    assert len(found) == rows
    assert all(row.label == "" and row.pair and (row.text or not columns.text) for row in found)
