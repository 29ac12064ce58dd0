"""Epochs that fit into a given time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potstill.app.options import seconds_of
from potstill.errors import InputError
from potstill.recipe.resolve import resolve
from potstill.runs.planning import within
from potstill.system.display import Display


@given(st.floats(1, 1e5), st.floats(1, 1e4), st.floats(0.01, 1e3))
def test_the_epochs_fit_and_no_more_would(seconds: float, training: float, scoring: float) -> None:
    def spent(epochs: float) -> float:
        return epochs * training + -(-epochs // 1) * scoring

    epochs = within.epochs_in(seconds, training, scoring)
    assert epochs == 0 or spent(epochs) <= seconds * 1.001
    assert spent(epochs + 0.002) > seconds or (epochs == int(epochs) and spent(epochs) + scoring > seconds * 0.999)


def test_the_rest_of_the_run_is_taken_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    lines = {"train fine-tuned": 100.0, "score dev": 10.0, "measure at the end": 40.0}
    found = {
        "lines": [{"what": what, "seconds": spent, "steps": 100, "runs": 1} for what, spent in lines.items()],
        "seconds": 150.0,
    }
    monkeypatch.setattr(within, "plan", lambda recipe, out: found)
    recipe = resolve(None, {"data.0.train": ("--train", "a.txt")}).recipe
    assert within.epochs_within(recipe, tmp_path / "run", 590.0, False, Display(quiet=True)) == pytest.approx(5.0)
    with pytest.raises(InputError, match=r"the run would take .* with one epoch; give more time"):
        within.epochs_within(recipe, tmp_path / "run", 50.0, False, Display(quiet=True))


def test_durations() -> None:
    assert [seconds_of("--within", text) for text in ("90s", "1.5m", "2h", None)] == [90, 90, 7200, None]
    for wrong in ("30", "m", "-1m", "nan m", ""):
        with pytest.raises(InputError, match="write for example --within 30m"):
            seconds_of("--within", wrong)
