"""What cannot be compared is refused before anything is asked, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potstill.signals import Wants
from potstill.training.giving import problem_of_model, problem_of_teacher, problem_of_widths
from potstill.training.teacher.teacher import Teacher
from tests.support.small_models import small_model
from tests.support.training_world import CPU, make_world

SIGNALS = ("cls", "hidden", "attention", "heads", "scores", "queries", "keys", "values")


@pytest.mark.parametrize("name", SIGNALS)
def test_a_file_of_answers_has_logits_alone(name: str, tmp_path: Path) -> None:
    """Every signal that is added needs no line of its own."""
    task, from_file = make_world(tmp_path).task, Teacher(None, None, CPU)
    problem = problem_of_teacher(from_file, True, Wants(**{name: (1,)}), task, changing=False)  # type: ignore[arg-type]
    assert problem is not None and problem.reason == "compares layers, and the teacher is a file of answers"
    for top in (0, 8):
        assert problem_of_teacher(from_file, True, Wants(logits=True, top=top), task, changing=False) is None


@pytest.mark.parametrize("name", SIGNALS)
def test_an_architecture_is_asked_for_its_attention_before_training(name: str, tmp_path: Path) -> None:
    """MPNet adds a bias by position to its scores. Asking changes neither mode nor random numbers."""
    world = make_world(tmp_path)
    wants = Wants(**{name: (1, 3)})  # type: ignore[arg-type]
    assert problem_of_model(world.teacher.model, wants, world.task) is None
    model = small_model("mpnet").model.train()
    before = torch.get_rng_state()
    problem = problem_of_model(model, wants, world.task)
    assert model.training and torch.equal(torch.get_rng_state(), before)
    if name not in ("scores", "queries", "keys", "values"):
        assert problem is None
        return
    assert problem is not None and problem.reason.startswith("compares attention, and a model of type 'mpnet'")
    assert problem.instead == "use a method that compares hidden states, such as 'hints'"


def test_only_states_need_teachers_of_one_width() -> None:
    wide, narrow = (small_model("bert", **size).model for size in ({}, {"width": 16}))
    teachers = [Teacher(model, None, CPU) for model in (wide, narrow)]
    for name in SIGNALS:
        problem = problem_of_widths(teachers, [Wants(**{name: (1,)})] * 2)  # type: ignore[arg-type]
        assert (problem is None) == (name not in ("cls", "hidden"))
