"""28: what changed between a stop and its resume, or since a run was complete, is noticed and named before anything is trained."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.attack.attacks import Server, some, summed
from tests.attack.small_home import QUICK, Home

EPOCHS = 5
STOPPED_AT = 20  # lines of the log: in the second epoch


class World(NamedTuple):
    """A user's inputs, and a run on them that was stopped and one that is complete."""

    inputs: Path
    stopped: Path
    complete: Path

    def words(self, out: Path, epochs: int) -> list[str | Path]:
        files = [word for name in ("train", "dev", "test") for word in (f"--{name}", self.inputs / f"{name}.csv")]
        shape = ["--student", "keep_layers:1", "--method", "soft_targets", "--no-baseline", "--epochs", str(epochs)]
        models = [
            "--teacher",
            self.inputs / "teacher",
            "--start",
            self.inputs / "start",
            "--unlabelled",
            self.inputs / "more.txt",
        ]
        quick = [word for word in QUICK if word != "--quiet"]
        return ["distill", *models, *files, *shape, *quick, "--set", "save_every=5", "--force", "--out", out]


@pytest.fixture(scope="module")
def world(home: Home, server: Server, tmp_path_factory: pytest.TempPathFactory) -> World:
    base = tmp_path_factory.mktemp("changed")
    made = World(base / "inputs", base / "stopped", base / "complete")
    shutil.copytree(home.teacher, made.inputs / "teacher")
    shutil.copytree(home.encoder, made.inputs / "start")
    for name in ("train", "dev", "test"):
        shutil.copy(home.folder / f"{name}.csv", made.inputs)
    (made.inputs / "more.txt").write_text("".join(f"a quiet film about summer {n}\n" for n in range(8)))
    shutil.copytree(made.inputs, base / "as-they-were")
    ended = server.run(*made.words(made.stopped, EPOCHS), stop_at=(made.stopped / "stages/0/steps.csv", STOPPED_AT))
    assert ended.code == 143, (ended.code, ended.err)
    ended = server.run(*made.words(made.complete, 1))
    assert ended.code == 0, ended.err
    return made


@contextmanager
def put_back(inputs: Path) -> Iterator[None]:
    """Afterwards all is as it was."""
    yield
    shutil.rmtree(inputs)
    shutil.copytree(inputs.parent / "as-they-were", inputs)


Change = Callable[[Path], None]


def letter(file: str) -> Change:
    """One letter of the text in one row."""

    def change(inputs: Path) -> None:
        lines = (inputs / file).read_text().split("\n")
        place = next(number for number in range(3, len(lines)) if re.match("[a-z]", lines[number]))
        lines[place] = ("b" if lines[place][0] != "b" else "c") + lines[place][1:]
        (inputs / file).write_text("\n".join(lines))

    return change


def label(file: str) -> Change:
    """The label of one row."""

    def change(inputs: Path) -> None:
        lines = (inputs / file).read_text().split("\n")
        head, _, was = lines[4].rstrip("\r").rpartition(",")
        lines[4] = f"{head},{'negative' if was == 'positive' else 'positive'}"
        (inputs / file).write_text("\n".join(lines))

    return change


def cut(file: str) -> Change:
    def change(inputs: Path) -> None:
        lines = (inputs / file).read_text().splitlines(keepends=True)
        (inputs / file).write_text("".join(lines[:-1]))

    return change


def swapped(file: str) -> Change:
    def change(inputs: Path) -> None:
        lines = (inputs / file).read_text().splitlines(keepends=True)
        lines[3], lines[4] = lines[4], lines[3]
        (inputs / file).write_text("".join(lines))

    return change


def weight(model: str) -> Change:
    """The last bit of one number."""

    def change(inputs: Path) -> None:
        path = inputs / model / "model.safetensors"
        weights = load_file(path)
        name = sorted(name for name in weights if name.endswith("dense.weight"))[0]
        weights[name].view(torch.int32).view(-1)[3] ^= 1
        save_file(weights, path, {"format": "pt"})

    return change


def setting(model: str, file: str, key: str, value: object) -> Change:
    def change(inputs: Path) -> None:
        path = inputs / model / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return change


