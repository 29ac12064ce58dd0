"""Rates that are tried before a stage: at most a third of its steps, the best on dev, without a trace on the training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from potstill.errors import TrainingError
from potstill.measuring.measurements import MeasuredModel, Measurements, TriedRate
from potstill.models.student import save_student
from potstill.recipe.resolve import grid_recipes, resolve
from potstill.reporting.sentences import rate_sentences
from potstill.runs import rate_search
from potstill.runs.dev_scores import DevScores
from potstill.runs.distill import distill
from potstill.runs.rate_search import LEAST_STEPS, NOTES, ranked, rungs, search_steps
from potstill.training import loop
from tests.support.small_models import sentences, small_model, write_csv

GOOD, SLOW, WILD = 3e-3, 1e-7, 1e30
STEPS = 48  # of the stage, where as many are enough for a search
CLASSIFY = {"method": "soft_targets", "force": "true", "student": "keep_layers:2"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    rows = [(text, ("negative", "positive")[label]) for text, label in sentences(120, 0)]
    write_csv(home / "train.csv", rows[:64])
    write_csv(home / "dev.csv", rows[64:])
    save_student(small_model("bert"), home / "teacher")
    numbers = [(text, str(10 * (label == "positive") + len(text) / 9)) for text, label in rows]
    write_csv(home / "number-train.csv", numbers[:64])
    write_csv(home / "number-dev.csv", numbers[64:])
    return home


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_search, "LEAST_STEPS", STEPS)
    monkeypatch.setenv("POTSTILL_STAGES_GB", "0")


def run(home: Path, out: Path, rates: str, rate: str = "auto", rows: str = "", **more: str) -> dict[str, Any]:
    sets = {
        **CLASSIFY,
        "teacher": str(home / "teacher"),
        "data.train": str(home / f"{rows}train.csv"),
        "data.dev": str(home / f"{rows}dev.csv"),
        "batch": "8",
        "epochs": str(STEPS // 8),
        "dropout": "0.1",
        "timing": "none",
        "baseline": "false",
        "optimizer.rate": rate,
        "optimizer.rates": rates,
        **more,
    }
    recipe = resolve(None, None, [f"{path}={value}" for path, value in sets.items()]).recipe
    return distill(recipe, out)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "student/model.safetensors")


def same(ours: Path, theirs: Path) -> bool:
    one, other = weights(ours), weights(theirs)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@given(st.integers(2, 12), st.integers(LEAST_STEPS, 10**7))
def test_a_search_costs_at_most_about_a_third_of_the_steps(rates: int, steps: int) -> None:
    assert 0 < search_steps([1e-4] * rates, steps) <= steps / 3 * 1.6
    assert search_steps([1e-4] * 4, steps) <= steps / 3 + 4
    assert all(count >= 2 for count, _ in rungs(rates, steps))


RATES = [1e-4, 2e-4, 4e-4]


@given(st.permutations([0.9, 0.5, 0.7]), st.sampled_from(RATES))
def test_clearly_different_losses_rank_the_rates(losses: list[float], usual: float) -> None:
    order = ranked(RATES, losses, usual)
    assert sorted(losses) == [losses[RATES.index(rate)] for rate in order]


@given(st.permutations([0.584, 0.5842, 0.5843]), st.sampled_from(RATES), st.floats(0.7, 2))
def test_losses_that_are_alike_leave_the_usual_rate(losses: list[float], usual: float, far: float) -> None:
    """On a hard task short trials end alike, and the lowest of them is no better than another."""
    assert ranked(RATES, losses, usual)[0] == usual
    assert ranked([*RATES, 1e-2], [*losses, far], 1e-2) == [*ranked(RATES, losses, 1e-2), 1e-2]
    assert ranked([1e-4, 2e-4], [math.inf, 0.5], 1e-4) == [2e-4, 1e-4]


def test_one_rate_and_few_steps_are_not_searched() -> None:
    assert search_steps([1e-4], 10**6) == 0
    assert search_steps([1e-4, 2e-4], STEPS - 1) == 0


def best_of(tried: list[dict[str, Any]]) -> float:
    """The rate with the lowest loss among those that were tried for most steps."""
    most = max(trial["steps"] for trial in tried)
    last = [trial for trial in tried if trial["steps"] == most and trial["loss"] is not None]
    return float(min(last, key=lambda trial: trial["loss"])["rate"])


def test_the_best_rate_is_taken_and_the_training_is_that_of_this_rate_alone(home: Path, tmp_path: Path) -> None:
    """Trials leave nothing behind, not even one that diverged."""
    found = run(home, tmp_path / "found", f"[{SLOW}, {WILD}, {GOOD}]")
    tried = found["models"]["distilled"]["rates"]
    assert {trial["rate"]: trial["loss"] is None for trial in tried} == {SLOW: False, WILD: True, GOOD: False}
    assert sorted(trial["rate"] for trial in tried if trial["steps"] > tried[0]["steps"]) == [SLOW, GOOD]
    run(home, tmp_path / "alone", "[]", rate=str(best_of(tried)))
    assert same(tmp_path / "found", tmp_path / "alone")
    assert (tmp_path / "found/recipe.toml").read_text().count("rates = [") == 1


@pytest.mark.parametrize("rows", ["", "number-"])
def test_labels_alone_are_compared_by_their_loss_on_dev(home: Path, tmp_path: Path, rows: str) -> None:
    """Of numbers, which are learned in a scale of their own, too."""
    alone = {"teacher": "none", "start": str(home / "teacher"), "method": "hard_labels", "rows": rows}
    found = run(home, tmp_path / "found", f"[{SLOW}, {GOOD}]", **alone)
    tried = found["models"]["fine-tuned"]["rates"]
    assert {trial["rate"] for trial in tried} == {SLOW, GOOD}
    run(home, tmp_path / "alone", "[]", rate=str(best_of(tried)), **alone)
    assert same(tmp_path / "found", tmp_path / "alone")


def test_a_method_that_trains_no_head_is_judged_by_its_own_loss(home: Path, tmp_path: Path) -> None:
    method = "{ name = 'relations', labels = 0 }"
    found = run(home, tmp_path / "found", f"[{SLOW}, {GOOD}]", method=method, student="fresh:2")
    tried = found["models"]["distilled"]["rates"]
    assert best_of(tried) == GOOD
    logged = (tmp_path / "found/stages/0/steps.csv").read_text().splitlines()
    assert float(logged[1].split(",")[2]) > tried[1]["loss"]


def test_where_every_rate_diverges_it_says_so(home: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match="diverged at each of the learning rates 1e\\+29, 1e\\+30; write a lower one: --rate"
    ):
        run(home, tmp_path / "out", "[1e29, 1e30]")


@pytest.mark.parametrize("steps", [1, 9, 30])
def test_a_search_that_is_stopped_goes_on_to_the_same_bits(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Trials that are finished are not repeated; the one that was stopped is, from its beginning."""
    rates = f"[{SLOW}, {GOOD}, {GOOD / 3}]"
    run(home, tmp_path / "whole", rates)
    taken = count_steps(monkeypatch)

    class Killed(BaseException):
        pass

    plain = loop.StageLoop.take_step

    def killed_at(self: loop.StageLoop, *args: Any) -> Any:
        if len(taken) == steps:
            raise Killed
        return plain(self, *args)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop.StageLoop, "take_step", killed_at)
        run(home, tmp_path / "stopped", rates)
    notes = tmp_path / "stopped/stages/0" / NOTES
    finished = json.loads(notes.read_text())["trials"] if notes.exists() else []
    taken.clear()
    run(home, tmp_path / "stopped", rates)
    assert same(tmp_path / "whole", tmp_path / "stopped")
    done = sum(trial["steps"] for trial in finished)
    searched = search_steps([1, 2, 3], STEPS)
    kept = (steps - searched) // 8 * 8 if done == searched else 0  # a checkpoint after each epoch of 8 steps
    assert len(taken) == searched - done + STEPS - kept


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    taken: list[int] = []
    plain = loop.StageLoop.take_step

    def counted(self: loop.StageLoop, *args: Any) -> Any:
        taken.append(self.progress.step)
        return plain(self, *args)

    monkeypatch.setattr(loop.StageLoop, "take_step", counted)
    return taken


