from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from potstill.models.builder import BuildContext
from potstill.recipe import plugins
from tests.promises.test_every_student import FIELDS, SERVES
from tests.support.training_world import CASES, World, make_world, stopped_and_resumed

STOPS = (2, 5, 7, 10)  # epochs end after 6 and 12 steps


def test_02_stopped_in_mid_epoch_at_four_points_it_goes_on_to_the_same_bits(
    tmp_path: Path, figure: Callable[..., None]
) -> None:
    """Dropout on, several micro-batches a step."""
    difference, changed = stopped_and_resumed(make_world, tmp_path, "patient", STOPS)
    assert difference == 0 and changed
    figure(2, f"{len(STOPS)} of {len(STOPS)} equal")


def test_02_so_it_does_in_bfloat16(
    tmp_path: Path, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every processor: without such instructions it is only slow."""

    def make(folder: Path) -> World:
        world = make_world(folder)
        world.precision = "bfloat16"
        return world

    products: set[torch.dtype] = set()
    linear = nn.modules.linear.Linear.forward

    def noted(module: nn.Linear, states: torch.Tensor) -> torch.Tensor:
        made = linear(module, states)
        products.add(made.dtype)
        return made

    monkeypatch.setattr(nn.Linear, "forward", noted)
    difference, changed = stopped_and_resumed(make, tmp_path, "patient", STOPS)
    assert difference == 0 and changed and torch.bfloat16 in products
    figure(2, "in bfloat16 too")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "task"), CASES)
def test_02_so_does_every_method_and_task(method: str, task: str, tmp_path: Path, figure: Callable[..., None]) -> None:
    difference, changed = stopped_and_resumed(
        lambda folder: make_world(folder, width=16, task=task), tmp_path, method, STOPS
    )
    assert difference == 0 and changed
    figure(2, "every method and task")


@pytest.mark.slow
@pytest.mark.parametrize("name", [student for student in plugins.names("students") if "digits" not in SERVES[student]])
def test_02_so_does_every_student(name: str, tmp_path: Path, figure: Callable[..., None]) -> None:
    def make(folder: Path) -> World:
        world = make_world(folder, task="translate" if "translator" in SERVES[name] else "classify")
        texts = [text for text, _ in world.examples.texts()]
        context = BuildContext(start=world.teacher, seed=0, texts=lambda: iter(texts))
        fields = {"keep_layers": {"layers": 1}, **FIELDS}.get(name, {})
        world.student = plugins.make("students", name, fields).build(world.student, context)
        return world

    difference, changed = stopped_and_resumed(make, tmp_path, "soft_targets", STOPS)
    assert difference == 0 and changed
    figure(2, "every student")
