"""Texts without labels beside train, labels that the teacher names otherwise, and learning from the teacher's own labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from potstill.data.examples import store
from potstill.data.pools import Pool, with_unlabelled
from potstill.data.rows import Columns, open_table
from potstill.errors import InputError
from potstill.models.student import save_student
from potstill.plugins.methods.teacher_labels import TeacherLabels
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from potstill.runs.data_set import DataSet
from potstill.runs.stage_setup import stage_examples
from potstill.signals import Outcome, Signals
from potstill.system.display import Display
from potstill.tasks.label_matching import make_task
from potstill.tasks.translate import Translation
from tests.support.commands import potstill
from tests.support.prepared import prepared_data
from tests.support.references import batch_of
from tests.support.small_models import sentences, small_model, tagged, write_csv


class Heard(Display):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.told: list[str] = []

    def say(self, text: str) -> None:
        self.told.append(text)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    for name, rows, seed in (("train", 40, 1), ("dev", 20, 2), ("test", 20, 3)):
        write_csv(home / f"{name}.csv", sentences(rows, seed))
    save_student(small_model("bert"), home / "teacher")
    return home


def recipe_of(home: Path, *sets: str) -> Recipe:
    rows = [f"data.{split}={home}/{split}.csv" for split in ("train", "dev", "test")]
    return resolve(None, None, [f"teacher={home}/teacher", *rows, "force=true", "length=32", *sets]).recipe


def prepared(home: Path, *sets: str) -> tuple[DataSet, list[str]]:
    heard = Heard()
    return prepared_data(recipe_of(home, *sets), heard)[0], heard.told


def texts(data: DataSet, split: str) -> list[str]:
    return [text for text, _ in getattr(data, split).texts()]


@pytest.mark.parametrize("kind", ["txt", "csv", "jsonl"])
def test_texts_are_added_without_labels_and_none_of_dev_or_test(home: Path, tmp_path: Path, kind: str) -> None:
    plain, _ = prepared(home)
    new = [text for text, _ in sentences(30, 9)]
    given = [*new[:15], texts(plain, "dev")[3], *new[15:], sentences(20, 3)[5][0]]
    path = tmp_path / f"more.{kind}"
    if kind == "txt":
        path.write_text("\n".join(given) + "\n")
    elif kind == "csv":  # with labels of another task, which nobody reads
        write_csv(path, [(text, "spam") for text in given], ("review", "label"))
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
    data, told = prepared(home, f"data.unlabelled={path}")
    assert texts(data, "train") == [*texts(plain, "train"), *new]
    assert len(data.train.labelled_only) == 40 and not data.train.labelled[data.train.index[40:]].any()
    assert np.array_equal(data.task.golds(data.train.labelled_only), data.task.golds(plain.train))
    assert texts(data, "dev") == texts(plain, "dev")
    assert any(f"{path}: 2 of 32 rows are also in dev or test and are left out" in line for line in told)
    assert any("30 of 70 rows have no label; only the teacher teaches them" in line for line in told)
    round_ = recipe_of(home, "method=hard_labels").rounds[0]
    assert len(stage_examples(round_, data, False, 0)) == 40
    assert len(stage_examples(round_, data, True, 0)) == 70


def test_a_held_out_tenth_is_taken_of_train_alone(home: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("\n".join(text for text, _ in sentences(30, 9)))
    sets = ["data.dev=none"]
    plain, _ = prepared(home, *sets)
    data, _ = prepared(home, *sets, f"data.unlabelled={tmp_path}/more.txt")
    assert texts(data, "dev") == texts(plain, "dev") and len(data.train) == 36 + 30


def test_texts_alone_are_train_beside_labelled_dev_rows(home: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("\n".join(text for text, _ in [*sentences(30, 9), *sentences(3, 2)]))
    alone = ["data.train=none", f"data.unlabelled={tmp_path}/more.txt"]
    data, told = prepared(home, *alone)
    assert texts(data, "train") == [text for text, _ in sentences(30, 9)] and not len(data.train.labelled_only)
    assert data.task.labels == ("negative", "positive") and len(data.dev.labelled_only) == 20
    assert any(
        f"{tmp_path}/more.txt: 30 of 30 rows have no label; only the teacher teaches them" in line for line in told
    )
    with pytest.raises(InputError, match="none can be dev; give labelled rows with --dev, or with --train"):
        prepared(home, *alone, "data.dev=none")
    with pytest.raises(InputError, match=r"data.0.train is missing"):
        recipe_of(home, "data.train=none")


def test_a_run_of_texts_alone_has_no_baseline(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "more.txt").write_text("\n".join(text for text, _ in sentences(30, 9)))
    words = [
        "distill",
        "--teacher",
        home / "teacher",
        "--unlabelled",
        tmp_path / "more.txt",
        "--force",
        "--epochs",
        "1",
    ]
    words += ["--dev", home / "dev.csv", "--test", home / "test.csv", "--student", "keep_layers:1", "--length", "32"]
    assert potstill(*words, "--set", "timing=none", "--out", tmp_path / "run") == 0
    assert "no baseline: no training row has a label" in capsys.readouterr().err
    found = json.loads((tmp_path / "run" / "measurements.json").read_text())["models"]
    assert list(found) == ["teacher", "distilled"]
    finetuned = ["finetune", home / "teacher", "--dev", home / "dev.csv", "--out", tmp_path / "tuned"]
    assert potstill(*finetuned) == 2


def test_of_words_with_tags_too(tmp_path: Path) -> None:
    save_student(
        small_model("bert", labels=("B-BAD", "B-GOOD", "I-BAD", "I-GOOD", "O"), head="TokenClassification"),
        tmp_path / "teacher",
    )
    for name, seed in (("train", 1), ("dev", 2), ("test", 3), ("more", 4)):
        rows = tagged(12, seed)
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"tokens": row["tokens"], "tags": row["tags"]}) + "\n" for row in rows))
    rows = [f"data.{split}={tmp_path}/{split}.jsonl" for split in ("train", "dev", "test")]
    given = [f"teacher={tmp_path}/teacher", *rows, "force=true", "length=32"]
    plain = prepared_data(resolve(None, None, given).recipe)[0]
    data = prepared_data(resolve(None, None, [*given, f"data.unlabelled={tmp_path}/more.jsonl"]).recipe)[0]
    assert len(data.train) == 24 and len(data.train.labelled_only) == 12
    for ours, theirs in zip(data.train.index[:12], plain.train.index, strict=True):
        assert np.array_equal(data.train.gold(ours), plain.train.gold(theirs))  # type: ignore[arg-type]


def test_what_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("\n".join(text for text, _ in sentences(20, 2)))
    write_csv(tmp_path / "pairs.csv", [("a", "b")], ("sentence1", "sentence2"))
    for sets, told in (
        (["data.unlabelled=nowhere.txt"], "no such file"),
        ([f"data.unlabelled={tmp_path}/dev.txt"], "all rows are also in dev or test"),
        ([f"data.unlabelled={tmp_path}/pairs.csv"], "do not have the same parts"),
        (
            [f"data.unlabelled={tmp_path}/dev.txt", "teacher=none", f"start={home}/teacher"],
            "give its model with --teacher",
        ),
    ):
        with pytest.raises(InputError, match=told):
            prepared(home, *sets)


def test_a_run_with_both_flags_and_copies(home: Path, tmp_path: Path) -> None:
    """The commands: labels of other names, unlabelled text, augmented rows, the teacher's labels."""
    names = {0: "schlecht", 1: "gut"}
    for name, rows, seed in (("train", 24, 1), ("dev", 10, 2)):
        write_csv(tmp_path / f"{name}.csv", [(text, names[label]) for text, label in sentences(rows, seed)])
    (tmp_path / "more.txt").write_text("\n".join(text for text, _ in sentences(8, 9)))
    words = ["distill", "--teacher", home / "teacher", "--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv"]
    words += ["--unlabelled", tmp_path / "more.txt", "--label-map", "gut=positive,schlecht=0", "--force"]
    words += ["--student", "keep_layers:1", "--method", "teacher_labels", "--epochs", "1", "--length", "32"]
    words += [
        "--set",
        'stage.data=[{make="augmented",copies=2,tagger="tests.support.taggers:by_length"}]',
        "--set",
        "timing=none",
    ]
    assert potstill(*words, "--quiet", "--out", tmp_path / "run") == 0
    steps = (tmp_path / "run/stages/0/steps.csv").read_text().splitlines()
    place = steps[0].split(",").index("examples")
    assert 60 < sum(int(line.split(",")[place]) for line in steps[1:]) <= 32 * 3
    plan = ["plan", *words[1:]]
    assert potstill(*plan, "--quiet", "--json") == 0


