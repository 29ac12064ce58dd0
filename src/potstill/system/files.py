"""Files that are either complete or absent, their checksums, and locks on folders."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from potstill.system import interrupts

TEMPORARY = ".tmp-"  # prefix of drafts; such a file or folder may be left over from a killed process

# files that potstill may write into the folder of a model; any other file there belongs to the user
MODEL_FILE = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|processor_config)\.json"
    r"|README\.md|[\w.-]*\.safetensors|[\w.-]*\.safetensors\.index\.json|vocab\.txt|merges\.txt|words\.txt"
    r"|chat_template\.jinja|[\w.-]+\.(spm|model)|(model|int8)\.onnx(\.data)?",
    re.ASCII,
)


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace a file. Even after a power cut, `path` has either its old content or all of `data`. The folder must exist."""
    with atomic_writer(path) as file:
        file.write(data)


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """The same for a file that is written piece by piece: it gets its name when the body ends without an error."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}")
    try:
        with disk_errors(path), open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        # on a full disk the draft would only keep it full
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time enter. The lock ends with the process, even if it is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        while not _taken(handle):  # a blocking call would go on waiting after a signal to stop
            interrupts.stop_if_asked()
            time.sleep(0.05)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough while a forked worker has the file open
        os.close(handle)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Add the path to errors of the disk, also to those of a write, and of libraries written in Rust."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # without a number, an error with a path would lose its message
            error.filename = error.filename or str(path)
        raise
    except Exception as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def remove_files(folder: Path, ours: Callable[[str], bool]) -> None:
    """Remove the files below a folder whose relative path `ours` accepts, and the folders that are empty then."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(place, name)
            if ours(path.relative_to(folder).as_posix()):
                path.unlink()
        if Path(place) != Path(folder):
            with contextlib.suppress(OSError):  # not empty: it holds files of the user
                os.rmdir(place)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def fsync_path(path: Path) -> None:
    """Flush the content of a file, or the list of names of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_xxh3(path: Path) -> str:
    """The xxh3_128 digest of a file, as hex."""
    with path.open("rb") as file:
        return str(hashlib.file_digest(file, xxhash.xxh3_128).hexdigest())


def seal(content: dict[str, Any]) -> bytes:
    """JSON with its own checksum under "xxh3"."""
    if "xxh3" in content:
        raise ValueError("'xxh3' is reserved for the checksum; use another name")
    return _json({**content, "xxh3": xxhash.xxh3_128_hexdigest(_json(content))})


def unseal(data: bytes) -> dict[str, Any]:
    """The content of sealed bytes; ValueError if a single bit differs, spaces and escapes included."""
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    content.pop("xxh3", None)
    if seal(content) != data:
        raise ValueError("does not match its own checksum")
    return content


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True, allow_nan=False) + "\n").encode()
