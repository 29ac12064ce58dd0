"""What every task promises, from rows to a student that is measured, exported and asked. A task in tasks/ is tested by existing."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForMultipleChoice, AutoModelForQuestionAnswering, AutoModelForTokenClassification
from transformers import pipeline as pipeline_of

from potstill.data.batches import view
from potstill.data.examples import store
from potstill.data.row import PART_SEPARATOR
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise, tokenise_texts
from potstill.errors import InputError
from potstill.inference.predict import Predictor, predict
from potstill.models.builder import BuildContext
from potstill.models.heads import auto_class
from potstill.models.inference import torch_forward
from potstill.models.student import load_student, save_student
from potstill.recipe import plugins
from potstill.reporting.numbers import metric_title
from potstill.tasks.answer import LONGEST_ANSWER, QuestionAnswering
from potstill.tasks.label_matching import labels_of, make_task
from potstill.tasks.tag import TokenClassification
from tests.support.commands import FAST, killed_after, measurements, potstill
from tests.support.small_models import (
    ARCHITECTURES,
    GENERATED,
    LABELS,
    NEUTRAL,
    choices,
    questions,
    small_model,
    small_teacher,
    small_tokenizer,
    tagged,
    write_task,
)
from tests.support.training_world import TASKS

METRIC = {"tag": "f1", "answer": "f1", "choose": "accuracy", "translate": "bleu", "write": "likelihood"}
METRIC |= {"mask": "accuracy"}
HUB = {"tag": "token-classification", "answer": "question-answering", "choose": "multiple-choice"}
HUB |= {"translate": "translation", "write": "text-generation", "mask": "fill-mask"}
NEW = [task for task in TASKS if task != "classify"]
OF_ENCODERS = [task for task in NEW if task not in GENERATED]
SPLITS = ("train", "dev", "test")
fork = multiprocessing.get_context("fork")


def files(home: Path) -> list[str]:
    named = ["--task", "mask"] if (home / "task").read_text() == "mask" else []  # of texts any task could be meant
    return [word for name in SPLITS for word in (f"--{name}", str(next(home.glob(f"{name}.*"))))] + named


LONG = ("translate", "choose", "answer", "write")  # to be killed: a quarter of a minute or more each


@cache
def taught(task: str) -> Path:
    """Rows of a task, and a teacher that the finetune command made of a bare encoder, or of an untaught writer. Only read."""
    home = Path(tempfile.mkdtemp(prefix=f"{task}-", dir=os.environ["POTSTILL_CACHE"]))
    for split, rows, seed in zip(SPLITS, (120, 60, 60), (1, 2, 3), strict=True):
        write_task(home / split, task, rows, seed)
    (home / "task").write_text(task)
    save_student(small_teacher(task) if task in GENERATED else small_model("bert"), home / "encoder")
    assert potstill("finetune", home / "encoder", *files(home), "--epochs", "12", "--out", home / "teacher", *FAST) == 0
    return home


@pytest.fixture(scope="module", params=NEW)
def home(request: pytest.FixtureRequest) -> Path:
    """Once for each task, though pytest asks again where it comes back to a task."""
    return taught(request.param)


def distilled(home: Path, method: str | None = None) -> list[str | Path]:
    method = method or ("soft_targets" if (home / "task").read_text() in GENERATED else "patient")
    shape = ["--student", "keep_layers:2", "--method", method, "--epochs", "3"]
    return ["distill", "--teacher", home / "teacher/student", *files(home), *shape, *FAST]


@pytest.mark.parametrize(
    "home", [pytest.param(task, marks=() if task == "tag" else pytest.mark.slow) for task in NEW], indirect=True
)
def test_a_teacher_learns_the_task_and_a_student_from_it(home: Path, tmp_path: Path) -> None:
    task = (home / "task").read_text()
    taught = measurements(home / "teacher")["models"]["fine-tuned"]["quality"]["task"]["test"]
    learned = {"tag": 0.9, "answer": 0.8, "choose": 0.8, "translate": 0.1, "write": 0.5, "mask": 0.5}
    assert taught[METRIC[task]] > learned[task]
    assert potstill(*distilled(home), "--out", tmp_path / "run") == 0
    found = measurements(tmp_path / "run")
    assert list(found["models"]) == ["teacher", "fine-tuned", "distilled"]
    assert found["tasks"] == {"task": task} and found["metrics"]["task"][0] == METRIC[task]
    for quality in (model["quality"]["task"]["test"] for model in found["models"].values()):
        assert quality["rows"] == 60
        assert task in GENERATED or 0 <= quality["calibration_error"] <= 1
        assert "likelihood" not in quality or quality["perplexity"] == pytest.approx(1 / quality["likelihood"])
    reached = found["models"]["distilled"]["quality"]["task"]["test"][METRIC[task]]
    assert reached > {"translate": 0.05}.get(task, 0.4)  # in seconds; chance is 0.00
    assert {one["against"] for one in found["differences"]} == {"teacher", "fine-tuned"}
    page, card = ((tmp_path / "run" / name).read_text() for name in ("report.html", "student/README.md"))
    assert metric_title(METRIC[task]) in page and PART_SEPARATOR not in page and PART_SEPARATOR not in card
    assert f'pipeline_tag: "{HUB[task]}"' in card
    assert "None" not in page and (task == "write") == ("same as teacher" not in page)


def test_a_method_that_does_not_fit_says_so(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = potstill(*distilled(home, "answer_attention"), "--no-baseline", "--out", tmp_path / "run")
    if (home / "task").read_text() == "answer":
        assert code == 0
    else:
        told = "cannot train this task"
        assert code == 2 and f"answer_attention' {told}" in capsys.readouterr().err


def test_students_load_with_the_auto_classes_and_answer_alike(home: Path) -> None:
    task = TASKS[(home / "task").read_text()]
    ours, theirs = (
        load_student(home / "teacher/student"),
        auto_class(task.head).from_pretrained(home / "teacher/student"),
    )
    assert type(ours.model) is type(theirs)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, ours.model.state_dict()[name])


@pytest.mark.parametrize(  # models that write are exported for CTranslate2 alone: tests/promises/test_every_export.py
    ("home", "export"),
    [
        pytest.param(task, name, marks=() if (task, name) == ("answer", "onnx") else pytest.mark.slow)
        for task in OF_ENCODERS
        for name in plugins.names("exports")
        if name != "ctranslate2"
    ],
    indirect=["home"],
)
def test_an_exported_student_answers_as_the_student(
    home: Path, tmp_path: Path, export: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(next(home.glob("test.*")))
    assert potstill("export", home / "teacher/student", "--to", export, "--data", rows, "--out", tmp_path / "out") == 0
    assert "same prediction" in capsys.readouterr().out
    assert (
        potstill("measure", home / "teacher/student", tmp_path / "out", "--data", rows, "--json", "--length", "32") == 0
    )
    _, small = json.loads(capsys.readouterr().out)["models"].values()
    assert small["quality"]["task"]["test"]["agreement"] >= (1.0 if export == "onnx" else 0.85)
    for folder in (home / "teacher/student", tmp_path / "out"):
        assert potstill("predict", folder, rows, "--length", "32") == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(said) == 120
    if export == "onnx":
        wanted = {"tag": "tags", "answer": "answer", "choose": "candidate", "mask": "text"}[(home / "task").read_text()]
        assert [one[wanted] for one in said[:60]] == [one[wanted] for one in said[60:]]


@pytest.mark.parametrize(
    "home", [pytest.param(task, marks=pytest.mark.slow if task in LONG else ()) for task in NEW], indirect=True
)
def test_killed_and_resumed_it_is_the_same_bit_for_bit(home: Path, tmp_path: Path) -> None:
    """Dropout and micro-batches on, killed twice in the middle of an epoch, while training and while remembering."""
    more = ["--no-baseline", "--set", "dropout=0.1", "--set", "tokens=100", "--set", "save_every=3"]
    assert potstill(*distilled(home), *more, "--out", tmp_path / "whole") == 0
    for saves in (2, 5):
        # the threads of CTranslate2 do not survive a fork
        way = multiprocessing.get_context("spawn") if (home / "task").read_text() == "translate" else fork
        child = way.Process(target=killed_after, args=(saves, [*distilled(home), *more, "--out", tmp_path / "killed"]))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    assert potstill(*distilled(home), *more, "--out", tmp_path / "killed") == 0
    whole, killed = (load_file(tmp_path / name / "student/model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())
    logs = [(tmp_path / name / "stages/0/steps.csv").read_text().splitlines() for name in ("whole", "killed")]
    assert [line.rsplit(",", 1)[0] for line in logs[0]] == [
        line.rsplit(",", 1)[0] for line in logs[1]
    ]  # all but seconds


def test_a_model_of_another_task_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writes = (home / "task").read_text() in GENERATED  # it takes any text for one that could be learned, but no words
    rows = write_task(tmp_path / "train", "tag" if writes else "classify", 40, 1)
    words = ["distill", "--teacher", home / "teacher/student", "--train", rows, *FAST]
    assert potstill(*words, "--out", tmp_path / "run") == 2
    message = "the rows are texts with a label, but the model needs"
    if writes:
        missing = {"translate": "source texts", "write": "texts to be written"}[(home / "task").read_text()]
        message = f"no column has a usual name for {missing}"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("task", GENERATED)
def test_models_that_write_are_asked_by_other_commands(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_student(small_teacher(task), tmp_path / "model")
    (tmp_path / "rows.txt").write_text("a film\n")
    assert potstill("predict", tmp_path / "model", tmp_path / "rows.txt") == 2
    assert "write potstill translate" in capsys.readouterr().err
    for export in ("onnx", "int8"):
        assert potstill("export", tmp_path / "model", "--to", export, "--out", tmp_path / export) == 2
        assert "write --to ctranslate2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "home",
    [pytest.param(task, marks=() if task in ("tag", "translate") else pytest.mark.slow) for task in NEW],
    indirect=True,
)
def test_a_new_head_is_near_chance_and_refused_as_a_teacher(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = (home / "task").read_text()
    save_student(small_teacher(task, seed=5), tmp_path / "untaught")
    words = ["distill", "--teacher", tmp_path / "untaught", *files(home), "--epochs", "1", "--no-baseline", *FAST]
    assert potstill(*words, "--out", tmp_path / "run") == 2
    assert "near chance" in capsys.readouterr().err
    assert potstill(*words, "--force", "--out", tmp_path / "run") == 0


@pytest.mark.parametrize("task", OF_ENCODERS)  # what writes is built in tests/promises/test_every_student.py
@pytest.mark.parametrize(
    ("student", "fields"),
    [
        ("keep_layers", {"layers": 2}),
        ("fresh", {"layers": 2, "width": 16, "heads": 4}),
        ("fresh", {"layers": 2, "width": 16, "heads": 4, "architecture": "distilbert"}),
        ("trim_vocabulary", {}),
    ],
)
def test_students_of_any_make_keep_the_head_of_the_task(
    student: str, fields: dict[str, Any], task: str, tmp_path: Path
) -> None:
    start = small_model("bert", labels=LABELS[task], seed=3, head=TASKS[task].head)
    if TASKS[task].vocabulary and student == "trim_vocabulary":
        with pytest.raises(InputError, match="would lose tokens that it predicts"):
            plugins.make("students", student, fields).build(start, BuildContext(start, 0, lambda: iter(["a film"])))
        return
    made = plugins.make("students", student, fields).build(
        start, BuildContext(start, 0, lambda: iter(["a charming film"]))
    )
    assert type(made.model).__name__.endswith(f"For{TASKS[task].head}")
    save_student(made, tmp_path / "student")
    again = load_student(tmp_path / "student")
    assert type(again.model) is type(made.model)
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in made.model.state_dict().items())


# tagging


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_words_are_read_where_the_pipeline_of_transformers_reads_them(architecture: str, tmp_path: Path) -> None:
    tagger = small_model(architecture, labels=LABELS["tag"], seed=1, head="TokenClassification")
    save_student(tagger, tmp_path / "tagger")
    texts = [" ".join(row["tokens"]) for row in tagged(12, 4)]
    theirs = pipeline_of(
        "token-classification", model=str(tmp_path / "tagger"), aggregation_strategy="none", ignore_labels=[]
    )
    for text, ours in zip(texts, predict(tmp_path / "tagger", [text.split() for text in texts]), strict=True):
        starts = np.cumsum([0, *(len(word) + 1 for word in text.split()[:-1])])
        pieces = theirs(text)
        # the piece that holds the word's first letter
        firsts = [next(piece for piece in pieces if piece["end"] > start) for start in starts]
        assert ours["tags"] == [piece["entity"] for piece in firsts]
        assert ours["probabilities"] == pytest.approx([float(piece["score"]) for piece in firsts], abs=1e-5)


def test_a_sentence_that_is_too_long_keeps_its_first_words_and_the_rest_is_outside() -> None:
    task = TokenClassification(LABELS["tag"])
    words = NEUTRAL[:40]
    tokens = tokenise_texts(task, [(PART_SEPARATOR.join(words), None)], small_tokenizer("bert"), 16)
    kept = int(task.predictions(tokens, np.array([0]))[0])
    assert 0 < kept < 40 and tokens.shortened == 1
    said = task.read_logits(
        np.eye(5, dtype=np.float32)[[1] * kept], tokens, np.array([0]), Unlabelled((PART_SEPARATOR.join(words), None))
    )[0]
    assert [LABELS["tag"][int(one)] for one in said[:, 0]] == ["B-GOOD"] * kept + ["O"] * (40 - kept)


def test_two_tokenizers_that_cut_differently_teach_the_words_that_both_keep() -> None:
    task = TokenClassification(LABELS["tag"])
    rows = [(PART_SEPARATOR.join(row["tokens"]), None) for row in tagged(20, 3)]
    ours, theirs = (tokenise_texts(task, rows, small_tokenizer(name), 12) for name in ("bert", "roberta"))
    every = np.arange(20)
    assert (task.predictions(ours, every) != task.predictions(theirs, every)).any()
    left, right = task.align(ours, theirs)
    assert (task.predictions(left, every) == task.predictions(right, every)).all()
    assert (
        task.predictions(left, every) == np.minimum(task.predictions(ours, every), task.predictions(theirs, every))
    ).all()


def test_tags_that_name_no_entities_are_scored_by_words(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b", "c"], "tags": ["DET", "NOUN", "VERB"]}, {"tokens": ["b"], "tags": ["NOUN"]}]
    (tmp_path / "pos.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = open_table(tmp_path / "pos.jsonl")
    task, _ = make_task(None, None, labels_of(table), None, "pos", table.form)
    golds = task.golds(store(table, task))
    assert golds.tolist() == [[0, 1, 2], [1, -1, -1]]
    answers = np.stack([golds, np.ones_like(golds)], -1)
    answers[0, 0, 0] = 1  # one of four words wrong
    assert task.score(golds, answers)["accuracy"] == 0.75 and task.metrics == ("accuracy", "f1_macro")


def test_bilou_counts_as_iobes() -> None:
    task = TokenClassification(("O", "B-PER", "I-PER", "L-PER", "U-LOC"))
    golds = np.array([[1, 2, 3, 0, 4]], np.float32)
    answers = np.stack([golds, np.ones_like(golds)], -1)
    assert task.score(golds, answers)["f1"] == 1.0
    answers[0, 2, 0] = 0  # an entity of two words is another one
    assert task.score(golds, answers) == pytest.approx({"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": 0.8})


# answers


class Unlabelled:
    def __init__(self, *rows: tuple[str, str | None], gold: np.ndarray | None = None) -> None:
        self.rows, self.answer = rows, gold

    def text(self, row: int) -> tuple[str, str | None]:
        return self.rows[row]

    def gold(self, row: int) -> np.ndarray | None:
        return self.answer


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(24, 64), architecture=st.sampled_from(ARCHITECTURES))
def test_windows_cover_the_context_and_targets_point_at_the_answer(seed: int, length: int, architecture: str) -> None:
    """Every answer stands whole in a window, where its two tokens give back its text; all other windows say "not here"."""
    row = questions(1, seed)[0]
    context, span = row["context"], row["answers"][0]
    task = QuestionAnswering()
    tokens = tokenise_texts(task, [(row["question"], context)], small_tokenizer(architecture), length)
    assert tokens.firsts is not None and tokens.characters is not None
    gold = np.array([span["answer_start"], span["answer_start"] + len(span["text"])], np.float32)

    class Gold(Unlabelled):
        labelled = np.ones(1, bool)

    found = task.targets(Gold((row["question"], context), gold=gold), tokens, np.array([0]))  # type: ignore[arg-type]
    windows = found.reshape(-1, 2).astype(int)
    covered = np.zeros(len(context), bool)
    here = 0
    for number, (first, last) in enumerate(windows):
        characters = tokens.characters[tokens.offsets[number] : tokens.offsets[number + 1]]
        assert len(characters) <= length
        for begin, end in characters[characters[:, 0] >= 0]:
            covered[begin:end] = True
        if first:
            here += 1
            assert context[characters[first, 0] : characters[last, 1]].strip() == span["text"]
        else:
            assert last == 0
    assert here and all(covered[place] or letter.isspace() for place, letter in enumerate(context))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("it was good and long", "good"),
        ("it was  good  and long", " good "),  # space around it is of no token
        ("a café\u0301 by the sea", "café\u0301"),  # so is, for some, a mark on a letter
        ("\u200b width is all", "\u200b width"),
        ("한국어 film 😀 seen", "film 😀"),
    ],
)
def test_answers_are_found_whatever_the_tokenizer_drops(architecture: str, context: str, answer: str) -> None:
    task = QuestionAnswering()
    tokens = tokenise_texts(task, [("what ?", context)], small_tokenizer(architecture), 64)
    start = context.index(answer)
    gold = np.array([start, start + len(answer)], np.float32)
    first, last = task.targets(Unlabelled(("what ?", context), gold=gold), tokens, np.array([0])).astype(int)  # type: ignore[arg-type]
    assert tokens.characters is not None
    found = context[tokens.characters[first, 0] : tokens.characters[last, 1]]
    assert found and found == found.strip() and found in answer.strip()
    inside = tokens.characters[tokens.characters[:, 0] >= 0]
    assert all(context[begin:end] == context[begin:end].strip() and begin < end for begin, end in inside)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("question", ["😀" * 40, "한국어" * 20, "", "what was good ? " * 30])
@pytest.mark.parametrize("length", [24, 64])
def test_any_question_leaves_room_for_the_context(architecture: str, question: str, length: int) -> None:
    task = QuestionAnswering()
    tokens = tokenise_texts(task, [(question, "the film " * 40)], small_tokenizer(architecture), length)
    assert tokens.counts(np.array([0]))[0] > 1 and tokens.sizes(np.arange(2)).max() <= length


def test_windows_too_short_for_a_question_are_refused() -> None:
    with pytest.raises(InputError, match="write at least"):
        tokenise_texts(QuestionAnswering(), [("a", "b")], small_tokenizer("bert"), 12)


def test_a_longer_window_than_the_context_needs_changes_no_logit(tmp_path: Path) -> None:
    model = small_model("bert", labels=LABELS["answer"], seed=2, head="QuestionAnswering")
    task = QuestionAnswering()
    rows = [(row["question"], row["context"]) for row in questions(6, 5, longest=20)]
    told = []
    for length in (40, 64):
        tokens = tokenise_texts(task, rows, model.tokenizer, length)
        reading = view(task, tokens, np.arange(6))
        told.append(reading.predictions(torch.from_numpy(torch_forward(model.model)(reading.inputs))))
    assert torch.equal(told[0], told[1])


def test_start_and_end_are_those_of_transformers_and_the_question_is_no_answer() -> None:
    model = small_model("bert", labels=LABELS["answer"], seed=2, head="QuestionAnswering")
    row = questions(1, 9, longest=20)[0]
    task = QuestionAnswering()
    tokens = tokenise_texts(task, [(row["question"], row["context"])], model.tokenizer, 64)
    reading = view(task, tokens, np.array([0]))
    ours = reading.predictions(torch.from_numpy(torch_forward(model.model)(reading.inputs)))
    inputs = model.tokenizer(row["question"], row["context"], return_tensors="pt")
    with torch.no_grad():
        theirs = model.model(**inputs)
    context = torch.tensor([part == 1 for part in inputs.sequence_ids(0)])
    context[0] = True
    for mine, other in zip(ours, (theirs.start_logits[0], theirs.end_logits[0]), strict=True):
        assert torch.allclose(mine[context], other[context], atol=1e-6) and (mine[~context] == -torch.inf).all()


def test_the_best_answer_is_the_best_of_all_pairs() -> None:
    """Against looking at every pair of tokens, over two windows."""
    random = np.random.default_rng(0)
    row = questions(1, 3, longest=70)[0]
    task = QuestionAnswering()
    tokens = tokenise_texts(task, [(row["question"], row["context"])], small_tokenizer("bert"), 40)
    windows = int(tokens.counts(np.array([0]))[0])
    assert windows > 1
    logits = random.normal(size=(2 * windows, 40)).astype(np.float32)
    rows = Unlabelled((row["question"], row["context"]))
    best = task.read_logits(logits, tokens, np.array([0]), rows)[0]
    assert tokens.characters is not None
    every: dict[tuple[int, int], float] = {}
    for number in range(windows):
        characters = tokens.characters[tokens.offsets[number] : tokens.offsets[number + 1]]
        inside = np.flatnonzero(characters[:, 0] >= 0)
        for first in inside:
            for last in inside[(inside >= first) & (inside < first + LONGEST_ANSWER)]:
                span = (int(characters[first, 0]), int(characters[last, 1]))
                every[span] = max(
                    every.get(span, -np.inf), float(logits[2 * number, first] + logits[2 * number + 1, last])
                )
    wanted = sorted(every.items(), key=lambda one: -one[1])[:3]
    assert [(int(a), int(b)) for a, b, *_ in best[:3]] == [span for span, _ in wanted]
    assert best[:3, 2] == pytest.approx([score for _, score in wanted], abs=1e-5)
    assert len({tuple(one) for one in best[:, :2].tolist()}) == len(best)  # no answer twice


# choices


def test_candidates_are_weighed_as_transformers_weighs_them(tmp_path: Path) -> None:
    model = small_model("bert", labels=LABELS["choose"], seed=4, head="MultipleChoice")
    save_student(model, tmp_path / "chooser")
    rows = choices(5, 2)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chooser = Predictor(tmp_path / "chooser")
    ours = list(chooser(chooser.rows_of(str(tmp_path / "rows.jsonl"))))
    plain = AutoModelForMultipleChoice.from_pretrained(tmp_path / "chooser")
    for row, said in zip(rows, ours, strict=True):
        seconds = [row["question"].replace("_", one) for one in row["options"]]
        inputs = model.tokenizer([row["article"]] * 3, seconds, padding=True, return_tensors="pt")
        with torch.no_grad():
            theirs = plain(**{name: tensor[None] for name, tensor in inputs.items()}).logits[0].softmax(-1)
        assert list(said["probabilities"].values()) == pytest.approx(theirs.tolist(), abs=1e-5)
        assert said["candidate"] == seconds[int(theirs.argmax())]


@pytest.mark.parametrize(
    ("task", "asked", "told"),
    [
        ("answer", '{"question": "what was good ?", "context": "a charming film"}', "answer"),
        ("answer", ("what was good ?", "a charming film"), "answer"),
        ("choose", {"text": "a film", "question": "it was _", "choices": ["good", "bad", "one"]}, "candidate"),
        ("tag", "A charming, funny film.", "tags"),
    ],
)
def test_questions_are_asked_as_objects_json_or_pairs(task: str, asked: Any, told: str, tmp_path: Path) -> None:
    save_student(small_model("bert", labels=LABELS[task], head=TASKS[task].head), tmp_path / "model")
    assert told in next(predict(tmp_path / "model", [asked]))


@pytest.mark.parametrize(
    ("task", "asked"),
    [
        ("choose", {"choices": "wet"}),
        ("choose", {"choices": ["wet"]}),
        ("choose", {"choices": ["it"] * 27}),
        ("choose", {"text": "a film"}),
        ("choose", ("a text", None)),
        ("answer", "3"),
        ("answer", '["a", "b", "c"]'),
        ("answer", {"question": None, "context": "a film"}),
        ("classify", {"text": "a film"}),
        ("classify", ["three", "words", "here"]),
    ],
)
def test_what_cannot_be_answered_is_told(task: str, asked: Any, tmp_path: Path) -> None:
    save_student(small_model("bert", labels=LABELS[task], head=TASKS[task].head), tmp_path / "model")
    with pytest.raises(InputError, match=r"write|give"):
        next(predict(tmp_path / "model", [asked]))


def test_no_words_have_no_tags_and_parts_stay_apart(tmp_path: Path) -> None:
    save_student(small_model("bert", labels=LABELS["tag"], head="TokenClassification"), tmp_path / "tagger")
    said = list(predict(tmp_path / "tagger", ["", ["a", "b\x00c"], "a film"]))
    assert [len(one["tags"]) for one in said] == [0, 2, 2] and said[0]["entities"] == []


def test_rows_of_another_form_are_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_task(tmp_path / "rows", "classify", 8, 1)
    if (home / "task").read_text() in (*GENERATED, "mask"):
        pytest.skip("a text is all that these models read: see test_models_that_write_are_asked_by_other_commands")
    for words in (
        ["predict", home / "teacher/student", rows],
        ["export", home / "teacher/student", "--to", "onnx", "--data", rows],
    ):
        assert potstill(*words, *(["--out", tmp_path / "out"] if words[0] == "export" else [])) == 2
        assert "the model needs" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["answer", "choose"])
def test_a_bare_text_is_no_question(task: str, tmp_path: Path) -> None:
    save_student(small_model("bert", labels=LABELS[task], head=TASKS[task].head), tmp_path / "model")
    with pytest.raises(InputError, match="write a question as JSON"):
        next(predict(tmp_path / "model", ["a charming film"]))


def test_auto_classes_by_head() -> None:
    """The names by which users load students."""
    assert auto_class("TokenClassification") is AutoModelForTokenClassification
    assert auto_class("QuestionAnswering") is AutoModelForQuestionAnswering


def test_memory_of_a_longer_reading_serves_a_shorter_one(tmp_path: Path) -> None:
    """The teacher remembers all its words, though the first student kept fewer."""
    from potstill.data.batches import TokenisedSet
    from potstill.signals import Wants
    from tests.support.training_world import make_world

    world = make_world(tmp_path, task="tag")
    teacher = world.remembering()
    full = tokenise(world.task, world.examples, world.teacher.tokenizer, 64)
    cut = tokenise(world.task, world.examples, world.teacher.tokenizer, 8)
    teacher.remember(TokenisedSet(world.task, world.examples, cut, full), Wants(logits=True))
    source = TokenisedSet(world.task, world.examples, full, full)
    batch = source.batch(np.arange(8), source.count(np.arange(8)))
    assert len(teacher.signals(batch, Wants(logits=True)).logits) == len(batch.targets)
