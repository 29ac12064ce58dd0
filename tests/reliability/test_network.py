"""Nothing is asked of the network unless a name of the hub is given, and then not where HF_HUB_OFFLINE forbids it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from potstill.models.student import save_student
from tests.support.commands import FAST, patient
from tests.support.small_models import small_model

CUT = """
import socket

def refuse(*arguments, **_):
    raise SystemExit("the network was asked: %r" % (arguments[1:],))

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
"""


def cut_off(tmp_path: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a Python whose sockets do not connect."""
    (tmp_path / "cut").mkdir(exist_ok=True)
    (tmp_path / "cut/sitecustomize.py").write_text(CUT)
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    paths = [str(tmp_path / "cut"), *(path for path in sys.path if path)]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), **more}
    command = [sys.executable, "-m", "potstill", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_a_whole_run_needs_no_network(home: Path, tmp_path: Path) -> None:
    ended = cut_off(tmp_path, *patient(home), "--epochs", "1", *FAST, "--out", tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    student = tmp_path / "run/student"
    for words in (
        ["export", student, "--to", "onnx"],
        ["predict", student, home / "test.csv"],
        ["report", tmp_path / "run"],
    ):
        ended = cut_off(tmp_path, *words)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_name_of_the_hub_asks_it_unless_that_is_forbidden(home: Path, tmp_path: Path) -> None:
    """Also where the cache of the hub holds the model already: that one is taken."""
    words = ["predict", "owner/name", home / "test.csv"]
    hub = {"HF_HOME": str(tmp_path / "hub")}
    asked = cut_off(tmp_path, *words, **hub)
    assert asked.returncode != 0 and "the network was asked" in asked.stderr, asked.stderr
    offline = cut_off(tmp_path, *words, **hub, HF_HUB_OFFLINE="1")
    assert offline.returncode == 2 and "the network was asked" not in offline.stderr
    assert "there is no folder owner/name" in offline.stderr and "Traceback" not in offline.stderr

    cached = tmp_path / "hub/hub/models--owner--name"
    save_student(small_model("bert"), cached / "snapshots/0123456789012345678901234567890123456789")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("0123456789012345678901234567890123456789")
    known = cut_off(tmp_path, *words, **hub, HF_HUB_OFFLINE="1")
    assert known.returncode == 0 and len(known.stdout.splitlines()) == 80, known.stderr
    shutil.rmtree(tmp_path / "hub")
