"""What is said of a teacher before training is what it answers, on the rows that it is said of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from potstill.measuring.measurements import TeacherKnowledge, TeacherRows
from potstill.models.student import load_student, save_student
from potstill.recipe.resolve import resolve
from potstill.runs.data_set import DataSet
from potstill.runs.distill import distill
from potstill.runs.teacher_knowledge import teacher_knowledge, teachers_temperature
from tests.support.prepared import prepared_data
from tests.support.small_models import sentences, small_model, small_teacher, write_csv, write_task


def known(*sets: str) -> tuple[TeacherKnowledge, DataSet]:
    recipe = resolve(None, None, [*sets, "force=true"]).recipe
    (data,) = prepared_data(recipe)
    found = teacher_knowledge(recipe, data)
    assert found is not None
    return found, data


def test_it_is_what_the_model_answers_row_by_row(tmp_path: Path) -> None:
    """Rows with and without a label apart; by the model alone, one text at a time."""
    rows = [(text, label if place % 3 else "") for place, (text, label) in enumerate(sentences(40, 1))]
    write_csv(tmp_path / "train.csv", rows)
    write_csv(tmp_path / "dev.csv", sentences(30, 2))
    write_csv(tmp_path / "test.csv", sentences(20, 3))
    teacher = small_teacher("classify")
    teacher.model.classifier.weight.data *= 40  # sure of some rows, so that the shares are neither 0 nor 1
    save_student(teacher, tmp_path / "teacher")
    files = [f"data.{split}={tmp_path}/{split}.csv" for split in ("train", "dev", "test")]
    found, _ = known(f"teacher={tmp_path}/teacher", *files)
    model, tokenizer, _ = vars(load_student(tmp_path / "teacher")).values()
    for name, chosen in {
        "train": [row for row in rows if row[1] != ""],
        "unlabelled": [row for row in rows if row[1] == ""],
        "dev": sentences(30, 2),
    }.items():
        with torch.no_grad():
            logits = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text, _ in chosen])
        best, classes = logits.softmax(-1).max(-1)
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        told = found.splits[name]
        assert (told.rows, told.of) == (len(chosen), len(chosen))
        assert told.sure == pytest.approx(float(best.mean()), abs=1e-5)
        assert told.unsure == pytest.approx(float((best < 0.9).float().mean())) and 0 < told.unsure < 1
        assert told.entropy == pytest.approx(float(entropy.mean()), abs=1e-5)
        right = [int(said) == label for said, (_, label) in zip(classes, chosen, strict=True) if label != ""]
        assert told.right == (pytest.approx(float(np.mean(right))) if right else None)
    assert (found.classes, found.test_rows) == (2, 20)
    share = (30 * (found.splits["dev"].right or 0) + 2) / 34
    assert found.row_variance == pytest.approx(share * (1 - share))


def test_large_files_are_sampled_and_the_answers_are_remembered(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", sentences(700, 1))
    write_csv(tmp_path / "dev.csv", sentences(20, 2))
    save_student(small_teacher("classify"), tmp_path / "teacher")
    files = [f"data.{split}={tmp_path}/{split}.csv" for split in ("train", "dev")]
    found, data = known(f"teacher={tmp_path}/teacher", *files)
    assert found.splits["train"].rows == 300 and found.splits["train"].of == 700 and found.test_rows is None
    assert "unlabelled" not in found.splits
    spent = data.teacher.seconds
    again = teacher_knowledge(resolve(None, None, [f"teacher={tmp_path}/teacher", *files]).recipe, data)
    assert again == found and data.teacher.seconds == spent > 0


def test_a_file_of_answers_is_known_where_it_has_answers(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"text": text, "label": "yes" if label else "no"} for text, label in sentences(40, 1)
    ]
    for line in lines[::2]:
        line["probabilities"] = [0.2, 0.8]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "dev.jsonl").write_text("\n".join(json.dumps({"text": t, "label": "no"}) for t, _ in sentences(9, 2)))
    files = [f"data.{split}={tmp_path}/{split}.jsonl" for split in ("train", "dev")]
    save_student(small_model("bert", labels=("no", "yes")), tmp_path / "start")
    found, _ = known(*files, f"start={tmp_path}/start", "student=[]")
    right = float(np.mean([line["label"] == "yes" for line in lines if "probabilities" in line]))
    entropy = -(0.8 * np.log(0.8) + 0.2 * np.log(0.2))
    assert list(found.splits) == ["train"] and found.row_variance is None
    told = found.splits["train"]
    assert (told.rows, told.of, told.right) == (20, 20, pytest.approx(right))
    assert (told.sure, told.unsure, told.entropy) == pytest.approx((0.8, 1.0, entropy), abs=1e-5)


@pytest.mark.parametrize("task", ["tag", "answer", "choose"])
def test_predictions_of_every_kind_are_counted(task: str, tmp_path: Path) -> None:
    """Words, sides of answers, questions: each has one distribution, whose entropy is that of its classes at most."""
    write_task(tmp_path / "train", task, 12, 1)
    write_task(tmp_path / "dev", task, 12, 2)
    save_student(small_teacher(task), tmp_path / "teacher")
    files = [f"data.{split}={next(tmp_path.glob(f'{split}.*'))}" for split in ("train", "dev")]
    found, data = known(f"teacher={tmp_path}/teacher", *files)
    for rows in found.splits.values():
        most = np.log(data.task.classes) if task != "answer" else np.log(64)
        assert rows.error is None and 0 <= (rows.right or 0) <= 1
        assert 0 < (rows.entropy or 0) <= most + 1e-6 and 1 / np.exp(most) - 1e-6 <= (rows.sure or 0) <= 1


def test_models_that_write_texts_are_not_asked(tmp_path: Path) -> None:
    write_task(tmp_path / "train", "translate", 12, 1)
    save_student(small_teacher("translate"), tmp_path / "teacher")
    train = next(tmp_path.glob("train.*"))
    sets = [f"teacher={tmp_path}/teacher", f"data.train={train}", f"data.dev={train}", "data.task=translate"]
    recipe = resolve(None, None, [*sets, "force=true"]).recipe
    (data,) = prepared_data(recipe)
    assert teacher_knowledge(recipe, data) is None


def test_numbers_have_an_error(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [(text, label + 0.5) for text, label in sentences(20, 1)], ("text", "score"))
    teacher = small_model("bert", labels=("value",))
    teacher.model.config.problem_type = "regression"
    save_student(teacher, tmp_path / "teacher")
    found, data = known(
        f"teacher={tmp_path}/teacher", f"data.train={tmp_path}/rows.csv", f"data.dev={tmp_path}/rows.csv"
    )
    said: list[str] = []
    assert teachers_temperature(data, said.append) >= 1 and found.temperature is None
    assert said == [
        f"temperature of the teacher: {teachers_temperature(data, None):.2f}, since its answers are not a few classes"
    ]
    with torch.no_grad():
        values = [float(teacher.model(**teacher.tokenizer(t, return_tensors="pt")).logits) for t, _ in sentences(20, 1)]
    golds = np.array([label + 0.5 for _, label in sentences(20, 1)])
    expected = float(np.sqrt(np.square(golds - values).mean()))
    assert found.splits["train"] == TeacherRows(20, 20, error=pytest.approx(expected, abs=1e-5))
    assert found.classes is None


def teacher_of(home: Path, surer: float) -> DataSet:
    """A data set whose teacher has 9 of 12 labels of dev right, and logits that are so many times as large."""
    home.mkdir()
    teacher = small_teacher("classify")
    teacher.model.classifier.weight.data *= 3 * surer
    teacher.model.classifier.bias.data.zero_()
    save_student(teacher, home / "teacher")
    rows = [(text, "0") for text, _ in sentences(96, 2)]
    with torch.no_grad():
        best = [int(teacher.model(**teacher.tokenizer(text, return_tensors="pt")).logits.argmax()) for text, _ in rows]
    told = [str(1 - label if place % 4 == 0 else label) for place, label in enumerate(best)]
    names = list(teacher.model.config.id2label.values())
    write_csv(home / "dev.csv", [(text, names[int(label)]) for (text, _), label in zip(rows, told, strict=True)])
    write_csv(home / "train.csv", sentences(40, 1))
    return known(f"teacher={home}/teacher", f"data.train={home}/train.csv", f"data.dev={home}/dev.csv")[1]


def test_a_teacher_that_is_twice_as_sure_is_learned_at_twice_the_temperature(tmp_path: Path) -> None:
    said: list[str] = []
    plain, twice = (teachers_temperature(teacher_of(tmp_path / str(k), k), said.append) for k in (10, 20))
    assert 1 < plain < 5 and twice == pytest.approx(2 * plain, rel=1e-3)
    assert "at which its probabilities fit the labels of dev" in said[0]
    assert teachers_temperature(teacher_of(tmp_path / "unsure", 0.01), said.append) == 1 and "the least" in said[-1]
    assert teachers_temperature(teacher_of(tmp_path / "blind", 1000), said.append) == 10 and "the most" in said[-1]


def test_auto_trains_the_student_of_the_temperature_that_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    fitted = round(teachers_temperature(teacher_of(home, 12), None), 2)
    weights = []
    for temperature in ("auto", str(fitted), "1.0"):
        sets = {"teacher": f"{home}/teacher", "data.train": f"{home}/train.csv", "data.dev": f"{home}/dev.csv"}
        sets |= {"student": "keep_layers:1", "method": f"{{ name = 'soft_targets', temperature = {temperature!r} }}"}
        sets |= {"epochs": "1", "timing": "none", "baseline": "false", "precision": "float32", "force": "true"}
        if temperature != "auto":
            sets["method"] = sets["method"].replace("'" + temperature + "'", temperature)
        out = tmp_path / temperature
        measured = distill(resolve(None, None, [f"{path}={value}" for path, value in sets.items()]).recipe, out)
        weights.append((out / "student/model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]
    assert measured["teacher_knows"]["task"]["temperature"] == pytest.approx(fitted, abs=0.01)
