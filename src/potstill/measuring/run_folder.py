"""Finished runs, read back from their folders: measurements, recipe, seeds, and the logs of their stages."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from potstill.errors import InputError
from potstill.measuring.measurements import DamagedError, Measurements, as_number, clean, short_name
from potstill.system.files import write_atomically
from potstill.system.paths import RunFolder, expand_user

NOT_LOSSES = {"step", "epoch", "loss", "gradient_norm", "rate", "examples", "tokens", "seconds"}  # columns of steps.csv

Series = tuple[list[float], list[float]]
"""x and y of a curve."""


@dataclass(frozen=True)
class FinishedRun:
    name: str  # unique among the runs that were read together
    measurements: Measurements
    recipe: str
    seeds: list[tuple[str, Path]]  # a name and a folder per seed


def finished_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Read runs in the order of their folders."""
    if not folders:
        raise InputError("no run was given; write the folder of one, such as potstill report runs/small")
    folders = list(dict.fromkeys(expand_user(folder) for folder in folders))
    measurements = [read_measurements(folder) for folder in folders]
    return [
        FinishedRun(name, measured, clean_lines(RunFolder(folder).recipe), seed_folders(folder))
        for folder, measured, name in zip(folders, measurements, run_names(folders, measurements), strict=True)
    ]


def read_measurements(folder: Path) -> Measurements:
    """Read the measurements of a run; InputError where there is no run, or it is not finished, or damaged."""
    files = RunFolder(folder)
    folder = files.root
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; write the --out of a run, such as runs/small")
    if not files.recipe.is_file():
        raise InputError(f"{folder} is not a run of potstill; write the --out of a run, such as runs/small")
    if not files.measurements.is_file():
        raise InputError(f"the run in {folder} is not finished; write its command again to finish it, then report it")
    try:
        measurements = Measurements.from_json(json.loads(files.measurements.read_text(encoding="utf-8")))
    except DamagedError as error:
        if str(error) != "models":
            raise InputError(
                f"{files.measurements} is damaged: '{error}' does not have the form that a run writes; "
                "write the run's command again with --overwrite"
            ) from None
        measurements = None
    except (ValueError, RecursionError):
        measurements = None
    if measurements is None or not measurements.models:
        raise InputError(f"{files.measurements} holds no measurements; write the run's command again with --overwrite")
    return measurements


def write_measurements(folder: RunFolder, measurements: Measurements) -> None:
    write_atomically(folder.measurements, json.dumps(measurements.to_json(), indent=1).encode())


def run_names(folders: Sequence[Path], measurements: Sequence[Measurements]) -> list[str]:
    """Return the names of runs; where two are equal, those of their folders, and where these are equal too, the paths."""
    own = [short_name(measured.name or "run") for measured in measurements]
    names = [
        name if own.count(name) == 1 else short_name(folder.resolve().name)
        for name, folder in zip(own, folders, strict=True)
    ]
    return names if len(set(names)) == len(names) else [clean(folder) for folder in folders]


def clean_lines(path: Path) -> str:
    """Read a text file; characters that cannot be shown are replaced."""
    return "\n".join(clean(line) if "\t" not in line else line for line in _text(path).splitlines())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def seed_folders(folder: Path) -> list[tuple[str, Path]]:
    """Return a name and a folder per finished seed, in their order; for a run of one seed, the run's own folder."""
    seeds = sorted(
        (int(number), path)
        for path in folder.glob("seed-*")
        if (number := path.name.removeprefix("seed-")).isdecimal() and RunFolder(path).measurements.is_file()
    )
    return [(f"seed {number}", path) for number, path in seeds] or [("", folder)]


def stage_folders(folder: Path) -> list[Path]:
    """Return the folders of the stages in order; for a grid, those of the cell that is best on dev."""
    if not (folder / "stages").is_dir():
        cells = {note.parent: _dev_score(note) for note in sorted(RunFolder(folder).grid.glob("*/cell.json"))}
        if not cells:
            return []
        folder = max(cells, key=cells.__getitem__)
    stages = [path for path in (folder / "stages").glob("*") if path.name.isdecimal()]
    return sorted(stages, key=lambda path: int(path.name))


def _dev_score(note: Path) -> float:
    try:
        cell = json.loads(_text(note))
    except (ValueError, RecursionError):
        return 0.0
    return (as_number(cell.get("dev")) if isinstance(cell, dict) else None) or 0.0


def read_log(log: Path, by: str) -> dict[str, Series]:
    """Read the columns of a CSV log as series over the column `by`; cells that are not numbers are skipped."""
    columns: dict[str, Series] = {}
    for row in csv.DictReader(_text(log).splitlines()) if log.is_file() else ():
        x = _float(row.get(by))
        for name, cell in row.items():
            y = _float(cell)
            if name and x is not None and y is not None:
                xs, ys = columns.setdefault(name, ([], []))
                xs.append(x)
                ys.append(y)
    return columns


def _float(text: object) -> float | None:
    try:
        return as_number(float(text))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
