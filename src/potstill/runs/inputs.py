"""What a run is made from: the files and folders that its recipe names, known again by their content.

A run that goes on with other rows, another teacher or another version of torch is a mixture of two runs. So the digests of
all that it reads lie in its mark, and what differs is named before anything goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

import potstill
from potstill.data.formats.parallel import two_files
from potstill.data.sources import files_of
from potstill.errors import InputError
from potstill.recipe import plugins
from potstill.recipe.schema import Recipe
from potstill.system.files import xxh3_of

Content = dict[str, dict[str, str]]
"""By what the user wrote: each file of it -> its digest; by VERSIONS, each package -> its version."""

VERSIONS = "versions"
LONGEST_PATH = 4096  # letters
DATA_SET_FILES = ("*.arrow", "*/*.arrow", "state.json", "*/state.json")
MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.jinja")  # that decide what a model answers


def content_of(recipe: Recipe) -> Content:
    """Digests of all that decides the result. What is not on this machine, as a name on the hub, is left out."""
    found = {text: files for text in named_inputs(recipe).values() if (files := _files(text))}
    for file in plugged_in(recipe):
        found[str(file)] = {str(file): xxh3_of(file)}
    return {**found, VERSIONS: versions()}


def versions() -> dict[str, str]:
    """Of what decides the weights to the last bit."""
    return {"potstill": potstill.__version__, "torch": torch.__version__, "transformers": transformers.__version__}


def changes(before: Content, now: Content) -> list[str]:
    """What differs, in words. What is not there any more is not compared: whoever needs it says so."""
    found = []
    for text, files in now.items():
        earlier = before.get(text)
        if earlier is None:
            continue
        for file in sorted({*earlier, *files}):
            if earlier.get(file) != files.get(file):
                was, is_now = earlier.get(file, "nothing"), files.get(file, "nothing")
                found.append(f"{file} ({was}, now {is_now})" if text == VERSIONS else file)
    return found


def refuse_changed_while_read(before: Content, now: Content) -> None:
    """Between the first look at a file and the last row that was read of it nobody may have written to it."""
    if changed := changes(before, now):
        raise InputError(f"{', '.join(changed)} changed while it was read; start again when nobody writes to it")


def plugged_in(recipe: Recipe) -> list[Path]:
    """The files of the user's own methods, students and data makers, which are as much a part of the run as rows."""
    used: list[tuple[plugins.Kind, str]] = [("students", str(one["build"])) for one in recipe.student]
    for stage in recipe.stage:
        used += [("methods", str(stage.method["name"]))]
        used += [("data", str(one["make"])) for one in stage.data]
        used += [("students", str(one["build"])) for one in stage.reshape]
    files = (plugins.file_of(kind, name) for kind, name in used)
    return [file for file in dict.fromkeys(files) if not file.is_relative_to(plugins.BUILT_IN)]


def _files(text: str) -> dict[str, str]:
    """Digests of the files that a text means: rows, a model's folder, a data set's; empty where there are none here."""
    found: list[Path] = []
    for path in paths_of(text):
        if (path / "config.json").is_file():
            found += [file for ending in MODEL_FILES for file in path.glob(ending)]
        elif path.is_dir():
            saved = [file for ending in DATA_SET_FILES for file in path.glob(ending)]
            found += saved or files_of(path)
        else:
            found += files_of(path)
    return {str(file): _digest(file) for file in sorted(set(found)) if file.is_file()}


def _digest(file: Path) -> str:
    try:
        return xxh3_of(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check the path and its permissions") from None


def input_paths(recipe: Recipe) -> list[Path]:
    """Every file and folder of the user's that the run reads, as they were written in the recipe."""
    return list(dict.fromkeys(path for text in named_inputs(recipe).values() for path in paths_of(text)))


def named_inputs(recipe: Recipe) -> dict[str, str]:
    """All that a recipe reads: what each is for -> what the user wrote."""
    found: dict[str, str | None] = {"teacher": recipe.teacher, "start": recipe.start}
    for data in recipe.data:
        of = f" of {data.name}" if len(recipe.data) > 1 else ""
        found |= {f"train{of}": data.train, f"dev{of}": data.dev, f"unlabelled{of}": data.unlabelled}
        found |= {f"{name}{of}": path for name, path in data.test.items()}
        found[f"teacher{of}"] = data.teacher or recipe.teacher
    tables = [("student", recipe.student)]
    for number, stage in enumerate(recipe.stage):
        tables += [
            (f"stage {number}", [stage.method]),
            (f"stage {number}", stage.data),
            (f"stage {number}", stage.reshape),
        ]
    for where, things in tables:
        # a field whose text is the path of a file: word vectors, a list of words
        found |= {f"{where} {field}": text for thing in things for field, text in _texts(thing) if _is_there(text)}
    return {name: text for name, text in found.items() if text}


def paths_of(text: str) -> list[Path]:
    """The files or folders that a text means: one, two with a comma between them, or a folder and its split."""
    path, folder = os.path.expanduser(text), os.path.expanduser(text.rpartition(":")[0])
    if os.path.exists(path):  # unlike Path's, it takes a name that no file can have for one that is not there
        return [Path(path)]
    if len(text) < LONGEST_PATH and (both := two_files(text)):
        return list(both)
    return [Path(folder)] if folder and os.path.isdir(folder) else []


def _texts(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, str):
            yield name, value


def _is_there(text: str) -> bool:
    return ("/" in text or "." in text) and os.path.isfile(os.path.expanduser(text))
