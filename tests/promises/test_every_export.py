"""What every export promises: a folder that answers as the student does. A file in exports/ is tested by existing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from potstill.app import cli
from potstill.errors import InputError, TrainingError
from potstill.inference import onnx_check
from potstill.inference.predict import predict
from potstill.measuring.measure_models import measure_models
from potstill.models.builder import BuildContext
from potstill.models.generation.ctranslate2 import convert
from potstill.models.generation.decoding import decoder, decoder_of
from potstill.models.inference import load_network, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import save_student
from potstill.plugins.students.bag import Bag
from potstill.recipe import plugins
from tests.support.generative_models import TRANSLATORS, WRITERS, small_writer, trained_marian
from tests.support.small_models import ARCHITECTURES, digits, sentences, small_convolutions, small_images, small_model

WRITING = ("ctranslate2",)  # for models that write texts; others are for those that answer with logits
EXPORTS = [name for name in plugins.names("exports") if name not in WRITING]
QUICK = (("onnx", "bert"), ("onnx", "digits"), ("int8", "digits"), ("onnx", "cnn"))
FOLDERS = ("huffman", "float16")  # student folders, which may be of any model
OF_WORDS = [name for name in plugins.names("students") if issubclass(plugins.find("students", name), Bag)]
OVER_WORDS = [(name, pairs) for name in OF_WORDS for pairs in (False, True)]
CLOSE = {"onnx": 1e-5}  # others round their weights


@pytest.mark.parametrize(
    ("export", "architecture"),
    [
        pytest.param(export, name, marks=() if (export, name) in QUICK else pytest.mark.slow)
        for export in EXPORTS
        for name in (*ARCHITECTURES, "digits", "cnn")
    ],
)
def test_any_batch_and_length_give_the_student_s_answers(export: str, architecture: str, tmp_path: Path) -> None:
    made = {"digits": small_images, "cnn": small_convolutions}.get(architecture)
    student = made() if made else small_model(architecture, layers=2)
    rows = [(text, None) for text, _ in sentences(40, 0)]
    if made:
        rows = [(image.tobytes().decode("latin-1"), None) for image in digits(40)[0]]
    checked = plugins.make("exports", export, {}).export(student, tmp_path / "out", rows)
    network, run = load_network(tmp_path / "out"), torch_forward(student.model)
    assert network.parameters == sum(parameter.numel() for parameter in student.model.parameters())
    for seed, shape in enumerate([(1, 2), (1, 64), (7, 3), (33, 40)]):
        inputs = sample_inputs(student, *shape, seed)
        expected, found = run(inputs), network.forward(inputs)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= CLOSE.get(export, 0.5)
    assert checked.difference <= CLOSE.get(export, 0.5)
    assert checked.agreement >= 0.9


@pytest.mark.parametrize(("name", "pairs"), OVER_WORDS)
@pytest.mark.parametrize("export", EXPORTS)
def test_networks_over_words_give_their_own_answers_also_for_empty_texts(
    export: str, name: str, pairs: bool, tmp_path: Path
) -> None:
    start = small_model("bert", layers=1)
    texts = [text for text, _ in sentences(30, 0)]
    student = plugins.make("students", name, {}).build(start, BuildContext(start, 0, lambda: iter(texts), pairs))
    rows = [(text, other if pairs else None) for text, other in zip(["", "", *texts], ["", *texts, ""], strict=True)]
    checked = plugins.make("exports", export, {}).export(student, tmp_path / "out", rows)
    network, run = load_network(tmp_path / "out"), torch_forward(student.model)
    asked = [sample_inputs(student, *shape, seed) for seed, shape in enumerate([(1, 2), (7, 3), (33, 40)])]
    asked.append({name: one[:, :0] for name, one in asked[1].items()})  # no text has a token
    for inputs in asked:
        expected, found = run(inputs), network.forward(inputs)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= CLOSE.get(export, 0.02)
        assert len(expected) < 2 or not inputs["input_ids"].numel() or np.ptp(expected, 0).max() > 0.01  # texts differ
    assert checked.difference <= CLOSE.get(export, 0.02)
    if export == "int8":
        kinds = {node.op_type for node in onnx.load(tmp_path / "out" / "model.onnx").graph.node}
        assert "LSTM" not in kinds and ("DynamicQuantizeLSTM" in kinds) == (name == "bilstm")


@pytest.mark.parametrize(
    "export", [pytest.param(name, marks=() if name == "int8" else pytest.mark.slow) for name in EXPORTS]
)
def test_the_command_writes_what_predict_and_measure_read(
    export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    student = small_model("bert", layers=2)
    save_student(student, tmp_path / "student")
    rows = sentences(40, 1)
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    words = ["potstill", "export", str(tmp_path / "student"), "--to", export, "--data", str(tmp_path / "rows.jsonl")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "same prediction" in capsys.readouterr().out
    folder = tmp_path / f"student-{export}"
    texts, model = [text for text, _ in rows], next(folder.glob("*.onnx"), folder)
    plain, exported = (list(predict(place, texts)) for place in (tmp_path / "student", model))
    assert np.mean([a["label"] == b["label"] for a, b in zip(plain, exported, strict=True)]) >= 0.9
    found = measure_models([str(tmp_path / "student"), str(folder)], str(tmp_path / "rows.jsonl"))["models"]
    assert found[str(folder)]["quality"]["task"]["test"]["agreement"] >= 0.9
    assert all(speed["examples_per_second"] > 0 for speed in found[str(folder)]["speed"].values())
    with pytest.raises(SystemExit) as refused:  # an earlier export is not overwritten unasked
        cli.main()
    assert refused.value.code == 2


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "llama" else ()) for kind in WRITERS]
)
@pytest.mark.parametrize("export", WRITING)
def test_every_model_that_writes_gives_its_own_texts(export: str, kind: str, tmp_path: Path) -> None:
    student = trained_marian() if kind == "marian" else small_writer(kind)
    before = {name: tensor.clone() for name, tensor in student.model.state_dict().items()}
    rows: list[tuple[str, str | None]] = [("", ""), *((text, text[::-1]) for text, _ in sentences(40, 3))]
    exact = plugins.make("exports", export, {"weights": "float32"}).export(student, tmp_path / "exact", rows)
    assert exact.difference <= 1e-4 and exact.agreement >= 0.95
    drawn = plugins.make("exports", export, {"weights": "float32"}).export(student, tmp_path / "exact", [])
    assert drawn.difference <= 1e-4
    rough = plugins.make("exports", export, {}).export(student, tmp_path / "rough", rows)
    # so narrow a network loses much in eight bits (0.03 to 2.7 per token); that it is the same one is shown in float32 above
    assert exact.difference < rough.difference < 4
    assert rough.file.stat().st_size < 0.6 * exact.file.stat().st_size
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.model.state_dict().items())
    if kind in TRANSLATORS:
        with decoder_of(tmp_path / "exact") as decode, decoder(student, "transformers") as expected:
            assert decode(["a warm film", ""], 1, 1)[0][0].text == expected(["a warm film"], 1, 1)[0][0].text


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("marian", "gpt2") else pytest.mark.slow) for kind in WRITERS]
)
@pytest.mark.parametrize("export", FOLDERS)
def test_a_folder_of_a_model_that_writes_is_compared_by_tokens_and_read_by_measure(
    export: str, kind: str, tmp_path: Path
) -> None:
    student = trained_marian() if kind == "marian" else small_writer(kind)
    rows: list[tuple[str, str | None]] = [("", "a"), *((text, text[::-1]) for text, _ in sentences(40, 3))]
    for given, compared in ((rows, 41), ([], 0), ([("no second text", None)], 0)):
        checked = plugins.make("exports", export, {}).export(student, tmp_path / f"out-{len(given)}", given)
        assert checked.rows == compared
        assert (checked.agreement, checked.difference) == (1, 0) or (export != "huffman" and checked.agreement >= 0.95)
    save_student(small_writer(kind, seed=1), tmp_path / "other")
    theirs = onnx_check.compare(student, tmp_path / "other" / "model.safetensors", rows)
    assert theirs.agreement is not None and theirs.agreement < 0.9
    if kind == "marian":
        save_student(student, tmp_path / "student")
        (tmp_path / "rows.tsv").write_text("source\ttarget\n" + "\n".join(f"{a}\t{b}" for a, b in rows[1:9]))
        models = [str(tmp_path / "student"), str(tmp_path / "out-41")]
        measured = measure_models(models, str(tmp_path / "rows.tsv"))["models"]
        plain, found = (measured[model]["quality"]["task"]["test"] for model in models)
        assert found["bleu"] == pytest.approx(plain["bleu"], abs=0.02) and "latency_ms" in str(
            measured[models[1]]["speed"]
        )


@pytest.mark.parametrize("export", WRITING)
def test_other_models_are_refused(export: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use the model as it is"):
        plugins.make("exports", export, {}).export(small_model("bert", layers=1), tmp_path / "out", [])


def test_a_model_that_the_converter_takes_for_another_is_refused(tmp_path: Path) -> None:
    student = small_writer("marian")
    for layer in student.model.model.encoder.layers:
        layer.self_attn_layer_norm.eps = 0.5
    with pytest.raises(TrainingError, match="misreads this marian"):
        plugins.make("exports", "ctranslate2", {}).export(student, tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


def test_a_broken_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(InputError, match="potstill export"):
        load_network(tmp_path)
    convert(small_writer("marian"), tmp_path / "translator")
    (tmp_path / "translator" / "model.bin").write_bytes(b"nothing")
    with pytest.raises(InputError, match="potstill export"), decoder_of(tmp_path / "translator"):
        pass
