"""30: a command that was killed at any moment of its life is done by the same command, written again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack.attacks import Server, lost, many, summed
from tests.attack.small_home import Home


def test_30_runs_killed_at_any_moment_end_in_the_same_student_and_baseline(
    home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """While it prepares, asks, trains, makes the baseline, saves or measures; each kill with a cache of its own."""
    words = [word for word in home.distill("--epochs", "2", "--set", "save_every=3") if word != "--no-baseline"]
    parts = ("student/model.safetensors", "baseline/model.safetensors")

    def run(name: str, seconds: float = 120.0) -> tuple[int, float, str]:
        env = {"POTSTILL_CACHE": str(tmp_path / f"{name}-cache"), "POTSTILL_STAGES_GB": "20"}
        ended = server.run(*words, "--out", tmp_path / name, env=env, seconds=seconds)
        return ended.code, ended.seconds, ended.fault((0,)) or ""

    code, whole, _ = run("whole")
    assert code == 0
    expected = [(tmp_path / "whole" / part).read_bytes() for part in parts]
    count, wrong, killed = many(30, 1), [], 0
    for number in range(count):
        chance = random.Random(f"kill {number}")
        for _ in range(chance.choice((1, 1, 2))):
            code, _, _ = run(str(number), whole * chance.uniform(0.1, 0.95))
            killed += code == -9
        _, _, fault = run(str(number))
        if fault:
            wrong.append(f"{number}: {fault}")
        elif [(tmp_path / str(number) / part).read_bytes() for part in parts] != expected:
            wrong.append(f"{number}: another student or baseline")
        shutil.rmtree(tmp_path / str(number))
    assert not wrong, summed(wrong, count)
    assert killed >= count / 2
    figure(30, f"{killed} kills of runs at any moment, the same student and baseline")


@pytest.mark.slow
def test_30_replacing_a_run_that_is_killed_loses_no_notes(home: Home, server: Server, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = home.distill("--out", out)
    ended = server.run(*words)
    assert ended.code == 0
    notes = {str(out / place): b"theirs\n" for place in ("notes.txt", "student/notes.txt")}
    wrong = []
    for number in range(many(20, 2)):
        for path in notes:
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(b"theirs\n")
        seconds = ended.seconds * random.Random(f"replace {number}").uniform(0.1, 0.95)
        server.run(*words, "--overwrite", seconds=seconds)
        again = server.run(*words, *(["--overwrite"] if number % 2 else []))
        if gone := lost(notes):
            wrong.append(f"{number}: {gone}")
        elif fault := again.fault((0, 2) if number % 2 == 0 else (0,)):
            wrong.append(f"{number}: {fault}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "int8", "huffman"])
def test_30_exports_that_were_killed_can_be_made_again_in_their_place(
    form: str, home: Home, server: Server, tmp_path: Path, figure: Callable[..., None]
) -> None:
    words = ["export", home.teacher, "--to", form, "--out"]
    ended = server.run(*words, tmp_path / "whole")
    assert ended.code == 0
    count, wrong = many(8), []
    for number in range(count):
        out = tmp_path / str(number)
        server.run(*words, out, seconds=ended.seconds * (0.2 + 0.75 * number / count))
        again = server.run(*words, out)
        if again.code == 2 and "--overwrite" in again.err:
            again = server.run(*words, out, "--overwrite")
        if fault := again.fault((0,)):
            wrong.append(f"{number}: {fault}")
        elif left := [
            path.name for path in out.iterdir() if path.name not in {one.name for one in (tmp_path / "whole").iterdir()}
        ]:
            wrong.append(f"{number}: {left} is left")
    assert not wrong, summed(wrong, count)
    figure(30, f"{count} killed exports to {form} made again")
