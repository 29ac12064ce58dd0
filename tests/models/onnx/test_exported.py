"""Exported models are loaded without torch and transformers, and give the numbers of `load_network`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potstill.errors import InputError
from potstill.models.builder import BuildContext, Student
from potstill.models.folders import onnx_file
from potstill.models.inference import load_network
from potstill.models.onnx.exported import can_load_light, load_exported
from potstill.models.onnx.writing import write_onnx
from potstill.recipe import plugins
from tests.support.small_models import sentences, small_model

LIGHT = (
    "safety",
    "folders",
    "heads",
    "onnx.exported",
    "tokenizers.json_tokenizer",
    "tokenizers.long_texts",
)
TEXTS = ["", *(text for text, _ in sentences(12, 0)), "Ünïcode , of a “film” 日本"]


def exported(name: str) -> Student:
    if name != "bilstm":
        return small_model(name, layers=1)
    start = small_model("bert", layers=1)
    return plugins.make("students", name, {"hidden": 8, "width": 8}).build(
        start, BuildContext(start, 0, lambda: iter(TEXTS))
    )


@pytest.mark.parametrize("name", ["bert", "roberta", "bilstm"])
def test_light_and_full_loader_agree(name: str, tmp_path: Path) -> None:
    file = write_onnx(exported(name), tmp_path)
    assert onnx_file(tmp_path) == file and can_load_light(file)
    light, full = load_exported(file, threads=2), load_network(tmp_path)
    assert light.config.id2label == full.config.id2label and light.config.problem_type == full.config.problem_type
    assert (light.longest, light.trained_length, light.parameters, light.bytes) == (
        full.longest,
        full.trained_length,
        full.parameters,
        full.bytes,
    )
    assert light.tokenizer.get_vocab() == full.tokenizer.get_vocab()
    assert light.tokenizer.pad_token_id == full.tokenizer.pad_token_id
    assert light.tokenizer.mask_token == full.tokenizer.mask_token
    windows: dict[str, Any] = {"truncation": "only_second", "stride": 2, "return_overflowing_tokens": True}
    for options in ({"max_length": 5}, {"max_length": 9, "add_special_tokens": False}, {"max_length": 12, **windows}):
        pairs = TEXTS[::-1] if "stride" in options else None
        texts = [text[:6] for text in TEXTS] if pairs else TEXTS
        options = {"truncation": True, "return_token_type_ids": True, **options}
        ours, theirs = light.tokenizer(texts, pairs, **options), full.tokenizer(texts, pairs, **options)
        assert {key: ours[key] for key in theirs} == dict(theirs)
        assert [encoding.offsets for encoding in ours.encodings] == [encoding.offsets for encoding in theirs.encodings]
    batch = full.tokenizer(TEXTS, padding=True, truncation=True, max_length=16, return_tensors="pt")
    inputs = {name: tensor for name, tensor in batch.items() if name in light.tokenizer.model_input_names}
    np.testing.assert_array_equal(
        light.forward({name: tensor.numpy() for name, tensor in inputs.items()}), full.forward(inputs)
    )


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("config.json", "vocab_size", "x"),
        ("config.json", "id2label", ["a", "b"]),
        ("config.json", "id2label", {"0": "a", "1": "a"}),
        ("config.json", "architectures", "BertForSequenceClassification"),
        ("config.json", "potstill_longest", None),
        ("config.json", "potstill_length", 1),
        ("tokenizer_config.json", "truncation_side", "up"),
    ],
)
def test_wrong_settings_are_input_errors(name: str, key: str, value: Any, tmp_path: Path) -> None:
    file = write_onnx(small_model("bert", layers=1), tmp_path)
    settings = json.loads((tmp_path / name).read_text())
    (tmp_path / name).write_text(json.dumps({**settings, key: value}))
    with pytest.raises(InputError):
        load_exported(file)


def test_a_damaged_tokenizer_is_an_input_error(tmp_path: Path) -> None:
    file = write_onnx(small_model("bert", layers=1), tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(InputError, match=r"tokenizer\.json that can be read .* potstill export"):
        load_exported(file)


def test_reading_folders_loads_neither_torch_nor_transformers(tmp_path: Path) -> None:
    write_onnx(small_model("bert", layers=1), tmp_path)
    code = f"""
import sys
from importlib import import_module
for name in {LIGHT!r}:
    import_module("potstill.models." + name)
from pathlib import Path
from potstill.models.onnx.exported import can_load_light, load_exported
assert can_load_light(Path("model.onnx")) and load_exported(Path("model.onnx")).tokenizer("a", max_length=4)
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
