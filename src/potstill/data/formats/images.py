"""Files of images: idx as MNIST is published, npz, and tables with one column per pixel.

An image is the bytes of its pixels, channel by channel and row by row. A header is trusted only if the file's size
agrees with it.
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
from typing import IO, Any

import numpy as np

from potstill.data.formats.compressed import BOMB, expansion_limit, is_gzipped, open_bytes
from potstill.data.formats.opened import FileFormat, ImageShape, KnowsColumns, Opened, Record, Records
from potstill.data.formats.text import short_repr
from potstill.errors import InputError

MOST_PIXELS = 2**20  # of one image
FEWEST_COLUMNS = 16  # numbered columns are pixels if there are at least so many
ROW_AND_COLUMN = re.compile(r"(\d+)x(\d+)")  # a column's name, as in 28x28
NUMBERED = re.compile(r"(?:pixel|px|p)?[_.]?(\d+)", re.IGNORECASE)
PIXELS = "pixels"  # name of the column that replaces the columns of pixels
IDX_ENDINGS = tuple(
    f"{sign}idx{axes}{kind}" for sign in "-." for axes in ("3", "1", "", *"0245678") for kind in ("-ubyte", "")
)


def labels_beside(images: Path) -> list[Path]:
    """Return train-labels-idx1-ubyte.gz for train-images-idx3-ubyte.gz, or the same unpacked, if there is such a file."""
    name = re.sub(r"idx\d", "idx1", images.name.replace("images", "labels"))
    unpacked = name.removesuffix(".gz")
    names = [other for other in (name, unpacked, f"{unpacked}.gz") if other != images.name]
    return [path for path in map(images.with_name, names) if path.is_file()][:1]


def open_idx(path: Path, source: str, knows: KnowsColumns) -> Opened:
    idx = Idx(path, source)
    return Opened(idx.names, lambda _: idx.records(), "idx", images={"images": idx.shape})


def open_npz(path: Path, source: str, knows: KnowsColumns) -> Opened:
    npz = Npz(path, source)
    return Opened(npz.names, npz.records, "npz", images=npz.shapes)


FORMATS = (FileFormat(IDX_ENDINGS, open_idx, companions=labels_beside), FileFormat((".npz",), open_npz))


class Idx:
    """Images of an idx file, with the labels of the file beside it."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        self.labels = next(iter(labels_beside(path)), None)
        with _unpacked(path, source) as (file, limit):
            counts = _idx_header(file, source, limit)
        if len(counts) == 1:
            todo = "give the file of the images, and the labels beside it are found"
            raise InputError(f"{source}: contains labels, not images; {todo}")
        if len(counts) != 3:
            raise InputError(f"{source}: has {len(counts)} axes; write images, height, width")
        self.count, self.shape = counts[0], _checked_shape((1, *counts[1:]), source)
        self.names = ["images", *(["labels"] if self.labels else [])]

    def records(self) -> Records:
        labels = self._read_labels(self.labels) if self.labels else None
        with _unpacked(self.path, self.source) as (file, limit):
            _idx_header(file, self.source, limit)
            for number, pixels in enumerate(_blocks(file, self.count, math.prod(self.shape), self.source, "images"), 1):
                values: dict[str, object] = {"images": pixels}
                if labels is not None:
                    values["labels"] = labels[number - 1]
                yield Record(number, values)

    def _read_labels(self, path: Path) -> bytes:
        with _unpacked(path, str(path)) as (file, limit):
            counts = _idx_header(file, str(path), limit)
            if counts != (self.count,):
                reason = f"has {' x '.join(map(str, counts))} labels, but {self.source} has {self.count} images"
                raise InputError(f"{path}: {reason}; use two files that belong together")
            (labels,) = _blocks(file, 1, self.count, str(path), "labels")  # unpacks to refuse what follows them
            return labels


