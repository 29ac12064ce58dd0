"""Exported models predict without torch and transformers, and give exactly the predictions that they give with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from potstill.data.row import join_parts
from potstill.data.tokens import tokenise_texts
from potstill.inference import predict as predicting
from potstill.inference.predict import Predictor, predict
from potstill.models.builder import BuildContext
from potstill.models.onnx.exported import load_exported
from potstill.models.student import Student, save_student
from potstill.models.tokenizers.json_tokenizer import JsonTokenizer
from potstill.recipe import plugins
from potstill.tasks.registry import TASKS
from potstill.tasks.task import Task
from tests.support.small_models import (
    ARCHITECTURES,
    LABELS,
    digits,
    sentences,
    small_images,
    small_model,
    small_tokenizer,
)

SHARED = Path(__file__).parents[3] / "shared" / "models"
TEXTS = [text for text, _ in sentences(12, 0)]
LONG = " ".join(TEXTS)
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
# words of the tokenizers' vocabularies, their special tokens, and any characters at all
WORDS = st.sampled_from(
    [*LONG.split()[:30], "[MASK]", "[SEP]", "<mask>", "</s>", "naïve", "日本", "x" * 120, " ", "\n"]
)
ANY = st.one_of(st.lists(WORDS, max_size=60).map(" ".join), st.text(st.characters(exclude_categories=["Cs"])))


def over_words(name: str, **fields: Any) -> Callable[[], Student]:
    def build() -> Student:
        start = small_model("bert", layers=1)
        return plugins.make("students", name, fields).build(start, BuildContext(start, 0, lambda: iter(TEXTS)))

    return build


def head(task: str) -> Callable[[], Student]:
    return lambda: small_model("bert", layers=1, labels=LABELS[task], head=TASKS[task].head)  # type: ignore[index]


STUDENTS: dict[str, tuple[Callable[[], Student], list[Any]]] = {
    "classify": (head("classify"), ["", *TEXTS, LONG, ("a good film", "a bad one"), (LONG, LONG)]),
    "regress": (lambda: small_model("roberta", layers=1, labels=["value"]), ["", *TEXTS]),
    "tag": (head("tag"), [*TEXTS, TEXTS[0].split(), LONG]),
    "answer": (head("answer"), [{"question": "what was good ?", "context": text} for text in (*TEXTS, LONG)]),
    "choose": (head("choose"), [{"text": text, "question": "it was _", "choices": ["a", "b", LONG]} for text in TEXTS]),
    "mask": (
        head("mask"),
        ["a [MASK] film", f"[MASK] {TEXTS[0]} [MASK]", f"{LONG} [MASK]", "", *TEXTS, ("a [MASK]", "b")],
    ),
    "bilstm": (over_words("bilstm", hidden=8, width=8), ["", *TEXTS, LONG]),
    "bilstm of words": (over_words("bilstm", hidden=8, width=8, words="words"), ["", *TEXTS, LONG]),
    "bag": (over_words("bag", width=8), ["", *TEXTS]),
    "images": (small_images, [image.ravel().tolist() for image in digits(12)[0]]),
}


def exported(student: Student, out: Path, form: str = "onnx") -> Path:
    plugins.make("exports", form, {}).export(student, out, [])
    return out


def alone(examples: list[Any]) -> list[list[Any]]:
    """Texts and pairs are not mixed."""
    pairs = [example for example in examples if isinstance(example, tuple)]
    return [[example for example in examples if not isinstance(example, tuple)], *([pairs] if pairs else [])]


@pytest.mark.parametrize("form", ["onnx", "int8"])
@pytest.mark.parametrize("name", STUDENTS)
def test_predictions_are_those_of_the_tokenizer_of_transformers(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, examples = STUDENTS[name]
    folder = exported(build(), tmp_path / "out", form)
    quick = [list(predict(folder, part)) for part in alone(examples)]
    monkeypatch.setattr(predicting, "can_load_light", lambda file: False)
    assert quick == [list(predict(folder, part)) for part in alone(examples)]


@pytest.mark.parametrize("name", STUDENTS)
def test_an_export_predicts_without_torch_and_transformers(name: str, tmp_path: Path) -> None:
    build, examples = STUDENTS[name]
    folder = exported(build(), tmp_path / "out", "int8")
    expected = list(predict(folder, alone(examples)[0]))
    (tmp_path / "examples.json").write_text(json.dumps(alone(examples)[0]))
    code = """
import json, sys
from potstill import predict
print(json.dumps(list(predict("out", json.load(open("examples.json"))))))
assert not {"torch", "transformers"} & set(sys.modules), sys.modules.keys()
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert json.loads(ended.stdout) == expected


