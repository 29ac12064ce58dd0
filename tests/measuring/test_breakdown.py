"""Where bytes and time are: every parameter in one part, and the time of a module in its own part."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from potstill.measuring.breakdown import ATTENTION, EMBEDDED, FEED_FORWARD, HEAD, PARTS, part_breakdown
from potstill.measuring.measurements import MeasuredModel
from potstill.models import anatomy
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import save_student
from potstill.reporting.breakdown import breakdown_table
from potstill.reporting.tables import Line
from tests.support.commands import potstill
from tests.support.generative_models import TRANSLATORS, WRITERS, small_writer
from tests.support.small_models import ARCHITECTURES, sentences, small_images, small_model, write_csv

TEXTS, SLEEP = 4, 0.02


def slow(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = module.forward

    def slower(*inputs: Any, **options: Any) -> Any:
        time.sleep(SLEEP)
        return forward(*inputs, **options)

    monkeypatch.setattr(module, "forward", slower)


@pytest.mark.parametrize("name", [*ARCHITECTURES, *WRITERS])
def test_every_parameter_is_in_one_part(name: str) -> None:
    student = small_writer(name) if name in WRITERS else small_model(name, layers=2)
    inputs = sample_inputs(student, TEXTS, 9)
    if name in TRANSLATORS:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    found, counted = part_breakdown(student.model, [inputs]), anatomy.parameters(student.model)
    assert found is not None and tuple(found) == PARTS
    sizes = {part: numbers["bytes"] / 4 for part, numbers in found.items()}
    assert sum(sizes.values()) == sum(counted.values())
    assert sizes[HEAD] == counted["head"] and min(sizes[ATTENTION], sizes[FEED_FORWARD]) > 0.2 * counted["layers"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in student.model.modules())


@pytest.mark.parametrize(
    ("part", "module"),
    [
        (EMBEDDED, "bert.embeddings"),
        (ATTENTION, "bert.encoder.layer.0.attention.self"),
        (ATTENTION, "bert.encoder.layer.1.attention"),
        (FEED_FORWARD, "bert.encoder.layer.1.intermediate"),
        (HEAD, "classifier"),
        (HEAD, "bert.pooler"),
    ],
)
def test_the_time_of_a_module_is_in_its_part(part: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that waits adds what it waits to its part, and nothing to the others."""
    student = small_model("bert", layers=2)
    slow(student.model.get_submodule(module), monkeypatch)
    found = part_breakdown(student.model, [sample_inputs(student, TEXTS, 9, seed) for seed in range(2)])
    assert found is not None
    waited = 1000 * SLEEP / TEXTS
    assert found[part]["ms"] >= waited
    assert all(numbers["ms"] < waited for name, numbers in found.items() if name != part)


def test_networks_without_attention_have_none() -> None:
    student = small_images()
    assert part_breakdown(student.model, [{"pixel_values": torch.zeros(2, *student.tokenizer.shape)}]) is None


def test_the_table_shows_shares_of_the_whole() -> None:
    numbers = {"attention": {"bytes": 3e6, "ms": 1.0}, "head": {"bytes": 1e6, "ms": 0.25}}
    model = MeasuredModel.from_json({"breakdown": numbers})
    assert model.to_json()["breakdown"] == numbers
    table = breakdown_table([Line("teacher", "teacher", model), Line("int8", "int8", MeasuredModel())])
    assert table is not None and table.groups == [("", 1), ("teacher", 2)]
    assert [[(cell.text, cell.note) for cell in row] for row in table.rows] == [
        [("attention", ""), ("3.0", "75 %"), ("1.00", "80 %")],
        [("head", ""), ("1.0", "25 %"), ("0.25", "20 %")],
    ]
    assert breakdown_table([Line("int8", "int8", MeasuredModel())]) is None


def test_a_run_writes_it_for_teacher_and_student_and_shows_it_on_its_page(tmp_path: Path) -> None:
    save_student(small_model("bert", layers=4), tmp_path / "teacher")
    for name, seed in (("train", 1), ("dev", 2)):
        write_csv(tmp_path / f"{name}.csv", sentences(40, seed))
    files = ["--teacher", tmp_path / "teacher", "--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv"]
    options = ["--student", "keep_layers:2", "--method", "soft_targets", "--epochs", "1", "--force", "--quiet"]
    options += ["--set", "timing=pytorch", "--set", "optimizer.rate=0.001", "--out", tmp_path / "run"]
    assert potstill("distill", *files, *options) == 0
    models = json.loads((tmp_path / "run" / "measurements.json").read_text())["models"]
    teacher, student = (models[name]["breakdown"] for name in ("teacher", "distilled"))
    assert tuple(teacher) == tuple(student) == PARTS
    assert teacher[ATTENTION]["bytes"] == 2 * student[ATTENTION]["bytes"] > 0, "four layers beside two"
    assert teacher[EMBEDDED]["bytes"] == student[EMBEDDED]["bytes"] and min(part["ms"] for part in student.values()) > 0
    assert "breakdown" not in models["fine-tuned"]
    assert "Where the bytes and the time are" in (tmp_path / "run" / "report.html").read_text()
