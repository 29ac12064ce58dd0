"""Commands that compute nothing answer at once: listings, help, and every refusal of wrong input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 3.0  # a quiet machine needs a sixth of it; loading torch and transformers alone takes longer on a busy one
HEAVY = {"torch", "transformers", "datasets", "pyarrow", "scipy", "sklearn", "matplotlib", "pandas", "onnxruntime"}
ANSWERS = {
    "list": "methods:",
    "list recipes": "pkd-sst2",
    "show bilstm-sst2-local": "teacher = ",
    "show pkd-mnli --set method.beta=3": "--set",
    "--help": "distill",
    "--version": "potstill ",
    "distill --help": "--teacher",
    "study --help": "--seeds",
}
REFUSALS = {
    "distill --teecher x": "No such option",
    "distill --teacher nosuch --train nosuch.csv": "nosuch.csv: there is no such file",
    "distill --teacher ./nosuch --train rows.csv": "there is no folder ./nosuch",
    "distill --teacher folder --train rows.csv --dev nosuch.csv": "nosuch.csv: there is no such file",
    "distill --teacher folder --train rows.csv --start ./nosuch": "there is no folder ./nosuch",
    "distill --method patient --set method.bta=3 --teacher folder --train rows.csv": "did you mean 'method.beta'",
    "distill --teacher folder --train rows.csv --method patiant": "did you mean 'patient'",
    "distill --teacher folder --train rows.csv --student keep_layer:3": "did you mean 'keep_layers'",
    "distill misspelt.toml": "did you mean 'epochs'",
    "distill pkd-sst3": "did you mean 'pkd-sst2'",
    "plan --teacher ./nosuch --train rows.csv": "there is no folder ./nosuch",
    "finetune ./nosuch --train rows.csv": "there is no folder ./nosuch",
    "train --shape mlp --train nosuch.npz": "nosuch.npz: there is no such file",
    "pretrain --train nosuch.txt": "nosuch.txt: there is no such file",
    "pretrain folder --shape bert:2x8 --train rows.csv": "either MODEL or --shape and --tokenizer, not both",
    "pretrain --train rows.csv --within 30": "write for example --within 30m",
    "pretrain --train rows.csv --shape bert:2": "bert:2 is not a shape; write for example bert:6x384",
    "study size-curve --teacher folder --train nosuch.csv": "nosuch.csv: there is no such file",
    "predict nosuch": "there is no folder nosuch",
    "predict folder nosuch.csv": "nosuch.csv: there is no such file",
    "measure ./nosuch --data x.csv": "there is no folder ./nosuch",
    "measure folder --data x.csv": "x.csv: there is no such file",
    "translate folder nosuch.txt": "nosuch.txt: cannot be read",
    "export ./nosuch --to onnx": "there is no folder ./nosuch",
    "export folder --to onx": "did you mean 'onnx'",
    "export folder --to onnx --agree 0.97": "write --data with rows",
    "augment nosuch.csv --out new.csv": "nosuch.csv: there is no such file",
    "report nosuch": "there is no folder nosuch",
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("text,label\na,0\nb,1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "misspelt.toml").write_text('teacher = "t"\n[data]\ntrain = "x"\n[[stage]]\nepoch = 1\n')
    return tmp_path


def answer(line: str, here: Path) -> tuple[int, str, set[str], float]:
    """Exit code, output, the heavy libraries that were imported, and seconds."""
    sources = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": sources, "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    command = [sys.executable, "-X", "importtime", "-m", "potstill", *line.split()]
    began = time.perf_counter()
    ended = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    imported = set(re.findall(r"^import time:.*\| +(\w+)", ended.stderr, re.MULTILINE))
    messages = re.sub(r"^import time:.*\n", "", ended.stderr, flags=re.MULTILINE)
    return ended.returncode, ended.stdout + messages, imported & HEAVY, seconds


def assert_quick(line: str, here: Path, code: int, words: str) -> None:
    for _ in range(3):
        ended, output, heavy, seconds = answer(line, here)
        assert ended == code and words in output, output
        assert not heavy, f"{', '.join(sorted(heavy))} was imported"
        if seconds < SECONDS:
            return
    pytest.fail(f"{seconds:.1f} seconds, three times")


@pytest.mark.parametrize("line", ANSWERS)
def test_a_question_about_potstill_is_answered_at_once(line: str, here: Path) -> None:
    assert_quick(line, here, 0, ANSWERS[line])


@pytest.mark.parametrize("line", REFUSALS)
def test_wrong_input_is_refused_at_once(line: str, here: Path) -> None:
    assert_quick(line, here, 2, REFUSALS[line])