def test_the_command_predicts_rows_without_torch_and_transformers(tmp_path: Path) -> None:
    exported(STUDENTS["classify"][0](), tmp_path / "out", "int8")
    (tmp_path / "rows.csv").write_text("text,label\na good film,1\na bad film,0\n")
    for words in (["out"], ["out", "rows.csv"]):
        code = f"""
import sys
from potstill.app import cli
sys.argv = ["potstill", "predict", *{words!r}]
try:
    cli.main()
except SystemExit as ended:
    assert not ended.code
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
        run = [sys.executable, "-c", code]
        ended = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True, input="a good film\n")
        assert len(ended.stdout.splitlines()) == len(words)


def test_an_export_without_tokenizer_json_is_read_by_transformers(tmp_path: Path) -> None:
    folder = exported(small_model("bert", layers=1), tmp_path / "out")
    expected = list(predict(folder, TEXTS))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)))
    (folder / "tokenizer.json").unlink()
    assert list(predict(folder, TEXTS)) == expected


def test_a_predictor_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    folder = exported(small_model("bert", layers=1), tmp_path / "out")
    monkeypatch.setattr(predicting, "load_exported", lambda file: loaded.append(file) or load_exported(file))
    predictor = Predictor(folder)
    assert [next(predictor([text])) for text in TEXTS] == list(predictor(TEXTS))
    assert len(loaded) == 1


def encoded(task: Task, texts: list[tuple[str, str | None]], tokenizer: Any, length: int) -> dict[str, Any]:
    tokens = vars(tokenise_texts(task, texts, tokenizer, length))
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in tokens.items()}


@cache
def both_tokenizers(folder: Path) -> tuple[Any, Any]:
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = JsonTokenizer(folder, theirs.model_input_names, theirs.model_max_length)
    assert ours.truncation_side == theirs.truncation_side and len(ours) == len(theirs)
    return ours, theirs


def refuse_difference(folder: Path, first: str, second: str, length: int, side: str) -> None:
    """Every task reads a text and a pair as with the tokenizer of transformers: ids, types, places, what is truncated."""
    ours, theirs = both_tokenizers(folder)
    ours.truncation_side = theirs.truncation_side = side
    first, second, longer = first.replace("\0", ""), second.replace("\0", ""), max(length, 24)
    rows: dict[str, tuple[list[tuple[str, str | None]], int]] = {"classify": ([(first, second)], length)}
    if folder.name not in ("words", "pieces"):  # which are for classification alone
        rows["tag"] = [(join_parts(first.split() or [first]), None)], length
        rows["answer"] = [(first, second)], longer
        rows["choose"] = [(first, join_parts([second, first]))], length
    for name, (texts, room) in rows.items():
        task = TASKS[name](("a", "b"))  # type: ignore[index]
        assert encoded(task, texts, ours, room) == encoded(task, texts, theirs, room)
    alone: list[tuple[str, str | None]] = [(first, None), (second, None), ("", None)]
    task = TASKS["classify"](("a", "b"))
    assert encoded(task, alone, ours, length) == encoded(task, alone, theirs, length)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("tokenizers")
    tokenizers = {name: small_tokenizer(name) for name in ARCHITECTURES}
    tokenizers["words"] = over_words("bilstm", hidden=8, width=8, words="words")().tokenizer
    tokenizers["pieces"] = over_words("bag", width=8)().tokenizer
    for name, tokenizer in tokenizers.items():
        tokenizer.save_pretrained(home / name)
    return {name: home / name for name in tokenizers}


@pytest.mark.parametrize("name", [*ARCHITECTURES, "words", "pieces"])
@SETTINGS
@given(ANY, ANY, st.integers(4, 40), st.sampled_from(["left", "right"]))
def test_tokens_are_those_of_transformers(
    name: str, folders: dict[str, Path], first: str, second: str, length: int, side: str
) -> None:
    refuse_difference(folders[name], first, second, length, side)


@pytest.mark.parametrize("name", ["gte-small", "gte-small-sst2"])
@settings(max_examples=20, deadline=None)
@given(ANY, ANY, st.integers(4, 40), st.sampled_from(["left", "right"]))
def test_tokens_of_real_models_are_those_of_transformers(
    name: str, first: str, second: str, length: int, side: str
) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip("needs the models beside the project")
    refuse_difference(SHARED / name, first, second, length, side)


def test_a_saved_student_and_its_export_predict_alike(tmp_path: Path) -> None:
    student = small_model("bert", layers=1)
    save_student(student, tmp_path / "student")
    folder = exported(student, tmp_path / "out")
    for ours, theirs in zip(predict(tmp_path / "student", TEXTS), predict(folder, TEXTS), strict=True):
        assert ours["label"] == theirs["label"] and ours["probability"] == pytest.approx(
            theirs["probability"], abs=1e-5
        )
