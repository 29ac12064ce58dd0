"""Folders of flat binary files, one per column. A folder is complete or absent, verified before it is read, and
memory-mapped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from potstill.system.files import draft_folder, file_xxh3, folder_lock, seal, unseal

log = logging.getLogger(__name__)

META = "meta.json"
LOCKS = ".locks"  # beside the folders: a folder gets its name only when it is complete
FileStates = tuple[tuple[int, int, int], ...]  # inode, size and time of each file

_verified: dict[Path, FileStates] = {}  # by this process: folders that did not change since are not read again


def column(folder: Path, name: str, dtype: Any, width: int = 1) -> np.ndarray:
    """(n,) or (n, width), memory-mapped."""
    path = folder / f"{name}.bin"
    flat = np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
    return flat.reshape(-1, width) if width > 1 else flat


def write_once(folder: Path, write: Callable[[ColumnFiles], None]) -> dict[str, Any]:
    """Write the folder unless it is there and intact; return the metadata that was passed to `finish`.

    Every file is compared with its checksum once per process. One process writes, the others wait for it.
    """
    meta = _intact_meta(folder)
    if meta is None:
        with folder_lock(folder.parent / LOCKS / folder.name):
            meta = _intact_meta(folder)
            if meta is None:
                with draft_folder(folder, replace=True) as draft:
                    write(ColumnFiles(draft))
                meta = _intact_meta(folder)
    if meta is None:
        raise OSError(f"{folder} was damaged right after it was written; check the disk, or move the cache elsewhere")
    return meta


def _intact_meta(folder: Path) -> dict[str, Any] | None:
    """The metadata of the folder; None if it is missing or damaged."""
    if not folder.exists():
        return None
    try:
        meta = unseal((folder / META).read_bytes())
        files = meta.pop("files")
        paths = [folder / META, *(folder / f"{name}.bin" for name in sorted(files))]
        states = tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in map(Path.stat, paths))
        if _verified.get(folder) != states:
            for path in paths[1:]:
                if file_xxh3(path) != files[path.stem]:
                    raise ValueError(f"{path.name} does not match its checksum")
            _verified[folder] = states
        return meta
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        log.warning("%s is damaged (%s): it is written again", folder, error)
        return None


class ColumnFiles:
    """A folder of columns while it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[str, Any] = {}
        self.ends: dict[str, int] = {}  # of columns of offsets

    def add(self, name: str, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values).tobytes()
        with (self.folder / f"{name}.bin").open("ab") as file:
            file.write(data)
        self.digests.setdefault(name, xxhash.xxh3_128()).update(data)

    def add_offsets(self, name: str, sizes: Iterable[int]) -> None:
        """Append the ends of parts of these sizes to a column that begins with 0."""
        offsets = np.cumsum([self.ends.get(name, 0), *sizes], dtype=np.int64)
        self.add(name, offsets[1:] if name in self.ends else offsets)
        self.ends[name] = int(offsets[-1])

    def finish(self, meta: dict[str, Any]) -> None:
        checksums = {name: digest.hexdigest() for name, digest in self.digests.items()}
        (self.folder / META).write_bytes(seal({**meta, "files": checksums}))