def vocabulary(model: str) -> Change:
    """Two pieces change places."""

    def change(inputs: Path) -> None:
        path = inputs / model / "tokenizer.json"
        told = json.loads(path.read_text())
        pieces = told["model"]["vocab"]
        first, second = sorted(piece for piece in pieces if piece.isalpha())[:2]
        pieces[first], pieces[second] = pieces[second], pieces[first]
        path.write_text(json.dumps(told))

    return change


FILES: dict[str, tuple[Change, str]] = {  # by what is changed: how, and what the message must name
    "a label of train": (label("train.csv"), "train"),
    "a weight of the teacher": (weight("teacher"), "teacher"),
    "a letter of test": (letter("test.csv"), "test"),
    "a setting of the teacher": (setting("teacher", "config.json", "hidden_act", "tanh"), "teacher"),
    "a letter of train": (letter("train.csv"), "train"),
    "a letter of dev": (letter("dev.csv"), "dev"),
    "a label of dev": (label("dev.csv"), "dev"),
    "a label of test": (label("test.csv"), "test"),
    "a letter of the unlabelled rows": (letter("more.txt"), "unlabelled|more.txt"),
    "a row less of train": (cut("train.csv"), "train"),
    "a row less of dev": (cut("dev.csv"), "dev"),
    "a row less of test": (cut("test.csv"), "test"),
    "a row less of the unlabelled": (cut("more.txt"), "unlabelled|more.txt"),
    "two rows of train swapped": (swapped("train.csv"), "train"),
    "the teacher's vocabulary": (vocabulary("teacher"), "teacher|tokenizer"),
    "a weight of the start": (weight("start"), "start"),
    "a setting of the start": (setting("start", "config.json", "hidden_act", "tanh"), "start"),
    "the start's vocabulary": (vocabulary("start"), "start|tokenizer"),
}
WORDS: dict[str, tuple[list[str], str]] = {  # by setting: the words that change it, and what the message must name
    "rate": (["--set", "optimizer.rate=0.0100001"], "rate"),
    "seed": (["--seed", "1"], "seed"),
    "epochs": (["--epochs", "6"], "epochs"),
    "batch": (["--set", "batch=9"], "batch"),
    "length": (["--length", "17"], "length"),
    "method": (["--method", "hard_labels"], "method|hard_labels"),
    "temperature": (["--set", "method.temperature=4.9"], "temperature"),
    "student": (["--student", "keep_layers:2"], "student|layers"),
    "dropout": (["--set", "dropout=0.01"], "dropout"),
    "label map": (["--label-map", "positive=0,negative=1"], "label_map|label-map"),
    "seeds": (["--seeds", "2"], "seeds"),
}


def named(told: str, pattern: str) -> bool:
    """In the message, not in a path of this test's own folder."""
    message = told[told.rfind("potstill: ") :]
    return re.search(pattern, re.sub(r"/\S*?/(inputs|stopped|complete)(?=\W)", "", message)) is not None


def what_went_wrong(server: Server, words: list[str | Path], pattern: str) -> str | None:
    ended = server.run(*words)
    if fault := ended.fault((2,)):
        return fault
    if not named(ended.err, pattern):
        return f"it is not named ({pattern}): {ended.err[-250:]!r}"
    return None


