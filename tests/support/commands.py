"""The command line inside the test process, and the small world that its tests share."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from potstill.app import cli
from potstill.models import student as students
from potstill.training import checkpoints
from tests.support.small_models import sentences, small_model, write_csv

FAST = ["--set", "optimizer.rate=0.003", "--set", "batch=8", "--set", "dropout=0", "--length", "32", "--quiet"]
# bits are compared, also with those of other machines
FAST += ["--set", "timing=none", "--set", "precision=float32"]


def potstill(*words: str | Path) -> int:
    """The command in this process; returns the exit code."""
    before, sys.argv = sys.argv, ["potstill", *map(str, words)]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


def measurements(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "measurements.json").read_text()))


@cache
def made_home(train: int, held: int) -> Path:
    """Once in a process; it is copied for those who use it, so that nobody finds what another one has written."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=os.environ["POTSTILL_CACHE"]))
    for name, rows, seed in (("train", train, 1), ("dev", held, 2), ("test", held, 3)):
        write_csv(home / f"{name}.csv", sentences(rows, seed))
    students.save_student(small_model("bert"), home / "encoder")
    code = potstill("finetune", home / "encoder", *files(home), "--epochs", "6", "--out", home / "teacher", *FAST)
    assert code == 0
    return home


def make_home(home: Path, train: int, held: int) -> Path:
    """Rows, an encoder, and a teacher that the finetune command made of it."""
    return Path(shutil.copytree(made_home(train, held), home, dirs_exist_ok=True))


def files(home: Path) -> list[str]:
    return [word for name in ("train", "dev", "test") for word in (f"--{name}", str(home / f"{name}.csv"))]


def patient(home: Path) -> list[str | Path]:
    """The plain distillation that several tests vary: two layers by Patient KD, without a baseline."""
    shape = ["--student", "keep_layers:2", "--method", "patient", "--no-baseline"]
    return ["distill", "--teacher", home / "teacher/student", *files(home), *shape]


def command(*words: str | Path, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "potstill", *map(str, words)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


def killed_after(saves: int, words: list[str | Path]) -> None:
    """The command, killed after so many checkpoints. Runs in a child: no chance to tidy up."""
    really = checkpoints.save
    done = 0

    def save(*arguments: Any) -> Any:
        nonlocal done
        kept = really(*arguments)
        done += 1
        if done == saves:
            os.kill(os.getpid(), signal.SIGKILL)
        return kept

    checkpoints.save = save  # type: ignore[assignment]
    potstill(*words)
