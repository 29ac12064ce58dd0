from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from potstill.models.student import Student, load_student, save_student
from potstill.recipe.resolve import resolve
from potstill.signals import Wants
from tests.support.prepared import prepared_data
from tests.support.small_models import sentences, small_model, write_csv
from tests.training.teacher import test_memory

ROWS = 40
LOGITS = Wants(logits=True)


def asked(folder: Path, wants: Wants = LOGITS, teacher: str = "teacher", train: str = "train.csv", **more: int) -> int:
    """How many rows the teacher was asked for, though the memory is there."""
    fields = {
        "teacher": str(folder / teacher),
        "data.train": str(folder / train),
        "data.dev": str(folder / "train.csv"),
    }
    settings = {**fields, "memory": str(folder / "memory"), "force": True, "student": "keep_layers:2", "length": 32}
    recipe = resolve(None, {path: ("test", value) for path, value in {**settings, **more}.items()}).recipe
    (data,) = prepared_data(recipe)
    assert data.loaded_teacher is not None
    return data.teacher.remember(data.tokenised(data.train, data.loaded_teacher.tokenizer, "train"), wants)


def with_another_last_bit(student: Student) -> Student:
    weight = next(iter(student.model.parameters())).data.view(torch.int32)
    weight.view(-1)[0] ^= 1
    return student


def with_another_vocabulary(student: Student) -> Student:
    """One piece is spelt otherwise; weights and the size of the vocabulary are the same."""
    settings = json.loads(student.tokenizer.backend_tokenizer.to_str())
    vocabulary = settings["model"]["vocab"]
    vocabulary["filmx"] = vocabulary.pop("film")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(settings)), **student.tokenizer.special_tokens_map
    )
    return Student(student.model, tokenizer)


def test_13_any_change_of_teacher_tokenizer_text_or_layer_misses(tmp_path: Path, figure: Callable[..., None]) -> None:
    rows = sentences(ROWS, 1)
    write_csv(tmp_path / "train.csv", rows)
    save_student(small_model("bert"), tmp_path / "teacher")
    assert asked(tmp_path) == ROWS
    assert asked(tmp_path) == 0, "what is known is not asked again"
    missed = {}

    save_student(with_another_last_bit(load_student(tmp_path / "teacher")), tmp_path / "other weights")
    missed["a bit of a weight"] = asked(tmp_path, teacher="other weights") == ROWS
    save_student(with_another_vocabulary(load_student(tmp_path / "teacher")), tmp_path / "other pieces")
    missed["a piece of the tokenizer"] = asked(tmp_path, teacher="other pieces") == ROWS
    labels = load_student(tmp_path / "teacher")
    labels.model.config.layer_norm_eps = 1e-5
    save_student(labels, tmp_path / "other config")
    missed["a setting of the network"] = asked(tmp_path, teacher="other config") == ROWS
    write_csv(tmp_path / "changed.csv", [(f"{rows[0][0]} ", rows[0][1]), *rows[1:]])
    missed["a letter of a text"] = asked(tmp_path, train="changed.csv") == 1
    missed["a shorter reading"] = asked(tmp_path, length=16) == ROWS
    missed["a layer"] = asked(tmp_path, Wants(logits=True, cls=(2,))) == ROWS
    missed["another layer"] = asked(tmp_path, Wants(cls=(3,))) == ROWS
    assert all(missed.values()), missed
    assert asked(tmp_path) == asked(tmp_path, Wants(cls=(2, 3))) == 0, "and the old answers are still there"
    figure(13, f"{sum(missed.values())} of {len(missed)} changes miss")


@pytest.mark.parametrize(
    "at_once",
    [
        test_memory.test_two_processes_at_once_lose_nothing,
        test_memory.test_two_processes_under_the_lock_ask_each_thing_once,
    ],
    ids=["writing", "asking"],
)
def test_13_two_processes_at_once_are_safe(
    at_once: Callable[[Path], None], tmp_path: Path, figure: Callable[..., None]
) -> None:
    at_once(tmp_path)
    figure(13, "processes at once lose nothing")