def test_28_what_changed_since_a_stop_is_named(
    world: World, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    cases, wrong = some([*FILES, *WORDS], 5, first=3), []
    for name in cases:
        out = world.stopped
        kept = Path(shutil.copytree(out, tmp_path / "kept"))
        with put_back(world.inputs):
            change, pattern = FILES[name] if name in FILES else (None, WORDS[name][1])
            if change:
                change(world.inputs)
            more = WORDS[name][0] if name in WORDS else []
            if fault := what_went_wrong(server, [*world.words(out, EPOCHS), *more], pattern):
                wrong.append(f"{name}: {fault}")
        shutil.rmtree(out, ignore_errors=True)
        kept.rename(out)
    assert not wrong, summed(wrong, len(cases))
    figure(28, f"{len(cases)} of {len(cases)} changes named when a stopped run goes on")


def test_28_what_changed_since_a_run_is_complete_is_named(
    world: World, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    cases, wrong = some(reversed(FILES), 3), []
    for name in cases:
        kept = Path(shutil.copytree(world.complete, tmp_path / "kept"))
        with put_back(world.inputs):
            change, pattern = FILES[name]
            change(world.inputs)
            if fault := what_went_wrong(server, world.words(world.complete, 1), pattern):
                wrong.append(f"{name}: {fault}")
        shutil.rmtree(world.complete, ignore_errors=True)
        kept.rename(world.complete)
    assert not wrong, summed(wrong, len(cases))
    figure(28, f"{len(cases)} of {len(cases)} when a complete one is asked for again")


def test_28_what_has_not_changed_goes_on_and_what_is_accepted_too(world: World, server: Server, tmp_path: Path) -> None:
    """Else all of the above could hold by refusing everything."""
    kept = Path(shutil.copytree(world.stopped, tmp_path / "kept"))
    ended = server.run(*world.words(world.stopped, EPOCHS))
    assert ended.fault((0,)) is None and "continuing at step" in ended.err, ended.err
    shutil.rmtree(world.stopped)
    kept.rename(world.stopped)
    kept = Path(shutil.copytree(world.stopped, tmp_path / "kept"))
    with put_back(world.inputs):
        FILES["a label of train"][0](world.inputs)
        ended = server.run(*world.words(world.stopped, EPOCHS), "--accept-changes")
        assert ended.fault((0,)) is None, ended.err
        assert "continuing at step" in ended.err
    shutil.rmtree(world.stopped)
    kept.rename(world.stopped)


@pytest.mark.slow
def test_28_what_changed_between_two_seeds_is_named(world: World, server: Server, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*world.words(out, 4), "--seeds", "2"]
    ended = server.run(*words, stop_at=(out / "seed-1/stages/0/steps.csv", 3))
    assert ended.code == 143, (ended.code, ended.err)
    with put_back(world.inputs):
        FILES["a label of train"][0](world.inputs)
        assert what_went_wrong(server, words, "train") is None


@pytest.mark.slow
def test_28_fewer_seeds_than_a_complete_run_has_are_not_answered_by_all_of_them(
    world: World, server: Server, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert server.run(*world.words(out, 1), "--seeds", "3").code == 0
    assert what_went_wrong(server, [*world.words(out, 1), "--seeds", "2"], "seeds") is None


@pytest.mark.slow
@pytest.mark.parametrize("key, value", [("hidden_act", "tanh"), ("hidden_dropout_prob", 0.5)])
def test_28_a_baseline_is_not_taken_for_that_of_another_network(
    key: str, value: object, home: Home, server: Server, tmp_path: Path
) -> None:
    """The start's settings are changed, its weights are not: what the cache then gives is what an empty one would give."""
    teacher = Path(shutil.copytree(home.teacher, tmp_path / "teacher"))
    words = [
        "distill",
        "--teacher",
        str(teacher),
        *home.rows(),
        "--student",
        "keep_layers:1",
        "--method",
        "soft_targets",
    ]
    words += [
        "--epochs",
        "1",
        "--length",
        "16",
        "--set",
        "batch=8",
        "--set",
        "optimizer.rate=0.01",
        "--set",
        "timing=none",
        "--quiet",
        "--force",
    ]
    shared, empty = (
        {"POTSTILL_CACHE": str(tmp_path / name), "POTSTILL_STAGES_GB": "20"} for name in ("shared", "empty")
    )
    assert server.run(*words, "--out", tmp_path / "before", env=shared).code == 0
    setting(".", "config.json", key, value)(teacher)
    for name, env in (("with", shared), ("without", empty)):
        assert server.run(*words, "--out", tmp_path / name, env=env).code == 0
    ours, theirs, before = (
        (tmp_path / name / "baseline/model.safetensors").read_bytes() for name in ("with", "without", "before")
    )
    assert ours == theirs
    assert before != theirs, "the setting matters"