def _idx_header(file: IO[bytes], source: str, limit: int) -> tuple[int, ...]:
    """Return the sizes of the axes, which must fit the file."""
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or not 1 <= start[3] <= 8:
        raise InputError(f"{source}: this is not an idx file; give one such as train-images-idx3-ubyte.gz")
    if start[2] != 8:
        raise InputError(f"{source}: contains numbers of type 0x{start[2]:02x}; write unsigned bytes (0x08)")
    sizes = file.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise InputError(f"{source}: the header is truncated; copy the file again")
    counts = struct.unpack(f">{start[3]}I", sizes)
    if not all(counts):
        raise InputError(f"{source}:1: there are no rows; write at least one")
    if math.prod(counts) > limit:
        reason = f"the header promises {math.prod(counts):,} bytes, more than the {limit:,} that such a file can hold"
        raise InputError(f"{source}: {reason}; copy the file again, or unpack it yourself if you trust it")
    return counts


@contextmanager
def _unpacked(path: Path, source: str) -> Iterator[tuple[IO[bytes], int]]:
    """Give the file's bytes, and how many there can be."""
    try:
        limit = expansion_limit(path) if is_gzipped(path) else path.stat().st_size
        with open_bytes(path) as file:
            yield file, limit
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{source}: the gzip file is damaged ({error}); compress or copy it again") from None


def _blocks(file: IO[bytes], count: int, size: int, source: str, what: str) -> Iterator[bytes]:
    """Yield `count` blocks of `size` bytes; refuse a file that ends before them or goes on after them."""
    for number in range(1, count + 1):
        block = file.read(size)
        if len(block) < size:
            reason = f"the header promises {count} {what} of {size} bytes, but the file ends in number {number}"
            raise InputError(f"{source}:{number}: {reason}; copy the file again")
        yield block
    if file.read(1):
        raise InputError(f"{source}: there are bytes after the last of {count} {what}; copy the file again")


def _checked_shape(shape: Sequence[int], source: str) -> ImageShape:
    channels, height, width = shape
    if channels not in (1, 3) or not 1 <= channels * height * width <= MOST_PIXELS:
        reason = f"images of {height} x {width} pixels and {channels} channels"
        raise InputError(f"{source}: {reason}; give 1 or 3 channels and at most {MOST_PIXELS:,} pixels")
    return channels, height, width


class Npz:
    """Arrays written by numpy.savez: images as bytes (images, height, width), or with channels last, and labels."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        self.headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        limit = expansion_limit(path)
        with self._opened() as archive:
            for info in archive.infolist():
                if info.file_size > limit:
                    reason = f"{info.filename[:60]!r} expands to {info.file_size:,} bytes"
                    raise InputError(f"{source}: {reason}, {BOMB}")
                with archive.open(info) as file:
                    self.headers[info.filename.removesuffix(".npy")] = self._header(file, info)
        self.shapes = {name: self._shape(name) for name, (sizes, _) in self.headers.items() if len(sizes) > 1}
        if not self.shapes:
            raise InputError(f"{source}: has no array of images; save one with numpy.savez(FILE, images=…, labels=…)")
        self.names = list(self.headers)

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
            reason = f"this is not an npz file, or it is damaged ({str(error)[:200]})"
            raise InputError(f"{self.source}: {reason}; write it again with numpy.savez") from None

    @contextmanager
    def _array(self, name: str) -> Iterator[IO[bytes]]:
        """Give the bytes of an array, behind its header."""
        with self._opened() as archive, archive.open(f"{name}.npy") as file:
            self._header(file, archive.getinfo(f"{name}.npy"))
            yield file

    def _header(self, file: IO[bytes], info: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return sizes of the axes and type of an array; raise ValueError if it is none, or not as large as it says."""
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise ValueError(f"{info.filename[:60]!r} has an unknown version")
        sizes, columns_first, dtype = read[version](file)
        if dtype.hasobject:
            reason = f"{info.filename[:60]!r} contains Python objects, which are never opened"
            raise InputError(f"{self.source}: {reason}; save numbers")
        if file.tell() + math.prod(sizes) * dtype.itemsize != info.file_size or (columns_first and len(sizes) > 1):
            raise ValueError(f"{info.filename[:60]!r} does not match its header, or is not in C order")
        return sizes, dtype

    def _shape(self, name: str) -> ImageShape:
        sizes, dtype = self.headers[name]
        if dtype.str != "|u1":
            todo = "save whole numbers from 0 to 255: .astype('uint8')"
            raise InputError(f"{self.source}: {name!r} contains {dtype}; {todo}")
        if len(sizes) == 2:
            side = math.isqrt(sizes[1])
            if side * side != sizes[1]:
                reason = f"rows of {sizes[1]} pixels, which is not a square"
                raise InputError(f"{self.source}: {name!r} has {reason}; save (images, height, width)")
            return _checked_shape((1, side, side), self.source)
        if len(sizes) > 4:
            raise InputError(f"{self.source}: {name!r} has {len(sizes)} axes; save (images, height, width)")
        return _checked_shape((*(sizes[3:] or (1,)), *sizes[1:3]), self.source)

    def records(self, needed: Sequence[str]) -> Records:
        (images,) = (name for name in needed if name in self.shapes)  # `open_table` needs exactly one
        others = {name: self._values(name) for name in needed if name not in self.shapes}
        count = self.headers[images][0][0]
        for name, values in others.items():
            if len(values) != count:
                reason = f"{name!r} has {len(values)} entries, {images!r} has {count}"
                raise InputError(f"{self.source}: {reason}; save as many of both")
        size, channels = math.prod(self.shapes[images]), self.shapes[images][0]
        with self._array(images) as file:
            for number, pixels in enumerate(_blocks(file, count, size, self.source, "images"), 1):
                if channels > 1:
                    pixels = np.frombuffer(pixels, np.uint8).reshape(-1, channels).T.tobytes()
                record: dict[str, object] = {images: pixels}
                yield Record(number, record | {name: values[number - 1] for name, values in others.items()})

    def _values(self, name: str) -> list[Any]:
        sizes, dtype = self.headers[name]
        if dtype.kind not in "uifUb":
            raise InputError(f"{self.source}: {name!r} contains {dtype}; save labels as numbers or texts")
        with self._array(name) as file:
            raw = next(_blocks(file, 1, math.prod(sizes) * dtype.itemsize, self.source, "arrays"))
        return list(np.frombuffer(raw, dtype).tolist())


