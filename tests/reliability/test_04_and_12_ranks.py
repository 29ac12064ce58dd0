"""Several processes make the student that one makes, by the commands their users know."""

from __future__ import annotations

import csv
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from potstill.models.student import save_student
from potstill.training.teacher.memory import Memory
from tests.support.commands import FAST, files, make_home, measurements, potstill
from tests.support.small_models import small_model, write_task

ROOT = Path(__file__).parents[2]
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "accelerate": ["accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"],
}


WRITES_DOWN = '''"""Soft targets, and the rows of every micro-batch are written down."""

import os
from dataclasses import dataclass

from potstill.api import Method
from potstill.plugins.methods.soft_targets import SoftTargets


@dataclass(frozen=True)
class WritesDown(Method):
    weight: float = 1.0

    def wants(self, student_layers, teacher_layers):
        return SoftTargets().wants(student_layers, teacher_layers)

    def losses(self, student, teacher, batch):
        with open(f"{os.environ['NOTES']}-{os.environ.get('RANK', '0')}", "a") as file:
            print(*batch.keys.tolist(), file=file)
        return SoftTargets().losses(student, teacher, batch)
'''


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def started(launcher: str | None, *words: str | Path) -> subprocess.Popen[str]:
    before = LAUNCHERS[launcher] if launcher else []
    command = [sys.executable, *(["-m", *before] if before else []), *map(str, words)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ran(launcher: str | None, *words: str | Path) -> str:
    process = started(launcher, *words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return out


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), 96, 40)


def distilled(home: Path) -> list[str | Path]:
    """Twelve steps of several micro-batches each, with dropout; some steps have an odd number of them."""
    more = ["--epochs", "1", "--set", "dropout=0.1", "--set", "tokens=60", "--set", "keep=last", "--no-baseline"]
    shape = ["--student", "keep_layers:2", "--method", "patient"]
    return ["-m", "potstill", "distill", "--teacher", home / "teacher/student", *files(home), *shape, *FAST, *more]


