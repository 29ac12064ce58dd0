"""Command-line flags of recipe fields, as `recipe.schema` writes them beside a field's type."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potstill.errors import InputError

MODELS, DATA, TRAINING, RUN = "Models", "Data", "Training", "Run"  # the groups of flags in --help


@dataclass(frozen=True)
class Flag:
    """How a field is written on the command line. The flag of a boolean field takes no value and reverses its default."""

    name: str
    group: str
    help: str
    parse: Callable[[Any], Any] | None = None  # from the text, or from a list of texts if `repeated`; None: as it is
    repeated: bool = False  # the flag may be given several times
    metavar: str | None = None


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


def parse_columns(text: str) -> str | list[str]:
    """Parse the name of one column, or `A,B,C`."""
    return parse_names(text) if "," in text else text


def parse_names(text: str) -> list[str]:
    """Parse `A,B,C`."""
    return [name.strip() for name in text.split(",")]


def parse_label_map(text: str) -> dict[str, str]:
    """Parse `positive=1,negative=0`."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    for label, equals, name in pairs:
        if not equals or not label.strip() or not name.strip():
            raise InputError(
                f"--label-map {text}: expected LABEL=CLASS pairs; write for example --label-map positive=1,negative=0"
            )
    return {label.strip(): name.strip() for label, _, name in pairs}
