"""Quantized ONNX files: static scales come from calibration rows, and do not depend on the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from potstill.errors import InputError
from potstill.inference import onnx_check
from potstill.inference.export_types import Checked, Rows, Seconds
from potstill.inference.form_speed import faster_form
from potstill.models.builder import BuildContext, Student
from potstill.models.inference import load_network
from potstill.models.onnx.quantizing import quantize_embeddings
from potstill.recipe import plugins
from tests.support.small_models import sentences, small_model

ROWS: Rows = [(text, None) for text, _ in sentences(80, 0)]


def written(student: Student, folder: Path, rows: Rows = ROWS, **fields: str | bool) -> tuple[Checked, Path]:
    return plugins.make("exports", "int8", fields).export(student, folder, rows), folder / "model.onnx"


def kinds(file: Path) -> list[str]:
    return [node.op_type for node in onnx.load(file).graph.node]


def change_beside_others(student: Student, folder: Path) -> float:
    """The largest difference of a text's logits alone and with 31 others of the same length."""
    texts = [(" ".join(["warm film the", *text.split(), *["movie"] * 20][:12]), None) for text, _ in ROWS[:32]]
    run = load_network(folder).forward
    _, (together,), _, _ = onnx_check._of_rows(student, texts)
    alone = [run({name: tensor[row : row + 1] for name, tensor in together.inputs.items()}) for row in range(32)]
    return float(np.abs(np.concatenate(alone) - run(together.inputs)).max())


def test_static_answers_do_not_depend_on_the_other_texts_of_a_batch(tmp_path: Path) -> None:
    student = small_model("bert", layers=2)
    changes = {}
    for form in ("dynamic", "static"):
        checked, file = written(student, tmp_path / form, activations=form)
        changes[form] = change_beside_others(student, file.parent)
        assert checked.difference < 0.5 and checked.agreement is not None and checked.agreement >= 0.9
        assert ("QuantizeLinear" in kinds(file)) == (form == "static")
    assert changes["static"] <= 1e-5 < changes["dynamic"]


def test_calibration_rows_set_the_scales(tmp_path: Path) -> None:
    """The scale of an input is (largest − smallest) / 255 over the rows that calibrate, which are not compared on."""
    student = small_model("bert", layers=1)
    checked, file = written(student, tmp_path / "out", activations="static", embeddings=False)
    assert checked.rows == 40, "every second of 80 rows calibrates"
    states = []
    layer = student.model.bert.encoder.layer[0].attention.self.query
    hook = layer.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    for inputs in onnx_check._of_rows(student, ROWS[::2])[1]:
        student.model(**inputs.inputs)
    hook.remove()
    low, high = (float(pick([float(pick(state.flatten().tolist())) for state in states])) for pick in (min, max))
    graph = onnx.load(file).graph
    scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear")
    assert float(scales[first.input[1]]) == pytest.approx((high - low) / 255, rel=1e-4)


def test_an_lstm_stays_dynamic_in_a_static_file(tmp_path: Path) -> None:
    start = small_model("bert", layers=1)
    texts = [text for text, _ in ROWS]
    student = plugins.make("students", "bilstm", {}).build(start, BuildContext(start, 0, lambda: iter(texts), False))
    checked, file = written(student, tmp_path / "out", activations="static")
    assert checked.difference <= 0.02 and {"DynamicQuantizeLSTM", "QuantizeLinear"} <= set(kinds(file))


def test_static_needs_rows_and_auto_does_without(tmp_path: Path) -> None:
    student = small_model("bert", layers=1)
    with pytest.raises(InputError, match="write --data"):
        written(student, tmp_path / "out", [], activations="static")
    assert "DynamicQuantizeLinear" in kinds(written(student, tmp_path / "auto", [], activations="auto")[1])


def test_auto_keeps_the_form_that_its_note_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    student = small_model("bert", layers=1)
    for form, node in (("dynamic", "DynamicQuantizeLinear"), ("static", "QuantizeLinear")):
        monkeypatch.setattr("potstill.inference.form_speed.faster_form", lambda forms, form=form: (form, f"{form}: so"))
        checked, file = written(student, tmp_path / form, activations="auto")
        assert checked.note == f"{form}: so" and node in kinds(file)
        _, plain = written(student, tmp_path / f"plain-{form}", activations=form)
        assert plain.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("seconds", "agreement", "kept"),
    [
        (0.5, 0.98, "static"),
        (0.95, 0.98, "dynamic"),
        (2.0, 1.0, "dynamic"),
        (0.5, 0.90, "dynamic"),
        (0.5, None, "static"),
    ],
)
def test_the_faster_form_is_one_that_answers_the_same(seconds: float, agreement: float | None, kept: str) -> None:
    def form(time: float, share: float | None) -> Checked:
        return Checked(Path("model.onnx"), 0.1, share, seconds={"this form": Seconds(time, time)})

    found, note = faster_form({"dynamic": form(1.0, 0.985), "static": form(seconds, agreement)})
    assert found == kept and note.startswith(f"{kept}: static takes {seconds:.2f} times the time of dynamic on ")


def test_rows_of_a_table_have_scales_of_their_own() -> None:
    """A row of small numbers beside one of large numbers loses at most half a step of its own."""
    table = np.array([[1e-3, -2e-3, 5e-4], [100.0, -3.0, 7.0]], np.float32)
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])
    out = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, ["n", 3])
    nodes = [onnx.helper.make_node("Gather", ["table", "ids"], ["out"])]
    graph = onnx.helper.make_graph(nodes, "table", [ids], [out], [onnx.numpy_helper.from_array(table, "table")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    quantize_embeddings(model)
    from onnxruntime import InferenceSession

    (found,) = InferenceSession(model.SerializeToString()).run(None, {"ids": np.array([0, 1])})
    assert (np.abs(found - table) <= np.abs(table).max(1, keepdims=True) / 127 / 2 * 1.001).all()
    assert np.abs(found - table)[0].max() > 0
