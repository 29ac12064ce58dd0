"""What is said of a model's answers is what scikit-learn says of them; times are those of the clock."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from torch import Tensor

from potstill.data.examples import store
from potstill.data.rows import open_table
from potstill.measuring import quality
from potstill.measuring import speed as timing
from potstill.measuring.significance import wilson
from potstill.models.anatomy import all_parameters
from potstill.models.generation.ctranslate2 import convert
from potstill.runs import measure as findings
from potstill.tasks.classify import TextClassification
from potstill.tasks.metrics.labels import calibration_error
from potstill.tasks.metrics.texts import signatures
from potstill.tasks.multilabel import MultiLabelClassification
from potstill.tasks.regress import Regression
from tests.support.commands import potstill
from tests.support.generative_models import small_writer
from tests.support.small_models import sentences, write_csv
from tests.support.training_world import make_world

THREE = TextClassification(("a", "b", "c"), {"a": 0, "b": 1, "c": 2})
MANY = MultiLabelClassification(("a", "b", "c"), {"a": 0, "b": 1, "c": 2})


def test_an_exported_translator_has_its_student_s_parameters_and_a_signature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student = small_writer("marian")
    convert(student, tmp_path / "exported", "float32")
    write_csv(tmp_path / "rows.csv", [("a film", "a film"), ("no wit", "a wit")], ("source", "target"))
    words = ["measure", tmp_path / "exported", "--data", tmp_path / "rows.csv", "--length", "16"]
    assert potstill(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["models"][str(tmp_path / "exported")]["parameters"] == all_parameters(student.model)
    assert found["signatures"] == signatures()
    assert potstill(*words) == 0
    assert [f"{name}|{told}" for name, told in signatures().items()] == capsys.readouterr().out.splitlines()[-2:]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_calibration_error_is_the_mean_gap_of_its_bins(answers: list[tuple[float, bool]]) -> None:
    total = 0.0
    for low in np.arange(15) / 15:
        inside = [(p, right) for p, right in answers if low < p <= low + 1 / 15 or (low == 0 and p == 0)]
        if inside:
            stated, held = np.mean(inside, axis=0)
            total += len(inside) / len(answers) * abs(stated - held)
    found = calibration_error([p for p, _ in answers], [right for _, right in answers])
    edges = [p for p, _ in answers if abs(p * 15 - round(p * 15)) < 1e-9 and p > 0]
    if not edges:  # on an edge, rounding decides the bin
        assert found == pytest.approx(total, abs=1e-9)
    assert 0 <= found <= 1


def test_a_model_that_says_90_and_is_right_in_60_of_100_is_off_by_30_points() -> None:
    assert calibration_error([0.9] * 100, [True] * 60 + [False] * 40) == pytest.approx(0.3)


def test_details_are_scikit_learns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    gold = random.integers(0, 3, 200)
    write_csv(tmp_path / "rows.csv", [(f"text {place}", "abc"[label]) for place, label in enumerate(gold)])
    examples = store(open_table(tmp_path / "rows.csv"), THREE)
    logits = random.normal(size=(200, 3)).astype(np.float32) + 1.5 * np.eye(3)[gold]
    said = logits.argmax(1)
    found = quality.details(THREE, "accuracy", examples, logits)
    assert found["confusion"] == confusion_matrix(gold, said).tolist()
    for kind, expected in zip(
        ("precision", "recall", "f1", "rows"), precision_recall_fscore_support(gold, said), strict=True
    ):
        assert [one[kind] for one in found["per_class"].values()] == pytest.approx(list(expected))
    assert found["intervals"]["accuracy"] == wilson(int((gold == said).sum()), 200)
    exact = np.exp(logits - logits.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    assert np.allclose(found["mean_probabilities"][1], exact[gold == 1].mean(0), atol=1e-5)
    low, high = quality.details(THREE, "f1_macro", examples, logits)["intervals"]["f1_macro"]
    assert low < THREE.score(gold, logits)["f1_macro"] < high


def test_thousands_of_classes_are_measured_in_little_room() -> None:
    random = np.random.default_rng(0)
    task = TextClassification(tuple(f"class {number}" for number in range(5000)))
    gold = np.minimum(random.zipf(1.3, 2000) - 1, 4999)
    logits = random.normal(size=(2000, 5000)).astype(np.float32)
    logits[np.arange(2000), gold] += 5
    found = task.details(gold.astype(np.float32), logits)
    kept = found["confusion"]["classes"]
    counts = np.bincount(gold, minlength=5000)
    assert len(kept) == 100 and counts[kept].min() >= np.delete(counts, kept).max()
    whole = np.zeros((5000, 5000), int)
    np.add.at(whole, (gold, logits.argmax(1)), 1)
    assert found["confusion"]["rows"] == whole[np.ix_(kept, kept)].tolist()
    assert np.shape(found["mean_probabilities"]["rows"]) == (100, 100)
    assert found["per_class"]["class 0"]["rows"] == counts[0] and len(json.dumps(found)) < 2_000_000
    task.score(gold.astype(np.float32), logits)


def test_label_sets_are_counted_label_by_label(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    gold = random.integers(0, 2, (120, 3))
    write_csv(
        tmp_path / "rows.csv", [(f"text {n}", *row) for n, row in enumerate(gold.tolist())], ("text", "a", "b", "c")
    )
    from potstill.data.rows import Columns

    examples = store(open_table(tmp_path / "rows.csv", Columns(label=("a", "b", "c"))), MANY)
    logits = (random.normal(size=(120, 3)) + 2 * gold - 1).astype(np.float32)
    found = quality.details(MANY, "f1_micro", examples, logits)
    expected = precision_recall_fscore_support(gold, logits > 0)
    for kind, values in zip(("precision", "recall", "f1", "rows"), expected, strict=True):
        assert [one[kind] for one in found["per_class"].values()] == pytest.approx(list(values))
    assert "confusion" not in found
    assert 0 < quality.quality(MANY, examples, logits)["calibration_error"] < 0.5


@settings(max_examples=20)
@given(st.integers(0, 100))
def test_a_scorer_over_all_rows_is_the_score(seed: int) -> None:
    random = np.random.default_rng(seed)
    targets, logits = random.integers(0, 3, 50), random.normal(size=(50, 3))
    for metric, expected in THREE.score(targets, logits).items():
        assert THREE.scorer(metric, targets, logits)(np.arange(50)) == pytest.approx(expected)


def test_speeds_are_those_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes 1 ms a call, the other 4 ms, whatever the batch: so the largest batch is the best."""
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    clock = SimpleNamespace(now=0.0, rows=[])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    world = make_world(tmp_path, rows=64)
    write_csv(tmp_path / "rows.csv", sentences(64, 5))

    def takes(seconds: float) -> timing.Forward:
        def run(inputs: dict[str, Tensor]) -> np.ndarray:
            clock.now += seconds
            clock.rows.append(len(inputs["input_ids"]))
            return np.zeros((len(inputs["input_ids"]), 2), np.float32)

        return run

    found = timing.forward_speeds({"quick": (takes(0.001), world.source()), "slow": (takes(0.004), world.source())})
    assert found["quick"]["latency_ms"] == pytest.approx(1)
    assert found["slow"]["latency_ms"] == pytest.approx(4)
    assert found["slow"]["latency_p95_ms"] == pytest.approx(4) and found["slow"]["spread"] == pytest.approx(1)
    assert found["slow"]["examples_per_second"] == pytest.approx(64 / 0.008)  # two batches of 32
    assert found["slow"]["best_batch"] == 128
    assert found["slow"]["best_examples_per_second"] == pytest.approx(64 / 0.004)
    # a call to warm up, then two turns; of batches of 8, which are eight times as slow as the best, only one
    calls = {size: clock.rows.count(size) // 2 for size in (8, 32, 64)}
    assert calls == {8: 1 + 8, 32: 1 + 2 * 2, 64: 1 + 2}


def test_the_tail_of_latency_is_that_of_all_calls() -> None:
    """One call in ten takes ten times as long: the best time of every text hides it, the tail does not."""
    turns = np.full((5, 48), 0.001)
    turns[np.arange(48) % 5, np.arange(48)] = np.where(np.arange(48) % 2 == 0, 0.010, 0.001)
    found = timing.latency(turns.tolist())
    assert found["latency_ms"] == pytest.approx(1) and found["latency_p95_ms"] == pytest.approx(10)


def test_timed_rows_are_drawn_and_the_same_for_every_model() -> None:
    """A file sorted by length would be timed on its shortest texts."""
    places = timing.timed_rows(10_000)
    assert len(places) == 128 and places.mean() > 3000 and (places == timing.timed_rows(10_000)).all()
    assert sorted(timing.timed_rows(5)) == list(range(5))


def test_a_busy_machine_is_noticed_by_equal_networks_and_by_unequal_turns() -> None:
    def speed(rate: float, spread: float = 1.02) -> timing.Speed:
        return {"examples_per_second": rate, "spread": spread}

    pair = [("distilled", "fine-tuned")]
    assert timing.too_busy({"distilled": speed(100), "fine-tuned": speed(108)}, pair) is None
    told = timing.too_busy({"distilled": speed(100), "fine-tuned": speed(138)}, pair)
    assert told == "two networks of the same architecture differ by 38 % in speed: the machine was too busy"
    assert "too busy" in (timing.too_busy({"teacher": speed(10, spread=1.6)}, []) or "")
    assert timing.too_busy({}, []) is None


def test_faster_is_told_in_the_same_engine_and_by_the_same_search() -> None:
    def rate(value: float) -> dict[str, float]:
        return {"examples_per_second": value}

    speed = {("teacher", "pytorch"): rate(10), ("teacher", "onnx"): rate(20), ("distilled", "pytorch"): rate(40)}
    speed |= {("distilled int8", "onnx"): rate(100), ("other int8", "onnx"): rate(60)}
    assert findings.speed_of("distilled", speed)["times_faster"] == 4
    assert findings.speed_of("distilled int8", speed)["times_faster"] == 5  # and not 10, against PyTorch
    speed |= {("teacher int8", "onnx"): rate(25), ("distilled", "pytorch bfloat16"): rate(75)}
    best = findings.speed_of("distilled", speed)
    assert best["fastest"] == "pytorch bfloat16"
    assert best["times_faster_at_best"] == 3  # and not 7.5: the teacher is at its best in int8
    writers = {("teacher", "greedy"): rate(190), ("teacher", "beam 5"): rate(63), ("distilled", "greedy"): rate(701)}
    assert findings.speed_of("distilled", writers)["times_faster"] == pytest.approx(701 / 190)
    assert findings.speed_of("teacher", writers)["times_faster"] == 1


def test_streams_of_an_onnx_file_count_where_they_are_faster_at_best(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(value: float, batch: int) -> dict[str, float]:
        return {"examples_per_second": 5, "best_examples_per_second": value, "best_batch": batch}

    monkeypatch.setattr(timing, "forward_speeds", lambda models: dict(models))
    monkeypatch.setattr(timing.torch, "get_num_threads", lambda: 2)
    keys = ("teacher", "pytorch"), ("teacher", "onnx"), ("teacher", timing.STREAMS), ("other", "onnx")
    given = dict(zip(keys, (rate(10, 8), rate(20, 8), rate(30, 128), rate(40, 8)), strict=True))
    found = timing.engine_speeds(given | {("other", timing.STREAMS): rate(39, 8)})  # type: ignore[arg-type]
    assert list(found) == [keys[0], keys[1], keys[3]]
    assert found["teacher", "onnx"] == rate(30, 128) | {"best_streams": 2} and found["other", "onnx"] == rate(40, 8)


def test_a_constant_answer_has_an_undefined_correlation_and_is_written_as_null(tmp_path: Path) -> None:
    rows = [("a", "1.0"), ("b", "2.0"), ("c", "4.0")]
    values = Regression()
    write_csv(tmp_path / "rows.csv", rows)
    examples = store(open_table(tmp_path / "rows.csv"), values)
    found = quality.quality(values, examples, np.full((3, 1), 2.5))
    assert found["pearson"] is None and found["spearman"] is None and found["rows"] == 3
    assert quality.details(values, "pearson", examples, np.full((3, 1), 2.5))["intervals"] == {}
