"""What a flag of a recipe field is: its name, type, default and bounds come from the field. The schema lists all flags."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from annotated_types import Ge
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from potstill.errors import InputError

MODELS, DATA, TRAINING, RUN = "Models", "Data", "Training", "Run"  # the groups of flags in --help
# of the tables, in a recipe with one data set and one stage
PLACES = {"Recipe": "", "Data": "data.0.", "Stage": "stage.0.", "Optimizer": "stage.0.optimizer."}


@dataclass(frozen=True)
class Flag:
    """How a field is written on the command line. The flag of a boolean field takes no value and reverses its default."""

    table: type[BaseModel]
    field_name: str
    group: str
    help: str
    parse: Callable[[Any], Any] | None = None  # from the text, or from a list of texts if `repeated`; None: as it is
    repeated: bool = False  # the flag may be given several times
    metavar: str | None = None

    @property
    def field(self) -> FieldInfo:
        return self.table.model_fields[self.field_name]

    @property
    def path(self) -> str:
        return PLACES[self.table.__name__] + self.field_name

    @property
    def name(self) -> str:
        word = self.field_name.replace("_", "-")
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


def parse_sources(texts: list[str]) -> str | list[str]:
    """Parse `--unlabelled A`, or `--unlabelled A --unlabelled B`."""
    return texts[0] if len(texts) == 1 else texts


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