def difference(one: Path, other: Path) -> float:
    ours, theirs = (load_file(place / "student/model.safetensors") for place in (one, other))
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def steps(run: Path) -> list[dict[str, str]]:
    with (run / "stages/0/steps.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_12_two_ranks_make_the_student_of_one_process(
    launcher: str, home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    assert potstill(*distilled(home)[2:], "--set", "dropout=0.1", "--out", tmp_path / "one") == 0
    printed = ran(launcher, *distilled(home), "--set", "dropout=0.1", "--out", tmp_path / "two")
    assert printed.count("distilled against teacher") == 1  # one table, not one per rank
    assert difference(tmp_path / "one", tmp_path / "two") <= 1e-6
    one, two = steps(tmp_path / "one"), steps(tmp_path / "two")
    assert len(one) == len(two) == 12
    for ours, theirs in zip(one, two, strict=True):
        assert (ours["examples"], ours["tokens"]) == (theirs["examples"], theirs["tokens"])
        for name in ("loss", "hard", "soft", "patient", "gradient_norm"):
            assert float(theirs[name]) == pytest.approx(float(ours[name]), rel=1e-5, abs=1e-6)
    ours, theirs = (measurements(tmp_path / name)["models"]["distilled"]["quality"]["task"] for name in ("one", "two"))
    for split in ("dev", "test"):
        assert theirs[split] == pytest.approx(ours[split], abs=1e-6)
    figure(12, "weights differ by {:.0e} at most", difference(tmp_path / "one", tmp_path / "two"))


def test_12_in_bfloat16_two_ranks_make_it_as_closely_as_its_rounding_allows(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """A sum in another order moves a weight by its last bit in float32; rounded to 8 bits, that may become a 256th of a
    product. AdamW divides by the size of a gradient, so that weights may differ by a few steps of the rate."""
    words = [*distilled(home), "--set", "precision=bfloat16", "--out"]
    assert potstill(*words[2:], tmp_path / "one") == 0
    ran("torchrun", *words, tmp_path / "two")
    for ours, theirs in zip(steps(tmp_path / "one"), steps(tmp_path / "two"), strict=True):
        assert float(theirs["loss"]) == pytest.approx(float(ours["loss"]), rel=0.01)
    assert difference(tmp_path / "one", tmp_path / "two") <= 0.003  # the learning rate; 12 steps were taken
    for name in ("one", "two"):
        assert 'precision = "bfloat16"' in (tmp_path / name / "recipe.toml").read_text()
    figure(12, "in bfloat16 by {:.0e}", difference(tmp_path / "one", tmp_path / "two"))


@pytest.mark.slow
def test_12_two_ranks_learn_from_the_copies_of_one_process(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by the first, in a cache of their own, and read by the other."""
    words = [*distilled(home), "--set", "dropout=0.1", "--set", "stage.data=augmented:3", "--out"]
    for name, launcher in (("one", None), ("two", "torchrun")):
        monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / f"cache-{name}"))
        ran(launcher, *words, tmp_path / name)
    assert len(steps(tmp_path / "two")) == len(steps(tmp_path / "one")) > 24
    assert difference(tmp_path / "one", tmp_path / "two") <= 1e-5


@pytest.mark.slow
def test_12_two_ranks_mask_the_tokens_that_one_process_masks(tmp_path: Path) -> None:
    """In two epochs with other masks each, for student and live teacher."""
    save_student(small_model("bert", head="MaskedLM"), tmp_path / "teacher")
    rows = write_task(tmp_path / "rows", "mask", 96, 1)
    words = [
        "-m",
        "potstill",
        "distill",
        "--teacher",
        tmp_path / "teacher",
        "--train",
        rows,
        "--force",
        "--epochs",
        "2",
    ]
    words += ["--student", "keep_layers:2", "--method", "patient", *FAST, "--set", "tokens=200", "--set", "keep=last"]
    for name, launcher in (("one", None), ("two", "torchrun")):
        ran(launcher, *words, "--no-baseline", "--out", tmp_path / name)
    one, two = steps(tmp_path / "one"), steps(tmp_path / "two")
    assert [step["loss"] for step in one[:2]] != [step["loss"] for step in one[2:4]] and len(one) == len(two) > 10
    for ours, theirs in zip(one, two, strict=True):
        for name in ("loss", "hard", "soft", "patient", "gradient_norm"):
            assert float(theirs[name]) == pytest.approx(float(ours[name]), rel=1e-5, abs=1e-6)
    assert difference(tmp_path / "one", tmp_path / "two") <= 1e-5


@pytest.mark.slow
def test_12_memory_built_by_two_ranks_is_that_of_one_process(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """Twelve blocks, which two ranks take in turns: the same bytes."""
    worker = [ROOT / "tests/support/rank_worker.py", home]
    ran(None, *worker, tmp_path / "one", "0")
    assert ran("torchrun", *worker, tmp_path / "two", "0").count("asked 96") == 2
    whole = contents(tmp_path / "one")
    assert len(whole) == 13 and contents(tmp_path / "two") == whole
    figure(12, "memory of two is that of one, byte for byte")


@pytest.mark.slow
def test_12_a_rank_killed_while_remembering_ends_the_job_and_one_process_goes_on(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    worker = [ROOT / "tests/support/rank_worker.py", home]
    begun = time.monotonic()
    dying = started("torchrun", *worker, tmp_path / "killed", "3")
    dying.communicate(timeout=120)
    assert dying.returncode != 0 and time.monotonic() - begun < 60
    assert 0 < len(list((tmp_path / "killed").glob("shard-*"))) < 12
    for name in ("killed", "one"):
        ran(None, *worker, tmp_path / name, "0")
    keys = np.concatenate([shard.keys for shard in Memory(tmp_path / "one")._opened()])
    killed, whole = (Memory(tmp_path / name).read(keys, "cls.2") for name in ("killed", "one"))
    assert np.array_equal(killed, whole)
    figure(12, "memory begun by two and continued by one is the same")


def processes_after(job: subprocess.Popen[str], run: Path, told: int) -> list[int]:
    """Of the job and its ranks, once the run has logged so many lines."""
    log = run / "stages/0/steps.csv"
    while not log.exists() or len(log.read_text().splitlines()) < told:
        assert job.poll() is None
        time.sleep(0.02)
    ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
    return [job.pid, *map(int, ranks)]


def contents(folder: Path) -> dict[str, bytes]:
    """Shards and manifest."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".arrow", ".json")}


@pytest.mark.slow
def test_12_a_dead_rank_ends_the_job_and_one_process_goes_on_to_the_same_student(
    home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    words = [*distilled(home), "--set", "dropout=0.1", "--set", "save_every=1", "--epochs", "40"]
    ran(None, *words, "--out", tmp_path / "whole")
    job = started("torchrun", *words, "--out", tmp_path / "killed")
    os.kill(processes_after(job, tmp_path / "killed", 20)[-1], signal.SIGKILL)
    begun = time.monotonic()
    job.communicate(timeout=60)
    ended = time.monotonic() - begun
    assert job.returncode != 0 and ended < 30
    figure(12, f"all end {ended:.1f} s after a rank's death with code {job.returncode}, and one process goes on")
    ran(None, *words, "--out", tmp_path / "killed")
    # rounding of another order of sums grows over 480 steps at so high a rate; the first steps show what is the same
    whole, killed = steps(tmp_path / "whole"), steps(tmp_path / "killed")
    for ours, theirs in zip(whole, killed, strict=True):  # the same examples at every step, none missing or repeated
        assert (ours["step"], ours["examples"], ours["tokens"]) == (
            theirs["step"],
            theirs["examples"],
            theirs["tokens"],
        )


@pytest.mark.slow
def test_12_a_signal_to_one_rank_saves_and_ends_all(home: Path, tmp_path: Path, figure: Callable[..., None]) -> None:
    job = started("torchrun", *distilled(home), "--epochs", "400", "--out", tmp_path / "run")
    os.kill(processes_after(job, tmp_path / "run", 5)[-1], signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode != 0
    saved = sorted((tmp_path / "run/stages/0/checkpoints").glob("step-*"))
    assert saved and int(saved[-1].name.removeprefix("step-")) == int(steps(tmp_path / "run")[-1]["step"])


def stopped(job: subprocess.Popen[str], run: Path, after: int) -> None:
    """Asked to stop after so many steps, and ended."""
    os.kill(processes_after(job, run, after)[-1], signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(None, None), (None, "torchrun"), ("torchrun", None)])
def test_04_rows_come_in_the_same_order_after_a_resume_on_any_number_of_processes(
    before: str | None,
    after: str | None,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    figure: Callable[..., None],
) -> None:
    (tmp_path / "plugged/methods").mkdir(parents=True)
    (tmp_path / "plugged/methods/writes_down.py").write_text(WRITES_DOWN)
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugged"))
    words = [*distilled(home), "--method", "writes_down", "--epochs", "20"]

    def written(name: str) -> list[list[str]]:
        """The micro-batches of each rank."""
        return [path.read_text().splitlines() for path in sorted(tmp_path.glob(f"{name}-[01]"))]

    def noting(name: str) -> None:
        monkeypatch.setenv("NOTES", str(tmp_path / name))

    noting("whole")
    ran(None, *words, "--out", tmp_path / "whole-run")
    noting("first")
    stopped(started(before, *words, "--out", tmp_path / "run"), tmp_path / "run", 50)
    noting("then")
    ran(after, *words, "--out", tmp_path / "run")
    (whole,) = written("whole")
    cut = sum(map(len, written("first")))
    assert 0 < cut < len(whole)
    for name, there in (("first", whole[:cut]), ("then", whole[cut:])):
        found = written(name)
        assert len(found) == (2 if (before if name == "first" else after) else 1)
        assert sorted(itertools.chain(*found)) == sorted(there)  # none is missing, none is repeated
        for one in found:
            rest = iter(there)
            assert all(batch in rest for batch in one)  # each rank meets its own in the order of one process
    rows = sum(len(batch.split()) for batch in whole)
    assert rows == 20 * 96
    figure(4, f"the {rows:,} rows of 20 epochs in the same order, none missing or repeated: 1 to 1, 1 to 2 and 2 to 1")
