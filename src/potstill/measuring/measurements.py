"""`measurements.json` as a type: what a run writes, and what table, page and model card read.

A file may be old, damaged or from a stranger. `Measurements.from_json` refuses a file whose structure is wrong and omits
single values that are malformed, so that nothing behind it has to check again.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from potstill.measuring.json_parts import (
    DamagedError,
    Part,
    as_bool,
    as_number,
    as_pair,
    as_text,
    is_list,
    is_list_of,
    is_table,
    is_table_of,
    is_text,
    key,
    list_of,
    required,
    strict,
    table_of,
)

FORMAT = 1  # of measurements.json; files without the key have format 0
GOLD = "targets"  # the "model" under which answers.safetensors holds the labels
STUDENT, BASELINE, TEACHER = "distilled", "fine-tuned", "teacher"  # models of a run
DEV = "dev"  # the split that epochs, grid cells and seeds are selected on
LOWER_IS_BETTER = ("perplexity", "rmse", "rmse_constant")  # metrics that are errors instead of shares
LONGEST_NAME = 60  # characters of a name that are shown

T = TypeVar("T")
BySplit = dict[str, dict[str, T]]
"""By data set and split."""
Scores = dict[str, float | None]
"""By metric; None where a score is undefined, such as the correlation of a constant."""
Speed = dict[str, float]
"""latency_ms: the median over texts of the best time of each alone; latency_p95_ms: the 95 % quantile of all single calls;
examples_per_second at batch 32 (generative models: 128 texts at once); best_examples_per_second, best_batch; spread: the
median turn divided by the best one."""


class Place(NamedTuple):
    """Where a score was measured."""

    data: str
    split: str
    metric: str


def as_scores(value: Any) -> Scores | None:
    if not isinstance(value, Mapping):
        return None
    return {str(name): score for name, score in value.items() if score is None or as_number(score) is not None}


@dataclass(frozen=True)
class Matrix(Part):
    """A square of numbers (gold class, predicted class). `classes`: those it covers; None: all of them."""

    rows: list[list[float | None]]
    classes: list[int] | None = None

    @classmethod
    def read(cls, value: Any) -> Matrix | None:
        rows, classes = (value.get("rows"), value.get("classes")) if isinstance(value, Mapping) else (value, None)
        if not isinstance(rows, list) or not rows or not all(is_list(row) and len(row) == len(rows) for row in rows):
            return None
        covered = list_of(as_number)(classes)
        if classes is not None and not len(covered) == len(classes) == len(rows):
            return None
        return cls([[as_number(entry) for entry in row] for row in rows], [int(entry) for entry in covered] or None)

    def to_json(self) -> Any:
        return self.rows if self.classes is None else {"classes": self.classes, "rows": self.rows}


@dataclass(frozen=True)
class MeasuredModel(Part):
    """A line of the table: one model's quality, size and speed."""

    parameters: float | None = key(as_number, always=True)
    parts: dict[str, float] = key(table_of(as_number), dict, always=True)  # parameters of embeddings, layers, head
    bytes: float | None = key(as_number, always=True)
    engine: str | None = key(as_text)
    quality: BySplit[Scores] = key(table_of(table_of(as_scores)), dict, always=True)
    intervals: BySplit[dict[str, tuple[float, float]]] = key(table_of(table_of(table_of(as_pair))), dict)  # 95 %
    deviation: BySplit[Scores] = key(table_of(table_of(as_scores)), dict)  # over seeds
    per_class: BySplit[dict[str, Scores]] = key(table_of(table_of(table_of(as_scores))), dict)
    confusion: BySplit[Matrix] = key(table_of(table_of(Matrix.read)), dict)
    mean_probabilities: BySplit[Matrix] = key(table_of(table_of(Matrix.read)), dict)
    speed: dict[str, Speed] = key(table_of(table_of(as_number)), dict)  # by engine, or by search of generative models
    examples_per_second: float | None = key(as_number)  # of format 0, in PyTorch
    times_faster: float | None = key(as_number)
    learned: bool | None = key(as_bool)
    begun_from: str | None = key(as_text)

    def scores(self, data: str, split: str) -> Scores:
        return self.quality.get(data, {}).get(split, {})

    def score(self, place: Place) -> float | None:
        return self.scores(place.data, place.split).get(place.metric)

    def score_deviation(self, place: Place) -> float | None:
        return self.deviation.get(place.data, {}).get(place.split, {}).get(place.metric)

    def interval(self, place: Place) -> tuple[float, float] | None:
        """Return the 95 % interval. That of the perplexity is the inverse of the likelihood's, which is resampled."""
        if (
            place.metric == "perplexity"
            and (ends := self.interval(place._replace(metric="likelihood")))
            and ends[0] > 0
        ):
            return 1 / ends[1], 1 / ends[0]
        return self.intervals.get(place.data, {}).get(place.split, {}).get(place.metric)

    def timing(self, engine: str, name: str) -> float | None:
        """Return a number of `speed`, such as "latency_ms"."""
        value = self.speed.get(engine, {}).get(name)
        old = engine == "pytorch" and name == "examples_per_second"
        return self.examples_per_second if value is None and old else value

    @property
    def searches(self) -> list[str]:
        """Return the searches by which a generative model was timed: "greedy", "beam 5"."""
        return [engine for engine in self.speed if engine not in ("pytorch", "onnx")]


