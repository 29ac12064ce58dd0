"""Files that are either whole or not there, and checksums that say so."""

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

TEMPORARY = ".tmp-"  # what starts so was left by a process that died while writing

# a file that potstill may write into a model's folder; any other name there is the user's
MODEL_FILE = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|processor_config)\.json"
    r"|README\.md|[\w.-]*\.safetensors|[\w.-]*\.safetensors\.index\.json|vocab\.txt|merges\.txt|words\.txt"
    r"|chat_template\.jinja|[\w.-]+\.(spm|model)|(model|int8)\.onnx(\.data)?",
    re.ASCII,
)


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Whoever opens `path`, also after a power cut, finds the old content or all of `data`. The folder must exist."""
    with replaced(path) as file:
        file.write(data)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """The same for what is written bit by bit: the file takes its name when the body has ended well."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}")
    try:
        with disk_errors(path), open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        # a full disk: what we wrote so far would only keep it full
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time, over all that share the folder; the lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        while not _taken(handle):  # a call that waits would go on waiting though the run is asked to end
            if asked := interrupts.asked():
                raise interrupts.Interrupted(asked)
            time.sleep(0.05)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough where a forked worker still holds the file
        os.close(handle)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """An error of the disk says the path: also one of a write, which knows none, and one of a library in another language."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # without one, an error with a path would lose its words
            error.filename = error.filename or str(path)
        raise
    except Exception as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def remove_files(folder: Path, ours: Callable[[str], bool]) -> None:
    """Remove the files below a folder whose path, as seen from it, `ours` knows, and the folders that are empty then."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(place, name)
            if ours(path.relative_to(folder).as_posix()):
                path.unlink()
        if Path(place) != Path(folder):
            with contextlib.suppress(OSError):  # not empty: something of the user's is left in it
                os.rmdir(place)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def fsync_path(path: Path) -> None:
    """Push a file's content, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def xxh3_of(path: Path) -> str:
    """xxh3_128 of a file as hex, read bit by bit."""
    with path.open("rb") as file:
        return str(hashlib.file_digest(file, xxhash.xxh3_128).hexdigest())


def sealed(content: dict[str, Any]) -> bytes:
    """JSON that carries its own checksum under "xxh3": a manifest has nobody else to vouch for it."""
    if "xxh3" in content:
        raise ValueError("'xxh3' is the seal's own name; call the field something else")
    return _json({**content, "xxh3": xxhash.xxh3_128_hexdigest(_json(content))})


def unsealed(data: bytes) -> dict[str, Any]:
    """The content of `sealed` bytes; ValueError if a single bit differs, spaces and escapes included."""
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    content.pop("xxh3", None)
    if sealed(content) != data:
        raise ValueError("does not match its own checksum")
    return content


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, sort_keys=True, allow_nan=False) + "\n").encode()
