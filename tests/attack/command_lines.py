"""Command lines that nobody should write, and some that somebody will."""

from __future__ import annotations

import csv
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.attack.fuzzed import LABELS
from tests.attack.small_home import Home

# fmt: off
NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e999", "1e-999", "99999999999999999999999", "0.5", "1e9", "x", "",
           "1_0", "٣", "0x10", "1,5", "True")
PATHS = ("", " ", ".", "..", "-", "/dev/null", "/dev/zero", "/dev/stdin", "/proc/self/mem", "{home}",
         "{home}/nosuch.csv", "{home}/train.csv/x", "~nobody/x", "http://example.com/x.csv", "owner/name:train",
         "a:b:c:d", ",", "a,b", "{place}/fifo.csv", "{place}/loop.csv", "{place}/dangling.csv", "{place}/empty.csv",
         "{place}/header.csv", "{place}/binary.csv", "{place}/noending", "{place}/\udcff.csv", "{home}/*.csv",
         "$(touch x)", "x" * 300, "x" * 5000, "{home}/teacher/student/model.safetensors", "{home}/train.csv:train",
         "{home}:train", "ünï.csv", "CON", "a=b=c", "=", "\n", "{place}/deep.json")
SHAPES = ("keep_layers", "keep_layers:0", "keep_layers:-1", "keep_layers:99", "keep_layers:x", "keep_layers:1,1",
          "keep_layers:[5]", "keep_layers:1+keep_layers:1", "keep_layers:1+", "+", ":", "", "nosuch", "bilstm:999999",
          "bilstm:0", "bilstm:-5", "fresh:99999999", "fresh:0", "fresh:2x99999", "fresh:2x7", "bag:-1",
          "bag:999999999", "bag", "trim_vocabulary:x", "trim_vocabulary", "marian:4+4x256", "lstm_translator", "mlp",
          "mlp:0", "mlp:99999999", "potstill.models.student", "../bag")
METHODS = ("", "nosuch", "soft_targets:", "soft_targets:5", "patient:x", "hints", "answer_attention",
           "teacher_labels", "logit_regression", "soft_targets+hints", "Soft_Targets", "../x")
FIELDS = ("name", "teacher", "start", "student", "data", "data.0.train", "data.0.test", "data.0.label_map",
          "data.0.labels", "data.0.task", "data.0.weight", "stage", "stage.0", "stage.0.data", "stage.0.reshape",
          "stage.0.method", "stage.0.method.temperature", "stage.0.method.alpha", "stage.0.optimizer.rate",
          "stage.0.optimizer.name", "stage.0.optimizer.clip", "stage.0.optimizer.decay", "stage.0.optimizer.warmup",
          "stage.0.epochs", "stage.0.batch", "stage.0.tokens", "stage.0.patience", "stage.0.keep", "stage.0.averaged",
          "stage.0.stop_teaching", "stage.9.epochs", "seed", "seeds", "dropout", "length", "device", "precision",
          "baseline", "timing", "memory", "metric", "tracker", "save_every", "force", "grid", "grid.seed",
          "teacher_devices", "nosuch", "", ".", "a.b.c.d", "stage.-1.epochs", "stage.0.method.nosuch")
VALUES = ("nan", "inf", "-1", "0", "1e999", "99999999999999999999", "''", "x", "[]", "{}", "[[]]", "{ a = 1 }",
          "none", "true", "[1, 'a']", "\"\\u0000\"", "'../x'", "1979-05-27", "{")
DEVICES = ("", "cuda", "cuda:99", "cuda:x", "cpu:1", "mps", "xpu", "meta", "disk", "nosuch", "cpu,cuda")
RECIPES = ("", "x", "= 1", "name = ", "[", "[[", "a = 1\na = 2", "\ufeffname = 'x'", "name = 'x'\n[data]\n",
           "[data]\ntrain = 1", "data = []", "data = 5", "stage = []", "stage = 'x'", "student = 5",
           "student = [[[]]]", "student = [{}]", "student = [{ build = 5 }]", "name = '../x'", "name = ''",
           "name = '/tmp/x'", "grid = 5", "[grid]\nseed = []", "[grid]\nseed = 5", "[grid]\n'a.b' = [1]",
           "[grid]\nseed = [1, 'x']", "seed = 1e400", "seed = -1", "[[stage]]\nmethod = 5", "[[stage]]\nmethod = []",
           "[[stage]]\ndata = 'x'", "[[stage]]\ndata = [5]", "[[stage]]\noptimizer = 5", "teacher = []",
           "x = " + "[" * 2000, "a" * 100_000, "name = '\\u0000'", "[data]\ntest = { a = 1 }", "[data]\nlabels = 'x'",
           "teacher_devices = { cpu = 5 }", "name = 'x'\r\rseed = 1", "seed = 99999999999999999999999999")
