"""Models whose tokenizer, labels or weights do not belong together, or would need the whole machine, are refused in words."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from potstill.data.tokens import tokenise_texts
from potstill.errors import InputError
from potstill.inference.predict import predict
from potstill.models import student as students
from potstill.models.heads import auto_class
from potstill.models.inference import load_network
from potstill.models.onnx.writing import write_config_and_tokenizer
from potstill.models.safety import MOST_GROWTH, growth
from potstill.models.student import Student, load_student, save_student
from potstill.models.tokenizers import long_texts
from potstill.system import randomness
from potstill.tasks.classify import TextClassification
from tests.support.commands import potstill
from tests.support.faults import peak_memory
from tests.support.small_models import (
    ARCHITECTURES,
    WRITERS,
    sentences,
    small_images,
    small_model,
    small_tokenizer,
    small_writer,
    write_csv,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "model"
    save_student(small_model("bert", layers=1), folder)
    return folder


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def edit(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize("kind", [*ARCHITECTURES, *WRITERS, "digits"])
def test_models_as_they_are_made_are_let_in(kind: str, tmp_path: Path) -> None:
    known = kind in ARCHITECTURES
    save_student(small_images() if kind == "digits" else (small_model if known else small_writer)(kind), tmp_path / "m")
    assert load_student(tmp_path / "m")


# vocabularies


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
def test_a_model_without_its_vocabulary_is_refused(form: str, model: Path, tmp_path: Path) -> None:
    """transformers would make one of five words, and every answer would be nonsense."""
    if form == "onnx":
        write_config_and_tokenizer(load_student(model), tmp_path / "onnx")
        model = tmp_path / "onnx"
        (model / "model.onnx").touch()
    (model / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no vocabulary \(tokenizer.json or vocab.txt\); put the model's tokenizer"):
        load_network(model)
    (model / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="no vocabulary"):
        load_network(model)
    if form == "safetensors":
        with pytest.raises(InputError, match="no vocabulary"):
            load_student(model, labels=["a", "b"])


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
def test_a_vocabulary_of_another_model_is_refused(form: str, model: Path, tmp_path: Path) -> None:
    student = load_student(model)
    if form == "onnx":
        write_config_and_tokenizer(student, tmp_path / "onnx")
        model = tmp_path / "onnx"
        (model / "model.onnx").touch()
    student.tokenizer.add_tokens(["<new>"])
    student.tokenizer.save_pretrained(model)
    with pytest.raises(InputError, match="resize_token_embeddings"):
        load_network(model)
    (model / "tokenizer.json").unlink()
    (model / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfilm\n")
    with pytest.raises(InputError, match="has 6 tokens"):
        load_network(model)


@pytest.mark.parametrize("most", [-1, 0, 1, 2, "many", True, [8], float("inf")])
def test_texts_need_room(most: Any, model: Path) -> None:
    edit(model / "tokenizer_config.json", model_max_length=most)
    with pytest.raises(InputError, match=r"model_max_length = .*; write how many tokens|no tokenizer that can be read"):
        load_student(model)


def test_no_limit_is_a_limit_of_its_own(model: Path) -> None:
    for most in (10**30, 16.0, None):
        edit(model / "tokenizer_config.json", model_max_length=most)
        assert list(predict(model, ["a film"]))


def long(pattern: Any, letters: int) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": "a" * letters}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


GROWING: dict[str, dict[str, Any]] = {
    "four times a hundred": {"normalizer": sequence(*[long({"String": "a"}, 100)] * 4)},
    "by a pattern": {"normalizer": long({"Regex": "[a-z]"}, 1000)},
    "at every place": {"normalizer": sequence(*[long({"Regex": "x*"}, 1)] * 8)},
    "what comes before": {"normalizer": sequence(*[{"type": "Prepend", "prepend": "a" * 9}] * 3)},
    "bytes of bytes": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
            ]
            * 30,
        }
    },
    "in what is written": {"decoder": {"type": "Sequence", "decoders": [long({"String": "a"}, 100)] * 4}},
    "around a text": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 100_000,
            "pair": [],
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("case", GROWING)
def test_tokenizers_that_make_gigabytes_of_a_text_are_refused(case: str, model: Path) -> None:
    edit(model / "tokenizer.json", **GROWING[case])
    with peak_memory() as most, pytest.raises(InputError, match=r"use the model's original tokenizer\.json"):
        list(predict(model, ["aa"]))
    assert most[0] < 50


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


USUAL: dict[str, list[dict[str, Any]]] = {
    "llama": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")],
    "t5": [{"type": "Precompiled", "precompiled_charsmap": ""}, replace(" {2,}", "▁", "Regex")],
    "clip": [{"type": "NFC"}, replace(r"\s+", " ", "Regex"), {"type": "Lowercase"}],
    "deberta": [replace("\n", " "), {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}],
    "signs": [replace(one, instead) for one, instead in zip("…½¼¾“”–№™℃", ["...", " 1/2"] * 5, strict=True)],
    "gpt2": [{"type": "ByteLevel", "add_prefix_space": False}],
}


def test_usual_tokenizers_grow_little() -> None:
    for name, parts in USUAL.items():
        assert growth(parts) <= MOST_GROWTH / 4, name
    assert growth([replace("a", "aa")] * 3) == 8 and growth([replace("a", "bb"), replace("c", "dd")]) == 2


def test_a_pattern_without_end_is_told(tmp_path: Path) -> None:
    """The library panics, which Python does not take for an Exception."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "[PAD]": 2}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace(Regex("(a+)+$"), "b")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", model_max_length=32
    )
    model = small_model("bert", layers=1).model
    model.resize_token_embeddings(3)
    save_student(Student(model, tokenizer), tmp_path / "model")
    with pytest.raises(InputError, match=r"the tokenizer of .*model failed .*; use"):
        list(predict(tmp_path / "model", ["a" * 60 + "b"]))


