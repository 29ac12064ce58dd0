"""`measurements.json` as a type: what a run writes, and what table, page and model card read.

A file may be old, damaged or from a stranger. `Measurements.from_json` refuses a file whose structure is wrong and omits
single values that are malformed, so that nothing behind it has to check again.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import (
    Field,
    OnErrorOmit,
    PlainValidator,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)

FORMAT = 1  # of measurements.json; files without the key have format 0
GOLD = "targets"  # the "model" under which answers.safetensors holds the labels
STUDENT, BASELINE, TEACHER = "distilled", "fine-tuned", "teacher"  # models of a run
DEV = "dev"  # the split that epochs, grid cells and seeds are selected on
LOWER_IS_BETTER = ("perplexity", "rmse", "rmse_constant")  # metrics that are errors instead of shares
LONGEST_NAME = 60  # characters of a name that are shown


class DamagedError(ValueError):
    """A part of a file has a structure that is never written. The message is its key."""


def as_number(value: Any) -> float | None:
    """Return a finite number, or None: JSON written by Python may hold null and NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 else None


def _number(value: Any) -> float:
    if (number := as_number(value)) is None:
        raise ValueError("not a finite number")
    return number


def _or_else(default: Callable[[], Any]) -> WrapValidator:
    def read(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError:
            return default()

    return WrapValidator(read)


T = TypeVar("T")
Number = Annotated[int | float, PlainValidator(_number)]
# malformed values are read as None, and malformed entries of tables and lists are omitted; all other types are strict
Maybe = Annotated[T | None, _or_else(lambda: None)]
Table = Annotated[dict[str, OnErrorOmit[T]], _or_else(dict)]
Items = Annotated[list[OnErrorOmit[T]], _or_else(list)]
Optional = Annotated[T, Field(exclude_if=lambda value: value in (None, {}, []))]
"""A key that is written only where it holds a value."""

Scores = dict[str, OnErrorOmit[Number | None]]
"""By metric; None where a score is undefined, such as the correlation of a constant."""
BySplit = Table[Table[T]]
"""By data set and split."""
Speed = dict[str, float]
"""latency_ms: the median over texts of the best time of each alone; latency_p95_ms: the 95 % quantile of all single calls;
examples_per_second at batch 32 (generative models: 128 texts at once); best_examples_per_second, best_batch, and
best_streams if it was reached in so many streams of one thread; spread: the median turn divided by the best one."""

BFLOAT16 = "pytorch bfloat16"
NETWORK_ENGINES = ("pytorch", BFLOAT16, "onnx")  # others are searches


class Place(NamedTuple):
    """Where a score was measured."""

    data: str
    split: str
    metric: str


_adapter: Callable[[type], TypeAdapter[Any]] = cache(TypeAdapter)  # making one takes longer than reading a file by it


class Part:
    """A table of the file, as a frozen dataclass whose types say how each key is read and when it is written."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return _adapter(cls).validate_python(value)

    def to_json(self) -> dict[str, Any]:
        return _adapter(type(self)).dump_python(self, mode="json", warnings=False)


@dataclass(frozen=True)
class Matrix:
    """A square of numbers (gold class, predicted class). `classes`: those it covers; None: all of them."""

    rows: list[list[Maybe[Number]]]
    classes: list[int] | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.rows), *map(len, self.rows), len(self.rows if self.classes is None else self.classes)}
        if len(sizes) > 1 or not self.rows:
            raise ValueError("not a square, or not with a class for each row")

    @model_validator(mode="before")
    @classmethod
    def _from_rows(cls, value: Any) -> Any:
        return {"rows": value} if isinstance(value, list) else value

    @model_serializer
    def _as_json(self) -> Any:
        return self.rows if self.classes is None else {"classes": self.classes, "rows": self.rows}


@dataclass(frozen=True)
class ClosedGap:
    """The share of the gap between fine-tuning and the teacher that a student closes; None: the gap is not shown to exist."""

    gap: Maybe[Number] = None  # teacher − fine-tuned
    share: Maybe[Number] = None
    low: Optional[Maybe[Number]] = None  # 95 % interval
    high: Optional[Maybe[Number]] = None


@dataclass(frozen=True, kw_only=True)
class TriedRate:
    """A learning rate that was tried before a stage was trained; the best of those with most steps was taken."""

    stage: Maybe[StrictInt] = 0
    seed: Maybe[StrictInt] = 0
    rate: Number
    steps: StrictInt
    loss: Maybe[Number] = None  # on dev; None: the training diverged


@dataclass(frozen=True)
class MeasuredModel(Part):
    """A line of the table: one model's quality, size and speed."""

    parameters: Maybe[Number] = None
    parts: Table[Number] = field(default_factory=dict)  # parameters of embeddings, layers, head
    bytes: Maybe[Number] = None
    dense_bytes: Optional[Maybe[Number]] = None  # of all parameters in float32
    memory_bytes: Optional[Maybe[Number]] = None  # of the weights as the engine holds them
    engine: Optional[Maybe[str]] = None
    quality: BySplit[Scores] = field(default_factory=dict)
    intervals: Optional[BySplit[Table[tuple[Number, Number]]]] = field(default_factory=dict)  # 95 %
    deviation: Optional[BySplit[Scores]] = field(default_factory=dict)  # over seeds
    per_class: Optional[BySplit[Table[Scores]]] = field(default_factory=dict)
    confusion: Optional[BySplit[Matrix]] = field(default_factory=dict)
    mean_probabilities: Optional[BySplit[Matrix]] = field(default_factory=dict)
    temperature: Optional[Table[Number]] = field(default_factory=dict)  # by data set, in config.json
    speed: Optional[Table[Table[Number]]] = field(default_factory=dict)  # by engine, or by search of generative models
    examples_per_second: Optional[Maybe[Number]] = None  # of format 0, in PyTorch
    times_faster: Optional[Maybe[Number]] = None  # in the same engine as the teacher, at batch 32
    fastest: Optional[Maybe[str]] = None  # the engine with most examples a second, at its best batch
    times_faster_at_best: Optional[Maybe[Number]] = None  # than the teacher in its fastest form, eight bits included
    breakdown: Optional[Table[Table[Number]]] = field(default_factory=dict)  # bytes and ms of embeddings, attention, …
    closed_gap: Optional[BySplit[ClosedGap]] = field(default_factory=dict)  # of the distilled student
    learned: Optional[Maybe[StrictBool]] = None
    begun_from: Optional[Maybe[str]] = None
    rates: Optional[Items[TriedRate]] = field(default_factory=list)

    def scores(self, data: str, split: str) -> Scores:
        return self.quality.get(data, {}).get(split, {})

    def score(self, place: Place) -> float | None:
        return self.scores(place.data, place.split).get(place.metric)

    def score_deviation(self, place: Place) -> float | None:
        return self.deviation.get(place.data, {}).get(place.split, {}).get(place.metric)

    def interval(self, place: Place) -> tuple[float, float] | None:
        """Return the 95 % interval. That of the perplexity is the inverse of the likelihood's, which is resampled."""
        if place.metric == "perplexity":
            low, high = self.interval(place._replace(metric="likelihood")) or (0.0, 0.0)
            if low > 0:
                return 1 / high, 1 / low
        return self.intervals.get(place.data, {}).get(place.split, {}).get(place.metric)

    def gap(self, place: Place) -> ClosedGap | None:
        """Return the share of the gap that was closed, by the metric of dev."""
        return self.closed_gap.get(place.data, {}).get(place.split)

    def timing(self, engine: str, name: str) -> float | None:
        """Return a number of `speed`, such as "latency_ms"."""
        value = self.speed.get(engine, {}).get(name)
        old = engine == "pytorch" and name == "examples_per_second"
        return self.examples_per_second if value is None and old else value

    @property
    def searches(self) -> list[str]:
        """Return the searches by which a generative model was timed: "greedy", "beam 5"."""
        return [engine for engine in self.speed if engine not in NETWORK_ENGINES]


@dataclass(frozen=True, kw_only=True)
class Comparison(Part):
    """Two models on the same rows: the difference of their scores, and what may be said of it."""

    model: str
    against: str
    data: str
    split: str
    metric: str
    mean: Maybe[Number] = None
    words: str
    low: Optional[Maybe[Number]] = None  # 95 % interval
    high: Optional[Maybe[Number]] = None
    p: Optional[Maybe[Number]] = None
    seeds: Optional[Maybe[StrictInt]] = None
    p_corrected: Optional[Maybe[Number]] = None
    smallest: Optional[Maybe[Number]] = None  # a true difference that these rows and seeds show in four of five runs
    comparisons: Optional[Maybe[StrictInt]] = None  # for which p is corrected
    mcnemar: Optional[Items[Number]] = field(default_factory=list)  # p of each seed

    @property
    def place(self) -> Place:
        return Place(self.data, self.split, self.metric)


@dataclass(frozen=True)
class TeacherRows:
    """How right and how sure a teacher is on some rows: means over its predictions, one per row, word or label."""

    rows: Number  # that it was asked
    of: Number  # that there are
    right: Optional[Maybe[Number]] = None  # share; of rows with a label
    sure: Optional[Maybe[Number]] = None  # probability of the most probable class
    unsure: Optional[Maybe[Number]] = None  # share of predictions with a probability below 0.9
    entropy: Optional[Maybe[Number]] = None  # in nats
    error: Optional[Maybe[Number]] = None  # of numbers: the root of the mean squared error


@dataclass(frozen=True)
class TeacherKnowledge:
    """What a teacher knows before training, and what the test file can show."""

    classes: Maybe[Number] = None
    splits: Table[TeacherRows] = field(default_factory=dict)  # train: its rows with a label; unlabelled; dev
    test_rows: Maybe[Number] = None  # of the first test set, with a label
    row_variance: Maybe[Number] = None  # of the first metric over rows of dev, times their number
    temperature: Maybe[Number] = None  # at which its probabilities fit the labels of dev


@dataclass(frozen=True)
class Leak:
    """Rows of a split whose text is also in another split."""

    split: str
    also_in: str
    rows: Number
    of: Number


@dataclass(frozen=True)
class Disagreement:
    """A row that student and teacher answer differently. An answer is a class, a list of classes, a text or a number."""

    split: Maybe[str] = None
    text: Maybe[str] = None
    picture: Optional[Maybe[str]] = None
    pair: Maybe[str] = None
    label: Any = None
    teacher: Any = None
    student: Any = None
    teacher_probability: Maybe[Number] = None
    student_probability: Maybe[Number] = None


@dataclass(frozen=True, kw_only=True)
class LayerMap:
    """Which layer of the teacher teaches which of the student in a stage, as (student, teacher) pairs.

    `kept`: the layer of the teacher that each layer of the student was copied from; None where it was not copied.
    """

    stage: Maybe[StrictInt] = 0
    method: Maybe[str] = None
    student_layers: StrictInt
    teacher_layers: StrictInt
    pairs: Items[tuple[StrictInt, StrictInt]] = field(default_factory=list)
    kept: Maybe[Sequence[Maybe[StrictInt]]] = None


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """The form of the student that is kept beside it to be used."""

    form: str  # "int8" or "onnx"
    bytes: Maybe[Number] = None
    agreement: Optional[Maybe[Number]] = None  # share of predictions that are those of the student in PyTorch
    teacher_bytes: Optional[Maybe[Number]] = None  # in float32
    times_faster: Optional[Maybe[Number]] = None  # than the teacher in PyTorch and float32, at batch 32

    @property
    def model_name(self) -> str:
        """Return under which name its quality was measured."""
        return f"{STUDENT} int8" if self.form == "int8" else STUDENT


@dataclass(frozen=True)
class Measurements(Part):
    """All that a run measured."""

    name: Maybe[str] = None
    seeds: list[Any] = field(default_factory=list)
    metrics: dict[str, Annotated[list[str], Field(min_length=1)]] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    forms: Table[str] = field(default_factory=dict)
    leaks: Table[Items[Leak]] = field(default_factory=dict)
    teacher_knows: Optional[Table[TeacherKnowledge]] = field(default_factory=dict)
    models: dict[str, MeasuredModel] = field(default_factory=dict)
    deployed: Optional[Maybe[Deployed]] = None
    too_busy: Optional[Maybe[str]] = None
    differences: list[Comparison] = field(default_factory=list)
    disagreements: Table[Items[Disagreement]] = field(default_factory=dict)
    layer_map: Items[LayerMap] = field(default_factory=list)
    grid: Optional[list[dict[str, Any]]] = field(default_factory=list)  # fields of the recipe, and "dev"
    changed_inputs: Optional[Items[str]] = field(default_factory=list)
    needs_potstill: Annotated[StrictBool, _or_else(bool)] = False
    teacher_seconds: Maybe[Number] = None
    versions: Table[str] = field(default_factory=dict)
    signatures: Optional[Table[str]] = field(default_factory=dict)  # of sacrebleu, where texts were generated
    hashes: Table[str] = field(default_factory=dict)
    device: Maybe[str] = None

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read format 0 and 1. DamagedError names the part that has the wrong structure."""
        if isinstance(value, Mapping) and "seeds" not in value and "seed" in value:  # format 0
            value = {**value, "seeds": [value["seed"]]}
        try:
            return super().from_json(value)
        except ValidationError as error:
            where = error.errors()[0]["loc"]
            raise DamagedError(where[0] if where else "models") from None

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
