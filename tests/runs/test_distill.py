"""Whole runs by the commands, small: what a user types, what comes out, what is refused."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from rich.text import Text

from potstill.app import cli
from potstill.inference.predict import predict
from potstill.measuring import speed
from potstill.models import student as students
from tests.support.commands import FAST, command, files, make_home, measurements, patient, potstill
from tests.support.small_models import sentences, write_csv


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), 240, 80)


def test_finetune_makes_a_teacher(home: Path) -> None:
    found = measurements(home / "teacher")
    config = json.loads((home / "teacher/student/config.json").read_text())
    assert config["potstill_length"] == 32, "so that predict reads no further than it was trained"
    assert list(found["models"]) == ["fine-tuned"]
    assert found["models"]["fine-tuned"]["quality"]["task"]["test"]["accuracy"] > 0.9


def test_distill_prints_teacher_baseline_and_student_and_keeps_figures(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = [
        "distill",
        "--teacher",
        home / "teacher/student",
        *files(home),
        "--student",
        "keep_layers:2",
        "--method",
        "patient",
    ]
    assert potstill(*words, "--epochs", "2", "--out", out, *FAST) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("teacher", "fine-tuned", "distilled"))
    found = measurements(out)["models"]
    assert found["distilled"]["quality"]["task"]["test"]["accuracy"] > 0.8
    assert found["distilled"]["parameters"] < found["teacher"]["parameters"]
    assert 0 < found["distilled"]["quality"]["task"]["test"]["agreement"] <= 1
    header = (out / "stages/0/steps.csv").read_text().splitlines()[0].split(",")
    assert header == [
        "step",
        "epoch",
        "loss",
        "hard",
        "soft",
        "patient",
        "gradient_norm",
        "rate",
        "examples",
        "tokens",
        "seconds",
    ]
    assert potstill(*words, "--epochs", "2", "--out", out, *FAST) == 0  # complete already: nothing is trained again
    assert potstill(*words, "--epochs", "3", "--out", out, *FAST) == 2  # another run lies there
    assert potstill(*words, "--epochs", "1", "--out", out, "--overwrite", *FAST) == 0


def test_a_trimmed_student_is_taught_by_a_teacher_with_the_whole_vocabulary(home: Path, tmp_path: Path) -> None:
    words = [
        "distill",
        "--teacher",
        home / "teacher/student",
        *files(home),
        "--student",
        "keep_layers:2+trim_vocabulary",
        "--method",
        "hints",
    ]
    assert potstill(*words, "--epochs", "2", "--out", tmp_path / "run", "--no-baseline", *FAST) == 0
    found = measurements(tmp_path / "run")["models"]
    assert "fine-tuned" not in found
    assert found["distilled"]["quality"]["task"]["test"]["accuracy"] > 0.8
    trimmed = students.load_student(tmp_path / "run/student")
    assert len(trimmed.tokenizer) < len(students.load_student(home / "teacher/student").tokenizer)


def test_a_grid_runs_every_cell_on_one_memory_and_keeps_the_best_by_dev(home: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        f"""
        teacher = "{home}/teacher/student"
        student = "keep_layers:1"
        length = 32
        dropout = 0.0
        timing = "none"
        [data]
        train = "{home}/train.csv"
        dev = "{home}/dev.csv"
        test = {{ one = "{home}/test.csv", two = "{home}/dev.csv" }}
        [[stage]]
        epochs = 1
        method = {{ name = "soft_targets" }}
        [grid]
        "stage.0.method.alpha" = [0.1, 0.9]
        "stage.0.optimizer.rate" = [1e-6, 3e-3]
        """
    )
    assert potstill("distill", tmp_path / "grid.toml", "--out", tmp_path / "run", "--quiet") == 0
    found = measurements(tmp_path / "run")
    assert len(found["grid"]) == 4
    assert found["grid"][0]["stage.0.optimizer.rate"] == 3e-3
    assert found["grid"][0]["dev"] == found["models"]["distilled"]["quality"]["task"]["dev"]["accuracy"]
    assert set(found["models"]["distilled"]["quality"]["task"]) == {"dev", "one", "two"}
    # the baseline was searched over the rates as well, and chosen by dev
    assert found["models"]["fine-tuned"]["quality"]["task"]["dev"]["accuracy"] > 0.6


def test_pairs_and_numbers_run_the_same_way(home: Path, tmp_path: Path) -> None:
    random.seed(0)
    rows = sentences(200, 5)
    pairs = [
        (a, b, round(2.5 + 2 * (x - 0.5) + (y - 0.5) + 0.05, 2))
        for (a, x), (b, y) in zip(rows, rows[::-1], strict=True)
    ]
    for name, part in (("train", pairs[:150]), ("dev", pairs[150:])):
        write_csv(tmp_path / f"{name}.csv", part, ("sentence1", "sentence2", "score"))
    data = ["--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv", "--test", tmp_path / "dev.csv"]
    assert (
        potstill(
            "finetune", home / "encoder", *data, "--epochs", "8", "--out", tmp_path / "teacher", "--batch", "16", *FAST
        )
        == 0
    )
    teacher = measurements(tmp_path / "teacher")["models"]["fine-tuned"]["quality"]["task"]["test"]
    assert teacher["pearson"] > 0.5
    words = [
        "distill",
        "--teacher",
        tmp_path / "teacher/student",
        *data,
        "--student",
        "keep_layers:3",
        "--method",
        "patient",
    ]
    assert potstill(*words, "--out", tmp_path / "run", "--epochs", "2", *FAST) == 0
    assert measurements(tmp_path / "run")["models"]["distilled"]["quality"]["task"]["test"]["pearson"] > 0.4
    (answer,) = predict(tmp_path / "run/student", [("a good film", "a bad film")])
    assert set(answer) == {"value"}


def test_label_sets_run_the_same_way(home: Path, tmp_path: Path) -> None:
    rows = [
        {"text": text, "labels": (["good"] if label else []) + (["long"] if len(text.split()) > 9 else [])}
        for text, label in sentences(240, 6)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = ["--train", tmp_path / "train.jsonl", "--test", tmp_path / "train.jsonl"]
    assert potstill("finetune", home / "encoder", *data, "--epochs", "8", "--out", tmp_path / "teacher", *FAST) == 0
    words = [
        "distill",
        "--teacher",
        tmp_path / "teacher/student",
        *data,
        "--student",
        "keep_layers:2",
        "--method",
        "soft_targets",
    ]
    assert potstill(*words, "--out", tmp_path / "run", "--epochs", "2", *FAST) == 0
    assert measurements(tmp_path / "run")["models"]["distilled"]["quality"]["task"]["test"]["f1_micro"] > 0.8
    (answer,) = predict(tmp_path / "run/student", ["good good film"])
    assert set(answer) == {"labels", "probabilities"}


def test_rows_that_carry_answers_replace_the_teacher(home: Path, tmp_path: Path) -> None:
    """Some rows have no answer and some no label; each teaches by what it has."""
    rows = sentences(240, 7)
    lines = [
        {"text": text, "label": label, "probabilities": [0.9 - 0.8 * label, 0.1 + 0.8 * label]} for text, label in rows
    ]
    del lines[0]["probabilities"], lines[1]["label"]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = [
        "distill",
        "--start",
        home / "encoder",
        "--train",
        tmp_path / "train.jsonl",
        "--test",
        home / "test.csv",
        "--student",
        "keep_layers:2",
    ]
    assert potstill(*words, "--method", "logit_regression", "--out", tmp_path / "run", "--epochs", "4", *FAST) == 0
    found = measurements(tmp_path / "run")["models"]
    assert found["distilled"]["quality"]["task"]["test"]["accuracy"] > 0.85
    assert potstill(*words, "--method", "patient", "--out", tmp_path / "other", *FAST) == 2  # a file has no layers
    # where neither dev nor test has answers, the teacher's line is one of dashes
    plain = ["--dev", home / "dev.csv", "--no-baseline", "--method", "logit_regression", "--epochs", "0.1", *FAST]
    assert potstill(*words, *plain, "--out", tmp_path / "unanswered") == 0
    assert measurements(tmp_path / "unanswered")["models"]["teacher"]["quality"] == {}


def test_one_student_learns_two_data_sets(home: Path, tmp_path: Path) -> None:
    rows = [(text, "long" if len(text.split()) > 9 else "short") for text, _ in sentences(240, 8)]
    write_csv(tmp_path / "size.csv", rows)
    assert (
        potstill(
            "finetune",
            home / "encoder",
            "--train",
            tmp_path / "size.csv",
            "--epochs",
            "4",
            "--out",
            tmp_path / "size",
            *FAST,
        )
        == 0
    )
    (tmp_path / "both.toml").write_text(
        f"""
        student = "keep_layers:2"
        start = "{home}/encoder"
        length = 32
        [[data]]
        name = "mood"
        teacher = "{home}/teacher/student"
        train = "{home}/train.csv"
        test = "{home}/test.csv"
        [[data]]
        name = "size"
        teacher = "{tmp_path}/size/student"
        train = "{tmp_path}/size.csv"
        test = "{tmp_path}/size.csv"
        """
    )
    assert (
        potstill(
            "distill", tmp_path / "both.toml", "--out", tmp_path / "run", "--epochs", "4", "--method", "patient", *FAST
        )
        == 0
    )
    quality = measurements(tmp_path / "run")["models"]["distilled"]["quality"]
    assert quality["mood"]["test"]["accuracy"] > 0.8 and quality["size"]["test"]["accuracy"] > 0.8
    mood, size = (students.load_student(tmp_path / "run" / name).model for name in ("student", "student-size"))
    assert torch.equal(mood.bert.encoder.layer[1].output.dense.weight, size.bert.encoder.layer[1].output.dense.weight)
    assert size.config.id2label == {0: "long", 1: "short"}


def test_class_weights_lift_the_rare_class(home: Path, tmp_path: Path) -> None:
    rows = [row for place, row in enumerate(sentences(400, 9)) if row[1] == 0 or place % 10 == 0]
    write_csv(tmp_path / "rare.csv", rows)
    shares = {}
    for name, more in (("plain", []), ("weighted", ["--set", 'data.class_weights="balanced"'])):
        assert (
            potstill(
                "finetune",
                home / "encoder",
                "--train",
                tmp_path / "rare.csv",
                "--test",
                home / "test.csv",
                "--epochs",
                "1",
                *more,
                "--out",
                tmp_path / name,
                *FAST,
                "--rate",
                "0.0003",
            )
            == 0
        )
        answers = predict(tmp_path / name / "student", [text for text, _ in sentences(80, 3)])
        shares[name] = np.mean([one["probabilities"]["1"] for one in answers])
    assert shares["weighted"] > shares["plain"] + 0.1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--method", "patiant"], "did you mean 'patient'"),
        (["--student", "keep_layers:9"], "4"),
        (["--set", "method.temprature=3"], "temperature"),
        (["--set", "epochs=-1"], "epochs"),
        (["--teacher", "no/such/folder"], "no/such/folder"),
        (["--train", "no-such.csv"], "no-such.csv"),
        (["--labels", "positive,negative,neutral"], "3"),
        (["--device", "cuda:7"], "--device cpu"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(
    words: list[str], told: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ["distill", "--teacher", str(home / "teacher/student"), *files(home), "--student", "keep_layers:2"]
    assert potstill(*plain, "--out", tmp_path / "run", *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run/student").exists()


def test_a_teacher_near_chance_is_refused_unless_forced(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "distill",
        *files(home),
        "--student",
        "keep_layers:1",
        "--method",
        "soft_targets",
        "--no-baseline",
        "--epochs",
        "1",
        *FAST,
    ]
    assert potstill(*words, "--teacher", home / "encoder", "--out", tmp_path / "a") == 2
    assert "near chance" in capsys.readouterr().err
    turned = [(text, "negative" if label else "positive") for text, label in sentences(80, 2)]
    write_csv(tmp_path / "turned.csv", turned)
    named = students.load_student(home / "teacher/student")
    named.model.config.id2label, named.model.config.label2id = (
        {0: "negative", 1: "positive"},
        {"negative": 0, "positive": 1},
    )
    students.save_student(named, tmp_path / "named")
    assert (
        potstill(*words, "--teacher", tmp_path / "named", "--dev", tmp_path / "turned.csv", "--out", tmp_path / "b")
        == 2
    )
    assert "wrong order" in capsys.readouterr().err
    assert potstill(*words, "--teacher", home / "encoder", "--out", tmp_path / "c", "--force") == 0


def test_a_method_in_a_plug_in_folder_is_one_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins/methods").mkdir(parents=True)
    (tmp_path / "plugins/methods/only_soft.py").write_text(
        '''"""Soft targets at T = 1 and nothing else."""
from __future__ import annotations
from dataclasses import dataclass
from potstill.api import Batch, Method, Signals, Term, Wants, losses

@dataclass(frozen=True)
class OnlySoft(Method):
    """L = KL"""
    weight: float = 1.0

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return Wants(logits=True), Wants(logits=True)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        return {"soft": self.weight * losses.soft(student.logits, teacher.logits, batch, 1.0)}
'''
    )
    monkeypatch.setenv("POTSTILL_PLUGINS", str(tmp_path / "plugins"))
    words = [
        "distill",
        "--teacher",
        home / "teacher/student",
        *files(home),
        "--student",
        "keep_layers:2",
        "--method",
        "only_soft",
    ]
    assert (
        potstill(
            *words, "--epochs", "2", "--no-baseline", "--set", "method.weight=2.0", "--out", tmp_path / "run", *FAST
        )
        == 0
    )
    assert measurements(tmp_path / "run")["models"]["distilled"]["quality"]["task"]["test"]["accuracy"] > 0.8


def test_help_keeps_what_stands_in_brackets() -> None:
    """rich takes a word in brackets for a style and leaves it out; one that is meant has a backslash before it."""
    group: Any = typer.main.get_command(cli.app)
    commands = group.commands.values()
    told = [one.help for one in commands] + [getattr(each, "help", None) for one in commands for each in one.params]
    assert len(told) > 100
    for one in filter(None, told):
        assert Text.from_markup(one).plain == one.replace("\\[", "["), one


@pytest.mark.parametrize("name", ["distill", "finetune", "train", "plan", "predict", "measure", "translate"])
def test_a_length_without_room_for_a_token_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    needed = {"predict": ["model"], "measure": ["model", "--data", "rows.csv"], "translate": ["model"]}
    assert potstill(name, *needed.get(name, []), "--length", "2") == 2
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "--length" in told and "3" in told


def test_help_is_quick_and_without_torch() -> None:
    spent = []
    for _ in range(3):  # the best of three, since another process may take the machine for a moment
        begun = time.perf_counter()
        with command("--help") as helped:
            out, _ = helped.communicate()
        spent.append(time.perf_counter() - begun)
    assert min(spent) < 1.0, spent
    assert "distill" in out
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, potstill.app.cli; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "False"


@pytest.mark.slow
def test_killed_and_asked_to_stop_runs_go_on_to_the_same_student(home: Path, tmp_path: Path) -> None:
    words = patient(home)
    words += ["--epochs", "12", "--set", "save_every=3", "--set", "optimizer.rate=0.003", "--length", "32", "--quiet"]
    words += ["--set", "timing=none"]
    with command(*words, "--out", tmp_path / "whole") as running:
        assert running.wait() == 0
    for number, (sent, code) in enumerate([(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)]):
        with command(*words, "--out", tmp_path / "run") as running:
            steps = tmp_path / "run/stages/0/steps.csv"
            limit = time.monotonic() + 60
            while (
                not (steps.exists() and len(steps.read_text().splitlines()) > 4 + 15 * number)
                and time.monotonic() < limit
            ):
                time.sleep(0.02)
            running.send_signal(sent)
            _, told = running.communicate()
        assert running.returncode == code, told
    with command(*words, "--out", tmp_path / "run") as running:
        assert running.wait() == 0
    whole, parts = (students.load_student(tmp_path / name / "student").model.state_dict() for name in ("whole", "run"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    logs = [(tmp_path / name / "stages/0/steps.csv").read_text().splitlines() for name in ("whole", "run")]
    assert [line.split(",")[:3] for line in logs[0]] == [line.split(",")[:3] for line in logs[1]]


def test_predict_answers_every_line_of_standard_input(home: Path) -> None:
    texts = ["", "a good film", "emoji 🎬 text", "\x00 nul", "אבג", "long " * 20_000]
    with command("predict", home / "teacher/student", stdin=subprocess.PIPE) as running:
        out, err = running.communicate("\n".join(texts) + "\n")
    assert running.returncode == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len(texts)
    assert answers[1]["label"] == "1"
    assert all(0 <= answer["probability"] <= 1 for answer in answers)


def test_measure_gives_what_distill_gave(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "teacher/student"
    assert potstill("measure", folder, folder, "--data", home / "test.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)["models"][str(folder)]["quality"]["task"]["test"]
    expected = measurements(home / "teacher")["models"]["fine-tuned"]["quality"]["task"]["test"]
    f1 = next(metric for metric in expected if metric.startswith("f1 of "))
    assert found["accuracy"] == expected["accuracy"] and found[f1] == expected[f1]


def test_list_and_show(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert potstill("list") == 0
    listed = capsys.readouterr().out
    assert all(word in listed for word in ("patient", "keep_layers", "sample", "pkd-sst2"))
    assert potstill("show", "pkd-sst2", "--set", "seed=7") == 0
    shown = capsys.readouterr().out
    assert any(line.startswith("seed = 7") and line.endswith("# --set") for line in shown.splitlines())


def test_awkward_texts_train(home: Path, tmp_path: Path) -> None:
    texts = ["", " ", "\ud800 lone", "🎬🎬", "אבג good", "good " * 20_000, "NA", "null", "a\nb", "\u202egood"]
    lines = [{"text": text, "label": place % 2} for place, text in enumerate(texts * 4)]
    (tmp_path / "awkward.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = [
        "distill",
        "--teacher",
        home / "teacher/student",
        "--train",
        tmp_path / "awkward.jsonl",
        "--dev",
        home / "dev.csv",
        "--student",
        "keep_layers:2",
    ]
    assert (
        potstill(*words, "--method", "hints", "--epochs", "1", "--no-baseline", "--out", tmp_path / "run", *FAST) == 0
    )
    assert len(list(predict(tmp_path / "run/student", texts))) == len(texts)


def test_a_checkpoint_can_be_named(home: Path, tmp_path: Path) -> None:
    words = patient(home)
    words += ["--epochs", "2", *FAST]
    assert potstill(*words, "--out", tmp_path / "run", "--resume", tmp_path / "nothing") == 2
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes.txt").write_text("mine")
    assert potstill(*words, "--out", tmp_path / "run") == 2
    assert potstill(*words, "--out", tmp_path / "run", "--overwrite") == 2  # not a run of ours: never deleted
    assert (tmp_path / "run/notes.txt").read_text() == "mine"


def test_stages_follow_one_another_and_may_reshape(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed in every form as by default, but for a few turns only."""
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    (tmp_path / "two.toml").write_text(
        f"""
        teacher = "{home}/teacher/student"
        student = "keep_layers:3"
        length = 32
        dropout = 0.0
        [data]
        train = "{home}/train.csv"
        dev = "{home}/dev.csv"
        [[stage]]
        method = {{ name = "hints" }}
        epochs = 1
        batch = 8
        optimizer = {{ rate = 0.003 }}
        [[stage]]
        reshape = "keep_layers:2+trim_vocabulary"
        method = {{ name = "soft_targets" }}
        data = [{{ make = "sample", rows = 100 }}]
        epochs = 3
        batch = 8
        optimizer = {{ rate = 0.003 }}
        """
    )
    assert potstill("distill", tmp_path / "two.toml", "--out", tmp_path / "run", "--quiet") == 0
    found = measurements(tmp_path / "run")["models"]
    assert found["distilled"]["quality"]["task"]["dev"]["accuracy"] > 0.8
    assert found["distilled"]["parameters"] == found["fine-tuned"]["parameters"]  # the baseline has the same shape
    assert len((tmp_path / "run/stages/1/steps.csv").read_text().splitlines()) == 1 + 3 * 13
    assert students.load_student(tmp_path / "run/student").model.config.num_hidden_layers == 2


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_step(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "distill",
        "--teacher",
        home / "teacher/student",
        *files(home),
        "--student",
        "keep_layers:2",
        "--method",
        "soft_targets",
    ]
    out = tmp_path / "run"
    assert (
        potstill(
            *words,
            "--no-baseline",
            "--out",
            out,
            "--quiet",
            "--set",
            "optimizer.rate=1e30",
            "--set",
            "optimizer.warmup=0.0",
        )
        == 1
    )
    assert "step 2: " in capsys.readouterr().err
    assert not list(out.rglob("*.safetensors"))
    assert len((out / "stages/0/steps.csv").read_text().splitlines()) == 2


def test_unlabelled_rows_are_taught_without_a_baseline(home: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("\n".join(text for text, _ in sentences(240, 11)))
    words = [
        "distill",
        "--teacher",
        home / "teacher/student",
        "--train",
        tmp_path / "plain.txt",
        "--dev",
        home / "dev.csv",
    ]
    assert potstill(*words, "--student", "keep_layers:2", "--epochs", "3", "--out", tmp_path / "run", *FAST) == 0
    found = measurements(tmp_path / "run")["models"]
    assert list(found) == ["teacher", "distilled"]
    assert found["distilled"]["quality"]["task"]["dev"]["accuracy"] > 0.8


def test_a_refused_run_leaves_its_folder_free(home: Path, tmp_path: Path) -> None:
    words = [
        "distill",
        "--teacher",
        home / "teacher/student",
        *files(home),
        "--no-baseline",
        "--epochs",
        "1",
        "--out",
        tmp_path / "run",
        *FAST,
    ]
    assert potstill(*words, "--student", "keep_layers:1", "--method", "patient") == 2
    assert potstill(*words, "--student", "keep_layers:2", "--method", "patient", "--set", "metric=blue") == 2
    assert potstill(*words, "--student", "keep_layers:2", "--method", "patient") == 0
