"""A stage on running text, then a task: the students that papers name, from recipe to folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from potstill.errors import InputError
from potstill.models.student import Student, save_student
from potstill.recipe.resolve import resolve
from potstill.runs.distill import distill
from potstill.system.display import Display
from tests.support.small_models import running_texts, sentences, small_model, write_csv

RECIPE = """
teacher = "classifier"
start = "masked"
student = {student}
baseline = false
force = true
timing = "none"
dropout = 0.0

[[data]]
name = "text"
train = "text.txt"
task = "mask"
teacher = "masked"

[[data]]
name = "reviews"
train = "train.csv"
dev = "dev.csv"

[[stage]]
on = ["text"]
batch = 16
optimizer.rate = 2e-3
keep = "last"
{first}

[[stage]]
on = ["reviews"]
batch = 16
optimizer.rate = 2e-3
epochs = 2
{second}
"""
FRESH = '[{ build = "fresh", layers = 2, width = 24, heads = 2 }]'
THIN = '[{ build = "mobilebert", layers = 2, width = 32, bottleneck = 16, heads = 4, feed_forward = 32, stacked = 2, embedding = 16 }]'
CASES = {  # student, first stage, second stage
    "distilbert": ('"distilbert"', 'method = "distilbert"\nepochs = 5', 'method = "soft_targets"'),
    "tinybert": (
        FRESH,
        'method = { name = "tinybert", prediction = 0.0 }\nepochs = 5',
        'method = { name = "tinybert", layers = 0.0 }\ndata = [{ make = "masked_words", model = "masked", copies = 1 }]',
    ),
    "relations": (FRESH, 'method = { name = "relations", labels = 0.0 }\nepochs = 5', 'method = "soft_targets"'),
    "relations from an encoder": (
        FRESH,
        'teacher = "encoder"\nmethod = { name = "relations", labels = 0.0 }\nepochs = 5',
        'method = "soft_targets"',
    ),
    "mobilebert": (
        THIN,
        'method = { name = "feature_transfer", labels = 0.0 }\ntrains = ["round"]\nrepeat = 2\nepochs = 5',
        'method = "soft_targets"',
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    rows = [(text, ("negative", "positive")[label]) for text, label in sentences(60, 0)]
    write_csv(home / "train.csv", rows[:40])
    write_csv(home / "dev.csv", rows[40:])
    (home / "text.txt").write_text("".join(f"{row['text']}\n" for row in running_texts(64, 7)))
    save_student(small_model("bert", head="MaskedLM"), home / "masked")
    save_student(small_model("bert"), home / "classifier")
    encoder = small_model("bert", seed=5)
    save_student(Student(encoder.model.bert, encoder.tokenizer), home / "encoder")
    return home


@pytest.mark.parametrize("name", CASES)
def test_running_text_and_then_a_task(name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the first stage falls; the folder is one of the task, of stock transformers."""
    monkeypatch.chdir(home)
    student, first, second = CASES[name]
    (tmp_path / "recipe.toml").write_text(RECIPE.format(student=student, first=first, second=second))
    distill(resolve(tmp_path / "recipe.toml").recipe, tmp_path / "run", show=Display(quiet=True))
    with (tmp_path / "run/stages/0/steps.csv").open() as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert sum(losses[-3:]) < sum(losses[:3])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/student")
    assert model.config.num_labels == 2
    expected = {"distilbert": "distilbert", "mobilebert": "mobilebert"}.get(name, "bert")
    assert model.config.model_type == expected


def test_a_later_stage_that_cannot_be_is_refused_before_the_first_is_trained(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    student, first, _ = CASES["relations"]
    second = 'method = { name = "patient", map = [1, 9] }'
    (tmp_path / "recipe.toml").write_text(RECIPE.format(student=student, first=first, second=second))
    with pytest.raises(InputError, match="map"):
        distill(resolve(tmp_path / "recipe.toml").recipe, tmp_path / "run", show=Display(quiet=True))
    assert not list((tmp_path / "run").rglob("steps.csv"))


def of_text(teacher: str, method: str) -> str:
    """A recipe of one stage on running text."""
    whole = RECIPE.format(student=FRESH, first=f'teacher = "{teacher}"\nmethod = {method}\nepochs = 1', second="")
    before, _, behind = whole.replace('teacher = "classifier"\n', "").partition('[[data]]\nname = "reviews"')
    return before + "[[stage]]" + behind.split("[[stage]]")[1]


def test_an_encoder_without_a_head_teaches_by_its_states_alone(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not measured, since it predicts nothing; what asks for its predictions is refused."""
    monkeypatch.chdir(home)
    (tmp_path / "states.toml").write_text(of_text("encoder", '"relations"').replace("force = true\n", ""))
    distill(resolve(tmp_path / "states.toml").recipe, tmp_path / "run", show=Display(quiet=True))
    found = json.loads((tmp_path / "run/measurements.json").read_text())
    assert list(found["models"]) == ["distilled"]
    (tmp_path / "logits.toml").write_text(of_text("encoder", '"distilbert"'))
    with pytest.raises(InputError, match=r"without a head for this task; use 'relations' .* a masked language model"):
        distill(resolve(tmp_path / "logits.toml").recipe, tmp_path / "refused", show=Display(quiet=True))


def test_the_distilled_encoder_is_a_masked_language_model(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    text = RECIPE.format(student='"distilbert"', first='method = "distilbert"\nepochs = 1', second="")
    text = text.replace('teacher = "classifier"\n', "").partition('[[data]]\nname = "reviews"')[0] + (
        '[[stage]]\nmethod = "distilbert"\nbatch = 16\nepochs = 1\n'
    )
    (tmp_path / "recipe.toml").write_text(text)
    distill(resolve(tmp_path / "recipe.toml").recipe, tmp_path / "run", show=Display(quiet=True))
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "run/student")).__name__ == "DistilBertForMaskedLM"
