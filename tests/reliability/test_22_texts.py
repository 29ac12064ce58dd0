from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from potstill.data.records import clean_text
from potstill.inference.predict import predict
from potstill.inference.translate import translate
from potstill.models.student import save_student
from tests.data.test_rows import ODD_TEXTS
from tests.support.commands import FAST, potstill
from tests.support.small_models import GENERATED, small_teacher
from tests.support.training_world import TASKS

NEW_LINES = ["a\nb", "\r", "\u2028"]
TEXTS = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "lone \udfff half",
    "🎬" * 1000,
    "أهلا good",
    "\u202egood",
    "good " * 20_000,
]
TEXTS += ["NA", "null", "\ufeffgood", "e\u0301" * 500, "x" * 100_000, *NEW_LINES, *ODD_TEXTS]


def awkward(task: str) -> list[dict[str, Any]]:
    """Rows of a task in which these texts stand wherever a text may stand."""
    if task == "classify":
        return [{"text": text, "label": place % 2} for place, text in enumerate(TEXTS)]
    if task == "mask":
        return [{"text": text} for text in TEXTS]
    if task == "tag":
        words = [text for text in TEXTS if text.strip()]
        return [{"tokens": [word, "good"], "tags": ["O", "B-GOOD"]} for word in words]
    if task in GENERATED:  # rows of blank texts are refused with their line: tests/data/test_columns.py
        first, second = {"translate": ("source", "target"), "write": ("prompt", "completion")}[task]
        texts = [text for text in TEXTS if text.replace("\ufeff", "").strip()]
        return [{first: text, second: f"{text} good"} for text in texts]
    if task == "answer":
        return [
            {"question": text, "context": f"{text} good", "answers": [{"text": "good", "answer_start": len(text) + 1}]}
            for text in TEXTS
        ]
    return [
        {
            "article": text,
            "question": f"{text} _",
            "options": [text if text.strip() else "a", "good", "bad"],
            "answer": "B",
        }
        for text in TEXTS
    ]


def asked(task: str) -> list[Any]:
    if task == "answer":
        return [{"question": text, "context": text} for text in TEXTS]
    if task == "choose":
        return [{"text": text, "question": text, "choices": [text, "good", "bad"]} for text in TEXTS]
    return list(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_22_awkward_texts_never_stop_training_or_predicting(
    task: str, home: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, awkward(task))))
    rows = ["--train", tmp_path / "rows.jsonl", "--dev", tmp_path / "rows.jsonl"]
    rows += ["--task", "mask"] if task == "mask" else []
    begun = home / "encoder"
    if task in GENERATED:
        save_student(small_teacher(task), begun := tmp_path / "untaught")
    assert potstill("finetune", begun, *rows, "--epochs", "1", "--out", tmp_path / "teacher", *FAST) == 0
    words = ["distill", "--teacher", tmp_path / "teacher/student", *rows, "--force", "--student", "keep_layers:2"]
    words += ["--method", "soft_targets"] if task in GENERATED else []
    assert potstill(*words, "--no-baseline", "--epochs", "1", "--out", tmp_path / "run", *FAST) == 0
    student = tmp_path / "run/student"
    texts = asked(task)
    if task in GENERATED:
        texts = [clean_text(text) for text in TEXTS]
        assert len(list(translate(str(student), texts, beam=2, longest=16))) == len(texts)
        figure(22, f"{len(TEXTS)} of {len(TEXTS)} texts")
        return
    assert len(list(predict(student, texts))) == len(texts)
    assert (
        potstill("export", student, "--to", "onnx", "--data", tmp_path / "rows.jsonl", "--out", tmp_path / "onnx") == 0
    )
    assert len(list(predict(tmp_path / "onnx", texts))) == len(texts)
    figure(22, f"{len(TEXTS)} of {len(TEXTS)} texts")
