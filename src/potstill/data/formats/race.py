"""RACE: a JSON object per passage with lists of its questions, options and answers; also a folder of such files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import xxhash

from potstill.data.formats.json_files import json_object, open_json_lines
from potstill.data.formats.reading import FileFormat, Opened, Record, Records, first_bytes, short_repr
from potstill.errors import InputError

NAMES = {"article", "questions", "options"}
LISTS = ("questions", "options", "answers")  # one entry per question of the passage; answers may be missing
SAVED_DATA_SET = ("dataset_info.json", "state.json", "dataset_dict.json")  # in a folder written by save_to_disk


def is_race(path: Path) -> bool:
    """Tell whether the first line of a text file is a passage of RACE."""
    try:
        first = json.loads(first_bytes(path).lstrip().partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.keys() >= NAMES


FORMATS = (FileFormat((".txt",), open_json_lines, has_content=is_race),)


def split_questions(opened: Opened, source: str) -> Opened:
    """Return a source with one record per question if each of its records is a passage of RACE."""
    lists = [name for name in LISTS if name in opened.names]
    if not set(opened.names) >= NAMES:
        return opened
    first = next(opened.records(lists), None)
    if first is None or not isinstance(first.values.get("questions"), list):
        return opened

    def records(needed: Sequence[str]) -> Records:
        return question_records(opened.records(list(dict.fromkeys([*needed, *lists]))), source)

    return opened._replace(records=records)


def question_records(passages: Records, source: str) -> Records:
    """Yield one record per question, with the column names of the passages."""
    for passage in passages:
        lists: dict[str, list[object]] = {}
        for key in LISTS:
            value = passage.values.get(key)
            if value is None and key == "answers":
                continue
            if not isinstance(value, list):
                reason = f"{key!r} is {short_repr(value)}, not a list"
                raise InputError(f"{passage.where(source)}: {reason}; write one entry per question of the passage")
            lists[key] = value
        if len({len(value) for value in lists.values()}) > 1:
            reason = "there are " + ", ".join(f"{len(value)} {key}" for key, value in lists.items())
            raise InputError(f"{passage.where(source)}: {reason}; write one entry per question in each list")
        for parts in zip(*lists.values(), strict=True):
            yield passage._replace(values=passage.values | dict(zip(lists, parts, strict=True)))


def race_files(folder: Path) -> list[Path]:
    """Return the .txt files below a folder, sorted by name; none if the folder is a saved data set."""
    if any((folder / name).exists() for name in SAVED_DATA_SET):
        return []
    return sorted(path for path in folder.rglob("*.txt") if path.is_file())


def open_race_folder(files: list[Path]) -> Opened:
    return Opened(list(read_passage(files[0])), lambda _: folder_records(files), "race")


def read_passage(path: Path) -> dict[str, object]:
    return json_object(path, str(path), "remove files that are not passages of RACE with their questions")


def folder_records(files: list[Path]) -> Records:
    """Yield one record per question, numbered from 1 over all files; its place is its file and its number there."""
    number = 0
    for path in files:
        questions = question_records(iter([Record(1, read_passage(path))]), str(path))
        for number_in_file, question in enumerate(questions, 1):
            number += 1
            yield Record(number, question.values, f"{path}:{number_in_file}")


def fingerprint(folder: Path, files: list[Path]) -> str:
    digest = xxhash.xxh3_128()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
