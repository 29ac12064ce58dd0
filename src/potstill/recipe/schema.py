"""A run is a value: a recipe names a teacher, data, a student and stages, and every number that decides the result."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from potstill.errors import InputError
from potstill.recipe import short_forms
from potstill.recipe.bounds import Above, Count, NotBelow, Share
from potstill.recipe.explain import may_be_none
from potstill.recipe.pace import AUTO, FINE_TUNING, OTHER_OPTIMIZERS

# change no weights: a run may go on under others
FREE = {"name", "tracker", "save_every", "memory", "force", "seeds", "timing", "teacher_devices"}

TaskName = Literal["classify", "multilabel", "regress", "tag", "answer", "choose", "translate", "write"]
FileName = Annotated[str, Field(pattern=r"^\w[\w.+=,@ -]*$")]
Makers = Annotated[list[dict[str, Any]], BeforeValidator(partial(short_forms.complete, "data"))]
Builders = Annotated[list[dict[str, Any]], BeforeValidator(partial(short_forms.complete, "students"))]
Method = Annotated[dict[str, Any], BeforeValidator(short_forms.complete_method)]
Tests = Annotated[dict[FileName, str], BeforeValidator(short_forms.tests)]
ClassName = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
LabelMap = Annotated[dict[str, str], BeforeValidator(short_forms.label_map)]


class Values(BaseModel):
    """Frozen, strict (no "5" for 5), and closed to unknown words."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def none_by_its_word(cls, value: Any, info: Any) -> Any:
        auto = value == "auto" and info.field_name in AUTO
        none = value == "none" and may_be_none(cls.model_fields[info.field_name].annotation)
        return None if auto or none else value


class Data(Values):
    """A data set: files (TSV, CSV, JSON lines, Parquet, also gzipped) or NAME:CONFIG:SPLIT of the Hugging Face hub."""

    name: FileName = "task"
    train: str
    dev: str | None = None  # None: a tenth of train
    test: Tests = {}  # name -> file; a plain text is {"test": file}
    unlabelled: str | None = None  # more texts, which the teacher alone teaches
    text: str | None = None  # columns; None: found by their usual names
    pair: str | None = None
    label: str | list[str] | None = None
    separator: str | None = None
    choices: str | list[str] | None = None  # column of the candidates, or one column for each
    task: TaskName | None = None  # None: from the rows
    labels: list[str] | None = None  # names in the order of the classes
    label_map: LabelMap = {}  # label in the rows -> class of the teacher
    positive: ClassName | None = None  # of two classes, the one whose F1 is shown; None: the rarer one in train
    language: str | None = None  # that is translated into: its token, >>de<<, is put before every source
    class_weights: Literal["balanced"] | list[Above] | None = None
    teacher: str | None = None  # None: the recipe's


class Optimizer(Values):
    name: Literal["adamw", "adadelta", "sgd"] = "adamw"
    rate: Above | None = None  # None, or "auto": chosen by what the student is made of
    weight_decay: NotBelow = 0.01
    warmup: Share = 0.1  # share of all steps
    decay: Literal["linear", "constant"] = "linear"
    clip: Above | None = 1.0  # largest norm of the gradient
    bridge_rate: Above | None = None  # of the learned projections between widths; None: rate

    @property
    def full_rate(self) -> float:
        """The rate after the warm-up; that of fine-tuning where no recipe says of what student it is."""
        return self.rate or OTHER_OPTIMIZERS.get(self.name, FINE_TUNING.rate)


class Stage(Values):
    """Make examples, reshape the student, train it by a method."""

    data: Makers = []  # each {make = NAME, …}
    reshape: Builders = []  # each {build = NAME, …}
    method: Method = Field(default={}, validate_default=True)  # {name = NAME, …}
    optimizer: Optimizer = Optimizer()
    epochs: Annotated[float, Field(gt=0, le=1e9)] | None = (
        None  # None, or "auto": chosen by what the student is made of
    )
    reads: Above = 1.0  # how often the rows are read in an epoch
    batch: Count = 32
    tokens: Count = 4096  # padded tokens of a micro-batch at most
    stop_teaching: NotBelow | None = (
        None  # the teacher of a data set is not heard while the student passes it by this on dev
    )
    patience: Count | None = None  # epochs without improvement on dev before stopping
    keep: Literal["best", "last", "average"] = (
        "best"  # which epoch's weights are the result, by dev; or a mean of epochs
    )
    averaged: Count = 5  # of how many last epochs the average is

    @property
    def passes(self) -> float:
        """The epochs; those of fine-tuning where no recipe says of what student it is."""
        return self.epochs or FINE_TUNING.epochs


class Recipe(Values):
    name: FileName = "run"
    teacher: str | None = None
    teacher_devices: Literal["one", "auto"] | dict[str, str] = (
        "one"  # auto, or {device = "20GB", …}: spread over several
    )
    start: str | None = None  # weights the student begins from; None: the teacher's
    student: Builders = []  # each {build = NAME, …}; empty: the start's own shape
    data: list[Data] = Field(min_length=1)
    stage: list[Stage] = Field(default=[{}], min_length=1, validate_default=True)
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1, le=1000)] = (
        1  # runs with seed, seed + 1, …; their mean and deviation are reported
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: as the start's config says
    length: Annotated[int, Field(ge=3)] = 128  # tokens per example at most
    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    baseline: bool = True  # also train the student on the labels alone
    timing: Literal["all", "pytorch", "none"] = "all"  # all: also in ONNX Runtime, and in eight bits
    memory: str | None = None  # folder of the teacher's memory
    metric: str | None = None  # what dev is judged by; None: the task's first
    tracker: Literal["none", "tensorboard"] = "none"
    save_every: Count = 200  # steps between checkpoints, besides the end of each epoch
    force: bool = False  # accept a teacher near chance, or one that does not know the language
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}  # path -> values; all combinations are run

    @field_validator("data", mode="before")
    @classmethod
    def one_data_set(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @model_validator(mode="after")
    def names_differ(self) -> Recipe:
        names = [data.name for data in self.data]
        if len(set(names)) < len(names):
            raise InputError(
                f"recipe: the data sets are named {', '.join(names)}; give each [[data]] a name of its own"
            )
        return self


TABLES: dict[str, type[BaseModel]] = {"data": Data, "stage": Stage, "optimizer": Optimizer}


def fingerprint(recipe: Recipe) -> str:
    """16 hexadecimal digits of all that decides the results: weights and measurements, so the tests too."""
    return hashlib.sha256(json.dumps(recipe.model_dump(exclude=FREE), sort_keys=True).encode()).hexdigest()[:16]


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML; read again it is equal. None is left out, or "none" where it is not the default."""
    tree = recipe.model_dump(exclude_none=True)  # leaves None in the tables of methods, students and data makers
    for stage in tree["stage"]:
        stage["optimizer"].setdefault("clip", "none")
    return tomli_w.dumps(_none_as_word(tree))


def _none_as_word(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _none_as_word(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_none_as_word(one) for one in value]
    return "none" if value is None else value
