"""The fields of a recipe. A recipe is a value: every setting that decides a result is in it.

A field that has a command-line flag says so beside its type; the commands take their flags from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import tomli_w
from annotated_types import Ge
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from potstill.errors import InputError
from potstill.recipe import short_forms
from potstill.recipe.bounds import Above, Count, NotBelow, Share
from potstill.recipe.explain import may_be_none, table_model
from potstill.recipe.flags import (
    DATA,
    MODELS,
    RUN,
    TRAINING,
    Flag,
    parse_columns,
    parse_label_map,
    parse_names,
    parse_test_files,
)
from potstill.recipe.pace import AUTO, FINE_TUNING, OTHER_OPTIMIZERS

# fields that change no weights: a stopped run may continue with other values
FREE = {"name", "tracker", "save_every", "memory", "force", "seeds", "timing", "teacher_devices"}

FileName = Annotated[str, Field(pattern=r"^\w[\w.+=,@ -]*$")]
Makers = Annotated[list[dict[str, Any]], BeforeValidator(partial(short_forms.complete, "data"))]
Builders = Annotated[list[dict[str, Any]], BeforeValidator(partial(short_forms.complete, "students"))]
Method = Annotated[dict[str, Any], BeforeValidator(short_forms.complete_method)]
Tests = Annotated[dict[FileName, str], BeforeValidator(short_forms.test_table)]
ClassName = Annotated[str, BeforeValidator(short_forms.class_name)]
TaskName = Literal["classify", "multilabel", "regress", "tag", "answer", "choose", "translate", "write"]


class Values(BaseModel):
    """Frozen, strict (no "5" for 5), and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def none_from_its_word(cls, value: Any, info: Any) -> Any:
        is_auto = value == "auto" and info.field_name in AUTO
        is_none = value == "none" and may_be_none(cls.model_fields[info.field_name].annotation)
        return None if is_auto or is_none else value


class Data(Values):
    """A data set: files (TSV, CSV, JSON lines, Parquet, also gzipped) or NAME:CONFIG:SPLIT of the Hugging Face hub."""

    name: FileName = "task"
    train: Annotated[
        str,
        Flag(
            "--train",
            DATA,
            "Rows to train on: .csv .tsv .jsonl .txt (also .gz), .parquet, two files side by side as FIRST,SECOND, "
            "the folder of a data set, or NAME:CONFIG:SPLIT of the hub.",
        ),
    ]
    dev: Annotated[
        str | None, Flag("--dev", DATA, "Rows to select the best epoch by. Default: a tenth of the training rows.")
    ] = None
    test: Annotated[
        Tests,  # name -> file; a plain text is {"test": file}
        Flag(
            "--test",
            DATA,
            "Rows to report on; several as --test m=FILE --test mm=FILE.",
            parse_test_files,
            repeated=True,
        ),
    ] = {}
    unlabelled: Annotated[
        str | None,
        Flag("--unlabelled", DATA, "More texts, labelled only by the teacher: one text per line (.txt), or a table."),
    ] = None
    # columns; None: found by their usual names
    text: Annotated[str | None, Flag("--text", DATA, "Column of the text, if it has an unusual name.")] = None
    pair: Annotated[str | None, Flag("--pair", DATA, "Column of the second text.")] = None
    label: Annotated[
        str | list[str] | None,
        Flag("--label", DATA, "Column of the label; several 0/1 columns as A,B,C.", parse_columns),
    ] = None
    separator: str | None = None  # separates several labels in one cell
    choices: Annotated[
        str | list[str] | None,
        Flag(
            "--choices", DATA, "Column of the choices of multiple choice; one column for each as A,B,C.", parse_columns
        ),
    ] = None
    task: Annotated[
        TaskName | None,  # None: found from the rows
        Flag(
            "--task",
            DATA,
            "classify, multilabel, regress, tag, answer, choose, translate or write, if the rows do not show it.",
        ),
    ] = None
    labels: Annotated[
        list[str] | None,
        Flag("--labels", DATA, "Names of the classes in the order of the model's outputs, as A,B.", parse_names),
    ] = None
    label_map: Annotated[
        dict[str, ClassName],  # label in the rows -> class of the teacher
        Flag(
            "--label-map",
            DATA,
            "The teacher's class of each label in the rows, as LABEL=CLASS,LABEL=CLASS.",
            parse_label_map,
            metavar="A=B,…",
        ),
    ] = {}
    positive: ClassName | None = None  # of two classes, the one whose F1 is shown; None: the rarer one in train
    language: str | None = None  # the target language: its token, >>de<<, is put before every source text
    class_weights: Literal["balanced"] | list[Above] | None = None
    teacher: str | None = None  # None: the recipe's


