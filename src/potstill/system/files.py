"""Files and folders that are either complete or absent, their checksums, locks, and temporary folders."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from potstill.system import interrupts

TEMPORARY = ".tmp-"  # prefix of drafts; such a file or folder may be left over from a killed process
LOCK = ".lock"

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
def folder_lock(folder: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Let one process at a time enter. The lock ends with the process, even if it is killed. `waiting`: called before a wait."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        while not _taken(handle):  # a blocking call would go on waiting after a signal to stop
            if waiting is not None:
                waiting()
                waiting = None
            interrupts.stop_if_asked()
            time.sleep(0.05)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough while a forked worker has the file open
        os.close(handle)


@contextmanager
def try_lock(file: Path) -> Iterator[bool]:
    """Take a lock if no other process holds it; yield whether it was free."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    mine = _taken(handle) and _is_at(handle, file)
    try:
        yield mine
    finally:
        if mine:
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _is_at(handle: int, file: Path) -> bool:
    """False if the file was removed after it was opened: another process may hold the lock of a new one."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.stat(file))
    return False


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder. One that a killed process left is removed by the next process that needs one."""
    with _held(Path(tempfile.gettempdir()), "potstill-") as place:
        yield place


@contextmanager
def draft_folder(folder: Path, replace: bool = False) -> Iterator[Path]:
    """An empty folder beside `folder`. If the body ends without an error, its files are moved into `folder`, complete and
    flushed; otherwise none is. Other files in `folder` stay, unless `replace`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _held(folder.parent, f"{TEMPORARY}{folder.name}-") as place, disk_errors(folder):
        draft = place / "made"
        draft.mkdir()
        yield draft
        for path in [*draft.rglob("*"), draft]:
            fsync_path(path)
        if replace and folder.exists():
            folder.rename(place / "replaced")  # readers of the old folder keep their open files
        if not folder.exists() or not any(folder.iterdir()):
            draft.rename(folder)  # in one step, also over an empty folder
        else:
            for path in sorted(draft.iterdir(), key=_is_model):  # the model comes last
                if (folder / path.name).is_dir():
                    shutil.rmtree(folder / path.name)
                path.rename(folder / path.name)
        fsync_path(folder.parent)


def _is_model(path: Path) -> bool:
    return path.name.startswith("model.")


@contextmanager
def _held(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder, removed after the body. Its owner holds a lock in it, which ends with the process, even if it is killed."""
    _remove_left_over(parent, prefix)
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    # locked before it is renamed, so that a lock file is never free while its owner lives
    handle = os.open(place / "locking", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        (place / "locking").rename(place / LOCK)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def _remove_left_over(parent: Path, prefix: str) -> None:
    """Remove the folders of dead processes of this user."""
    for place in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # without a lock it is not ours, or is just being made
            if place.is_symlink() or place.stat().st_uid != os.getuid():
                continue
            handle = os.open(place / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            if _taken(handle):
                shutil.rmtree(place, ignore_errors=True)
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
