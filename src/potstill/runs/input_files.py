"""The files that decide a run's result: rows, models and plug-ins that its recipe names, recognised by their digests.

A run that continues with other rows, another teacher or another version of torch would be a mixture of two runs. Its mark,
`run.json`, holds the digests of all inputs, and a run that finds other ones names them and stops.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import transformers

import potstill
from potstill.data.formats.parallel import two_files
from potstill.data.packages import file_of, is_part
from potstill.data.sources import files_below, files_of
from potstill.recipe import plugins
from potstill.recipe.schema import Recipe
from potstill.system import ranks
from potstill.system.files import file_xxh3
from potstill.system.paths import unreadable

Digests = dict[str, dict[str, str]]
"""For each text of the recipe: file -> digest. For `VERSIONS`: package -> version."""

VERSIONS = "versions"
LONGEST_PATH = 4096  # characters
DATA_SET_FILES = ("*.arrow", "*/*.arrow", "state.json", "*/state.json")
MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.jinja")  # that decide a model's predictions


@ranks.on_first
def input_digests(recipe: Recipe) -> Digests:
    """Digests of all that decides the result, except for what is not on this machine, such as a name on the hub."""
    digests = {text: files for text in named_inputs(recipe) if (files := _file_digests(text))}
    for file in own_plugins(recipe):
        digests[str(file)] = {str(file): file_xxh3(file)}
    return {**digests, VERSIONS: versions()}


def versions() -> dict[str, str]:
    """Versions of the packages that decide the weights to the last bit."""
    return {"potstill": potstill.__version__, "torch": torch.__version__, "transformers": transformers.__version__}


def changes(before: Digests, now: Digests) -> list[str]:
    """The files and versions that differ. What is missing now is not compared: loading it fails by itself."""
    changed = []
    for text, files in now.items():
        earlier = before.get(text, files)
        for file in sorted({*earlier, *files}):
            was, is_now = earlier.get(file, "nothing"), files.get(file, "nothing")
            if was != is_now:
                changed.append(f"{file} ({was}, now {is_now})" if text == VERSIONS else file)
    return changed


def own_plugins(recipe: Recipe) -> list[Path]:
    """The files of the user's own methods, students and data makers."""
    used: list[tuple[plugins.Kind, str]] = [("students", str(fields["build"])) for fields in recipe.student]
    for stage in recipe.stage:
        used += [("methods", str(stage.method["name"]))]
        used += [("data", str(fields["make"])) for fields in stage.data]
        used += [("students", str(fields["build"])) for fields in stage.reshape]
    files = (plugins.file_of(kind, name) for kind, name in used)
    return [file for file in dict.fromkeys(files) if not file.is_relative_to(plugins.BUILT_IN)]


def _file_digests(text: str) -> dict[str, str]:
    """Digests of the files that a text of the recipe names: rows, a model's folder, a data set's folder."""
    files: list[Path] = []
    for path in paths_of(text):
        if (path / "config.json").is_file():
            files += [file for pattern in MODEL_FILES for file in path.glob(pattern)]
        elif path.is_dir():
            saved = [file for pattern in DATA_SET_FILES for file in path.glob(pattern)]
            files += saved or files_below(path)[0]
        else:
            files += files_of(path)
    digests = {}
    for file in sorted({file for file in files if file.is_file()}):
        try:
            digests[str(file)] = file_xxh3(file)
        except OSError as error:
            raise unreadable(file, error) from None
    return digests


def input_paths(recipe: Recipe) -> list[Path]:
    """Every file and folder that the run reads."""
    return list(dict.fromkeys(path for text in named_inputs(recipe) for path in paths_of(text)))


def named_inputs(recipe: Recipe) -> list[str]:
    """Every input of a recipe, as the user wrote it: models, rows, and files in fields of plug-ins, such as word vectors."""
    inputs = [recipe.start, *recipe.teachers]
    for data in recipe.data:
        inputs += data.sources
    plugged = [*recipe.student]
    for stage in recipe.stage:
        plugged += [stage.method, *stage.data, *stage.reshape]
    values = [value for fields in plugged for value in fields.values()]
    inputs += [text for text in values if isinstance(text, str) and _is_file(text)]
    return list(dict.fromkeys(text for text in inputs if text))


def paths_of(text: str) -> list[Path]:
    """The files or folders that a text names: one, two with a comma between them, a folder and its split, or a package's."""
    if is_part(text):
        return [file_of(text)]
    path, folder = os.path.expanduser(text), os.path.expanduser(text.rpartition(":")[0])
    if os.path.exists(path):  # Path.exists raises for a name that is too long for a file
        return [Path(path)]
    if len(text) < LONGEST_PATH and (both := two_files(text)):
        return list(both)
    return [Path(folder)] if folder and os.path.isdir(folder) else []


def _is_file(text: str) -> bool:
    return ("/" in text or "." in text) and os.path.isfile(os.path.expanduser(text))
