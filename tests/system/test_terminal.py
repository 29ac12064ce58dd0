"""What is printed: nothing acts on the terminal, no encoding ends a command, and a log file stays readable."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import potstill
from potstill.app import cli
from potstill.errors import InputError
from potstill.measuring.comparisons import comparisons, write_predictions
from potstill.measuring.measurements import DamagedError, Measurements
from potstill.measuring.run_folder import read_measurements
from potstill.reporting import console
from potstill.reporting.card import model_card
from potstill.reporting.page import write_report
from potstill.reporting.tables import summary
from potstill.system import display as progress
from potstill.system import terminal
from potstill.system.display import Bar, Display
from potstill.system.terminal import ACTING
from tests.support import run_folders as made_runs

HOSTILE = (
    "a\x1b]0;owned\x07\x1b[2J\x9b31mb\u202egnp\u2066.\r\npotstill: all fine\x85\u2028c\x7f\ud800[/red][link=x]d[/link]"
)
SOURCE = Path(potstill.__file__).parent


def acting(text: str) -> list[str]:
    """Characters that act on a terminal, other than the ends of lines."""
    return [one for one in ACTING.findall(text) if one != "\n"]


def hostile_table() -> None:
    console.print_rows(["", HOSTILE], [[HOSTILE, HOSTILE]])


def hostile_measurements() -> None:
    found = made_runs.measurements(HOSTILE, labels=(HOSTILE, "b"))
    found["models"][HOSTILE] = found["models"]["distilled"]
    found["signatures"] = {HOSTILE: HOSTILE}
    found["grid"] = [{HOSTILE: HOSTILE, "dev": 0.5}]
    found["differences"].append({**found["differences"][0], "model": HOSTILE, "words": HOSTILE})
    console.print_measurements(Measurements.from_json(found))
    console.print_comparisons(Measurements.from_json(found).differences)
    console.print_grid(found["grid"])


def hostile_log() -> None:
    terminal.make_printing_safe()
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("a library that reads a model's config")
    logger.addHandler(handler)
    logger.warning("a model of type %s", HOSTILE)
    logger.removeHandler(handler)


def hostile_warning() -> None:
    terminal.make_printing_safe()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = (
            lambda message, *where, **more: print(  # as Python's own, which pytest replaces
                warnings.formatwarning(message, *where[:3]), file=sys.stderr
            )
        )
        warnings.warn(HOSTILE, stacklevel=1)


def hostile_bar() -> None:
    bar = Bar(HOSTILE, 10, "row")
    bar.reported -= 3600
    bar.advance(5, {"loss": "0.1"})


PRINTED: list[Callable[[], None]] = [
    lambda: Display().say(HOSTILE),
    lambda: terminal.print_error(InputError(HOSTILE)),
    lambda: terminal.print_line(HOSTILE),
    lambda: terminal.print_generated(HOSTILE),
    lambda: terminal.print_json({HOSTILE: [HOSTILE]}),
    lambda: terminal.print_json({HOSTILE: [HOSTILE]}, indent=1),
    hostile_table,
    hostile_measurements,
    hostile_log,
    hostile_warning,
    hostile_bar,
]


@pytest.mark.parametrize("prints", PRINTED, ids=range(len(PRINTED)))
def test_nothing_that_is_printed_acts_on_the_terminal(
    prints: Callable[[], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")  # without it, a heading is bold by an ESC of our own
    prints()
    told = capsys.readouterr()
    assert "owned" in told.out + told.err, "nothing was printed"
    assert not acting(told.out) and not acting(told.err)
    assert not any(line.startswith("potstill: all fine") for line in (told.out + told.err).splitlines()[1:])


def test_json_keeps_every_character_as_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({"text": HOSTILE, "é": 1.5})
    told = capsys.readouterr().out
    assert json.loads(told) == {"text": HOSTILE, "é": 1.5}
    assert "é" in told and len(told.splitlines()) == 1


def test_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(Exception, match="not finite numbers"):
        terminal.print_json({"probability": float("nan")})


def test_only_one_module_prints() -> None:
    """Else a label could reach the terminal around it."""
    for file in SOURCE.rglob("*.py"):
        names = [
            node.func.id
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        assert "print" not in names or file.name == "terminal.py", (
            f"{file} prints; write put or say of potstill.terminal"
        )


@pytest.mark.parametrize("name", ["nosuch\x1b[2J\u009b", "\x1b]0;owned\x07.toml"])
def test_an_error_shows_a_name_without_obeying_it(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["potstill", "show", name])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and "\\x1b" in told.err and not acting(told.out + told.err)


ENCODINGS = pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])


def narrow(encoding: str, monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Standard output and error of an encoding that lacks most characters."""
    raw = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding=encoding, write_through=True))
    return raw