def test_a_file_of_answers_has_none_for_copies(home: Path, tmp_path: Path) -> None:
    rows = [(text, label, json.dumps([0.1 * place, 1.0])) for place, (text, label) in enumerate(sentences(12, 1))]
    write_csv(
        tmp_path / "train.csv",
        [*rows[:10], *((text, label, "") for text, label, _ in rows[10:])],
        ("text", "label", "logits"),
    )
    sets = [f"data.train={tmp_path}/train.csv", "teacher=none", f"start={home}/teacher", "stage.data=augmented:2"]
    data, _ = prepared(home, *sets)
    made = stage_examples(recipe_of(home, *sets).rounds[0], data, True, 0)
    source = data.tokenised(made, small_model("bert").tokenizer, "train")
    assert source.answered is not None and len(made) > 30
    assert source.answered[made.index].tolist() == [True] * 10 + [False] * (len(made) - 10)


class Head:
    problem_type = None
    architectures = ("BertForSequenceClassification",)

    def __init__(self, *names: str) -> None:
        self.id2label, self.num_labels = dict(enumerate(names)), len(names)


@pytest.mark.parametrize(
    ("theirs", "found", "given", "numbers"),
    [
        (
            ("negative", "positive"),
            ["gut", "schlecht"],
            {"gut": "Positive", "schlecht": "0"},
            {"gut": 1, "schlecht": 0},
        ),
        (("LABEL_0", "LABEL_1"), ["pos", "neg"], {"pos": "1", "neg": "LABEL_0"}, {"pos": 1, "neg": 0}),
        (("negative", "positive"), ["1", "2"], {"1": "negative", "2.0": "positive"}, {"1": 0, "2": 1}),
        (("a", "b"), ["a", "beta"], {"beta": "b"}, {"a": 0, "beta": 1}),
        (("0", "1"), ["positive", "negative"], {"positive": "1", "negative": "0"}, {"positive": 1, "negative": 0}),
    ],
)
def test_labels_are_mapped_to_the_teachers(
    theirs: tuple[str, ...], found: list[str], given: dict[str, str], numbers: dict[str, int]
) -> None:
    task, told = make_task(None, Head(*theirs), found, None, "rows.csv", label_map=given)
    assert task.labels == theirs
    assert {label: task.number(label, "") for label in found} == numbers
    assert all(f"{as_told} is {theirs[numbers[as_told]]}" in told for as_told in numbers if as_told in given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"positve": "positive"}, "'positve' is not a label of rows.csv; write one of negative, positive"),
        ({"positive": "good"}, "no class 'good'; write one of bad, fine, or its number"),
        ({"positive": "2"}, "no class '2'"),
    ],
)
def test_wrong_names_in_a_map_are_refused_with_what_exists(given: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_task(None, Head("bad", "fine"), ["positive", "negative"], None, "rows.csv", label_map=given)


def test_a_map_in_recipes_and_flags(home: Path) -> None:
    assert recipe_of(home, "data.label_map.gut=1").data[0].label_map == {"gut": "1"}
    assert recipe_of(home, 'data.label_map={gut=1,schlecht="0"}').data[0].label_map == {"gut": "1", "schlecht": "0"}
    with pytest.raises(InputError, match=r"data.0.label_map"):
        recipe_of(home, "data.label_map=3")
    assert potstill("distill", "--train", home / "train.csv", "--label-map", "gut") == 2


def answers(outcome: Outcome) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(6, 1 if outcome == "value" else 4, generator=generator) for _ in range(2))
    return ours, theirs