class Optimizer(Values):
    name: Literal["adamw", "adadelta", "sgd"] = "adamw"
    rate: Annotated[Above | None, Flag("--rate", TRAINING, "Learning rate.")] = None  # None or "auto": by the student
    weight_decay: NotBelow = 0.01
    warmup: Share = 0.1  # share of all steps
    decay: Literal["linear", "constant"] = "linear"
    clip: Above | None = 1.0  # largest norm of the gradient
    bridge_rate: Above | None = None  # of the learned projections between widths; None: rate

    @property
    def full_rate(self) -> float:
        """The learning rate after the warm-up; that of fine-tuning unless the recipe was resolved for a student."""
        return self.rate or OTHER_OPTIMIZERS.get(self.name, FINE_TUNING.rate)


class Stage(Values):
    """Make examples, reshape the student, train it by a method."""

    data: Makers = []  # each {make = NAME, …}
    reshape: Builders = []  # each {build = NAME, …}
    method: Annotated[
        Method,  # {name = NAME, …}
        Flag("--method", TRAINING, "The objective: soft_targets, patient … (`potstill list methods`)."),
    ] = Field(default={}, validate_default=True)
    optimizer: Optimizer = Optimizer()
    epochs: Annotated[
        Annotated[float, Field(gt=0, le=1e9)] | None,  # None or "auto": chosen by the student
        Flag("--epochs", TRAINING, "Passes over the training rows."),
    ] = None
    reads: Above = 1.0  # passes over the rows in an epoch
    batch: Annotated[Count, Flag("--batch", TRAINING, "Examples per step.")] = 32
    tokens: Count = 4096  # padded tokens of a micro-batch at most
    stop_teaching: NotBelow | None = None  # omit the teacher of a data set while the student beats it by this on dev
    patience: Count | None = None  # epochs without improvement on dev before stopping
    keep: Literal["best", "last", "average"] = "best"  # which epoch's weights: best by dev, or the mean of several
    averaged: Count = 5  # epochs, from the end, in the average

    @property
    def passes(self) -> float:
        """The epochs; those of fine-tuning unless the recipe was resolved for a student."""
        return self.epochs or FINE_TUNING.epochs


