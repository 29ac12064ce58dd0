from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from potstill.models.anatomy import set_dropout
from tests.support.training_world import CASES, loss_and_norm, make_world


@pytest.mark.slow
def test_15_loss_and_gradient_from_memory_are_those_of_the_live_teacher(
    tmp_path: Path, figure: Callable[..., None]
) -> None:
    """Every method and task, the student as wide as the teacher and half as wide."""
    apart = {"loss": 0.0, "gradient norm": 0.0}
    for number, (method, task) in enumerate(CASES):
        for width in (None, 16):
            (tmp_path / f"{number}-{width}").mkdir()
            world = make_world(tmp_path / f"{number}-{width}", width=width, task=task)
            set_dropout(world.student.model, 0.0)
            live = loss_and_norm(world.training(method, world.live()))
            remembered = loss_and_norm(world.training(method, world.remembering()))
            for name, ours, theirs in zip(apart, remembered, live, strict=True):
                assert theirs > 0
                apart[name] = max(apart[name], abs(ours - theirs) / max(theirs, 1.0))
    assert max(apart.values()) <= 1e-6, apart
    figure(15, f"loss {apart['loss']:.0e}, gradient norm {apart['gradient norm']:.0e} over {2 * len(CASES)} cases")
