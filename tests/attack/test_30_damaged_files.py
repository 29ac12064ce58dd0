"""30: damaged caches, models, exports, checkpoints and measurements are mended, or refused with what to do: never a traceback."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash

from potstill.data.examples import store
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.errors import InputError
from potstill.models.student import load_student
from potstill.tasks.label_matching import labels_of, make_task
from tests.attack.attacks import Server, many, summed
from tests.attack.damages import damaged, damaged_bytes, files_of
from tests.attack.small_home import QUICK, Home

SECONDS = 120.0


@pytest.fixture(scope="module")
def run(home: Home, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete one."""
    out = tmp_path_factory.mktemp("runs") / "run"
    made = server.run(*home.distill("--out", out))
    assert made.code == 0, made.err
    return out


def told(kind: str, wrong: list[str], tried: int) -> None:
    if path := os.environ.get("POTSTILL_FAULTS"):
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{kind} {one}\n" for one in wrong)
    assert not wrong, summed(wrong, tried)


def test_30_reports_of_damaged_runs(
    home: Home, run: Path, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    count, wrong = many(130, 4), []
    for number in range(count):
        chance = random.Random(f"report {number}")
        place = Path(shutil.copytree(run, tmp_path / str(number)))
        files = [place / "measurements.json"] * 3 + [
            place / name for name in ("recipe.toml", "answers.safetensors", "stages/0/steps.csv")
        ]
        what = damaged(chance, chance.choice([path for path in files if path.exists()]))
        others = [run] if chance.random() < 0.4 else []
        ended = server.run("report", place, *others, "--out", tmp_path / f"{number}.html", seconds=SECONDS)
        if fault := ended.fault((0, 2)):
            wrong.append(f"{number} ({'several' if others else 'one'}), {what}: {fault}")
        shutil.rmtree(place)
    told("report", wrong, count)
    figure(30, f"{count} damaged runs reported or refused")


def test_30_damaged_models(home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]) -> None:
    count, wrong = many(150, 5), []
    for number in range(count):
        chance = random.Random(f"model {number}")
        place = Path(shutil.copytree(home.teacher, tmp_path / str(number)))
        names = ("config.json",) * 4 + ("tokenizer.json", "tokenizer_config.json") * 2 + ("model.safetensors",)
        what = damaged(chance, place / chance.choice(names))
        words = ["measure", place, "--data", home.folder / "test.csv"] if number % 2 else ["predict", place]
        ended = server.run(*words, stdin=b"a good film\n" + b"bad " * 400 + b"\n", seconds=SECONDS)
        if fault := ended.fault((0, 2)):
            wrong.append(f"{number} ({words[0]}), {what}: {fault}")
        shutil.rmtree(place)
    told("model", wrong, count)
    figure(30, f"{count} damaged models answered or refused")


