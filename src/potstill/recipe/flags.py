"""Command-line flags of recipe fields. Names, types, defaults and bounds of the fields come from the schema."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from annotated_types import Ge
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from potstill.errors import InputError
from potstill.recipe.schema import Data, Optimizer, Recipe, Stage

MODELS, DATA, TRAINING, RUN = "Models", "Data", "Training", "Run"  # the groups of flags in --help
TABLES: dict[str, type[BaseModel]] = {"": Recipe, "data.0": Data, "stage.0": Stage, "stage.0.optimizer": Optimizer}


@dataclass(frozen=True)
class Flag:
    """How a field is written on the command line. The flag of a boolean field takes no value and reverses its default."""

    path: str  # of the field, in a recipe with one data set and one stage
    group: str
    help: str
    parse: Callable[[Any], Any] | None = None  # from the text, or from a list of texts if `repeated`; None: as it is
    repeated: bool = False  # the flag may be given several times
    metavar: str | None = None

    @cached_property
    def field(self) -> FieldInfo:
        table, _, name = self.path.rpartition(".")
        return TABLES[table].model_fields[name]

    @property
    def name(self) -> str:
        word = self.path.rpartition(".")[2].replace("_", "-")
        return f"--no-{word}" if self.field.default is True else f"--{word}"

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
        if self.parse is None:
            return written
        return self.parse(written) if written else None


def parse_test_files(texts: list[str]) -> dict[str, str]:
    """Parse `--test FILE`, or `--test m=FILE --test mm=FILE`. A path that contains "=" is a path if it exists."""
    files: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or os.path.exists(os.path.expanduser(text)):
            name, path = "test" if len(texts) == 1 else Path(text).stem, text
            if name in ("train", "dev"):  # names of other splits: add the name of the folder
                name = f"{Path(text).absolute().parent.name or 'test'}-{name}"
        if name in files:
            raise InputError(f"two test sets are named '{name}'; write --test NAME=FILE with a name for each")
        files[name] = path
    return files


def parse_names(text: str) -> list[str]:
    """Parse `A,B,C`."""
    return [name.strip() for name in text.split(",")]


def parse_columns(text: str) -> str | list[str]:
    """Parse the name of one column, or `A,B,C`."""
    return parse_names(text) if "," in text else text


def parse_label_map(text: str) -> dict[str, str]:
    """Parse `positive=1,negative=0`."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    for label, equals, name in pairs:
        if not equals or not label.strip() or not name.strip():
            raise InputError(f"--label-map {text}: expected LABEL=CLASS; write for example positive=1,negative=0")
    return {label.strip(): name.strip() for label, _, name in pairs}


TRAIN_HELP = (
    "Rows to train on: .csv .tsv .jsonl .txt (also .gz), .parquet, two files side by side as FIRST,SECOND, "
    "the folder of a data set, or NAME:CONFIG:SPLIT of the hub."
)
TASK_HELP = "classify, multilabel, regress, tag, answer, choose, translate or write, if the rows do not show it."
STUDENT_HELP = "The student's shape: keep_layers:3, fresh:4, keep_layers:3+trim_vocabulary… (`potstill list students`)."
LABEL_MAP_HELP = "The teacher's class of each label in the rows, as LABEL=CLASS,LABEL=CLASS."
_FLAGS = (
    Flag("teacher", MODELS, "The large model: a folder in Hugging Face's layout, or a hub name."),
    Flag("start", MODELS, "Weights that the student starts from. Default: the teacher's."),
    Flag("student", MODELS, STUDENT_HELP),
    Flag("data.0.train", DATA, TRAIN_HELP),
    Flag("data.0.dev", DATA, "Rows to select the best epoch by. Default: a tenth of the training rows."),
    Flag("data.0.test", DATA, "Rows to report on; several as --test m=FILE --test mm=FILE.", parse_test_files, True),
    Flag("data.0.unlabelled", DATA, "More texts, labelled only by the teacher: one text per line (.txt), or a table."),
    Flag("data.0.text", DATA, "Column of the text, if it has an unusual name."),
    Flag("data.0.pair", DATA, "Column of the second text."),
    Flag("data.0.label", DATA, "Column of the label; several 0/1 columns as A,B,C.", parse_columns),
    Flag("data.0.choices", DATA, "Column of the choices of multiple choice, or one for each: A,B,C.", parse_columns),
    Flag("data.0.task", DATA, TASK_HELP),
    Flag("data.0.labels", DATA, "Names of the classes in the order of the model's outputs, as A,B.", parse_names),
    Flag("data.0.label_map", DATA, LABEL_MAP_HELP, parse_label_map, metavar="A=B,…"),
    Flag("stage.0.method", TRAINING, "The objective: soft_targets, patient … (`potstill list methods`)."),
    Flag("stage.0.optimizer.rate", TRAINING, "Learning rate."),
    Flag("stage.0.epochs", TRAINING, "Passes over the training rows."),
    Flag("stage.0.batch", TRAINING, "Examples per step."),
    Flag("seed", TRAINING, "Decides the order of rows, dropout and new weights."),
    Flag("seeds", TRAINING, "Number of runs with different seeds; mean and standard deviation are reported."),
    Flag("length", TRAINING, "Tokens read of each text at most."),
    Flag("device", TRAINING, "auto, cpu, cuda, mps."),
    Flag("baseline", RUN, "Do not also train the same student on the labels alone."),
    Flag("tracker", RUN, "none or tensorboard."),
    Flag("force", RUN, "Accept a teacher that is near chance on the data, or does not know the language."),
)
FLAGS = {flag.name: flag for flag in _FLAGS}
