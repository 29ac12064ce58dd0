"""Exports are compared with their model, and refused where they answer too differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.data.rows import Columns
from potstill.errors import InputError, TrainingError
from potstill.inference import onnx_check
from potstill.inference.export import export_student
from potstill.inference.export_types import Checked, Rows, Seconds
from potstill.inference.predict import predict
from potstill.models.student import Student, load_student, save_student
from tests.support.commands import potstill
from tests.support.small_models import sentences, small_model

OTHER_HEAD = '''
from dataclasses import dataclass

from potstill.api import Checked, Export, networks, onnx_check


@dataclass(frozen=True)
class OtherHead(Export):
    """The student with another bias.

    bias: of the first class.
    """

    bias: float = 0.0

    def export(self, student, out, rows) -> Checked:
        before = student.model.classifier.bias.data.clone()
        student.model.classifier.bias.data[0] += self.bias
        networks.save_student(student, out)
        student.model.classifier.bias.data.copy_(before)
        return onnx_check.compare(student, out / "model.safetensors", rows)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plugged" / "exports").mkdir(parents=True)
    (tmp_path / "plugged" / "exports" / "other_head.py").write_text(OTHER_HEAD)
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugged"))
    save_student(small_model("bert", layers=1), tmp_path / "student")
    lines = (json.dumps({"text": text, "label": label}) for text, label in sentences(40, 1))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return tmp_path


def logit_gaps(folder: Path) -> np.ndarray:
    """(rows,) the logit of the second class minus that of the first."""
    texts = [text for text, _ in sentences(40, 1)]
    both = np.array([list(prediction["probabilities"].values()) for prediction in predict(folder, texts)])
    return np.asarray(np.log(both[:, 1] / both[:, 0]))


def test_an_export_that_answers_too_differently_leaves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bias changes the predictions of exactly the rows whose logits are nearer than it."""
    gaps = logit_gaps(here / "student")
    nearest = sorted(gaps[gaps > 0] if (gaps > 0).sum() >= 20 else gaps[gaps < 0], key=abs)
    bias = float((nearest[9] + nearest[10]) / 2)  # ten of 40 rows change sides
    command = [
        "export",
        here / "student",
        "--to",
        "other_head",
        "--data",
        here / "rows.jsonl",
        "--with",
        f"bias={bias}",
    ]
    assert potstill(*command, "--agree", "0.76") == 1
    told = capsys.readouterr().err
    assert "75.0 % of the rows" in told and "or --agree 0.75" in told and "potstill list exports" in told
    assert sorted(path.name for path in here.iterdir()) == ["plugged", "rows.jsonl", "student"]
    assert potstill(*command, "--agree", "0.75") == 0
    assert "same prediction 75.0 %" in capsys.readouterr().out
    before = (here / "student-other_head" / "model.safetensors").read_bytes()
    assert potstill(*command, "--agree", "1", "--with", f"bias={2 * bias}", "--overwrite") == 1
    assert (here / "student-other_head" / "model.safetensors").read_bytes() == before, "an earlier export stays"


def with_problem(problem: str, labels: tuple[str, ...], shift: list[float], folder: Path) -> tuple[Student, Path]:
    """A student, and its folder with a shifted bias."""
    student = small_model("bert", labels=labels, layers=1)
    student.model.config.problem_type = problem
    before = student.model.classifier.bias.data.clone()
    student.model.classifier.bias.data += torch.tensor(shift)
    save_student(student, folder)
    student.model.classifier.bias.data.copy_(before)
    return student, folder / "model.safetensors"


def test_labels_count_as_predicted_where_all_of_a_row_are(tmp_path: Path) -> None:
    """Of three labels one is never predicted any more: only rows that had it differ."""
    student, file = with_problem("multi_label_classification", ("a", "b", "c"), [0, -1000, 0], tmp_path / "out")
    rows: Rows = [(text, None) for text, _ in sentences(40, 0)]
    texts = [text for text, _ in rows]
    save_student(student, tmp_path / "plain")
    had = [prediction["probabilities"]["b"] > 0.5 for prediction in predict(tmp_path / "plain", texts)]
    assert onnx_check.compare(student, file, rows).agreement == pytest.approx(1 - np.mean(had), abs=1e-6)


def test_numbers_have_no_equal_predictions(tmp_path: Path) -> None:
    student, file = with_problem("regression", ("value",), [0.5], tmp_path / "out")
    rows: Rows = [(text, None) for text, _ in sentences(20, 0)]
    for given in (rows, []):
        checked = onnx_check.compare(student, file, given)
        assert checked.agreement is None and checked.difference == pytest.approx(0.5, abs=1e-4)
    assert {"this form"} == set(checked.seconds) and min(checked.seconds["this form"]) > 0


@dataclass
class Timed:
    """An export that says how long its forms take."""

    seconds: Mapping[str, Seconds] = field(default_factory=dict)
    agreement: float | None = None

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        (out / "model.onnx").write_bytes(b"model")
        return Checked(out / "model.onnx", 0.0, self.agreement, seconds=self.seconds)


@pytest.mark.parametrize("times", [0.5, 1.05, 3.0])
def test_a_form_that_is_slower_says_so(times: float, here: Path) -> None:
    form = Timed({"this form": Seconds(times, 1.0), "PyTorch": Seconds(9.0, 9.0), "float32": Seconds(1.0, 1.0)})
    said = str(export_student(str(here / "student"), form, str(here / "out"), None, Columns(), None, False))  # type: ignore[arg-type]
    assert ("slower than float32" in said and "3.00 times the time for one text" in said) == (times == 3)


def test_a_gate_needs_rows_and_classes(here: Path) -> None:
    model, rows = str(here / "student"), str(here / "rows.jsonl")
    for data, wrong in ((None, "with --data"), (rows, "omit --agree")):
        with pytest.raises(InputError, match=wrong):
            export_student(model, Timed(), str(here / "out"), data, Columns(), None, False, 0.9)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="nothing was written"):
        export_student(model, Timed({}, 0.5), str(here / "out"), rows, Columns(), None, False, 0.9)  # type: ignore[arg-type]
    assert not (here / "out").exists()


@pytest.mark.parametrize("form", [pytest.param("onnx", marks=pytest.mark.slow), "int8", "float16", "huffman"])
def test_bytes_of_the_network_of_the_file_and_in_memory_are_told_apart(
    form: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export --json` and `measure --json` say the same three sizes; PyTorch holds float32 whatever the file holds."""
    student = load_student(here / "student")
    dense = 4 * sum(parameter.numel() for parameter in student.model.parameters())
    out = here / f"student-{form}"
    assert potstill("export", here / "student", "--to", form, "--data", here / "rows.jsonl", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert potstill("measure", here / "student", out, "--data", here / "rows.jsonl", "--json") == 0
    measured = json.loads(capsys.readouterr().out)["models"][str(out)]
    stored = Path(told["file"]).stat().st_size
    memory = stored if form in ("onnx", "int8") else dense
    for sizes in (told, measured):
        assert (sizes["dense_bytes"], sizes["bytes"], sizes["memory_bytes"]) == (dense, stored, memory)
    assert form != "float16" or stored < 0.6 * dense
    others = {"onnx": {"PyTorch"}, "int8": {"PyTorch", "ONNX in float32"}}.get(form, set())
    assert set(told["milliseconds"]) == {"this form"} | others
    assert all(time > 0 for times in told["milliseconds"].values() for time in times.values())
    assert potstill("measure", here / "student", out, "--data", here / "rows.jsonl") == 0
    table = capsys.readouterr().out
    assert "float32" in table and "memory" in table
