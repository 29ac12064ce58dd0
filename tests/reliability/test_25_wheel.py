from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ("src", "pyproject.toml", "README.md", "LICENSE")
TESTED = (
    "tests",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LOG.md",
    "LICENSE",
)  # everything but the source


def copied(names: tuple[str, ...], to: Path) -> Path:
    to.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "reliability"))
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "POTSTILL_CACHE")}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=cwd, env=plain)


@pytest.mark.slow
def test_25_the_wheel_passes_the_tests_without_the_source_and_with_warnings_as_errors(
    tmp_path: Path, figure: Callable[..., None]
) -> None:
    source = copied(SOURCE, tmp_path / "source")
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, cwd=source)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    shutil.rmtree(source)

    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    tools = ["pytest", "pytest-xdist", "hypothesis", f"{wheel}[onnx,text,track]"]
    installed = run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *tools, cwd=tmp_path)
    if installed.returncode:
        pytest.skip(f"the pinned packages cannot be had here: {installed.stderr.strip().splitlines()[-1]}")
    checked = run(python, "-m", "pip", "check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout

    place = copied(TESTED, tmp_path / "place")
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    lists = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    lists["addopts"] = [lists["addopts"][0].replace("-q", "")]  # so that the tests are counted
    lists["filterwarnings"] = ["error", *lists["filterwarnings"]]
    lines = [f"{name} =\n" + "".join(f"    {line}\n" for line in value) for name, value in lists.items()]
    (place / "pytest.ini").write_text("[pytest]\n" + "".join(lines))
    where = run(python, "-c", "import potstill; print(potstill.__file__)", cwd=place)
    assert where.stdout.startswith(str(tmp_path / "venv"))
    ended = run(
        python,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--show-capture=no",
        "-n",
        "2",
        "--dist",
        "loadfile",
        cwd=place,
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
    counted = re.search(r"(\d+) passed", ended.stdout)
    figure(25, f"pip check clean, {counted[1] if counted else 'all'} tests pass")