@dataclass(frozen=True)
class Comparison(Part):
    """Two models on the same rows: the difference of their scores, and what may be said of it."""

    model: str = required(as_text)
    against: str = required(as_text)
    data: str = required(as_text)
    split: str = required(as_text)
    metric: str = required(as_text)
    mean: float | None = key(as_number, always=True)
    words: str = required(as_text)
    low: float | None = key(as_number)  # 95 % interval
    high: float | None = key(as_number)
    p: float | None = key(as_number)
    seeds: int | None = key(as_number)
    p_corrected: float | None = key(as_number)
    comparisons: int | None = key(as_number)  # for which p is corrected
    mcnemar: list[float] = key(list_of(as_number), list)  # p of each seed

    @property
    def place(self) -> Place:
        return Place(self.data, self.split, self.metric)


@dataclass(frozen=True)
class Leak(Part):
    """Rows of a split whose text is also in another split."""

    split: str = required(as_text)
    also_in: str = required(as_text)
    rows: int = required(as_number)
    of: int = required(as_number)


@dataclass(frozen=True)
class Disagreement(Part):
    """A row that student and teacher answer differently. An answer is a class, a list of classes, a text or a number."""

    split: str = key(as_text, always=True)
    text: str | None = key(as_text, always=True)
    picture: str | None = key(as_text)
    pair: str | None = key(as_text, always=True)
    label: Any = key(lambda value: value, always=True)
    teacher: Any = key(lambda value: value, always=True)
    student: Any = key(lambda value: value, always=True)
    teacher_probability: float | None = key(as_number, always=True)
    student_probability: float | None = key(as_number, always=True)


@dataclass(frozen=True)
class LayerMap(Part):
    """Which layer of the teacher teaches which of the student in a stage, as (student, teacher) pairs.

    `kept`: the layer of the teacher that each layer of the student was copied from; None where it was not copied.
    """

    stage: int = key(as_number, lambda: 0, always=True)
    method: str | None = key(as_text, always=True)
    student_layers: int = required(as_number)
    teacher_layers: int = required(as_number)
    pairs: list[tuple[int, int]] = key(list_of(as_pair), list, always=True)
    kept: Sequence[int | None] | None = key(
        lambda value: [as_number(entry) for entry in value] if isinstance(value, list) else None, always=True
    )


@dataclass(frozen=True)
class Measurements(Part):
    """All that a run measured."""

    name: str | None = key(as_text, always=True)
    seeds: list[int] = key(strict(is_list_of(lambda value: True)), list, always=True)
    metrics: dict[str, list[str]] = key(
        strict(is_table_of(lambda value: bool(value) and is_list_of(is_text)(value))), dict, always=True
    )
    labels: dict[str, list[str]] = key(strict(is_table_of(is_list_of(is_text))), dict, always=True)
    tasks: dict[str, str] = key(strict(is_table_of(is_text)), dict, always=True)
    forms: dict[str, str] = key(table_of(as_text), dict, always=True)
    leaks: dict[str, list[Leak]] = key(table_of(list_of(Leak.read)), dict, always=True)
    models: dict[str, MeasuredModel] = key(
        strict(is_table_of(is_table), table_of(MeasuredModel.read)), dict, always=True
    )
    too_busy: str | None = key(as_text)
    differences: list[Comparison] = key(
        strict(is_list_of(lambda value: Comparison.read(value) is not None), list_of(Comparison.read)),
        list,
        always=True,
    )
    disagreements: dict[str, list[Disagreement]] = key(table_of(list_of(Disagreement.read)), dict, always=True)
    layer_map: list[LayerMap] = key(list_of(LayerMap.read), list, always=True)
    grid: list[dict[str, Any]] = key(strict(is_list_of(is_table)), list)  # fields of the recipe, and "dev"
    changed_inputs: list[str] = key(list_of(as_text), list)
    needs_potstill: bool = key(lambda value: value is True, lambda: False, always=True)
    teacher_seconds: float | None = key(as_number, always=True)
    versions: dict[str, str] = key(table_of(as_text), dict, always=True)
    signatures: dict[str, str] = key(table_of(as_text), dict)  # of sacrebleu, where texts were generated
    hashes: dict[str, str] = key(table_of(as_text), dict, always=True)
    device: str | None = key(as_text, always=True)

    @classmethod
    def from_json(cls, value: Any) -> Measurements:
        """Read format 0 and 1. DamagedError names the part that has the wrong structure."""
        if isinstance(value, Mapping) and "seeds" not in value and "seed" in value:  # format 0
            value = {**value, "seeds": [value["seed"]]}
        measurements = cls.read(value)
        if measurements is None:
            raise DamagedError("models")
        return measurements

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **super().to_json()}

    @property
    def data_sets(self) -> list[str]:
        return list(self.metrics)

    @property
    def student_name(self) -> str:
        """Return the name of the model that the run made: in a fine-tuning run, the fine-tuned one."""
        return STUDENT if STUDENT in self.models else BASELINE

    def splits(self, data: str) -> list[str]:
        return list(dict.fromkeys(split for model in self.models.values() for split in model.quality.get(data, {})))

    def quoted_splits(self, data: str) -> list[str]:
        """Return the test sets, or dev where there is none."""
        splits = self.splits(data)
        return [split for split in splits if split != DEV] or splits

    def quoted(self) -> list[Place]:
        """Return for each data set its first test set and the metric that dev was judged by."""
        return [
            Place(data, splits[0], metrics[0])
            for data, metrics in self.metrics.items()
            if (splits := self.quoted_splits(data))
        ]


def clean(value: object, longest: int | None = None) -> str:
    """Return one line without control characters and lone surrogates, which neither XML nor YAML can hold."""
    line = "".join(
        " "
        if char.isspace()
        else "\ufffd"
        if unicodedata.category(char) in ("Cc", "Cs") or ord(char) & 0xFFFE == 0xFFFE
        else char
        for char in str(value)
    )
    return line if longest is None or len(line) <= longest else line[: longest - 1] + "…"


def short_name(value: object) -> str:
    """Return a name as it is shown: at most 60 characters."""
    return clean(value, LONGEST_NAME)
