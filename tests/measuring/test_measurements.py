"""measurements.json is written by its type, and read however old or damaged it is."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from potstill.measuring.measurements import FORMAT, DamagedError, Measurements, Place
from potstill.measuring.run_folder import read_measurements, write_measurements
from potstill.reporting.card import model_card
from potstill.reporting.page import write_report
from potstill.system.paths import RunFolder
from tests.support import run_folders


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = run_folders.write_run(tmp_path / "run", run_folders.measurements(seeds=3))
    measurements = read_measurements(run)
    write_measurements(RunFolder(run), measurements)
    written = json.loads((run / "measurements.json").read_text())
    assert written["format"] == FORMAT == 1
    assert read_measurements(run) == measurements
    for key, value in run_folders.measurements(seeds=3).items():
        assert written[key] == value


def test_old_files_have_one_seed_and_one_speed() -> None:
    old = {"seed": 7, "metrics": {"task": ["f1"]}, "models": {"distilled": {"examples_per_second": 359.0}}}
    measurements = Measurements.from_json(old)
    assert measurements.seeds == [7]
    assert measurements.models["distilled"].timing("pytorch", "examples_per_second") == 359


def test_malformed_values_are_omitted_and_undefined_ones_kept() -> None:
    quality = {"task": {"test": {"f1": None, "accuracy": "high", "rows": True, "mode": 0.5}}, "other": 3}
    written = {"quality": quality, "parameters": "many", "confusion": {"task": {"test": [[1], 2]}}}
    model = Measurements.from_json({"models": {"distilled": written}}).models["distilled"]
    assert model.quality == {"task": {"test": {"f1": None, "mode": 0.5}}, "other": {}}
    assert model.parameters is None and model.confusion == {"task": {}}
    assert model.score(Place("task", "test", "accuracy")) is None


def odd_values(value: Any, chance: random.Random) -> None:
    """Put something odd in the place of one value, anywhere."""
    while True:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        place = chance.choice(list(keys))
        below = value[place]
        if not isinstance(below, dict | list) or not below or chance.random() < 0.2:
            value[place] = chance.choice([None, True, "x", [], {}, [[None]], {"a": 1}, float("nan"), 1e308, -3])
            return
        value = below


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_is_shown_as_far_as_possible_or_refused(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = copy.deepcopy(run_folders.measurements(seeds=2))
    for _ in range(3):
        odd_values(whole, chance)
    run = run_folders.write_run(tmp_path / "run", {**whole, "name": "kd"}, logs=False)
    try:
        measurements = Measurements.from_json(whole)
    except DamagedError:
        return
    if measurements.models:
        model_card(measurements, run_folders.RECIPE)
        write_report([run], tmp_path / "page.html")
