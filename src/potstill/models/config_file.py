"""config.json of a model's folder as plain data, checked. Loads neither torch nor transformers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.models.folders import onnx_file, safe_folder
from potstill.models.safety import json_object

SHORTEST = 3  # tokens: the special tokens around a text, and one of its own
UNNAMED = {0: "LABEL_0", 1: "LABEL_1"}  # the classes of a config.json that names none, as transformers reads it


@dataclass(frozen=True)
class ConfigFile:
    """The fields of config.json, with the names and defaults that configs of transformers have."""

    folder: Path
    fields: Mapping[str, Any]

    @property
    def architectures(self) -> list[str]:
        return list(self.fields.get("architectures") or ())

    @property
    def model_type(self) -> str:
        return str(self.fields.get("model_type", ""))

    @property
    def id2label(self) -> dict[int, str]:
        labels = self.fields.get("id2label")
        try:
            return {int(number): str(name) for number, name in labels.items()} if labels else dict(UNNAMED)
        except (AttributeError, ValueError):
            raise InputError(
                f"{self.folder}: id2label in config.json is not a table from numbers to names; "
                "number its classes 0, 1, …"
            ) from None

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    @property
    def problem_type(self) -> str | None:
        value = self.fields.get("problem_type")
        return None if value is None else str(value)

    @property
    def vocab_size(self) -> int | None:
        return self.fields.get("vocab_size")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that the network reads."""
        height, width = self.fields["image_size"]
        return int(self.fields.get("num_channels", 1)), int(height), int(width)

    def exported_number(self, name: str) -> int:
        """Return potstill_longest or potstill_parameters, which an export writes into its config.json."""
        value = self.fields.get(name)
        if type(value) is not int:
            raise InputError(f"{self.folder}: config.json has no {name}; write it again with potstill export")
        return value


def read_config(model: str | Path) -> ConfigFile:
    """Read config.json of a model's folder, of an exported folder or its .onnx file, or of a name on the hub."""
    file = onnx_file(model)
    folder = safe_folder(file.parent if file else model)
    fields = json_object(folder / "config.json", "give a folder with a config.json")
    names = fields.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(
            f"{folder}: architectures in config.json is not a list of names; write the name of one class in brackets"
        )
    return ConfigFile(folder, fields)


def refuse_odd_labels(id2label: Mapping[Any, Any] | None, folder: str | Path) -> None:
    """Refuse classes of a trained head that are not numbered from 0, or do not have distinct, valid names."""
    names = id2label or {}
    if not names or sorted(names) != list(range(len(names))):
        numbers = ", ".join(map(str, list(names)[:5])) or "none"
        raise InputError(f"{folder}: the classes of id2label in config.json are {numbers}; number them 0, 1, …")
    for name in names.values():
        if str(name) != str(name).encode("utf-8", "replace").decode():
            raise InputError(
                f"{folder}: the class {str(name)!a} in config.json is not valid text; write another name in id2label"
            )
    duplicates = [name for name, count in Counter(map(str, names.values())).items() if count > 1]
    if duplicates:
        raise InputError(
            f"{folder}: two classes in config.json have the name {duplicates[0]!r}; write two names in id2label"
        )


def trained_length(stated: object, longest: int, folder: str | Path) -> int:
    """Return how many tokens a model was trained to read: longer texts would use positions that were never trained.

    `stated` is potstill_length of its config, `longest` the most that it can read.
    """
    if stated is None:
        return longest
    if type(stated) is not int or stated < SHORTEST:
        raise InputError(
            f"{folder}: potstill_length in config.json is {stated!r:.80}; write a number of tokens, or remove it"
        )
    return min(stated, longest)
