"""Opens what a user gives as data: a file, two files, a folder, or the name of a data set on the Hub."""

from __future__ import annotations

import difflib
import os
import re
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal, NamedTuple

from potstill.data import formats
from potstill.data.formats import arrow, parallel, race
from potstill.data.formats.opened import FileFormat, KnowsColumns, Opened
from potstill.errors import InputError
from potstill.system.files import file_xxh3

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?::([\w.-]+))?:([\w.-]+)")  # NAME[:CONFIG]:SPLIT


@cache
def file_formats() -> list[FileFormat]:
    """Return the `FORMATS` of all modules in `potstill.data.formats`, with formats that look into the file first."""
    modules = [import_module(f"{formats.__name__}.{module.name}") for module in iter_modules(formats.__path__)]
    every = [file_format for module in modules for file_format in getattr(module, "FORMATS", ())]
    return sorted(every, key=lambda file_format: file_format.has_content is None)


def format_of(path: Path) -> FileFormat | None:
    name = path.name.lower().removesuffix(".gz")
    fitting = (file_format for file_format in file_formats() if name.endswith(file_format.endings))
    return next((each for each in fitting if each.has_content is None or each.has_content(path)), None)


def files_of(path: Path) -> list[Path]:
    """Return the files that are read when `path` is given: itself and its companions, or the files of a RACE folder."""
    if path.is_dir():
        return race.race_files(path)
    name = path.name.lower().removesuffix(".gz")
    return [path, *(file for each in file_formats() if name.endswith(each.endings) for file in each.companions(path))]


class Location(NamedTuple):
    """Where rows are. Nothing is opened yet."""

    kind: Literal["folder", "file", "two files", "hub"]
    paths: tuple[Path, ...] = ()
    split: str | None = None  # of a folder that has several
    hub: tuple[str, str | None, str] = ("", None, "")  # name, configuration, split


def locate(source: str) -> Location:
    """Find FILE, FIRST,SECOND, FOLDER, FOLDER:SPLIT or NAME[:CONFIG]:SPLIT of the Hub; refuse a source that is missing."""
    path = Path(os.path.expanduser(source))  # an unknown ~user stays as it is
    if path.is_dir():
        return Location("folder", (path,))
    if path.is_file():
        return Location("file", (path,))
    if path.exists():
        raise InputError(f"{source}: this is not a regular file; write the rows into a file first")
    name, _, split = source.rpartition(":")
    if name and (folder := Path(os.path.expanduser(name))).is_dir():
        return Location("folder", (folder,), split)
    if both := parallel.two_files(source):
        return Location("two files", both)
    if hub := HUB_NAME.fullmatch(source):
        return Location("hub", hub=(hub[1], hub[2], hub[3]))
    raise InputError(f"{source}: there is no such file; {similar_file(path)}")


def open_source(source: str, knows: KnowsColumns) -> Opened:
    """Open a source as the user wrote it."""
    kind, paths, split, hub = locate(source)
    if kind == "folder":
        return open_folder(paths[0], split, source)
    if kind == "file":
        return open_file(paths[0], source, knows)
    if kind == "two files":
        first, second = paths
        digest = partial(fingerprint, first, second)
        return Opened(parallel.NAMES, lambda _: parallel.line_pairs(first, second), "two files", digest(), digest)
    return arrow.open_hub_data_set(*hub, source)


def open_file(path: Path, source: str, knows: KnowsColumns) -> Opened:
    digest = partial(fingerprint, *files_of(path))
    before = digest()
    file_format = format_of(path)
    if file_format is None:
        endings = sorted({ending for each in file_formats() for ending in each.endings[:2]})
        todo = f"rename it to end in one of {', '.join(endings)} (text formats may also be gzipped: .gz)"
        raise InputError(f"{source}: the format is not clear from the file's name; {todo}")
    return file_format.open(path, source, knows)._replace(fingerprint=before, digest=digest)


def open_folder(folder: Path, split: str | None, source: str) -> Opened:
    if not (files := race.race_files(folder)):
        return arrow.open_saved_data_set(folder, split, source)
    if split is not None:
        raise InputError(f"{source}: this is a folder of .txt files, which has no splits; write {folder / split}")
    return race.open_race_folder(folder, files)


def fingerprint(*paths: Path) -> str:
    return "".join(file_xxh3(path) for path in paths)


def similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r} either; check the path"
    close = difflib.get_close_matches(path.name, [sibling.name for sibling in path.parent.iterdir()], n=1)
    if close:
        return f"did you mean {str(path.parent / close[0])!r}?"
    return "check the path (a data set of the Hugging Face Hub is written NAME:SPLIT)"
