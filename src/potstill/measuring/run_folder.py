"""Finished runs, read from their folders and from nothing else."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.measuring.measurements import clean, inside, named, number
from potstill.system.paths import RunFolder, expand_user

NO_TERMS = {"step", "epoch", "loss", "gradient_norm", "rate", "examples", "tokens", "seconds"}


@dataclass(frozen=True)
class FinishedRun:
    name: str  # unlike that of any other run it was read with
    found: dict[str, Any]  # measurements.json
    recipe: str
    parts: list[tuple[str, Path]]  # a name and folder per seed


def finished_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """The runs of some folders, in their order, each under a name of its own."""
    if not folders:
        raise InputError("no run was given; write the folder of one, such as potstill report runs/small")
    folders = list(dict.fromkeys(expand_user(folder) for folder in folders))
    found = [measurements_of(folder) for folder in folders]
    names = run_names(folders, found)
    return [
        FinishedRun(name, one, clean_lines(RunFolder(folder).recipe), seed_folders(folder))
        for folder, one, name in zip(folders, found, names, strict=True)
    ]


def measurements_of(folder: Path) -> dict[str, Any]:
    """A finished run's measurements; an error where there is no run, or it is not finished."""
    files = RunFolder(folder)
    folder = files.root
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; write the --out of a run, such as runs/small")
    if not files.recipe.is_file():
        raise InputError(f"{folder} is not a run of potstill; write the --out of a run, such as runs/small")
    if not files.measurements.is_file():
        raise InputError(
            f"the run in {folder} is not finished; write its command once more and it goes on, then report it"
        )
    try:
        found = json.loads(files.measurements.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        found = None
    models = inside(found, "models")
    if not isinstance(models, dict) or not models or not all(isinstance(one, dict) for one in models.values()):
        raise InputError(
            f"{files.measurements} holds no measurements; write the run's command once more with --overwrite to make them"
        )
    if wrong := misshapen(found):
        raise InputError(
            f"{files.measurements} is damaged: '{wrong}' is not what a run writes there; "
            "write the run's command once more with --overwrite to make it anew"
        )
    return dict(found)


def misshapen(found: Mapping[str, Any]) -> str | None:
    """The first part that has another form than every reader of it relies upon. Numbers may be missing or wrong: they are
    shown as a dash."""
    for key, fits in FORMS.items():
        if key in found and not fits(found[key]):
            return key
    return None


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _by_name(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _difference(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in COMPARED)


COMPARED = ("model", "against", "data", "split", "metric", "words")
FORMS: dict[str, Callable[[Any], bool]] = {
    "metrics": _by_name(lambda value: _texts(value) and len(value) > 0),
    "labels": _by_name(_texts),
    "tasks": _by_name(lambda value: isinstance(value, str)),
    "seeds": lambda value: isinstance(value, list),
    "differences": lambda value: isinstance(value, list) and all(map(_difference, value)),
    "grid": lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value),
    "models": _by_name(_by_name(lambda value: True)),
}


def run_names(folders: Sequence[Path], found: Sequence[dict[str, Any]]) -> list[str]:
    """The runs' own names; the folder's where two are alike; and where that does not tell them apart, their paths."""
    own = [named(one.get("name") or "run") for one in found]
    unlike = [
        name if own.count(name) == 1 else named(folder.resolve().name)
        for name, folder in zip(own, folders, strict=True)
    ]
    return unlike if len(set(unlike)) == len(unlike) else [clean(folder) for folder in folders]


def clean_lines(path: Path) -> str:
    """A text file, with what could not be shown replaced."""
    return "\n".join(clean(line) if "\t" not in line else line for line in _text(path).splitlines())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def seed_folders(folder: Path) -> list[tuple[str, Path]]:
    """A name and a folder per finished seed, in their order; the run's own where it has one seed."""
    several = sorted(
        (int(one.name.removeprefix("seed-")), one)
        for one in folder.glob("seed-*")
        if RunFolder(one).measurements.is_file() and one.name.removeprefix("seed-").isdecimal()
    )
    return [(f"seed {seed}", one) for seed, one in several] or [("", folder)]


def shared_or_first(run: FinishedRun, key: str) -> Any:
    """What is under a key of the whole run or, where it is kept per seed only, of its first seed."""
    if run.found.get(key) is not None:
        return run.found[key]
    first = RunFolder(run.parts[0][1]).measurements
    try:
        return inside(json.loads(_text(first)), key) if first.is_file() else None
    except ValueError:
        return None


def stage_folders(folder: Path) -> list[Path]:
    """The stages' folders in order; of a grid, those of the cell that was best on dev."""
    if not (folder / "stages").is_dir():
        notes = sorted(RunFolder(folder).grid.glob("*/cell.json"))
        reached = {note.parent: number(inside(json.loads(_text(note)), "dev")) or 0.0 for note in notes}
        if not reached:
            return []
        folder = max(reached, key=reached.__getitem__)
    stages = [one for one in (folder / "stages").glob("*") if one.name.isdecimal()]
    return sorted(stages, key=lambda one: int(one.name))


def columns_of(log: Path, by: str) -> dict[str, tuple[list[float], list[float]]]:
    """A log's columns, each as `by` and its values, without what is no number."""
    if not log.is_file():
        return {}
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for row in csv.DictReader(_text(log).splitlines()):
        place = _float(row.get(by))
        for name, cell in row.items():
            value = _float(cell)
            if name and place is not None and value is not None:
                x, y = columns.setdefault(name, ([], []))
                x.append(place)
                y.append(value)
    return columns


def _float(text: Any) -> float | None:
    try:
        return number(float(text))
    except (TypeError, ValueError):
        return None
