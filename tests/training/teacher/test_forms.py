"""A teacher in another form answers as it does in float32; and the form is chosen by its answers first, then by its speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from potstill.errors import InputError
from potstill.signals import Wants
from potstill.training.teacher import forms
from potstill.training.teacher.forms import Measured, compared, described, differences, fastest, head_in
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Form, Teacher
from tests.support.training_world import CPU, World, make_world

LOGITS = Wants(logits=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"), rows=24)


def asked_in(world: World, form: Form, memory: Memory | None = None) -> Teacher:
    return Teacher(world.teacher.model, memory, CPU, form, head_in(form, world.teacher, vocabulary=False))


@pytest.mark.parametrize(("form", "bound"), [("onnx", 1e-5), ("int8", 0.05)])
@pytest.mark.parametrize("wants", [LOGITS, Wants(logits=True, cls=(1, 2)), Wants(logits=True, cls=(1,), hidden=(2,))])
def test_a_file_gives_the_logits_and_pytorch_the_states(
    world: World, tmp_path: Path, form: Form, bound: float, wants: Wants
) -> None:
    teacher = asked_in(world, form, Memory(tmp_path / "memory"))
    teacher.remember(world.source(), wants)
    for _, batch in world.source().in_order(64):
        plain, other = world.live().signals(batch, wants), teacher.signals(batch, wants)
        assert torch.allclose(plain.cls, other.cls, atol=1e-5) and torch.allclose(plain.hidden, other.hidden, atol=1e-5)
        apart = (plain.logits.softmax(-1) - other.logits.softmax(-1)).abs().max()
        assert apart < bound and (form == "onnx" or apart > 1e-5)
        alone = teacher.signals(batch, LOGITS, live=True).logits
        assert (
            alone.softmax(-1) - other.logits.softmax(-1)
        ).abs().max() < bound  # batches differ, and with them a scale


def test_the_most_probable_classes_are_those_of_the_file(world: World, tmp_path: Path) -> None:
    (_, batch), *_ = world.source().in_order(10**6)
    wants = Wants(logits=True, top=1)
    top = asked_in(world, "int8").signals(batch, wants).top
    logits = asked_in(world, "int8").signals(batch, LOGITS).logits
    assert top is not None and torch.equal(top.classes[:, 0], logits.argmax(-1))
    assert torch.allclose(top.log_probabilities[:, 0], logits.log_softmax(-1).amax(-1))


def test_a_teacher_that_predicts_tokens_is_no_file(world: World) -> None:
    with pytest.raises(InputError, match="write teacher_precision = 'float32' or 'bfloat16'"):
        head_in("onnx", world.teacher, vocabulary=True)
    assert head_in("int8", replace(world.teacher, new_head=True), vocabulary=False) is None  # it gives states alone


def measured(rate: float, apart: float = 0.0, same: float = 1.0) -> Measured:
    return {"rate": rate, "apart": apart, "same": same, "rows": 128}


def test_the_fastest_form_is_chosen_among_those_that_answer_the_same() -> None:
    found: dict[Form, Measured] = {"float32": measured(80), "bfloat16": measured(160, 0.01)}
    assert fastest([(5000, found)]) == "bfloat16"
    assert fastest([(5000, found | {"int8": measured(320, 0.01)})]) == "int8"
    assert fastest([(5000, found | {"int8": measured(320, 0.03)})]) == "bfloat16"
    assert fastest([(5000, found | {"int8": measured(320, 0.01, 0.98)})]) == "bfloat16"
    assert fastest([(5000, {"float32": measured(80), "onnx": measured(87)})]) == "float32"  # not clearly faster
    assert fastest([]) == fastest([(10, {})]) == "float32"
    said = described("bfloat16", found | {"int8": measured(320, 0.3, 0.9)})
    assert "asked in bfloat16: 160 rows a second instead of 80" in said and "in int8 its probabilities differ" in said


def test_all_teachers_of_a_run_have_one_form() -> None:
    """Weighted by the rows that each is asked."""
    first: dict[Form, Measured] = {"float32": measured(80), "bfloat16": measured(160), "int8": measured(320)}
    assert fastest([(5000, first), (5000, {"float32": measured(80), "bfloat16": measured(160)})]) == "bfloat16"
    slower: dict[Form, Measured] = {"float32": measured(80), "bfloat16": measured(160), "int8": measured(40)}
    assert fastest([(5000, first), (10, slower)]) == "int8"
    assert fastest([(10, first), (5000, slower)]) == "bfloat16"
    assert fastest([(5000, first), (900, {})]) == "float32"


def test_forms_are_compared_where_they_come_into_question(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path))
    monkeypatch.setattr(forms, "bfloat16_gain", lambda device: 4.1)

    def found(rows: int, wants: Wants = LOGITS) -> set[str]:
        return set(compared(world.teacher, world.source(), rows, wants, CPU, "a teacher"))

    assert found(10) == {"float32", "bfloat16"}  # files are not worth their writing
    assert not (tmp_path / "exports").exists()
    every = compared(world.teacher, world.source(), 10**9, LOGITS, CPU, "a teacher")
    assert set(every) == {"float32", "bfloat16", "onnx", "int8"}
    assert every["onnx"]["apart"] < 1e-5 < every["bfloat16"]["apart"] and every["onnx"]["same"] == 1
    assert found(10**9, Wants(logits=True, cls=(1,))) == found(10**9, Wants(logits=True, scores=(1,)))
    assert found(10**9, Wants(logits=True, cls=(1,))) == {"float32", "bfloat16"}
    monkeypatch.setattr(forms, "_asked", lambda *arguments: pytest.fail("it was measured before"))
    assert compared(world.teacher, world.source(), 10**9, LOGITS, CPU, "a teacher") == every
    monkeypatch.setattr(forms, "find_spec", lambda name: None)  # without ONNX Runtime
    assert found(10**9) == {"float32", "bfloat16"}
    monkeypatch.setattr(forms, "bfloat16_gain", lambda device: 1.0)
    assert found(10**9) == set()


def test_a_network_that_cannot_be_exported_is_asked_in_pytorch(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path))

    def fail(student: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(forms, "cached_files", fail)
    monkeypatch.setattr(forms, "bfloat16_gain", lambda device: 1.0)
    assert set(compared(world.teacher, world.source(), 10**9, LOGITS, CPU, "another")) == {"float32"}
    assert len(list((tmp_path / "speed").iterdir())) == 2  # the slow float32, and the attempt


def test_differences_are_those_of_probabilities_classes_and_values() -> None:
    logits = torch.tensor([[0.0, 0.0], [2.0, -2.0]])
    apart, same = differences("class", [logits], [logits + torch.tensor([[0.0, 0.1], [0.0, 0.0]])])
    assert apart == pytest.approx(1 / (1 + 2.718281828**-0.1) - 0.5) and same == 0.5
    apart, same = differences("classes", [logits], [-logits])
    assert apart == pytest.approx(0.7615941559557649) and same == 0.5  # tanh(1) twice a sigmoid's distance to 1/2
    values = torch.tensor([[1.0], [2.0], [3.0]])
    assert differences("value", [values], [values + 0.5]) == (0.5, 1.0)
