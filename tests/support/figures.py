"""Each test of a promise leaves its figure, so that the table of docs/reliability.md says what was reached."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest


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


def leave_what_said_nothing(report: pytest.TestReport, folder: str) -> None:
    """What was skipped or failed leaves a note as well: a figure of an earlier run must not stand in its place."""
    if not (
        named := re.search(rf"{folder}/.*::(test_(\d\d)_\w+)", report.nodeid)
    ):  # the number stands in the test's name
        return
    if report.skipped and isinstance(report.longrepr, tuple):
        leave({"number": int(named[2]), "skipped": report.longrepr[2].removeprefix("Skipped: ")})
    elif report.failed:
        leave({"number": int(named[2]), "failed": named[1]})