WRONG = """
nosuch
--nosuch
distill --nosuch
distill --train
distill
finetune
train
plan
predict
measure
export
translate
augment
report
study
show
show nosuch
list nosuch
list methods x
study nosuch
study size-curve --with layers
study size-curve --with layers=5
study size-curve --with nosuch=1
study size-curve --with 'layers=[]'
export {teacher} --to nosuch
export {teacher} --to ''
export {teacher} --to onnx --with x=1
export {teacher} --to ctranslate2
export {teacher} --to int8 --data {home}/nosuch
translate {teacher}
translate {teacher} --beam 0
translate {teacher} --beam -5
translate {teacher} --batch 0
translate {teacher} {home}/nosuch
--version
--help
list
show kd-sst2
show pkd-rte
list students
list recipes
report {home}
report {home}/nosuch
report {home}/train.csv
report {home}/teacher {home}/teacher
report {home}/teacher --out {place}
report {home}/teacher --out {place}/no/such/page.html
report {home}/teacher --out /proc/x.html
augment {home}/train.csv --out {place}/a.csv --copies 0
augment {home}/train.csv --out {place}/b.csv --seed -1
augment {home}/train.csv --out {place}/c.csv --seed 99999999999999999999999
augment {home}/train.csv --out {place}/d.csv --with p_mask=nan
augment {home}/train.csv --out {place}/e.csv --with p_mask=2
augment {home}/train.csv --out {place}/f.csv --with longest=99999999999999999999
augment {home}/train.csv --out {place}/g.csv --ngram x
augment {home}/train.csv --out {place}/h.csv --with tagger=nosuch
augment {home}/train.csv --out {place}/i.xlsx
augment {home}/train.csv --out ''
augment {home}/nosuch.csv --out {place}/j.csv
augment {home}/train.csv --out /proc/x.csv
augment {home}/train.csv --out {place}/no/such/x.csv
augment {home}/train.csv --out {place}/k.csv --text nosuch
predict {teacher} --length -1
predict {teacher} --length 3
predict {teacher} --length 99999999
predict {teacher} {home}/train.csv --text nosuch
measure {teacher} --data {home}/test.csv --labels a
measure {teacher} --data {home}/test.csv --labels positive,negative
measure {teacher} --data {home}/test.csv --label text
measure {teacher} --data {home}/test.csv --label a,b
measure {teacher} --data {home}/test.csv --choices text,label
measure {teacher} --data {home}/test.csv --language de
measure {teacher} --data {home}/test.csv --json
"""
PRINTED = """
measure {teacher} --data {home}/test.csv
list
show kd-sst2
report {home}/teacher --out {place}/ENCODING.html
predict {teacher}
--help
list methods
measure '{home}/nosuch ü 日本' --data x
"""
# fmt: on


class Line(NamedTuple):
    words: tuple[str, ...]
    codes: tuple[int, ...] = (0, 2)
    encoding: str = "utf-8"
    stdin: bytes = b"a fine film\n"


def split(text: str) -> list[tuple[str, ...]]:
    """A command line on each line."""
    return [tuple(shlex.split(line)) for line in text.strip().splitlines()]


def odd_places(place: Path) -> None:
    """What PATHS name."""
    place.mkdir(parents=True, exist_ok=True)
    os.mkfifo(place / "fifo.csv")
    (place / "loop.csv").symlink_to(place / "loop.csv")
    (place / "dangling.csv").symlink_to(place / "gone.csv")
    (place / "empty.csv").write_bytes(b"")
    (place / "header.csv").write_bytes(b"text,label\n")
    (place / "binary.csv").write_bytes(bytes(range(256)) * 20)
    (place / "noending").write_text("text,label\na,b\n")
    (place / "deep.json").write_text('{"data": [{"title": ' + "[" * 50_000)


