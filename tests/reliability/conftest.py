"""Each test of a promise leaves its figure, so that the table of docs/reliability.md says what was reached."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_run import make_home

PROMISE = re.compile(r"reliability/.*::(test_(\d\d)_\w+)")  # the number stands in the test's name


def leave(note: dict[str, Any]) -> None:
    if path := os.environ.get("POTSTILL_FIGURES"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(note, ensure_ascii=False) + "\n")


@pytest.fixture
def figure() -> Callable[..., None]:
    """figure(2, "4 of 4"); or figure(19, "{:.0f} MB or less", 12.3), of which the table shows the largest."""

    def note(number: int, text: str, most: float | None = None) -> None:
        leave({"number": number, "figure": text, "most": most})

    return note


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What was skipped or failed leaves a note as well: a figure of an earlier run must not stand in its place."""
    if not (named := PROMISE.search(report.nodeid)):
        return
    if report.skipped and isinstance(report.longrepr, tuple):
        leave({"number": int(named[2]), "skipped": report.longrepr[2].removeprefix("Skipped: ")})
    elif report.failed:
        leave({"number": int(named[2]), "failed": named[1]})


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, and a teacher that the finetune command made."""
    return make_home(tmp_path_factory.mktemp("home"), 240, 80)