@pytest.mark.parametrize("outcome", ["class", "classes", "value"])
def test_the_teachers_answer_is_the_label(outcome: Outcome) -> None:
    """As `hard` with the teacher's answer in place of the label, for every row that it answered."""
    from dataclasses import replace

    from potstill.training.losses import hard

    ours, theirs = answers(outcome)
    said: Any = {"class": theirs.argmax(1), "classes": (theirs > 0).float(), "value": theirs[:, 0]}[outcome]
    every = replace(batch_of([0] * 6, 6), outcome=outcome, targets=said)
    batch = replace(every, labelled=torch.zeros(6, dtype=torch.bool))  # labels are not looked at
    found = TeacherLabels().losses(Signals(logits=ours), Signals(logits=theirs), batch)["hard"]
    torch.testing.assert_close(found.mean(batch.counts), hard(ours, every).mean(every.counts))
    some = replace(batch, taught_predictions=torch.tensor([True, False] * 3))
    if outcome == "class":
        one = TeacherLabels().losses(Signals(logits=ours), Signals(logits=theirs), some)["hard"]
        torch.testing.assert_close(one.total, F.cross_entropy(ours[::2], said[::2], reduction="sum"))


@pytest.mark.parametrize("kind", ["txt", "csv", "tsv"])
def test_texts_in_one_language_are_added_and_none_that_dev_translates(tmp_path: Path, kind: str) -> None:
    task = Translation()
    (tmp_path / "train.csv").write_text("en,de\none,eins\ntwo,zwei\n")
    (tmp_path / "dev.csv").write_text("en,de\nthree,drei\n")
    train, dev = (
        open_table(tmp_path / f"{name}.csv", Columns("en", "de"), form="translation") for name in ("train", "dev")
    )
    more = {
        "txt": "three\nfour\n\none\n",
        "csv": 'source,target\nthree,x\nfour,\n"",\none,y\n',  # translations in them are not read
        "tsv": 'en\tfr\nthree\ttrois\nfour\tquatre\n""\t\none\tun\n',
    }
    path = tmp_path / f"more.{kind}"
    path.write_text(more[kind])
    told: list[str] = []
    made = with_unlabelled(store(train, task), Pool([str(path)], train), task, {"dev": store(dev, task)}, told.append)
    added = {"txt": ["four", ""], "csv": ["four", ""], "tsv": ["four", '""']}[kind]  # "one" is in train
    assert list(made.texts()) == [("one", "eins"), ("two", "zwei"), *((text, "") for text in added)]
    assert made.labelled[made.index].tolist() == [True, True, False, False]
    held = f"{path}: 1 of 4 rows are also in dev or test and are left out; it holds 1 of the 1 rows of dev"
    assert told[0] == held and told[2:] == [f"{path}: 1 rows are in train already, or occur twice, and are left out"]


def test_of_sources_of_a_language_too(tmp_path: Path) -> None:
    """What asks for the language stands before them, and a source of dev is found whatever it is translated to."""
    for name, rows in (("train", [("one", "eins"), ("two", "zwei")]), ("dev", [("three", "drei")])):
        write_csv(tmp_path / f"{name}.csv", rows, ("en", "de"))
    (tmp_path / "more.txt").write_text("three\nfour\n")
    task, _ = make_task(None, None, ["0", "1"], None, "rows", "translation")
    columns = Columns("en", "de", before=">>de<< ")
    train, dev = (open_table(tmp_path / f"{name}.csv", columns, form="translation") for name in ("train", "dev"))
    heard = Heard()
    pool = Pool([str(tmp_path / "more.txt")], train)
    found = with_unlabelled(store(train, task), pool, task, {"dev": store(dev, task)}, heard.say)
    assert list(found.texts()) == [(">>de<< one", "eins"), (">>de<< two", "zwei"), (">>de<< four", "")]
    assert any("1 of 2 rows are also in dev or test" in line for line in heard.told)