class Recipe(Values):
    name: FileName = "run"
    teacher: Annotated[
        str | None, Flag("--teacher", MODELS, "The large model: a folder in Hugging Face's layout, or a hub name.")
    ] = None
    teacher_devices: Literal["one", "auto"] | dict[str, str] = "one"  # auto, or {device = "20GB", …}: use several
    start: Annotated[
        str | None, Flag("--start", MODELS, "Weights that the student starts from. Default: the teacher's.")
    ] = None
    student: Annotated[
        Builders,  # each {build = NAME, …}; empty: the start's own shape
        Flag(
            "--student",
            MODELS,
            "The student's shape: keep_layers:3, fresh:4, keep_layers:3+trim_vocabulary … (`potstill list students`).",
        ),
    ] = []
    data: list[Data] = Field(min_length=1)
    stage: list[Stage] = Field(default=[{}], min_length=1, validate_default=True)
    seed: Annotated[
        int, Field(ge=0), Flag("--seed", TRAINING, "Decides the order of rows, dropout and new weights.")
    ] = 0
    seeds: Annotated[
        int,  # runs with seed, seed + 1, …
        Field(ge=1, le=1000),
        Flag("--seeds", TRAINING, "Number of runs with different seeds; mean and standard deviation are reported."),
    ] = 1
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: as the start's config says
    length: Annotated[int, Field(ge=3), Flag("--length", TRAINING, "Tokens read of each text at most.")] = 128
    device: Annotated[str, Flag("--device", TRAINING, "auto, cpu, cuda, mps.")] = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    baseline: Annotated[bool, Flag("--no-baseline", RUN, "Do not also train the same student on the labels alone.")] = (
        True
    )
    timing: Literal["all", "pytorch", "none"] = "all"  # all: also in ONNX Runtime, and in eight bits
    memory: str | None = None  # folder of the teacher's memory
    metric: str | None = None  # selects by dev; None: the task's first
    tracker: Annotated[Literal["none", "tensorboard"], Flag("--tracker", RUN, "none or tensorboard.")] = "none"
    save_every: Count = 200  # steps between checkpoints, besides the end of each epoch
    force: Annotated[
        bool,
        Flag("--force", RUN, "Accept a teacher that is near chance on the data, or does not know the language."),
    ] = False
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}  # path -> values; every combination is trained

    @field_validator("data", mode="before")
    @classmethod
    def data_sets(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @model_validator(mode="after")
    def names_differ(self) -> Recipe:
        names = [data.name for data in self.data]
        if len(set(names)) < len(names):
            raise InputError(f"recipe: the data sets are named {', '.join(names)}; give each [[data]] its own name")
        return self


class FlagField(NamedTuple):
    """A field that has a flag. `path` is its place in a recipe with one data set and one stage: "data.0.train"."""

    path: str
    flag: Flag
    field: FieldInfo

    @property
    def value_type(self) -> type:
        """bool, int or float; str for everything else."""
        for part in (self.field.annotation, *get_args(self.field.annotation)):
            plain = get_args(part)[0] if get_origin(part) is Annotated else part
            if plain in (bool, int, float):
                return plain
        return str

    @property
    def least(self) -> Any:
        """The smallest number that is allowed; None if there is none."""
        return next((bound.ge for bound in self.field.metadata if isinstance(bound, Ge)), None)

    def value(self, written: Any) -> Any:
        """The field's value from what is written on the command line; None if the flag was omitted."""
        if self.value_type is bool:
            return not self.field.default if written else None
        if self.flag.parse is None:
            return written
        return self.flag.parse(written) if written else None


def flag_fields(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[FlagField]:
    """Every field with a flag, in the order of the schema."""
    for name, field in model.model_fields.items():
        if table := table_model(field):
            is_list = get_origin(field.annotation) is list
            yield from flag_fields(table, f"{prefix}{name}.0." if is_list else f"{prefix}{name}.")
        if flag := next((item for item in field.metadata if isinstance(item, Flag)), None):
            yield FlagField(prefix + name, flag, field)


def fingerprint(recipe: Recipe) -> str:
    """16 hexadecimal digits of every field that decides the results: weights and measurements, so the test files too."""
    return hashlib.sha256(json.dumps(recipe.model_dump(exclude=FREE), sort_keys=True).encode()).hexdigest()[:16]


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML, which reads back as an equal recipe. None is omitted, or "none" if it is not the default."""
    tree = recipe.model_dump(exclude_none=True)  # keeps None in the tables of methods, students and data makers
    for stage in tree["stage"]:
        stage["optimizer"].setdefault("clip", "none")
    return tomli_w.dumps(_none_as_word(tree))


def _none_as_word(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _none_as_word(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_none_as_word(item) for item in value]
    return "none" if value is None else value
