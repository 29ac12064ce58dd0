"""Opens what a user gives as data: a file, two files, a folder, or the name of a data set on the Hub."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from potstill.data import formats, packages
from potstill.data.formats import arrow, parallel, race
from potstill.data.formats.reading import FileFormat, Opened
from potstill.errors import InputError
from potstill.system.files import file_xxh3

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?::([\w.-]+))?:([\w.-]+)")  # NAME[:CONFIG]:SPLIT


@cache
def file_formats() -> list[FileFormat]:
    """Return the `FORMATS` of all modules in `potstill.data.formats`, with formats that look into the file first."""
    modules = [import_module(f"{formats.__name__}.{module.name}") for module in iter_modules(formats.__path__)]
    every = [file_format for module in modules for file_format in getattr(module, "FORMATS", ())]
    return sorted(every, key=lambda file_format: file_format.has_content is None)


def formats_of(path: Path) -> list[FileFormat]:
    """Return the formats that have the ending of this file."""
    name = path.name.lower().removesuffix(".gz")
    return [file_format for file_format in file_formats() if name.endswith(file_format.endings)]


def files_of(path: Path) -> list[Path]:
    """Return the files that are read when `path` is given: itself and its companions, or the files of a RACE folder."""
    if path.is_dir():
        return race.race_files(path)
    return [path, *(file for file_format in formats_of(path) for file in file_format.companions(path))]


def files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files below a folder that a format reads, and the others, both sorted. Hidden ones do not count."""
    every = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    seen = [path for path in every if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    companions = {other for path in seen for other in files_of(path)[1:]}
    own = [path for path in seen if path not in companions]
    return [path for path in own if formats_of(path)], [path for path in own if not formats_of(path)]


def is_saved_data_set(folder: Path) -> bool:
    """Tell whether `datasets.save_to_disk` wrote this folder."""
    return any((folder / name).exists() for name in race.SAVED_DATA_SET)


def locate(source: str) -> Callable[[], Opened]:
    """Return the function that opens the source; refuse a source that is missing. A name on the Hub is not looked up.

    A source is FILE, FIRST,SECOND, FOLDER, FOLDER:SPLIT, pypi:PACKAGE[PART] or NAME[:CONFIG]:SPLIT of the Hub.
    """
    if packages.is_part(source):
        file = packages.file_of(source)
        return partial(with_digest, partial(packages.open_part, source), lambda: fingerprint([file]))
    path = Path(os.path.expanduser(source))  # an unknown ~user stays as it is
    if path.is_dir():
        return partial(open_folder, path, None, source)
    if path.is_file():
        return partial(open_file, path, source)
    if path.exists():
        raise InputError(f"{source}: this is not a regular file; write the rows into a file first")
    name, _, split = source.rpartition(":")
    if name and (folder := Path(os.path.expanduser(name))).is_dir():
        return partial(open_folder, folder, split, source)
    if both := parallel.two_files(source):
        pairs = Opened(parallel.NAMES, lambda _: parallel.line_pairs(*both), "two files")
        return lambda: with_digest(lambda: pairs, lambda: fingerprint(both))
    if hub := HUB_NAME.fullmatch(source):
        return partial(arrow.open_hub_data_set, hub[1], hub[2], hub[3], source)
    raise InputError(f"{source}: there is no such file; {similar_file(path)}")


def open_file(path: Path, source: str) -> Opened:
    matching = (each for each in formats_of(path) if each.has_content is None or each.has_content(path))
    if file_format := next(matching, None):
        return with_digest(partial(file_format.open, path, source), lambda: fingerprint(files_of(path)))
    endings = ", ".join(sorted({ending for each in file_formats() for ending in each.endings[:2]}))
    todo = f"rename it to end in one of {endings} (text formats may also be gzipped: .gz)"
    raise InputError(f"{source}: the format is not clear from the file's name; {todo}")


def open_folder(folder: Path, split: str | None, source: str) -> Opened:
    if not (files := race.race_files(folder)):
        return arrow.open_saved_data_set(folder, split, source)
    if split is not None:
        raise InputError(f"{source}: this is a folder of .txt files, which has no splits; write {folder / split}")
    return with_digest(lambda: race.open_race_folder(files), lambda: race.fingerprint(folder, files))


def with_digest(open_it: Callable[[], Opened], digest: Callable[[], str]) -> Opened:
    before = digest()
    return open_it()._replace(fingerprint=before, digest=digest)


def fingerprint(paths: Iterable[Path]) -> str:
    return "".join(file_xxh3(path) for path in paths)


def similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r} either; check the path"
    close = difflib.get_close_matches(path.name, [sibling.name for sibling in path.parent.iterdir()], n=1)
    if close:
        return f"did you mean {str(path.parent / close[0])!r}?"
    return "check the path (a data set of the Hugging Face Hub is written NAME:SPLIT)"
