"""A best epoch that is damaged or gone is no dead end: the stage is trained again, and ends in the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from potstill.errors import TrainingError
from potstill.runs.stages import checkpoint_to_resume
from potstill.training import checkpoints
from potstill.training.loop import train
from potstill.training.setup import Training
from tests.support.faults import flip
from tests.support.training_world import World, make_world


def made(folder: Path, keep: str) -> tuple[World, Training]:
    folder.mkdir()
    world = make_world(folder)
    training = world.training("hard_labels", world.remembering(), epochs=3.0, keep=keep, averaged=2)
    object.__setattr__(training, "save_every", 1)
    return world, training


@pytest.mark.parametrize(("keep", "place"), [("best", "best"), ("average", "ends")])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_stage_with_a_lost_epoch_ends_in_the_same_weights(
    tmp_path: Path, keep: str, place: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    world, training = made(tmp_path / "whole", keep)
    steps = list(train(training))
    expected = {name: tensor.clone() for name, tensor in world.student.model.state_dict().items()}

    world, training = made(tmp_path / "stopped", keep)
    start = {name: tensor.clone() for name, tensor in world.student.model.state_dict().items()}
    running = train(training)
    for _ in range(len(steps) - 1):
        next(running)
    running.close()
    weights = next((training.folder / place).glob("step-*")) / "weights.safetensors"
    if damage == "flipped":
        flip(weights, 8 * (weights.stat().st_size - 5))
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:100])
    else:
        shutil.rmtree(weights.parent)
    assert checkpoint_to_resume(training, None) is None
    assert "this stage is trained again from its beginning" in caplog.text
    world.student.model.load_state_dict(start)
    assert len(list(train(training))) == len(steps)
    for name, tensor in world.student.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_best_epoch_that_is_lost_at_the_end_is_told_with_what_to_do(tmp_path: Path) -> None:
    _, training = made(tmp_path / "run", "best")
    with pytest.raises(TrainingError, match="run the same command again"):
        for _ in train(training):
            for weights in (training.folder / "best").glob("step-*/weights.safetensors"):
                weights.write_bytes(b"")
    assert checkpoint_to_resume(training, None) is None


def test_a_folder_that_is_removed_is_told_at_the_next_checkpoint(tmp_path: Path) -> None:
    _, training = made(tmp_path / "run", "best")
    running = train(training)
    next(running)
    next(running)
    shutil.rmtree(training.folder)
    with pytest.raises(TrainingError, match="was removed while the run went on"):
        next(running)


def test_a_resumed_run_lets_go_of_the_checkpoint_it_began_from(tmp_path: Path) -> None:
    """Else the room of a deleted file is not free before the run ends."""
    _, training = made(tmp_path / "run", "last")
    running = train(training)
    for _ in range(3):
        next(running)
    running.close()
    resumed = train(training, checkpoints.newest(training.folder / "checkpoints"))
    next(resumed)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(training.folder) in line]
    assert mapped == []
    resumed.close()


def test_whoever_drives_the_loop_may_end_it_early(tmp_path: Path) -> None:
    """The next step is the last: dev is scored, and the steps so far are those of the whole stage."""
    _, training = made(tmp_path / "whole", "best")
    whole = list(train(training))
    _, training = made(tmp_path / "early", "best")
    running = train(training)
    taken = [next(running) for _ in range(2)]
    assert running.dev is None
    running.stop()
    taken += list(running)
    assert len(taken) == 3 < len(whole) and taken[-1].dev
    assert [(step.loss, step.rate) for step in taken] == [(step.loss, step.rate) for step in whole[:3]]
    assert running.dev == 0.0