def lines(home: Home, place: Path) -> Iterator[Line]:
    """All of them, in the order of their kinds; each run has a folder of its own."""
    count = 0

    def filled(*words: str) -> tuple[str, ...]:
        known = {"home": str(home.folder), "place": str(place), "teacher": str(home.teacher)}
        for name, value in known.items():
            words = tuple(word.replace(f"{{{name}}}", value) for word in words)
        return words

    def distill(*more: str, codes: tuple[int, ...] = (0, 2)) -> Line:
        nonlocal count
        count += 1
        return Line(filled(*map(str, home.distill("--out", place / f"out/{count}")), "--force", *more), codes)

    yield from (Line(filled(*words)) for words in [(), *split(WRONG)])
    for number in NUMBERS:
        yield (
            distill("--epochs", number)
            if number not in ("1e9", "99999999999999999999999")
            else plan(home, "--epochs", number)
        )
        for flag in ("--batch", "--length", "--seed"):
            yield distill(flag, number)
        yield distill("--rate", number, codes=(0, 1, 2))
        yield plan(home, "--seeds", number)
        for flag in ("--peak", "--devices", "--memory", "--epochs"):
            yield plan(home, flag, number)
    for path in PATHS:
        yield distill("--train", path)
        yield distill("--test", path)
        yield distill("--unlabelled", path)
        yield distill("--teacher", path)
        yield distill("--start", path)
        yield Line(filled("measure", path, "--data", "{home}/test.csv"))
        yield Line(filled("measure", "{teacher}", "--data", path))
        yield Line(filled("predict", path))
        yield Line(filled("predict", "{teacher}", path))
        yield Line(filled("export", path, "--to", "onnx", "--out", "{place}/exported"))
        yield Line(filled("distill", path))
        yield distill("--resume", path)
    for path in (
        "/dev/null",
        "/dev/null/x",
        "/proc/x",
        "x" * 300,
        "{home}/train.csv",
        "{home}/train.csv/x",
        "{place}/loop.csv",
        "{place}/dangling.csv",
        "/sys/x",
    ):
        yield Line(filled(*map(str, home.distill("--out", path))), (2,))
    yield from (
        Line(filled(*map(str, home.distill("--out", path)))) for path in ("", "\n")
    )  # the default; a name, if an odd one
    yield from (distill("--student", shape) for shape in SHAPES)
    yield from (distill("--method", method) for method in METHODS)
    yield from (distill("--device", device) for device in DEVICES)
    for place_, field in enumerate(FIELDS):
        for value in VALUES[place_ % 3 :: 3]:
            yield Line(filled("show", "kd-sst2", "--set", f"{field}={value}"))
    yield from (
        distill("--set", word)
        for word in (
            "",
            "=",
            "a",
            "=1",
            "seed",
            "seed=",
            "seed==1",
            "grid.seed=[1,1]",
            "grid.nosuch=[1]",
            "grid.teacher=['x']",
            "memory=/proc/x",
            "metric=nosuch",
        )
    )
    for number, text in enumerate(RECIPES):
        (place / f"recipe{number}.toml").write_text(text, encoding="utf-8")
        yield Line(filled("show", f"{place}/recipe{number}.toml"))
        if number % 3 == 0:
            yield Line(filled("distill", f"{place}/recipe{number}.toml", "--out", f"{place}/out/recipe{number}"))
    yield from (
        distill("--label-map", one)
        for one in (
            "",
            "=",
            "a",
            "a=b",
            "positive=²",
            "positive=①",
            "positive=9",
            "positive=-1",
            "positive=negative",
            "positive=1,positive=0",
            "a=b,",
            ",",
        )
    )
    yield from (
        distill("--labels", one) for one in ("", ",", "a", "a,b,c", "positive,negative", "negative,negative", " , ")
    )
    yield from odd_labels(home, place)
    for encoding in ("ascii", "latin-1", "cp1252"):
        for words in split(PRINTED.replace("ENCODING", encoding)):
            yield Line(filled(*words), encoding=encoding, stdin="日本 🎬 é\n".encode())
        yield distill()._replace(encoding=encoding)
        yield plan(home)._replace(encoding=encoding)
    for text in (
        b"",
        b"\n",
        b"\n\n\n",
        b"\xff\xfe\n",
        b"\0\0\n",
        "\ud800\n".encode("utf-8", "surrogatepass"),
        b"a" * 2_000_000 + b"\n",
        "🎬\n".encode() * 3000,
        b"{}\n",
        b'{"text": 5}\n',
        b"\r",
        b"a\rb\n",
    ):
        yield Line(filled("predict", "{teacher}"), stdin=text)


def plan(home: Home, *more: str) -> Line:
    words = [
        "plan",
        "--teacher",
        str(home.teacher),
        *home.rows("train", "dev"),
        "--student",
        "keep_layers:1",
        "--force",
        "--quiet",
        "--json",
        *more,
    ]
    return Line(tuple(words))


def odd_labels(home: Home, place: Path) -> Iterator[Line]:
    """Two rows of each label, to be fine-tuned on and to be taught by a teacher who knows others."""
    sets = [LABELS[at : at + 3] for at in range(0, len(LABELS) - 3, 3)] + [
        ("a" * 5000, "b"),
        ("a\nb", "c"),
        ("\x1b[2J", "\x9b2J"),
        ("a", "A "),
        ("-", "--"),
    ]
    for number, labels in enumerate(sets):
        path = place / f"labels{number}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("text", "label"), *((f"good film {at}", label) for at in range(8) for label in labels)]
            )
        out = str(place / f"out/labels{number}")
        quick = ("--epochs", "1", "--length", "16", "--set", "timing=none", "--quiet")
        yield Line(("finetune", str(home.encoder), "--train", str(path), "--dev", str(path), *quick, "--out", out))
        yield Line(
            (
                "distill",
                "--teacher",
                str(home.teacher),
                "--train",
                str(path),
                "--dev",
                str(path),
                *quick,
                "--force",
                "--out",
                f"{out}t",
            )
        )
