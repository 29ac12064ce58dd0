"""Words, keys and pages that users rely on. `python tests/house/frozen.py --words tests/house/frozen.json` takes over a wanted change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.house.frozen import page, run, words

FROZEN: dict[str, Any] = json.loads((Path(__file__).parent / "frozen.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", FROZEN["words"])
def test_words_are_the_same(kind: str) -> None:
    assert words()[kind] == FROZEN["words"][kind]


def test_the_page_of_a_run_is_the_same_but_for_its_figures(tmp_path: Path) -> None:
    assert page(tmp_path)["text"] == FROZEN["page"]["text"]


@pytest.mark.parametrize(
    "task", [task if task == "classify" else pytest.param(task, marks=pytest.mark.slow) for task in FROZEN["keys"]]
)
def test_measurements_have_the_same_keys(task: str, tmp_path: Path) -> None:
    assert run(task, tmp_path / "inputs", tmp_path / "run")["keys"] == FROZEN["keys"][task]
