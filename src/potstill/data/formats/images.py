"""Files of images: idx as MNIST has them, npz, and tables with a column per pixel.

An image is a text whose characters are its pixels, chr(0) to chr(255), channel by channel and row by row: so rows of
images are stored, hashed and remembered like all others. A header is believed only where the file's size agrees.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from potstill.data.formats.text import EXPANDED, EXPANSION, HARMLESS, Records, short_repr
from potstill.errors import InputError

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, int, int]
"""Channels, height, width."""

MOST_PIXELS = 2**20  # of one image
FEWEST_COLUMNS = 16  # from which on numbered columns are pixels
IDX = re.compile(r"[.-]idx\d?(-ubyte)?$")
PLACED = re.compile(r"(\d+)x(\d+)")  # a column's name: row and column, as in 28x28
NUMBERED = re.compile(r"(?:pixel|px|p)?[_.]?(\d+)", re.IGNORECASE)
PIXELS = "pixels"  # the column that columns of pixels become


def is_idx(name: str) -> bool:
    return bool(IDX.search(name.lower().removesuffix(".gz")))


def labels_beside(images: Path) -> Path | None:
    """train-images-idx3-ubyte.gz -> train-labels-idx1-ubyte.gz, or the same unpacked; None where there is no such file."""
    name = re.sub(r"idx\d", "idx1", images.name.replace("images", "labels"))
    plain = name.removesuffix(".gz")
    found = [images.with_name(one) for one in (name, plain, f"{plain}.gz") if one != images.name]
    return next((one for one in found if one.is_file()), None)


class Idx:
    """Images of an idx file with the labels that lie beside it."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source, self.labels = path, source, labels_beside(path)
        with _unpacked(path, source) as (file, allowed):
            counts = _idx_header(file, source, allowed)
        if len(counts) == 1:
            raise InputError(f"{source}: holds labels, not images; name the file of the images, the labels are found")
        if len(counts) != 3:
            raise InputError(f"{source}: has {len(counts)} axes; write images, height, width")
        self.count, self.shape = counts[0], _checked_shape((1, *counts[1:]), source)
        self.names = ["images", *(["labels"] if self.labels else [])]

    def records(self) -> Records:
        labels = self._labels() if self.labels else None
        with _unpacked(self.path, self.source) as (file, allowed):
            _idx_header(file, self.source, allowed)
            for number, pixels in enumerate(_images(file, self.count, math.prod(self.shape), self.source), 1):
                record: dict[str, object] = {"images": pixels}
                if labels is not None:
                    record["labels"] = labels[number - 1]
                yield number, record

    def _labels(self) -> bytes:
        assert self.labels is not None
        with _unpacked(self.labels, str(self.labels)) as (file, allowed):
            counts = _idx_header(file, str(self.labels), allowed)
            if counts != (self.count,):
                told = f"holds {' x '.join(map(str, counts))} labels, {self.source} {self.count} images"
                raise InputError(f"{self.labels}: {told}; take two files that belong together")
            (numbers,) = _pieces(file, 1, self.count, str(self.labels), "labels")  # all of them: nothing may follow
            return numbers


def _idx_header(file: IO[bytes], source: str, allowed: int) -> tuple[int, ...]:
    """The sizes of the axes, which must fit the file."""
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or not 1 <= start[3] <= 8:
        raise InputError(f"{source}: this is not an idx file; give one such as train-images-idx3-ubyte.gz")
    if start[2] != 8:
        raise InputError(f"{source}: holds numbers of kind 0x{start[2]:02x}; write unsigned bytes (0x08)")
    sizes = file.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise InputError(f"{source}: the header is cut off; copy the file again")
    counts = struct.unpack(f">{start[3]}I", sizes)
    if not all(counts):
        raise InputError(f"{source}:1: there are no rows; write at least one")
    if math.prod(counts) > allowed:
        reason = f"the header promises {math.prod(counts):,} bytes, more than the {allowed:,} that such a file can hold"
        raise InputError(f"{source}: {reason}; copy the file again, or unpack it yourself if you trust it")
    return counts