def pixel_columns(names: Sequence[str]) -> tuple[list[str], ImageShape] | None:
    """Return the columns of a table that hold one pixel each (1x1, 1x2 …, or pixel0, pixel1 …) and the image's shape."""
    placed = [(int(match[1]), int(match[2]), name) for name in names if (match := ROW_AND_COLUMN.fullmatch(name))]
    if len(placed) >= FEWEST_COLUMNS:
        top, left = min(row for row, _, _ in placed), min(column for _, column, _ in placed)
        height, width = max(row for row, _, _ in placed) - top + 1, max(column for _, column, _ in placed) - left + 1
        every = [(row + top, column + left) for row in range(height) for column in range(width)]
        if sorted((row, column) for row, column, _ in placed) == every and max(height, width) <= 4096:
            return [name for _, _, name in sorted(placed)], (1, height, width)
    numbered = sorted((int(match[1]), name) for name in names if (match := NUMBERED.fullmatch(name)))
    side = math.isqrt(len(numbered))
    consecutive = [number - numbered[0][0] for number, _ in numbered] == list(range(len(numbered)))
    if len(numbered) >= FEWEST_COLUMNS and consecutive and side * side == len(numbered):
        return [name for _, name in numbered], (1, side, side)
    return None


def joined_pixels(records: Records, columns: Sequence[str], source: str) -> Records:
    """Replace the columns of pixels by one column."""
    replaced = set(columns)
    for line, values, _ in records:
        try:
            pixels = bytes(int(str(values[name])) for name in columns)
        except ValueError:
            wrong = next(name for name in columns if not _is_pixel(values[name]))
            reason = f"{wrong!r} is {short_repr(values[wrong])}, not a pixel"
            raise InputError(f"{source}:{line}: {reason}; write a whole number from 0 to 255") from None
        others = {name: value for name, value in values.items() if name not in replaced}
        yield Record(line, {**others, PIXELS: pixels})


def _is_pixel(cell: object) -> bool:
    try:
        return 0 <= int(str(cell)) <= 255
    except ValueError:
        return False
