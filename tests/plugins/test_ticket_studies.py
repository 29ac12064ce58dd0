"""Studies of lottery tickets: what is trained for them, what is trained once, and what they conclude."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

from potstill.errors import InputError
from potstill.models.compression.tickets import set_between
from potstill.models.student import load_student
from potstill.plugins.studies._tickets import Trials, barrier_of, error_barriers, trials_of
from potstill.plugins.studies.lottery import Lottery
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from tests.support.commands import potstill
from tests.support.small_models import small_images, small_model, write_digits

TICKET = {"build": "ticket", "removes": 0.5, "output": True}


def recipe_of(folder: Path, **change: Any) -> Recipe:
    (folder / "recipe.toml").write_text(tomli_w.dumps(change))
    return resolve(str(folder / "recipe.toml")).recipe


def small_lottery(folder: Path, **stage: Any) -> dict[str, Any]:
    optimizer = {"rate": 0.01, "warmup": 0.0, "decay": "constant"}
    first = {
        "method": "hard_labels",
        "reshape": [TICKET],
        "repeat": 2,
        "epochs": 3,
        "batch": 20,
        "optimizer": optimizer,
    }
    return {
        "student": {"build": "mlp", "hidden": [24, 16]},
        "data": {split: str(folder / f"{split}.npz") for split in ("train", "test")},
        "stage": [first | stage],
        "force": True,
        "precision": "float32",
    }


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_digits(tmp_path / "train.npz", 300, 0)
    write_digits(tmp_path / "test.npz", 200, 600)
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    return tmp_path


def test_the_runs_of_the_lottery_are_rounds_a_second_training_and_controls(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, **small_lottery(tmp_path, rewind=5))
    runs = Lottery(rounds=[1, 3, 5], controls=[3]).runs(recipe)
    assert set(runs) == {
        *("round-5", "round-5-again", "round-3", "round-3-again", "round-1", "round-1-again"),
        *("round-3-random_weights", "round-3-random_structure"),
    }
    for name, run in runs.items():
        assert run.stage[0] == recipe.stage[0].model_copy(update={"repeat": int(name.split("-")[1])})
        if name.count("-") == 1:
            assert len(run.stage) == 1
            continue
        assert run.stage[1].repeat == 1 and run.stage[1].rewind == 5
        control = name.split("-")[2].replace("again", "none")
        assert run.stage[1].reshape[0] | {"control": control} == recipe.stage[0].reshape[0] | {"control": control}
        assert run.stage[1].reshape[0].get("control", "none") == control
    assert not any(run.baseline for run in runs.values())


@pytest.mark.parametrize("fields", [{"rounds": [2, 3], "controls": []}, {"rounds": [1, 3], "controls": [2]}])
def test_a_lottery_without_its_dense_network_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write for example"):
        Lottery(**fields).runs(recipe_of(tmp_path, **small_lottery(tmp_path)))
    with pytest.raises(InputError, match='build = "ticket"'):
        Lottery().runs(recipe_of(tmp_path, **small_lottery(tmp_path, reshape=[])))


@pytest.mark.slow
def test_a_lottery_trains_each_round_once_and_its_second_call_trains_nothing(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (digits / "small.toml").write_text(tomli_w.dumps(small_lottery(digits)))
    words = ["study", "lottery", digits / "small.toml", "--seeds", "2", "--out", digits / "out", "--quiet"]
    words += ["--with", "rounds=[1, 2, 3]", "--with", "controls=[2]"]
    assert potstill(*words) == 0
    first = capsys.readouterr().out
    # two seeds of three rounds, of a second training for each, and of two controls
    assert len(list((digits / "cache/stages").iterdir())) == 2 * (3 + 3 + 2)
    page = (digits / "out/study.md").read_text()
    assert "| 100.0 % |" in page and "| 51.9 % |" in page and "Ticket of" in page
    assert (digits / "out/study.svg").is_file()
    assert potstill(*words) == 0
    assert capsys.readouterr().out == first
    assert len(list((digits / "cache/stages").iterdir())) == 2 * (3 + 3 + 2)
    trials = trials_of(digits / "out/round-2")
    assert trials.scores.shape == (2, 3) and trials.steps.tolist() == [14, 28, 42]
    logged = (digits / "out/round-2/seed-1/stages/1/epochs.csv").read_text().splitlines()
    assert 100 * float(logged[-1].split(",")[2]) == pytest.approx(trials.scores[1, -1])
    # the same network is at both ends of the line to itself
    assert error_barriers(digits / "out/round-2", digits / "out/round-2") == [0.0, 0.0]
    barriers = error_barriers(digits / "out/round-2", digits / "out/round-2-again")
    assert len(barriers) == 2 and min(barriers) >= 0
    one, two = (load_student(digits / f"out/round-2{more}/seed-0/student").model for more in ("", "-again"))
    assert any(not torch.equal(one.get_parameter(name), two.get_parameter(name)) for name, _ in one.named_parameters())
    for name, weight in one.named_parameters():  # another order of the rows, but the same ticket
        if weight.ndim == 2:
            assert torch.equal(weight == 0, two.get_parameter(name) == 0)


def test_weights_between_two_networks_are_on_their_line() -> None:
    one, other, between = (small_model("bert", layers=1, seed=seed).model for seed in (1, 2, 3))
    for share in (0.0, 0.25, 1.0):
        set_between(between, one, other, share)
        for name, weight in between.named_parameters():
            expected = (1 - share) * one.get_parameter(name) + share * other.get_parameter(name)
            torch.testing.assert_close(weight, expected)
    images = [small_images(seed=seed).model for seed in (1, 2)]
    set_between(images[0], images[1], images[1], 0.5)
    assert torch.equal(images[0].classifier.weight, images[1].classifier.weight)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=20))
def test_a_barrier_is_not_negative_and_zero_on_a_line_without_a_hill(errors: Sequence[float]) -> None:
    assert barrier_of(errors) >= -1e-9
    ends = (errors[0] + errors[-1]) / 2
    assert barrier_of([ends, *[ends] * len(errors), ends]) == pytest.approx(0)
    assert barrier_of([errors[0], 200.0, errors[-1]]) == pytest.approx(200 - ends)


def test_steps_are_counted_to_the_first_score_that_is_high_enough() -> None:
    trials = Trials(np.array([10, 20, 30]), np.array([[80.0, 95.0, 90.0], [50.0, 60.0, 70.0]]))
    assert trials.steps_to(90) == [20.0, np.inf]
    assert trials.steps_to(50) == [10.0, 10.0]
    assert trials.mean.tolist() == [65.0, 77.5, 80.0]


def test_a_seed_that_stopped_earlier_keeps_its_last_score(tmp_path: Path) -> None:
    for seed, scores in ((0, [0.5, 0.6, 0.7]), (1, [0.4, 0.9])):
        folder = tmp_path / f"seed-{seed}/stages/0"
        folder.mkdir(parents=True)
        (folder.parents[1] / "measurements.json").write_text(json.dumps({}))
        lines = ["epoch,step,dev", *(f"{n},{10 * n},{score}" for n, score in enumerate(scores, 1))]
        (folder / "epochs.csv").write_text("\n".join(lines))
    trials = trials_of(tmp_path)
    assert trials.steps.tolist() == [10, 20, 30]
    np.testing.assert_allclose(trials.scores, [[50, 60, 70], [40, 90, 90]])
