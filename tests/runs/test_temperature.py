"""A student carries its temperature: fitted on dev, stored in config.json, read wherever probabilities are given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.errors import InputError
from potstill.inference.predict import predict
from potstill.measuring.measure_models import measure_models
from potstill.models.fingerprints import fingerprint
from potstill.models.student import load_student, save_student
from potstill.recipe import plugins
from tests.support.commands import FAST, files, measurements, potstill
from tests.support.small_models import logits, sentences, small_model, small_teacher, write_csv, write_task

KEY = "potstill_temperature"
SAYING = [word for word in FAST if word != "--quiet"]
TEXTS = [text for text, _ in sentences(6, 5)]


def config_of(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "config.json").read_text()))


def with_temperature(folder: Path, value: object) -> Path:
    (folder / "config.json").write_text(json.dumps({**config_of(folder), KEY: value}))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, and a teacher that is much too sure and has a temperature of other weights."""
    home = tmp_path_factory.mktemp("home")
    for name, rows, seed in (("train", 80, 1), ("dev", 60, 2), ("test", 60, 3), ("few", 40, 4)):
        write_csv(home / f"{name}.csv", sentences(rows, seed))
    teacher = small_teacher("classify")
    teacher.model.classifier.weight.data *= 30
    save_student(teacher, home / "teacher")
    with_temperature(home / "teacher", 9.5)
    return home


def distil(home: Path, out: Path, dev: str = "dev.csv") -> Path:
    rows = [word if word != str(home / "dev.csv") else str(home / dev) for word in files(home)]
    words = ["--student", "keep_layers:2", "--method", "soft_targets", "--epochs", "1", "--force", *SAYING]
    assert potstill("distill", "--teacher", home / "teacher", *rows, *words, "--out", out) == 0
    return out


def test_a_run_stores_it_and_measures_before_and_after(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = distil(home, tmp_path / "run")
    said = capsys.readouterr().err
    # what the teacher knows is said before the first step, and the temperature after the last one
    assert said.index("What the teacher knows (2 classes): on train ") < said.index("can show a difference of about")
    assert (
        said.index("can show a difference of about")
        < said.index("epoch 1: loss")
        < said.index("distilled: logits divided")
    )
    assert measurements(run)["teacher_knows"]["task"]["splits"]["dev"]["rows"] == 60
    found = measurements(run)["models"]
    for name, folder in (("distilled", "student"), ("fine-tuned", "baseline")):
        stored = config_of(run / folder)[KEY]
        assert found[name]["temperature"] == {"task": stored} and stored not in (1, 9.5)
        scores = found[name]["quality"]["task"]["test"]
        again = measure_models([str(run / folder)], str(home / "test.csv"))["models"][str(run / folder)]
        same = again["quality"]["task"]["test"]
        for key in ("accuracy", "calibration_error", "calibration_error_before"):
            assert scores[key] == pytest.approx(same[key], abs=1e-6)
    assert "temperature" not in found["teacher"]  # what it teaches with are its own logits
    page, card = (run / "report.html").read_text(), (run / "student/README.md").read_text()
    assert "before" in page and KEY in card and "without its temperature by" in card


def test_few_rows_of_dev_calibrate_nothing_and_the_teacher_s_is_not_inherited(home: Path, tmp_path: Path) -> None:
    run = distil(home, tmp_path / "run", "few.csv")
    assert KEY not in config_of(run / "student") and KEY not in config_of(run / "baseline")
    student = measurements(run)["models"]["distilled"]
    assert "temperature" not in student and "calibration_error_before" not in student["quality"]["task"]["test"]


def test_predict_divides_the_logits_also_of_exports_and_changes_no_label(tmp_path: Path) -> None:
    student = small_model("bert", layers=1)
    save_student(student, tmp_path / "plain")
    before = list(predict(tmp_path / "plain", TEXTS))
    student.model.config.potstill_temperature = 2.5
    save_student(student, tmp_path / "hot")
    onnx = tmp_path / "onnx"
    plugins.make("exports", "onnx", {}).export(student, onnx, [])
    expected = (logits(student, TEXTS) / 2.5).softmax(-1).tolist()
    for folder in (tmp_path / "hot", onnx):
        for told, plain, shares in zip(predict(folder, TEXTS), before, expected, strict=True):
            assert told["label"] == plain["label"] and told["probability"] < plain["probability"]
            assert list(told["probabilities"].values()) == pytest.approx(shares, abs=2e-6)
    assert torch.equal(logits(load_student(tmp_path / "hot"), TEXTS), logits(student, TEXTS))
    assert fingerprint(student.model, "", 8) == fingerprint(load_student(tmp_path / "plain").model, "", 8)


def test_words_are_as_sure_as_their_temperature_says(tmp_path: Path) -> None:
    """A tagger's outputs hold the probability of the best tag, so that before and after are read apart."""
    rows = write_task(tmp_path / "rows", "tag", 20, 1)
    tagger = small_teacher("tag")
    tagger.model.classifier.weight.data *= 30
    save_student(tagger, tmp_path / "plain")
    tagger.model.config.potstill_temperature = 4.0
    save_student(tagger, tmp_path / "hot")
    found = [
        measure_models([str(tmp_path / name)], str(rows))["models"][str(tmp_path / name)] for name in ("plain", "hot")
    ]
    plain, hot = (one["quality"]["task"]["test"] for one in found)
    assert hot["calibration_error_before"] == pytest.approx(plain["calibration_error"])
    assert hot["calibration_error"] < plain["calibration_error"] and hot["f1"] == plain["f1"]
    sure = [[one["probabilities"] for one in predict(tmp_path / name, [TEXTS[0]])] for name in ("plain", "hot")]
    assert np.mean(sure[1]) < np.mean(sure[0])


@pytest.mark.parametrize("value", [0, -1.0, "2", True, [1.5], 1e9, float("nan")])
def test_a_temperature_that_cannot_be_is_refused(value: object, tmp_path: Path) -> None:
    save_student(small_model("bert", layers=1), tmp_path / "student")
    with pytest.raises(InputError, match=f"{KEY} in config.json is .*; write a number such as 1.5, or remove it"):
        list(predict(with_temperature(tmp_path / "student", value), TEXTS))
