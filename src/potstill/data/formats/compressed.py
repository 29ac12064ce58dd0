"""The bytes of files that may be gzipped, with a limit on how far they expand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO, cast

MOST_EXPANDED = 4 * 2**30  # bytes
MOST_EXPANSION = 100  # times the size of the compressed file; real text reaches 3 to 20
SMALL = 2**20  # bytes: below this a high ratio only means a short file that repeats itself
BOMB = "like a decompression bomb; unpack it yourself if you trust it"


def is_gzipped(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading; if it is gzipped, its content is unpacked."""
    return cast(IO[bytes], gzip.open(path, "rb")) if is_gzipped(path) else path.open("rb")


def expansion_limit(path: Path) -> int:
    """Return how many bytes a compressed file may expand to."""
    return min(MOST_EXPANDED, max(SMALL, MOST_EXPANSION * path.stat().st_size))
