"""Weights in float16 on disk are float32 in memory, and those that float16 cannot hold are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from potstill.errors import InputError
from potstill.models.student import load_student, save_student
from potstill.recipe import plugins
from tests.support.small_models import small_model


def test_every_weight_is_rounded_to_the_nearest_half_and_loads_as_float32(tmp_path: Path) -> None:
    student = small_model("bert", layers=2)
    save_student(student, tmp_path / "plain")
    file = plugins.make("exports", "float16", {}).export(student, tmp_path / "out", []).file
    stored, before = load_file(file), load_file(tmp_path / "plain" / "model.safetensors")
    assert stored.keys() == before.keys()
    for name, weight in before.items():
        assert stored[name].dtype == torch.float16 and torch.equal(stored[name], weight.half())
    assert file.stat().st_size < 0.55 * (tmp_path / "plain" / "model.safetensors").stat().st_size
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    for model in (load_student(tmp_path / "out").model, stock):
        for name, weight in model.state_dict().items():
            assert weight.dtype == torch.float32 and torch.equal(weight, before[name].half().float()), name
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_weights_beyond_float16_are_refused(tmp_path: Path) -> None:
    student = small_model("bert", layers=1)
    student.model.classifier.bias.data[0] = 70_000
    with pytest.raises(InputError, match=r"classifier\.bias has numbers beyond 65,504.* write --to onnx"):
        plugins.make("exports", "float16", {}).export(student, tmp_path / "out", [])
