"""Folders of flat binary files, one per column: written whole or not at all, checked before they are read, and read
without being held in memory."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from potstill.system.files import (
    TEMPORARY,
    disk_errors,
    fsync_path,
    locked,
    sealed,
    unsealed,
    write_atomically,
    xxh3_of,
)

log = logging.getLogger(__name__)

META = "meta.json"
LOCKS = ".locks"  # beside the folders: a folder takes its name only when it is whole
Seen = tuple[tuple[int, int, int], ...]  # number, size and time of each file

_checked: dict[Path, Seen] = {}  # by this process: what did not change since is not read again


def column(folder: Path, name: str, dtype: Any, width: int = 1) -> np.ndarray:
    """(n,) or (n, width), memory-mapped."""
    path = folder / f"{name}.bin"
    flat = np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
    return flat.reshape(-1, width) if width > 1 else flat


def made_once(folder: Path, write: Callable[[ColumnFiles], None]) -> dict[str, Any]:
    """What `finish` was told of the folder, which is written now if it is not there, or not as it was written.

    Every file is compared with its checksum once per process. Of several processes one writes and the others wait.
    """
    meta = _whole(folder)
    if meta is None:
        with locked(folder.parent / LOCKS / folder.name):
            meta = _whole(folder)
            if meta is None:
                with ColumnFiles(folder) as columns:
                    write(columns)
                meta = _whole(folder)
    if meta is None:
        raise OSError(f"{folder} was damaged as soon as it was written; check the disk, or move the cache elsewhere")
    return meta


def _whole(folder: Path) -> dict[str, Any] | None:
    """The folder's meta if each file is as it was written; None if there is no such folder."""
    if not folder.exists():
        return None
    try:
        meta = unsealed((folder / META).read_bytes())
        files = meta.pop("files")
        paths = [folder / META, *(folder / f"{name}.bin" for name in sorted(files))]
        seen = tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in map(Path.stat, paths))
        if _checked.get(folder) != seen:
            for path in paths[1:]:
                if xxh3_of(path) != files[path.stem]:
                    raise ValueError(f"{path.name} does not match its checksum")
            _checked[folder] = seen
        return meta
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        log.warning("%s is damaged (%s): it is made again", folder, error)
        return None


class ColumnFiles:
    """Files of a folder in the making; the folder takes its name when all are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.making = folder, folder.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{folder.name}")
        self.making.mkdir(parents=True)
        self.files: dict[str, IO[bytes]] = {}
        self.digests: dict[str, Any] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        with disk_errors(self.folder / f"{name}.bin"):
            if name not in self.files:
                self.files[name] = (self.making / f"{name}.bin").open("wb")
                self.digests[name] = xxhash.xxh3_128()
            data = np.ascontiguousarray(values).tobytes()
            self.files[name].write(data)
            self.digests[name].update(data)

    def finish(self, meta: dict[str, Any]) -> None:
        with disk_errors(self.folder):
            for file in self.files.values():
                file.flush()
                os.fsync(file.fileno())  # a power cut must not leave the name without the content
                file.close()
        checksums = {name: digest.hexdigest() for name, digest in self.digests.items()}
        write_atomically(self.making / META, sealed({**meta, "files": checksums}))
        damaged = self.folder.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-damaged-{self.folder.name}")
        with contextlib.suppress(FileNotFoundError):  # readers of what was there keep the files that they have open
            self.folder.rename(damaged)
        self.making.rename(self.folder)
        fsync_path(self.folder.parent)
        shutil.rmtree(damaged, ignore_errors=True)

    def __enter__(self) -> ColumnFiles:
        return self

    def __exit__(self, *_: object) -> None:
        """A row that was refused must not leave half a folder behind."""
        for file in self.files.values():
            with contextlib.suppress(OSError):  # what a full disk did not take when it was written
                file.close()
        shutil.rmtree(self.making, ignore_errors=True)