# labels


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"5": "a", "7": "b"}, "are 5, 7; number them 0, 1"),
        ({"0": "a", "1": "a"}, "two classes .* have the name 'a'"),
        ({"0": "a", "1": "\ud800"}, "is not valid text; write another name"),
    ],
)
def test_classes_are_numbered_and_have_names_of_their_own(labels: dict[str, str], told: str, model: Path) -> None:
    edit(model / "config.json", id2label=labels, label2id={})
    for load in (load_student, load_network):
        with pytest.raises(InputError, match=told):
            load(model)
    assert load_student(model, labels=["x", "y", "z"]).model.config.id2label == {0: "x", 1: "y", 2: "z"}


# weights


def edit_weights(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: change(name, one) for name, one in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def test_weights_of_eight_bits_are_no_weights(model: Path) -> None:
    edit_weights(model, lambda name, one: (one * 100).to(torch.int8) if name.endswith("query.weight") else one)
    with pytest.raises(InputError, match=r"query.weight is stored as I8.*; use weights in float32"):
        load_student(model)


def test_masks_and_positions_may_be_whole_numbers(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]
    weights["bert.attn.bias"] = torch.ones(4, 4, dtype=torch.uint8)
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    assert load_student(model)


def test_answers_that_are_no_numbers_are_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_weights(model, lambda name, one: torch.full_like(one, 3e38) if name == "classifier.weight" else one)
    write_csv(tmp_path / "rows.csv", sentences(8, seed=1))
    rows, out = str(tmp_path / "rows.csv"), str(tmp_path / "out")
    distill = ["distill", "--teacher", model, "--train", rows, "--dev", rows, "--out", out, "--set", "force=true"]
    for words in (["predict", model, rows], ["measure", model, "--data", rows], distill):
        assert potstill(*words) == 2
        told = capsys.readouterr()
        assert re.search(r"not finite; use a (model|teacher) whose training did not diverge", told.err)
        assert "NaN" not in told.out


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("bilstm:999999", r"would have 8,\d{3},\d{3},\d{3},\d{3} numbers, 32,\d{3} GB, and this machine has"),
        ("bilstm:9999999999", "at most 1048576"),
        ("fresh:99999999", "at most 1000"),
        ("bag:99999999", "at most 1048576"),
        ("marian:1+1x999999999999", "at most 1048576"),
        ("lstm_translator:99999x8", "at most 1000"),
        ("mlp:[1048576, 1048576]", "would have 1,1.* numbers, 4,4.* GB, and this machine has|reads images"),
    ],
)
def test_networks_that_cannot_be_are_refused_before_they_take_memory(
    shape: str, told: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path / "rows.csv", sentences(8, seed=1))
    rows = str(tmp_path / "rows.csv")
    words = ["distill", "--teacher", made, "--train", rows, "--dev", rows, "--student", shape, "--set", "force=true"]
    with peak_memory() as most:
        assert potstill(*words, "--out", tmp_path / "out") == 2
    assert most[0] < 200
    assert re.search(told, capsys.readouterr().err)