@contextmanager
def _unpacked(path: Path, source: str) -> Iterator[tuple[IO[bytes], int]]:
    """The file's bytes, and how many they may be."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        allowed = min(EXPANDED, max(HARMLESS, EXPANSION * size)) if packed else size
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            yield file, allowed  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{source}: the gzip file is damaged ({error}); compress or copy it again") from None


def _pieces(file: IO[bytes], count: int, size: int, source: str, what: str) -> Iterator[bytes]:
    """So many pieces of this size, and nothing after them."""
    for number in range(1, count + 1):
        piece = file.read(size)
        if len(piece) < size:
            reason = f"the header promises {count} {what} of {size} bytes, but the file ends in number {number}"
            raise InputError(f"{source}:{number}: {reason}; copy the file again")
        yield piece
    if file.read(1):
        raise InputError(f"{source}: bytes follow after the last of {count} {what}; copy the file again")


def _images(file: IO[bytes], count: int, size: int, source: str) -> Iterator[str]:
    for piece in _pieces(file, count, size, source, "images"):
        yield piece.decode("latin-1")


def _checked_shape(shape: Sequence[int], source: str) -> Shape:
    channels, height, width = shape
    if channels not in (1, 3) or not 1 <= channels * height * width <= MOST_PIXELS:
        reason = f"images of {height} x {width} pixels and {channels} channels"
        raise InputError(f"{source}: {reason}; give 1 or 3 channels and at most {MOST_PIXELS:,} pixels")
    return channels, height, width


class Npz:
    """Arrays of bytes (images, height, width), or with channels last, and arrays of labels, by numpy.savez."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        self.heads: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        allowed = min(EXPANDED, max(HARMLESS, EXPANSION * path.stat().st_size))
        with self._opened() as archive:
            for info in archive.infolist():
                if info.file_size > allowed:
                    reason = f"{info.filename[:60]!r} grows to {info.file_size:,} bytes, like a decompression bomb"
                    raise InputError(f"{source}: {reason}; unpack it yourself if you trust it")
                with archive.open(info) as file:
                    self.heads[info.filename.removesuffix(".npy")] = self._header(file, info)
        self.shapes = {name: self._shape(name) for name, (sizes, _) in self.heads.items() if len(sizes) > 1}
        if not self.shapes:
            raise InputError(f"{source}: holds no array of images; save one by numpy.savez(FILE, images=…, labels=…)")
        self.names = list(self.heads)

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
            reason = f"this is not an npz file, or a damaged one ({str(error)[:200]})"
            raise InputError(f"{self.source}: {reason}; write it again by numpy.savez") from None

    def _header(self, file: IO[bytes], info: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Sizes of the axes and type of an array; ValueError where it is none, or not as large as it says."""
        import numpy as np

        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise ValueError(f"{info.filename[:60]!r} is of an unknown version")
        sizes, columns_first, kind = read[version](file)
        if kind.hasobject:
            raise InputError(
                f"{self.source}: {info.filename[:60]!r} holds Python objects, which are never opened; save numbers"
            )
        if file.tell() + math.prod(sizes) * kind.itemsize != info.file_size or (columns_first and len(sizes) > 1):
            raise ValueError(f"{info.filename[:60]!r} is not as its header says, or not in C order")
        return sizes, kind

    def _shape(self, name: str) -> Shape:
        sizes, kind = self.heads[name]
        if kind.str != "|u1":
            raise InputError(
                f"{self.source}: {name!r} holds {kind}; save whole numbers from 0 to 255: .astype('uint8')"
            )
        if len(sizes) == 2:
            side = math.isqrt(sizes[1])
            if side * side != sizes[1]:
                reason = f"rows of {sizes[1]} pixels, which are no square"
                raise InputError(f"{self.source}: {name!r} has {reason}; save (images, height, width)")
            return _checked_shape((1, side, side), self.source)
        if len(sizes) > 4:
            raise InputError(f"{self.source}: {name!r} has {len(sizes)} axes; save (images, height, width)")
        return _checked_shape((*(sizes[3:] or (1,)), *sizes[1:3]), self.source)

    def records(self, needed: Sequence[str]) -> Records:
        import numpy as np

        images = [name for name in needed if name in self.shapes]
        others = {name: self._values(name) for name in needed if name not in self.shapes}
        assert len(images) == 1  # of which open_table takes the named or the usual one
        count = self.heads[images[0]][0][0]
        for name, values in others.items():
            if len(values) != count:
                reason = f"{name!r} has {len(values)} entries, {images[0]!r} {count}"
                raise InputError(f"{self.source}: {reason}; save as many of both")
        with self._opened() as archive, archive.open(f"{images[0]}.npy") as file:
            self._header(file, archive.getinfo(f"{images[0]}.npy"))
            size, channels = math.prod(self.shapes[images[0]]), self.shapes[images[0]][0]
            for number, piece in enumerate(_pieces(file, count, size, self.source, "images"), 1):
                if channels > 1:
                    piece = np.frombuffer(piece, np.uint8).reshape(-1, channels).T.tobytes()
                record: dict[str, object] = {images[0]: piece.decode("latin-1")}
                yield number, record | {name: values[number - 1] for name, values in others.items()}

    def _values(self, name: str) -> list[Any]:
        import numpy as np

        sizes, kind = self.heads[name]
        if kind.kind not in "uifUb":
            raise InputError(f"{self.source}: {name!r} holds {kind}; save labels as numbers or texts")
        with self._opened() as archive, archive.open(f"{name}.npy") as file:
            self._header(file, archive.getinfo(f"{name}.npy"))
            raw = next(_pieces(file, 1, math.prod(sizes) * kind.itemsize, self.source, "arrays"))
        return list(np.frombuffer(raw, kind).tolist())


def pixel_columns(names: Sequence[str]) -> tuple[list[str], Shape] | None:
    """Columns of a table that are pixels, one each, and the image they make: 1x1, 1x2 …, or pixel0, pixel1 …"""
    placed = [(int(found[1]), int(found[2]), name) for name in names if (found := PLACED.fullmatch(name))]
    if len(placed) >= FEWEST_COLUMNS:
        top, left = min(row for row, _, _ in placed), min(column for _, column, _ in placed)
        height, width = max(row for row, _, _ in placed) - top + 1, max(column for _, column, _ in placed) - left + 1
        every = [(row + top, column + left) for row in range(height) for column in range(width)]
        if sorted((row, column) for row, column, _ in placed) == every and max(height, width) <= 4096:
            return [name for _, _, name in sorted(placed)], (1, height, width)
    numbered = sorted((int(found[1]), name) for name in names if (found := NUMBERED.fullmatch(name)))
    side = math.isqrt(len(numbered))
    in_a_row = [number - numbered[0][0] for number, _ in numbered] == list(range(len(numbered)))
    if len(numbered) >= FEWEST_COLUMNS and in_a_row and side * side == len(numbered):
        return [name for _, name in numbered], (1, side, side)
    return None


def joined_pixels(records: Records, columns: Sequence[str], source: str) -> Records:
    """The columns of pixels as one."""
    taken = set(columns)
    for line, record in records:
        cells = [record[name] for name in columns]
        try:
            pixels = bytes(map(int, map(str, cells)))
        except ValueError:
            wrong = next(name for name in columns if not _is_pixel(record[name]))
            reason = f"{wrong!r} is {short_repr(record[wrong])}, not a pixel"
            raise InputError(f"{source}:{line}: {reason}; write a whole number from 0 to 255") from None
        rest = {name: value for name, value in record.items() if name not in taken}
        yield line, {**rest, PIXELS: pixels.decode("latin-1")}


def _is_pixel(cell: object) -> bool:
    try:
        return 0 <= int(str(cell)) <= 255
    except ValueError:
        return False