@pytest.mark.slow  # it forks, which is safe only where no library has started threads: make attack runs it
def test_30_damaged_rows_in_the_cache(
    home: Home, tmp_path: Path, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read again is what was written, whatever happened to the files."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("POTSTILL_CACHE", str(cache))
    tokenizer = load_student(home.teacher).tokenizer

    def read() -> str:
        table = open_table(home.folder / "dev.csv")
        task, _ = make_task(None, None, labels_of(table), None, table.source, table.form)
        examples = store(table, task)
        tokens = tokenise(task, examples, tokenizer, 16)
        rows = np.arange(len(examples))
        parts = [list(examples.texts()), examples.keys.tolist(), examples.targets.tolist(), examples.labelled.tolist()]
        parts += [
            len(examples.labelled_only),
            tokens.lengths(rows).tolist(),
            tokens.ids.tolist(),
            tokens.segments.tolist(),
            tokens.shortened,
        ]
        return xxhash.xxh3_128_hexdigest(repr(parts).encode())

    whole = in_a_fork(read)
    pattern = Path(shutil.copytree(cache, tmp_path / "pattern"))
    count, wrong = many(120, 12), []
    for number in range(count):
        chance = random.Random(f"rows {number}")
        shutil.rmtree(cache)
        shutil.copytree(pattern, cache)
        what = damaged(chance, chance.choice(files_of(cache)))
        found = in_a_fork(read)
        if found != whole and not found.startswith("InputError"):
            wrong.append(f"{number}, {what}: {'other rows' if len(found) == 32 else found}")
    told("rows", wrong, count)
    figure(30, f"{count} damaged caches of rows mended")


def in_a_fork(read: Callable[[], str]) -> str:
    """What it says, or how it ended: nothing that was looked at before is remembered."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            said = read()
        except InputError as error:
            said = f"InputError: {error}" if ";" in str(error) else f"without what to do: {error}"
        except BaseException as error:
            said = f"a traceback: {type(error).__name__}: {str(error)[:200]}"
        os.write(writing, said.encode("utf-8", "backslashreplace")[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode()
    _, status = os.waitpid(child, 0)
    return said or f"ended with {os.waitstatus_to_exitcode(status)}"


def test_30_damaged_checkpoints_go_on_to_the_same_student(
    home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """One damaged file among checkpoints, best epochs and notes of a stopped run."""
    words = [*home.distill("--epochs", "3", "--set", "save_every=4")]
    assert server.run(*words, "--out", tmp_path / "whole").code == 0
    whole = (tmp_path / "whole/student/model.safetensors").read_bytes()
    stopped = tmp_path / "stopped"
    ended = server.run(*words, "--out", stopped, stop_at=(stopped / "stages/0/steps.csv", 30))
    assert ended.code == 143, (ended.code, ended.err)
    count, wrong = many(40, 2), []
    for number in range(count):
        chance = random.Random(f"checkpoint {number}")
        place = Path(shutil.copytree(stopped, tmp_path / str(number)))
        files = files_of(place)
        lists = [path for path in files if "best" in path.parts or "checkpoints" in path.parts]
        what = damaged(
            chance, chance.choice(lists if number % 4 else [path for path in files if path not in lists] or lists)
        )
        ended = server.run(*words, "--out", place, seconds=SECONDS)
        if fault := ended.fault((0,) if number % 4 else (0, 2)):
            wrong.append(f"{number}, {what}: {fault}")
        elif ended.code == 0 and (place / "student/model.safetensors").read_bytes() != whole:
            wrong.append(f"{number}, {what}: another student")
        shutil.rmtree(place)
    told("checkpoint", wrong, count)
    figure(30, f"{count} damaged checkpoints and notes of a stopped run: the same student, or refused")


def test_30_damaged_caches_give_the_same_student(
    home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """One damaged file among rows, tokens, the teacher's memory and the results of stages."""
    cache = tmp_path / "cache"
    env = {"POTSTILL_CACHE": str(cache), "POTSTILL_STAGES_GB": "20"}
    words = [word for word in home.distill() if word != "--no-baseline"]
    assert server.run(*words, "--out", tmp_path / "whole", env=env).code == 0
    parts = ("student/model.safetensors", "baseline/model.safetensors")
    whole = [(tmp_path / "whole" / part).read_bytes() for part in parts]
    pattern = Path(shutil.copytree(cache, tmp_path / "pattern"))
    count, wrong = many(60, 1), []
    for number in range(count):
        chance = random.Random(f"cache {number}")
        shutil.rmtree(cache)
        shutil.copytree(pattern, cache)
        kind = chance.choice(sorted(path for path in cache.iterdir() if path.is_dir()))
        if kind.name != "stages":  # else nothing is trained, and what is damaged is not read
            shutil.rmtree(cache / "stages")
        path = chance.choice(files_of(kind))
        what = f"{kind.name}: {damaged(chance, path)}"
        out = tmp_path / str(number)
        ended = server.run(*words, "--out", out, env=env, seconds=SECONDS)
        if fault := ended.fault((0,)):
            wrong.append(f"{number}, {what}: {fault}")
        elif [(out / part).read_bytes() for part in parts] != whole:
            wrong.append(f"{number}, {what}: another student or baseline")
        shutil.rmtree(out, ignore_errors=True)
    told("cache", wrong, count)
    figure(30, f"{count} damaged caches: the same student and baseline")


def test_30_damaged_files_of_a_complete_run(
    home: Home, run: Path, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """The same command again."""
    count, wrong = many(60, 1), []
    out = tmp_path / "run"
    words = home.distill("--out", out)
    assert server.run(*words).code == 0
    pattern = Path(shutil.copytree(out, tmp_path / "pattern"))
    for number in range(count):
        chance = random.Random(f"complete {number}")
        shutil.rmtree(out)
        shutil.copytree(pattern, out)
        what = damaged(chance, chance.choice([path for path in files_of(out) if "student" not in path.parts]))
        ended = server.run(*words, *(["--overwrite"] if number % 5 == 0 else []), seconds=SECONDS)
        if fault := ended.fault((0, 2)):
            wrong.append(f"{number}, {what}: {fault}")
    told("complete", wrong, count)
    figure(30, f"{count} damaged complete runs read, made again or refused")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "int8", "huffman"])
def test_30_damaged_exports(form: str, home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]) -> None:
    assert server.run("export", home.teacher, "--to", form, "--out", tmp_path / "made").code == 0
    count, wrong = many(40), []
    for number in range(count):
        chance = random.Random(f"export {form} {number}")
        place = Path(shutil.copytree(tmp_path / "made", tmp_path / str(number)))
        what = damaged(chance, chance.choice(files_of(place)))
        ended = server.run("predict", place, stdin=b"a good film\nbad\n", seconds=SECONDS)
        if fault := ended.fault((0, 2)):
            wrong.append(f"{number}, {what}: {fault}")
        shutil.rmtree(place)
    told(form, wrong, count)
    figure(30, f"{count} damaged exports to {form} answered or refused")


@pytest.mark.slow
def test_30_damaged_exports_in_the_cache_are_made_again(
    home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """The teacher as ONNX files, whose figures every run shows."""
    cache = tmp_path / "cache"
    env = {"POTSTILL_CACHE": str(cache)}
    quick = [word for word in QUICK if word != "timing=none"]
    quick.pop(quick.index("--quiet") - 1)
    words = [
        "distill",
        "--teacher",
        home.teacher,
        *home.rows(),
        "--student",
        "keep_layers:1",
        "--no-baseline",
        "--epochs",
        "1",
        *quick,
    ]
    ended = server.run(*words, "--out", tmp_path / "whole", env=env, seconds=300)
    assert ended.code == 0, ended.err
    exports = cache / "exports"
    assert any(exports.rglob("*.onnx"))
    pattern = Path(shutil.copytree(exports, tmp_path / "pattern"))
    wrong, count = [], many(8)
    for number in range(count):
        chance = random.Random(f"exports {number}")
        shutil.rmtree(exports)
        shutil.copytree(pattern, exports)
        what = damaged_bytes(chance, chance.choice(files_of(exports)))
        ended = server.run(*words, "--out", tmp_path / str(number), env=env, seconds=300)
        if fault := ended.fault((0,)):
            wrong.append(f"{number}, {what}: {fault}")
    told("exports", wrong, count)
    figure(30, f"{count} damaged exports in the cache made again")