def test_counting_first_draws_no_random_numbers() -> None:
    def make() -> Any:
        return auto_class("SequenceClassification").from_config(small_model("bert", layers=1).model.config)

    with randomness.seeded(3):
        expected = make().state_dict()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    found = students.new_network(make, 3).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(torch.random.get_rng_state(), before)


# long texts


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert", "mpnet"])
def test_a_long_text_is_cut_before_it_is_split_and_read_alike(
    architecture: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(architecture)
    tokenizer.truncation_side = side
    task = TextClassification(("a", "b"))
    words = " ".join(text for text, _ in sentences(400, seed=1))
    texts = [
        words,
        words.replace(" ", ""),
        " " * 9000 + words,
        words + " " * 9000,
        "x" * 20_000,
        "e\u0301 " * 9000,
        "short",
    ]
    rows = [(text, None) for text in texts] + [(words[9:], None), ("日本 " * 5000, None)]
    pairs = [(words, "short"), ("short", words), (words, words[100:]), (words[7:], words)]
    asked = [(rows, 16), (rows, 60), (pairs, 16), (pairs, 61)]
    before = [tokenise_texts(task, some, tokenizer, length) for some, length in asked]
    seen: list[int] = []
    plain = long_texts._enough
    monkeypatch.setattr(long_texts, "_enough", lambda *given: seen.append(len(plain(*given))) or plain(*given))
    monkeypatch.setattr(long_texts, "LONG", 300)
    after = [tokenise_texts(task, some, tokenizer, length) for some, length in asked]
    assert min(seen) < 2000 < max(map(len, texts))
    for ours, theirs in zip(after, before, strict=True):
        assert ours.ids.tolist() == theirs.ids.tolist() and ours.shortened == theirs.shortened


def test_a_text_of_nine_megabytes_needs_little_memory(made: Path) -> None:
    text = "a good film , " * 650_000
    short = list(predict(made, [text[:10_000]]))
    with peak_memory() as most:
        assert list(predict(made, [text])) == short
    assert most[0] < 100


def test_a_student_reads_what_it_was_trained_to_read_unless_more_is_asked_for(model: Path, tmp_path: Path) -> None:
    text = " ".join(text for text, _ in sentences(9, seed=1))
    whole = list(predict(model, [text]))
    edit(model / "config.json", potstill_length=9)
    assert list(predict(model, [text])) == list(predict(model, [text], length=9)) != whole
    assert list(predict(model, [text], length=64)) == whole, "the network can"
    write_config_and_tokenizer(load_student(model), tmp_path / "onnx")
    assert json.loads((tmp_path / "onnx/config.json").read_text())["potstill_length"] == 9
    for wrong in ("many", 2, True, -1):
        edit(model / "config.json", potstill_length=wrong)
        with pytest.raises(InputError, match="write a number of tokens"):
            load_network(model)