def test_a_grid_of_rates_is_not_searched_in_its_cells() -> None:
    recipe = resolve(
        None, None, ["teacher=t", "data.train=a.csv", "student=bag", 'grid={"optimizer.rate" = [1e-3, 2e-3]}']
    )
    assert [cell.stage[0].optimizer.rates for _, cell in grid_recipes(recipe.recipe)] == [[], []]


def test_the_page_says_what_was_tried() -> None:
    tried = [
        TriedRate(rate=1e-4, steps=20, loss=0.5),
        TriedRate(rate=2e-4, steps=20, loss=None),
        TriedRate(rate=1e-4, steps=40, loss=0.25),
    ]
    (said,) = rate_sentences(Measurements(models={"distilled": MeasuredModel(rates=tried)}))
    assert said == (
        "distilled: 0.0001 was taken. Losses on dev: 0.0001 for 20 steps: 0.5000, 0.0002 for 20 steps: diverged, "
        "0.0001 for 40 steps: 0.2500."
    )
    both = [*tried, TriedRate(rate=1e-4, seed=1, steps=20, loss=0.5)]
    assert [
        text.partition(":")[0] for text in rate_sentences(Measurements(models={"distilled": MeasuredModel(rates=both)}))
    ] == [
        "distilled, seed 0",
        "distilled, seed 1",
    ]


def test_dev_is_scored_once_in_each_trial(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no checkpoint is written in the middle of one, however short an epoch is."""
    scored: list[int] = []
    plain = DevScores.loss

    def counted(self: DevScores) -> float:
        scored.append(1)
        return plain(self)

    monkeypatch.setattr(DevScores, "loss", counted)
    found = run(home, tmp_path / "out", f"[{SLOW}, {GOOD}]", **{"batch": "64", "epochs": str(STEPS)})
    assert len(scored) == len(found["models"]["distilled"]["rates"]) == 4


def test_a_trial_whose_weights_are_no_numbers_at_the_end_diverged(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of a trial may do it, which no later loss shows."""
    plain, losses = DevScores.loss, iter([math.nan, None, None, None])
    monkeypatch.setattr(DevScores, "loss", lambda self: plain(self) if (loss := next(losses)) is None else loss)
    found = run(home, tmp_path / "out", f"[{SLOW}, {GOOD}]")
    tried = found["models"]["distilled"]["rates"]
    assert [trial["loss"] is None for trial in tried] == [True, False, False, False]
