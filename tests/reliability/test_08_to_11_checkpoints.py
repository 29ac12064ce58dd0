"""On checkpoints and memory of a real training."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.errors import InputError
from potstill.models.student import load_student, save_student
from potstill.training import checkpoints
from potstill.training.loop import train
from potstill.training.setup import Training
from potstill.training.teacher.memory import Memory
from tests.support.faults import flip
from tests.support.small_models import ARCHITECTURES, small_model
from tests.support.training_world import World, make_world
from tests.training import test_checkpoints


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[World, Training, Path]:
    """A training that was stopped; its checkpoints of steps 3 and 4."""
    world = make_world(tmp_path)
    training = world.training("patient", world.remembering(), epochs=2.0)
    object.__setattr__(training, "save_every", 1)
    running, folder = train(training), training.folder / "checkpoints"
    for _ in range(4):
        next(running)
    shutil.copytree(folder / "step-00000003", tmp_path / "step-00000003")
    next(running)
    running.close()
    shutil.rmtree(folder / "step-00000003", ignore_errors=True)
    shutil.move(tmp_path / "step-00000003", folder)
    return world, training, folder


def test_08_a_hundred_flipped_bits_are_noticed(
    stopped: tuple[World, Training, Path], figure: Callable[..., None]
) -> None:
    world, _, folder = stopped
    newest = folder / "step-00000004"
    files = {name: newest / name for name in ("weights.safetensors", "optimizer.safetensors", "manifest.json")}
    files |= {"state": newest / "state.json"}
    memory = world.folder / "memory"
    files |= {"memory": memory / "shard-00000.arrow", "list of memory": memory / "manifest.json"}
    keys, chance, noticed = np.asarray(world.examples.keys), random.Random(8), 0
    assert not Memory(memory).missing(keys, ["logits"]).any()
    for trial in range(100):
        path = list(files.values())[trial % len(files)]
        whole = path.read_bytes()
        flip(path, chance.randrange(8 * len(whole)))
        if path.parent == memory:
            noticed += bool(Memory(memory).missing(keys, ["logits"]).any())
        else:
            found = checkpoints.newest(folder)
            noticed += found is not None and found.step == 3
        path.write_bytes(whole)
    assert noticed == 100
    figure(8, f"{noticed} of 100")


def test_09_fifty_truncations_fall_back_to_the_last_whole_one(
    stopped: tuple[World, Training, Path], figure: Callable[..., None]
) -> None:
    _, training, folder = stopped
    paths = sorted((folder / "step-00000004").iterdir())
    noticed = 0
    for path, cuts in zip(paths, (12, 12, 13, 13), strict=True):
        whole = path.read_bytes()
        for cut in np.linspace(0, len(whole) - 1, cuts, dtype=int):
            path.write_bytes(whole[:cut])
            with pytest.raises(InputError, match=r"damaged|no whole"):
                checkpoints.load(path.parent)
            found = checkpoints.newest(folder)
            assert found is not None and found.step == 3, (path.name, cut)
            noticed += 1
        path.write_bytes(whole)
    paths[0].write_bytes(b"")
    resume = checkpoints.newest(folder)
    assert [step.step for step in train(training, resume)] == list(range(4, 13))
    figure(9, f"{noticed} of 50, and the run goes on from the one before")


def test_10_rotation_keeps_the_newest_and_the_best(tmp_path: Path, figure: Callable[..., None]) -> None:
    for keep in (1, 2, 3, 4):
        test_checkpoints.test_rotation_keeps_the_newest_and_the_best(tmp_path / str(keep), keep)
    figure(10, "4 of 4")


def test_11_loading_and_saving_onto_the_same_path_is_bit_equal(
    stopped: tuple[World, Training, Path], tmp_path: Path, figure: Callable[..., None]
) -> None:
    newest = stopped[2] / "step-00000004"
    before = {path.name: path.read_bytes() for path in newest.iterdir()}
    loaded = checkpoints.load(newest)
    tensors = {name: loaded.tensors(name) for name in ("weights", "optimizer")}
    checkpoints.save(newest.parent, loaded.step, tensors, loaded.state)
    assert {path.name: path.read_bytes() for path in newest.iterdir()} == before
    for architecture in ARCHITECTURES:
        save_student(small_model(architecture, layers=2), tmp_path / architecture)
        before = {path.name: path.read_bytes() for path in (tmp_path / architecture).iterdir()}
        loaded_student = load_student(tmp_path / architecture)
        assert all(torch.isfinite(weight).all() for weight in loaded_student.model.parameters())
        save_student(loaded_student, tmp_path / architecture)
        assert {path.name: path.read_bytes() for path in (tmp_path / architecture).iterdir()} == before
    figure(11, f"equal: checkpoints, and students of {len(ARCHITECTURES)} architectures")
