"""Many texts are read in the way that was measured to be fastest here; few are answered at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potstill.inference import agreement, reading
from potstill.inference import predict as predicting
from potstill.inference.predict import AT_ONCE, Predictor
from potstill.inference.reading import PADDED, UNMEASURED, Way, fastest_way
from potstill.models import inference
from potstill.models.onnx import exported
from potstill.models.onnx.writing import write_onnx
from potstill.models.student import save_student
from potstill.system.files import unseal
from tests.support.small_models import sentences, small_model

LENGTHS = np.full(400, 16)


def as_if(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[tuple[bool, int], float]) -> list[int]:
    """Batches take these seconds by way and padded tokens; returns the rows of those that are timed."""
    timed: list[int] = []

    def best_seconds(works: Mapping[bool, Any], turns: int) -> dict[bool, float]:
        rows = [work() for work in works.values()]
        timed.append(rows[0])
        return {way: seconds[way, 16 * rows[0]] for way in works}

    monkeypatch.setattr(reading, "best_seconds", best_seconds)
    return timed


def ways(file: Path, streams: bool = True) -> Way:
    forwards = {way: lambda inputs: len(inputs["rows"]) for way in ((False, True) if streams else (False,))}
    return fastest_way([file], 2, "engine", forwards, LENGTHS, lambda rows: {"rows": rows})  # type: ignore[arg-type]


def test_the_way_that_reads_most_tokens_a_second_is_taken_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.onnx"
    file.write_bytes(b"weights")
    times = {(False, 512): 0.02, (True, 512): 0.03, (False, 1024): 0.05, (True, 1024): 0.03, (False, 4096): 0.2}
    timed = as_if(monkeypatch, times | {(True, 4096): 0.2})
    assert ways(file) == Way(True, 1024) and timed == [size // 16 for size in PADDED]
    assert ways(file) == Way(True, 1024) and len(timed) == 3
    file.write_bytes(b"other weights")
    timed = as_if(monkeypatch, {(False, 512): 0.11, (True, 512): 0.12})
    assert ways(file) == Way(False, 512) and timed == [32]  # it takes so long that no larger batch can be faster


def test_without_streams_there_are_only_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.onnx"
    file.write_bytes(b"weights")
    as_if(monkeypatch, {(False, 512): 0.04, (False, 1024): 0.05, (False, 4096): 0.09})
    assert ways(file, streams=False) == Way(False, 4096)


@pytest.mark.parametrize("form", ["pytorch", "onnx"])
def test_many_texts_are_measured_once_and_few_never(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    student = small_model("bert", layers=1)
    write_onnx(student, tmp_path / "model") if form == "onnx" else save_student(student, tmp_path / "model")
    texts = [text for text, _ in sentences(AT_ONCE + 20, 0)]
    few = Predictor(tmp_path / "model")
    expected = [*few(texts[: AT_ONCE - 1]), *few(texts[AT_ONCE - 1 :])]
    assert few.way is None and not (tmp_path / "cache/speed").exists()
    monkeypatch.setattr(exported, "default_threads", lambda: 2)
    monkeypatch.setattr(predicting, "default_threads", lambda: 2)
    said: list[str] = []
    many = Predictor(tmp_path / "model", say=said.append)
    found = list(many(texts))
    assert many.way is not None and many.way.padded in PADDED and str(many.way.padded) in said[0] and len(said) == 1
    kept = [unseal(file.read_bytes())["of"]["what"] for file in (tmp_path / "cache/speed").iterdir()]
    assert sorted(kept) == (["products", "reading"] if form == "pytorch" else ["reading"])
    for one, other in zip(found, expected, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
    monkeypatch.setattr(reading, "best_seconds", lambda *arguments: pytest.fail("it was measured before"))
    again = Predictor(tmp_path / "model")
    assert list(again(texts)) == found and again.way == many.way


@pytest.mark.parametrize(("times", "bound", "taken"), [(2.0, 0.02, True), (2.0, 0.0, False), (1.05, 0.02, False)])
def test_a_folder_is_read_in_bfloat16_where_that_is_faster_and_answers_the_same(
    times: float, bound: float, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(inference, "bfloat16_gain", lambda device: 4.1)
    monkeypatch.setattr(agreement, "best_seconds", lambda works, turns: {"float32": times, "bfloat16": 1.0})
    monkeypatch.setattr(agreement, "MOST_APART", bound)
    save_student(small_model("bert", layers=1), tmp_path / "model")
    texts = [text for text, _ in sentences(AT_ONCE, 0)]
    plain = [*Predictor(tmp_path / "model")(texts[:-1])]  # few enough to be answered at once
    said: list[str] = []
    found = [*Predictor(tmp_path / "model", say=said.append)(texts)][:-1]
    apart = max(abs(one["probability"] - other["probability"]) for one, other in zip(found, plain, strict=True))
    assert (1e-5 < apart <= 0.02) if taken else apart <= 1e-5
    assert (" in bfloat16, as measured on " in said[0]) == taken
    monkeypatch.setattr(agreement, "best_seconds", lambda *arguments: pytest.fail("it was measured before"))
    assert [*Predictor(tmp_path / "model")(texts)][:-1] == found


def test_streams_answer_as_threads_do_and_in_order(tmp_path: Path) -> None:
    file = write_onnx(small_model("bert", layers=1), tmp_path)
    threads, streams = exported.open_onnx(file, 2), exported.open_streams(file, 3)
    assert streams is not None and exported.open_streams(file, 1) is None
    random = np.random.default_rng(0)
    for rows in (1, 2, 3, 17):
        ids = random.integers(5, 20, (rows, 9))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        np.testing.assert_allclose(streams.forward(inputs), threads.forward(inputs), atol=1e-5)


def test_until_it_is_measured_the_size_is_one_of_those_that_are_tried() -> None:
    assert Way().padded == UNMEASURED and UNMEASURED in PADDED
