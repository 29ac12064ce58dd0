"""What a run is made from: the files and folders that its recipe names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from potstill import parallel
from potstill.recipe import Recipe


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
    path = Path(os.path.expanduser(text))
    folder = Path(os.path.expanduser(text.rpartition(":")[0] or "."))
    if path.exists():
        return [path]
    if both := parallel.two_files(text):
        return list(both)
    return [folder] if ":" in text and folder.is_dir() else []


def _texts(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, str):
            yield name, value


def _is_there(text: str) -> bool:
    return ("/" in text or "." in text) and Path(os.path.expanduser(text)).is_file()
