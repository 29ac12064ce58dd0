"""Files of every format, written well and then, half of them, changed by a few bytes. The same ones for the same seed."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.attack import plain_readers as readers
from tests.attack.plain_readers import Names, Read

T = TypeVar("T")

# fmt: off
FRAGMENTS = ("a", "film", "a fine film", "NA", "null", "None", "nan", "true", "0", "1.0", "", " ", "  ", '"', '""', "'", ",", ",,",
             ";", "\t", "\n", "\r\n", "\r", "\\", "\\n", "#", "# ", "\0", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c",
             "\ufeff", "é", "e\u0301", "日本", "🎬", "\u202e", "\u200b", "=1+1", '{"a": 1}', "[1]", "-", "|", "\x7f", "\x1b[2J")
LABELS = ("positive", "negative", "0", "1", "2", "007", "7", "08", "1e1", "10", "+1", "00", "1.0", "01", "12345678901234567890",
          "12345678901234567891", "IT", "it", "True", "true", "NA", "null", "None", "nan", "inf", "-1", " x ", "x", "²", "①",
          "\u212a", "K", "k", "ß", "ss", "🎬", "é", "e\u0301", "a b", "B-PER", "0x10", "1_000", "١", "")
JUNK = (b'"', b",", b"\n", b"\r", b"\t", b"\0", b"\xff", b"\xc3", b" ", b"{", b"}", b"[", b":", b"#", b"\\", b"0", b'""', b"\r\n",
        b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1f\x8b", b"PK")
# fmt: on
ALONE = (
    rb"\r(?!\n)"  # a carriage return that ends a line for some readers and is a letter for others: it may be refused
)


class File(NamedTuple):
    """What potstill is given, and what others read in it: one reading, or two where none can say which is meant."""

    source: str
    readings: Callable[[Names], list[list[Read]]]
    whole: bool  # written well: it must be read
    names: Names = Names("text")  # the columns, as they were written
    form: str | None = None


def text(chance: random.Random, without: str = "") -> str:
    """A few fragments; without letters that the format cannot hold."""
    made = "".join(chance.choice(FRAGMENTS) for _ in range(chance.choice((1, 1, 2, 3, 4))))
    made *= 500 if chance.random() < 0.01 else 1
    return "".join(letter for letter in made if letter not in without)


def changed(chance: random.Random, data: bytes, spared: int = 0) -> bytes:
    """A few bytes taken out, put in, turned or copied; the first ones are mostly spared, to get past the header."""
    found = bytearray(data)
    begin = spared if chance.random() < 0.85 else 0
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randint(min(begin, len(found)), len(found))
        kind = chance.randrange(6)
        if kind == 0:
            del found[at : at + chance.choice((1, 1, 2, 5))]
        elif kind <= 2:
            found[at:at] = chance.choice(JUNK)
        elif kind == 3 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 4:
            found[at:at] = found[max(0, at - chance.randint(1, 20)) : at]
        elif kind == 5 and chance.random() < 0.3:
            del found[at:]
    return bytes(found)


def written(chance: random.Random, path: Path, data: bytes, header: int, packs: bool = True) -> tuple[Path, bool]:
    """The file, and whether it is still what was meant."""
    whole = chance.random() < 0.5
    if not whole:
        data = changed(chance, data, header)
    if packs and chance.random() < 0.1:
        path = path.with_name(f"{path.name}.gz")
        data = gzip.compress(data, 1, mtime=0)
        if not whole and chance.random() < 0.3:
            data = changed(chance, data, 10)
    path.write_bytes(data)
    return path, whole


def ways(*each: Callable[[], T]) -> list[T]:
    """The readings that there are."""
    found: list[T] = []
    for one in each:
        try:
            found.append(one())
        except readers.Unreadable:
            continue
    return found


def columns(chance: random.Random) -> tuple[list[str], Names]:
    names = chance.choice(
        (
            Names("text", None, "label"),
            Names("sentence", None, "label"),
            Names("text"),
            Names("premise", "hypothesis", "label"),
        )
    )
    every = [one for one in names if one] + chance.sample(["id", "Notes", "q"], chance.choice((0, 0, 1, 2)))
    chance.shuffle(every)
    return every, names


def cells(chance: random.Random, every: list[str], names: Names, without: str = "") -> list[list[str]]:
    def cell(name: str) -> str:
        made = chance.choice(LABELS) if name == names.label else text(chance, without)
        return "".join(letter for letter in made if letter not in without)

    return [[cell(name) for name in every] for _ in range(chance.randint(1, 6))]


def table(chance: random.Random, delimiter: str) -> tuple[bytes, int, Names]:
    """By Python's csv.writer, in every way it has; the header's length; the columns."""
    every, names = columns(chance)
    out = io.StringIO(newline="")
    ends = chance.choice(("\n", "\r\n"))
    quoting = chance.choice((csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC))
    writer = csv.writer(out, delimiter=delimiter, lineterminator=ends, quoting=quoting)
    writer.writerow(every)
    header = len(out.getvalue())
    writer.writerows(cells(chance, every, names))
    made = out.getvalue()
    if chance.random() < 0.2:
        made = made.removesuffix(ends)
    if chance.random() < 0.1:
        made += ends * chance.randint(1, 3)
    mark = b"\xef\xbb\xbf" if chance.random() < 0.1 else b""
    return mark + made.encode("utf-8"), header + len(mark), names


def csv_file(chance: random.Random, folder: Path) -> File:
    data, header, meant = table(chance, ",")
    path, whole = written(chance, folder / "rows.csv", data, header)
    whole = whole and not re.search(ALONE, data)
    return File(str(path), partial(quoted, path, ","), whole, meant)


def quoted(path: Path, delimiter: str, names: Names) -> list[list[Read]]:
    return next(iter(ways(lambda: readers.quoted_tables(path, names, delimiter))), [])


def tsv_file(chance: random.Random, folder: Path) -> File:
    """By csv.writer, or as GLUE has them: without any quoting, where a quote is a letter."""
    if chance.random() < 0.6:
        data, header, meant = table(chance, "\t")
    else:
        every, meant = columns(chance)
        lines = ["\t".join(one) for one in [every, *cells(chance, every, meant, "\t\n\r")]]
        ends = chance.choice(("\n", "\r\n"))
        data, header = (ends.join(lines) + ends).encode(), len(lines[0])
    path, whole = written(chance, folder / "rows.tsv", data, header)
    whole = whole and not re.search(ALONE, data)

    def readings(names: Names) -> list[list[Read]]:
        return [*quoted(path, "\t", names), *ways(lambda: readers.plain_table(path, names, "\t"))]

    return File(str(path), readings, whole, meant)


def any_value(chance: random.Random) -> Any:
    # fmt: off
    return chance.choice((1, 0, -1, 1.0, 1.5, 1e16, 1e300, -0.0, True, False, None, "1", "", " ", [], {}, ["a"], ["a", "b"], [1, "a"],
                          [None], {"a": 1}, 12345678901234567890, float("nan"), float("inf"), "\ud800", "\0", chance.choice(LABELS)))
    # fmt: on


def json_file(chance: random.Random, folder: Path) -> File:
    every, meant = columns(chance)
    mixed = chance.random() < 0.4
    lines = []
    for row in cells(chance, every, meant):
        record: dict[str, Any] = dict(zip(every, row, strict=True))
        if mixed:
            record[chance.choice([*every, "more"])] = any_value(chance)
        if mixed and chance.random() < 0.1:
            record.pop(chance.choice(every), None)
        lines.append(json.dumps(record, ensure_ascii=chance.random() < 0.5))
        if chance.random() < 0.05:
            lines.append(chance.choice(("", " ", "\t")))
        if mixed and chance.random() < 0.03:
            lines.append(chance.choice(("null", "[]", "1", "{}", '{"text": "a", "text": "b"}', "[" * 2000)))
    data = chance.choice(("\n", "\r\n")).join([*lines, ""]).encode("utf-8", "surrogatepass")
    path, whole = written(chance, folder / f"rows.{chance.choice(('jsonl', 'ndjson'))}", data, 0)
    return File(str(path), lambda names: ways(lambda: readers.json_lines(path, names)), whole and not mixed, meant)


def parquet_file(chance: random.Random, folder: Path) -> File:
    import datetime
    import decimal

    import pyarrow as pa
    from pyarrow import parquet

    every, meant = columns(chance)
    rows = chance.randint(1, 8)
    # fmt: off
    odd: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
        **{str(kind): (kind, lambda: chance.randint(0, 100)) for kind in
           (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
        "float": (pa.float32(), lambda: float(chance.choice((0.5, 1, 2, float("nan"))))),
        "double": (pa.float64(), lambda: float(chance.choice((0.1, 1, 1e17, float("inf"))))),
        "bool": (pa.bool_(), lambda: chance.random() < 0.5),
        "binary": (pa.binary(), lambda: text(chance).encode()),
        "decimal": (pa.decimal128(6, 2), lambda: decimal.Decimal("1.50")),
        "date": (pa.date32(), lambda: datetime.date(2020, 1, chance.randint(1, 28))),
        "time": (pa.timestamp("us"), lambda: datetime.datetime(2020, 1, 1, chance.randint(0, 23))),
        "list": (pa.list_(pa.string()), lambda: [chance.choice(LABELS) for _ in range(chance.randint(0, 3))]),
        "null": (pa.null(), lambda: None),
        "struct": (pa.struct([("a", pa.int32())]), lambda: {"a": 1}),
    }
    # fmt: on
    kinds = {
        name: chance.choice((pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))) for name in every
    }
    makers: dict[str, Callable[[], Any]] = {
        name: partial(chance.choice, LABELS) if name == meant.label else partial(text, chance) for name in every
    }
    plain = True
    for name in every:
        if chance.random() < (0.5 if name == meant.label else 0.1):
            kind = chance.choice(list(odd))
            kinds[name], makers[name] = odd[kind]
            plain = plain and (name not in meant or (name == meant.label and kind.startswith(("int", "uint", "bool"))))
    nulls = chance.random() < 0.2
    values = {
        name: [
            None if nulls and name not in (meant.text, meant.pair) and chance.random() < 0.3 else makers[name]()
            for _ in range(rows)
        ]
        for name in every
    }
    made = pa.table({name: pa.array(values[name], kinds[name]) for name in every})
    path = folder / "rows.parquet"
    parquet.write_table(
        made,
        path,
        row_group_size=chance.choice((1, 3, 1000)),
        compression=chance.choice(("none", "snappy", "zstd", "gzip")),
        use_dictionary=chance.random() < 0.5,
        data_page_version=chance.choice(("1.0", "2.0")),
    )
    whole = chance.random() < 0.7
    if not whole:
        path.write_bytes(changed(chance, path.read_bytes(), 4))
    return File(str(path), lambda names: ways(lambda: readers.parquet(path, names)), whole and plain, meant)


def conll_file(chance: random.Random, folder: Path) -> File:
    """Words and tags; the columns by tabs or by spaces, comments as CoNLL-U has them."""
    width, by = chance.choice((1, 2, 2, 3, 4)), chance.choice(("\t", " "))
    words = (
        "EU",
        "rejects",
        "#",
        "#tag",
        "7",
        "日本",
        '"',
        "-",
        "O",
        "B-PER",
        "a\u2028b",
        "🎬",
        "-DOC",
        "''",
        "NA",
        "\u200b",
        "é",
    )
    tags = ("O", "B-PER", "I-PER", "B-ORG", "NA", "null", "1", "007", "7", "#")
    lines = []
    if chance.random() < 0.2:
        lines += ["-DOCSTART- -X- O O", ""]
    for number in range(chance.randint(1, 5)):
        if chance.random() < 0.3:
            comments = ("# sent_id = 1", "# text = EU rejects", "# newdoc", "# id 7f3a domain=en x", f"# {number}")
            lines += [one for one in chance.sample(comments, 2) if by == "\t" or len(one.split()) != width]
        for _ in range(chance.randint(1, 6)):
            middle = [chance.choice(("_", "NNP", "B-NP")) for _ in range(width - 2)]
            lines.append(by.join([chance.choice(words), *middle, *([chance.choice(tags)] if width > 1 else [])]))
        lines += [""] * chance.choice((1, 1, 2))
    data = chance.choice(("\n", "\r\n")).join(lines).encode()
    path, whole = written(chance, folder / f"rows.{chance.choice(('conll', 'bio', 'iob2'))}", data, 0)
    return File(
        str(path), lambda names: ways(lambda: readers.conll(path), lambda: readers.conll(path, doubted=True)), whole
    )


def squad_file(chance: random.Random, folder: Path) -> File:
    turned = chance.random() < 0.3
    articles = []
    for _ in range(chance.randint(1, 2)):
        paragraphs = []
        for _ in range(chance.randint(1, 2)):
            context = f"{text(chance)} It began in May . {text(chance)}"
            questions = []
            for number in range(chance.randint(1, 3)):
                start = chance.randrange(len(context))
                answer = context[start : start + chance.randint(1, 12)]
                if not answer.strip():
                    start, answer = context.index("It"), "It"
                question: dict[str, Any] = {"id": str(number), "question": text(chance) or "?"}
                question["answers"] = [{"text": answer, "answer_start": start}] * chance.choice((1, 1, 2))
                if turned:
                    wrong = chance.choice((start + 1, start - 1, -1, None, str(start), 1.5, 10**30, True, [start]))
                    question["answers"] = [{"text": chance.choice((answer, answer + "x")), "answer_start": wrong}]
                questions.append(question)
            paragraphs.append({"context": context, "qas": questions})
        articles.append({"title": text(chance), "paragraphs": paragraphs})
    told = json.dumps(
        {"version": "1.1", "data": articles}, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 1))
    )
    path, whole = written(chance, folder / "rows.json", told.encode("utf-8", "surrogatepass"), 40)
    return File(str(path), lambda names: ways(lambda: readers.squad(path)), whole and not turned)


def pair_of_files(chance: random.Random, folder: Path) -> File:
    def line() -> str:
        made = text(chance, "\n\r")
        return made if made.strip() else "x"

    count = chance.randint(1, 8)
    paths, both = [], True
    for name in ("rows.en", "rows.de"):
        made = chance.choice(("\n", "\r\n")).join([line() for _ in range(count)] + [""]).encode()
        path, whole = written(chance, folder / name, made, 0)
        paths.append(path)
        both = both and whole
    source = ",".join(map(str, paths))
    return File(source, lambda names: ways(lambda: readers.two_files(*paths)), both, form="translation")


def text_file(chance: random.Random, folder: Path) -> File:
    ends = chance.choice(("\n", "\r\n"))
    lines = [text(chance, "\n\r") for _ in range(chance.randint(1, 8))]
    data = (ends.join([*lines, "x"]) + chance.choice(("", ends, ends * 3))).encode()
    path, whole = written(chance, folder / "rows.txt", data, 0)
    return File(str(path), lambda names: ways(lambda: readers.text_lines(path)), whole, form="text")


def npz_file(chance: random.Random, folder: Path) -> File:
    import numpy as np

    count, side = chance.randint(1, 5), chance.randint(1, 5)
    shape = chance.choice(
        ((count, side, side + 1), (count, side * side), (count, side, side, 3), (count, side, side, 1))
    )
    drawn = np.random.default_rng(chance.randrange(2**32))
    arrays: dict[str, Any] = {"images": drawn.integers(0, 256, shape, dtype=np.uint8)}
    labels: list[Any] = [
        drawn.integers(0, 10, count),
        drawn.integers(0, 10, count).astype(np.uint8),
        np.array([chance.choice(LABELS).strip() or "x" for _ in range(count)]),
        drawn.integers(0, 2, count).astype(bool),
        drawn.integers(0, 9, count).astype(">i4"),
        drawn.integers(0, 9, count) / 2,
    ]
    if chance.random() < 0.8:
        arrays["labels"] = chance.choice(labels)
    path = folder / "rows.npz"
    (np.savez_compressed if chance.random() < 0.5 else np.savez)(path, **arrays)
    path, whole = written(chance, path, path.read_bytes(), 0, packs=False)
    meant = Names("images", None, "labels" if "labels" in arrays else None)
    return File(str(path), lambda names: ways(lambda: readers.npz(path, names)), whole, meant)


def idx_file(chance: random.Random, folder: Path) -> File:
    count, height, width = chance.randint(1, 5), chance.randint(1, 5), chance.randint(1, 5)
    pixels = struct.pack(">I3I", 0x803, count, height, width) + chance.randbytes(count * height * width)
    images, whole = written(chance, folder / "train-images-idx3-ubyte", pixels, 0)
    labels = None
    if chance.random() < 0.7:
        numbers = struct.pack(">II", 0x801, count) + bytes(chance.randrange(10) for _ in range(count))
        labels, also = written(chance, folder / "train-labels-idx1-ubyte", numbers, 0)
        whole = whole and also
    return File(str(images), lambda names: ways(lambda: readers.idx(images, labels)), whole)


# how each is made, and how many there are in full
FORMATS: dict[str, tuple[Callable[[random.Random, Path], File], int]] = {
    "CSV": (csv_file, 6000),
    "TSV": (tsv_file, 4000),
    "JSON lines": (json_file, 4000),
    "Parquet": (parquet_file, 1600),
    "CoNLL": (conll_file, 1600),
    "SQuAD": (squad_file, 1400),
    "two files": (pair_of_files, 1400),
    "lines": (text_file, 800),
    "npz": (npz_file, 800),
    "idx": (idx_file, 800),
}