@ENCODINGS
def test_everything_is_printed_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = narrow(encoding, monkeypatch)
    found = made_runs.measurements("kd", seeds=2, labels=("négatif", "好"))
    found["models"]["学生"] = found["models"]["distilled"]

    def show() -> None:
        console.print_measurements(Measurements.from_json(found))
        console.print_comparisons(Measurements.from_json(found).differences)

    monkeypatch.setattr(cli, "app", show)
    cli.main()
    terminal.print_json({"label": "好 é"})
    Display().say("学生 – 3 × 4 ± 1 … fertig")
    text = written.getvalue().decode(encoding)
    lines = text.splitlines()
    assert "\\u5b66\\u751f" in text and json.loads(lines[-2]) == {"label": "好 é"}
    table = lines[: next(place for place, line in enumerate(lines) if line.startswith("distilled against"))]
    assert len(table) > 8 and len({len(line) for line in table}) == 1  # columns stay columns


@ENCODINGS
@pytest.mark.parametrize("command", [["list", "recipes"], ["show", "pkd-sst2"], ["--help"], ["distill", "--help"]])
def test_commands_end_well_in_ascii(encoding: str, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = narrow(encoding, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["potstill", *command])
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code
    assert len(written.getvalue()) > 300


def test_a_model_without_any_score_has_dashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A teacher that is a file of answers is not scored where dev and test carry none."""
    found = made_runs.measurements()
    found["models"]["teacher"] = {"quality": {}, "parameters": None, "parts": {}, "bytes": None}
    found["models"]["bare"] = {}
    read = Measurements.from_json(found)
    table = summary(read)
    header, by_name = table.head, {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert set(by_name["teacher"]) == set(by_name["bare"]) == {"–"}
    assert by_name["distilled"][header.index("same as teacher") - 1] == "87.4"
    console.print_measurements(read)
    assert "teacher" in capsys.readouterr().out
    assert "| teacher | – |" in model_card(read, made_runs.RECIPE)
    run = made_runs.write_run(tmp_path / "run", found, logs=False)
    assert "teacher" in write_report([run], tmp_path / "page.html").read_text()


ODD: list[Any] = [None, 3, "x", [None], [[]], {"task": None}, {"task": {}}, {"task": []}, {"task": [1]}]


@pytest.mark.parametrize("key", ["metrics", "labels", "tasks", "seeds", "differences", "grid", "models"])
def test_damaged_measurements_are_refused_by_their_name(tmp_path: Path, key: str) -> None:
    whole = made_runs.measurements()
    for place, value in enumerate(ODD):
        run = made_runs.write_run(tmp_path / str(place), {**whole, key: value}, logs=False)
        try:
            Measurements.from_json({**whole, key: value})
        except DamagedError as error:
            assert str(error) == key
            with pytest.raises(InputError, match=r"measurements\.json .*; write"):
                read_measurements(run)
    with pytest.raises(DamagedError, match=f"^{key}$"):
        Measurements.from_json({**whole, key: None})
    assert Measurements.from_json(whole).to_json() == {**Measurements().to_json(), **whole}


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": {}},
        {"labels": {}},
        {"metrics": {"task": ["nosuch"]}},
        {"tasks": {"task": "nosuch"}},
        {"labels": {"task": []}},
    ],
)
def test_answers_that_do_not_fit_their_measurements_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    np = pytest.importorskip("numpy")
    gold, said = np.zeros(8, np.float32), np.ones((8, 2), np.float32)
    runs = []
    for name, found in (("good", made_runs.measurements("good")), ("bad", {**made_runs.measurements("bad"), **change})):
        runs.append(made_runs.write_run(tmp_path / name, found, logs=False))
        write_predictions(
            runs[-1] / "answers.safetensors", {("targets", "task", "test"): gold, ("distilled", "task", "test"): said}
        )
    try:
        comparisons(runs)
    except InputError as error:
        assert "bad" in str(error) and "--overwrite" in str(error)
    (runs[1] / "measurements.json").write_text(json.dumps(made_runs.measurements("bad")))
    (runs[1] / "answers.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    with pytest.raises(InputError, match="do not fit together"):
        comparisons(runs)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_log_file_has_a_line_now_and_then_and_no_bars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with Display().bar("asking the teacher", 3600) as bar:
        for _ in range(3600):
            clock.now += 1.0
            bar.advance(1)
    told = capsys.readouterr().err
    assert "\r" not in told and "\x1b" not in told
    lines = told.splitlines()
    assert 10 <= len(lines) <= 40
    assert lines[0] == "asking the teacher: 180 of 3600 rows, 5 %, about 57 min left"
    with Display().bar("quick", 100) as bar:  # what is done at once needs no line
        bar.advance(100)
    with Display(quiet=True).bar("quiet", 2) as bar:
        clock.now += 999
        bar.advance(1)
    slow = Bar("slow", 1_000_000, "step")
    clock.now += 301
    slow.advance(1, {"loss": "0.5"})
    assert capsys.readouterr().err == "slow: 1 of 1000000 steps, 0 %, about 83611.0 h left; loss 0.5\n"


def test_a_terminal_has_bars(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "is_terminal", lambda: True)
    with Display().bar("asking", 10) as bar:
        bar.bar.delay = 0
        bar.bar.mininterval = 0
        bar.advance(5)
        bar.advance(2)
    assert "asking" in capsys.readouterr().err
