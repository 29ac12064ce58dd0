"""Loading a student is strict and runs nobody's code; saving leaves a whole folder or the old one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from potstill.errors import InputError
from potstill.models.anatomy import encoder_layers
from potstill.models.builder import BuildContext
from potstill.models.student import Student, load_student, save_student
from potstill.plugins.students.keep_layers import KeepLayers
from tests.support.small_models import ARCHITECTURES, same_weights, sentences, small_model
from tests.support.small_models import logits as logits_of

TEXTS = [text for text, _ in sentences(6, seed=1)]


def logits(student: Student) -> torch.Tensor:
    return logits_of(student, TEXTS)


@pytest.fixture
def folder(tmp_path) -> Path:
    save_student(small_model("bert"), tmp_path / "model")
    return tmp_path / "model"


def edit_weights(folder: Path, edit) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(edit(weights), folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_missing_folder_is_named(tmp_path):
    for missing in (tmp_path / "nothing", str(tmp_path / "nothing"), "./nothing"):
        with pytest.raises(InputError, match=r"there is no folder .*nothing; write"):
            load_student(missing)


def test_pickled_weights_are_not_opened(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors only"):
        load_student(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_custom_code_is_refused_without_a_question(folder, file, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    edit_config(folder / file, auto_map={"AutoConfig": "x.X", "AutoTokenizer": ["x.X", "x.X"]})
    with pytest.raises(InputError, match="own code"):
        load_student(folder)


def test_a_damaged_folder_is_an_input_error(folder):
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(InputError, match=str(folder)):
            load_student(folder)
        (folder / file).write_bytes(whole)
    load_student(folder)


@pytest.mark.parametrize("labels", [None, ["no", "yes"]])
def test_missing_weights_of_the_encoder_are_never_made_up(folder, labels):
    name = "bert.encoder.layer.1.output.dense.weight"
    edit_weights(folder, lambda weights: {key: value for key, value in weights.items() if key != name})
    with pytest.raises(InputError, match=name):
        load_student(folder, labels)


def test_another_shape_is_an_error(folder):
    edit_config(folder / "config.json", intermediate_size=32)
    with pytest.raises(InputError, match="another shape"):
        load_student(folder, ["no", "yes"])


def test_more_layers_than_the_config_says_are_an_error(folder):
    edit_config(folder / "config.json", num_hidden_layers=3)
    with pytest.raises(InputError, match=r"layer\.3\..*now says 3"):
        load_student(folder)


def test_other_heads_in_the_file_are_no_error(folder):
    edit_weights(folder, lambda weights: {**weights, "cls.predictions.bias": torch.zeros(3)})
    assert torch.equal(logits(load_student(folder)), logits(small_model("bert")))


def test_a_head_is_made_only_when_labels_are_given(folder):
    edit_weights(folder, lambda weights: {key: value for key, value in weights.items() if "classifier" not in key})
    with pytest.raises(InputError, match="no trained head"):
        load_student(folder)
    torch.manual_seed(3)
    made = [load_student(folder, ["no", "yes", "maybe"], "single_label_classification", seed) for seed in (1, 1, 2)]
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert same_weights(made[0], made[1])
    assert not same_weights(made[0], made[2])
    assert made[0].model.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert made[0].model.config.label2id == {"no": 0, "yes": 1, "maybe": 2}
    assert logits(made[0]).shape == (len(TEXTS), 3)


def test_a_head_of_the_same_size_is_kept_with_its_names(folder):
    again = load_student(folder, ["no", "yes"])
    assert again.model.config.id2label == {0: "negative", 1: "positive"}
    assert torch.equal(logits(again), logits(small_model("bert")))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_head_for_another_number_of_labels_is_new(architecture, tmp_path):
    start = small_model(architecture)
    save_student(start, tmp_path / "model")
    made = load_student(tmp_path / "model", ["value"], "regression")
    assert made.model.config.num_labels == 1
    assert made.model.config.id2label == {0: "value"}
    assert made.model.config.problem_type == "regression"
    pairs = zip(encoder_layers(made.model).parameters(), encoder_layers(start.model).parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_half_precision_is_read_as_float32(folder):
    edit_weights(folder, lambda weights: {name: weight.half() for name, weight in weights.items()})
    edit_config(folder / "config.json", dtype="float16")
    student = load_student(folder)
    assert {parameter.dtype for parameter in student.model.parameters()} == {torch.float32}
    kept = KeepLayers(1).build(student, BuildContext(student, 0, lambda: iter(TEXTS)))
    assert {parameter.dtype for parameter in kept.model.parameters()} == {torch.float32}


def test_loading_is_silent_and_leaves_the_verbosity_as_it_was(folder, capfd):
    edit_weights(folder, lambda weights: {key: value for key, value in weights.items() if "classifier" not in key})
    logging.set_verbosity_info()
    try:
        load_student(folder, ["no", "yes"])
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()
    assert capfd.readouterr() == ("", "")


def test_saving_that_fails_leaves_the_old_folder(folder, monkeypatch):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    other = small_model("bert", seed=1)

    def full(*_, **__):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(other.tokenizer), "save_pretrained", full)
        with pytest.raises(OSError, match="No space"):
            save_student(other, folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    save_student(other, folder)
    assert same_weights(load_student(folder), other)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_teacher_that_does_not_fit_is_spread_and_answers_alike(tmp_path: Path) -> None:
    """On disk but for what is at work; a memory that it fills is that of the whole one."""
    from potstill.models.anatomy import is_spread
    from potstill.models.fingerprints import weights_hash
    from potstill.models.inference import torch_forward

    save_student(small_model("bert"), tmp_path / "teacher")
    whole, spread = load_student(tmp_path / "teacher"), load_student(tmp_path / "teacher", devices={"cpu": "60KB"})
    assert is_spread(spread.model) and not is_spread(whole.model)
    assert any(parameter.device.type == "meta" for parameter in spread.model.parameters())
    inputs = dict(whole.tokenizer(["a charming film", "dull"], padding=True, return_tensors="pt"))
    assert np.array_equal(torch_forward(whole.model)(inputs), torch_forward(spread.model)(inputs))
    assert weights_hash(whole.model) == weights_hash(spread.model)
