"""Folders of flat binary files, one per column: written whole or not at all, read without being held in memory."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from pathlib import Path
from typing import IO, Any

import numpy as np

from potstill.files import TEMPORARY, disk_errors, write_atomically


def column(folder: Path, name: str, dtype: Any, width: int = 1) -> np.ndarray:
    """(n,) or (n, width), memory-mapped."""
    path = folder / f"{name}.bin"
    flat = np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
    return flat.reshape(-1, width) if width > 1 else flat


class ColumnFiles:
    """Files of a folder in the making; the folder takes its name when all are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.making = folder, folder.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{folder.name}")
        self.making.mkdir(parents=True)
        self.files: dict[str, IO[bytes]] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        with disk_errors(self.folder / f"{name}.bin"):
            if name not in self.files:
                self.files[name] = (self.making / f"{name}.bin").open("wb")
            self.files[name].write(np.ascontiguousarray(values).tobytes())

    def finish(self, meta: dict[str, Any]) -> None:
        with disk_errors(self.folder):
            for file in self.files.values():
                file.close()
        write_atomically(self.making / "meta.json", json.dumps(meta).encode())
        try:
            self.making.rename(self.folder)
        except OSError:  # another process was quicker with the same rows
            if not (self.folder / "meta.json").exists():
                raise

    def __enter__(self) -> ColumnFiles:
        return self

    def __exit__(self, *_: object) -> None:
        """A row that was refused, or a quicker process, must not leave half a folder behind."""
        for file in self.files.values():
            with contextlib.suppress(OSError):  # what a full disk did not take when it was written
                file.close()
        shutil.rmtree(self.making, ignore_errors=True)
