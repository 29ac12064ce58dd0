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
from typing import IO, Any, NamedTuple

import numpy as np

from potstill.data.formats import reading
from potstill.data.formats.reading import FileFormat, ImageShape, Opened, Record, Records
from potstill.errors import InputError

MOST_PIXELS = 2**20  # of one image
FEWEST_COLUMNS = 16  # numbered columns are pixels if there are at least so many
ROW_AND_COLUMN = re.compile(r"(\d+)x(\d+)")  # a column's name, as in 28x28
NUMBERED = re.compile(r"(?:pixel|px|p)?[_.]?(\d+)", re.IGNORECASE)
PIXELS = "pixels"  # name of the column that replaces the columns of pixels
IDX_ENDINGS = tuple(
    f"{sign}idx{axes}{kind}" for sign in "-." for axes in ("3", "1", "", *"0245678") for kind in ("-ubyte", "")
)


def open_idx(path: Path, source: str) -> Opened:
    """Open the images of an idx file, with the labels of the file beside it."""
    with idx_bytes(path, source) as (_, sizes):
        if len(sizes) == 1:
            raise InputError(f"{source}: contains labels, not images; give the images, and the labels beside are found")
        if len(sizes) != 3:
            raise InputError(f"{source}: has {len(sizes)} axes; write images, height, width")
    shape = checked_shape((1, *sizes[1:]), source)
    label_file = next(iter(labels_beside(path)), None)

    def records(needed: Sequence[str]) -> Records:
        labels = idx_labels(label_file, sizes[0], source) if label_file else None
        with idx_bytes(path, source) as (file, _):
            for number, pixels in enumerate(blocks(file, sizes[0], math.prod(shape), source, "images")):
                values: dict[str, object] = {"images": pixels}
                yield Record(number + 1, values | ({"labels": labels[number]} if labels else {}))

    return Opened(["images", "labels"][: 2 if label_file else 1], records, "idx", images={"images": shape})


def labels_beside(images: Path) -> list[Path]:
    """Return train-labels-idx1-ubyte.gz for train-images-idx3-ubyte.gz, or the same unpacked, if there is such a file."""
    name = re.sub(r"idx\d", "idx1", images.name.replace("images", "labels"))
    unpacked = name.removesuffix(".gz")
    names = [other for other in (name, unpacked, f"{unpacked}.gz") if other != images.name]
    return [path for path in map(images.with_name, names) if path.is_file()][:1]


def idx_labels(path: Path, images: int, source: str) -> bytes:
    with idx_bytes(path, str(path)) as (file, sizes):
        if sizes != (images,):
            reason = f"has {' x '.join(map(str, sizes))} labels, but {source} has {images} images"
            raise InputError(f"{path}: {reason}; use two files that belong together")
        (labels,) = blocks(file, 1, images, str(path), "labels")  # unpacks to refuse what follows them
        return labels


@contextmanager
def idx_bytes(path: Path, source: str) -> Iterator[tuple[IO[bytes], tuple[int, ...]]]:
    """Give the unpacked bytes behind the header, and the sizes of the axes, which must fit the file."""
    try:
        limit = reading.expansion_limit(path) if reading.is_gzipped(path) else path.stat().st_size
        with reading.open_bytes(path) as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or not 1 <= start[3] <= 8:
                raise InputError(f"{source}: this is not an idx file; give one such as train-images-idx3-ubyte.gz")
            if start[2] != 8:
                raise InputError(f"{source}: contains numbers of type 0x{start[2]:02x}; write unsigned bytes (0x08)")
            raw = file.read(4 * start[3])
            if len(raw) < 4 * start[3]:
                raise InputError(f"{source}: the header is truncated; copy the file again")
            sizes = struct.unpack(f">{start[3]}I", raw)
            if not all(sizes):
                raise InputError(f"{source}:1: there are no rows; write at least one")
            if math.prod(sizes) > limit:
                reason = f"the header promises {math.prod(sizes):,} bytes, more than the {limit:,} of such a file"
                raise InputError(f"{source}: {reason}; copy the file again, or unpack it yourself if you trust it")
            yield file, sizes
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{source}: the gzip file is damaged ({error}); compress or copy it again") from None


def blocks(file: IO[bytes], count: int, size: int, source: str, what: str) -> Iterator[bytes]:
    """Yield `count` blocks of `size` bytes; refuse a file that ends before them or goes on after them."""
    for number in range(1, count + 1):
        block = file.read(size)
        if len(block) < size:
            reason = f"the header promises {count} {what} of {size} bytes, but the file ends in number {number}"
            raise InputError(f"{source}:{number}: {reason}; copy the file again")
        yield block
    if file.read(1):
        raise InputError(f"{source}: there are bytes after the last of {count} {what}; copy the file again")


def checked_shape(shape: Sequence[int], source: str) -> ImageShape:
    channels, height, width = shape
    if channels not in (1, 3) or not 1 <= channels * height * width <= MOST_PIXELS:
        reason = f"images of {height} x {width} pixels and {channels} channels"
        raise InputError(f"{source}: {reason}; give 1 or 3 channels and at most {MOST_PIXELS:,} pixels")
    return channels, height, width


class ArrayHeader(NamedTuple):
    sizes: tuple[int, ...]  # of the axes
    dtype: np.dtype[Any]


def open_npz(path: Path, source: str) -> Opened:
    """Open arrays of numpy.savez: images as bytes (images, height, width), or with channels last, and labels."""
    limit = reading.expansion_limit(path)
    headers: dict[str, ArrayHeader] = {}
    with npz_archive(path, source) as archive:
        for info in archive.infolist():
            if info.file_size > limit:
                reason = f"{info.filename[:60]!r} expands to {info.file_size:,} bytes"
                raise InputError(f"{source}: {reason}, {reading.BOMB}")
            with archive.open(info) as file:
                headers[info.filename.removesuffix(".npy")] = array_header(file, info, source)
    shapes = {name: image_shape(header, name, source) for name, header in headers.items() if len(header.sizes) > 1}
    if not shapes:
        raise InputError(f"{source}: has no array of images; save one with numpy.savez(FILE, images=…, labels=…)")

    def array_blocks(name: str, count: int, what: str) -> Iterator[bytes]:
        size = math.prod(headers[name].sizes) * headers[name].dtype.itemsize // count
        with npz_archive(path, source) as archive, archive.open(f"{name}.npy") as file:
            array_header(file, archive.getinfo(f"{name}.npy"), source)
            yield from blocks(file, count, size, source, what)

    def values_of(name: str) -> list[Any]:
        dtype = headers[name].dtype
        if dtype.kind not in "uifUb":
            raise InputError(f"{source}: {name!r} contains {dtype}; save labels as numbers or texts")
        return list(np.frombuffer(next(array_blocks(name, 1, "arrays")), dtype).tolist())

    def records(needed: Sequence[str]) -> Records:
        (images,) = (name for name in needed if name in shapes)  # `open_table` needs exactly one
        others = {name: values_of(name) for name in needed if name not in shapes}
        count, channels = headers[images].sizes[0], shapes[images][0]
        for name, values in others.items():
            if len(values) != count:
                reason = f"{name!r} has {len(values)} entries, {images!r} has {count}"
                raise InputError(f"{source}: {reason}; save as many of both")
        for number, pixels in enumerate(array_blocks(images, count, "images") if count else ()):
            if channels > 1:
                pixels = np.frombuffer(pixels, np.uint8).reshape(-1, channels).T.tobytes()
            yield Record(number + 1, {images: pixels, **{name: values[number] for name, values in others.items()}})

    return Opened(list(headers), records, "npz", images=shapes)


@contextmanager
def npz_archive(path: Path, source: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        reason = f"this is not an npz file, or it is damaged ({str(error)[:200]})"
        raise InputError(f"{source}: {reason}; write it again with numpy.savez") from None


def array_header(file: IO[bytes], info: zipfile.ZipInfo, source: str) -> ArrayHeader:
    """Read the header of an array; raise ValueError if there is none, or if the array is not as large as it says."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version, name = np.lib.format.read_magic(file), repr(info.filename[:60])
    if version not in readers:
        raise ValueError(f"{name} has an unknown version")
    sizes, columns_first, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputError(f"{source}: {name} contains Python objects, which are never opened; save numbers")
    if file.tell() + math.prod(sizes) * dtype.itemsize != info.file_size or (columns_first and len(sizes) > 1):
        raise ValueError(f"{name} does not match its header, or is not in C order")
    return ArrayHeader(sizes, dtype)


def image_shape(header: ArrayHeader, name: str, source: str) -> ImageShape:
    sizes, dtype = header
    if dtype.str != "|u1":
        raise InputError(f"{source}: {name!r} contains {dtype}; save numbers from 0 to 255 with .astype('uint8')")
    if len(sizes) > 4:
        raise InputError(f"{source}: {name!r} has {len(sizes)} axes; save (images, height, width)")
    if len(sizes) > 2:
        return checked_shape((*(sizes[3:] or (1,)), *sizes[1:3]), source)
    side = math.isqrt(sizes[1])
    if side * side != sizes[1]:
        reason = f"rows of {sizes[1]} pixels, which is not a square"
        raise InputError(f"{source}: {name!r} has {reason}; save (images, height, width)")
    return checked_shape((1, side, side), source)


FORMATS = (FileFormat(IDX_ENDINGS, open_idx, companions=labels_beside), FileFormat((".npz",), open_npz))


def pixel_columns(names: Sequence[str]) -> tuple[list[str], ImageShape] | None:
    """Return the columns of a table that hold one pixel each (1x1, 1x2 …, or pixel0, pixel1 …) and the image's shape."""
    placed = sorted((int(match[1]), int(match[2]), name) for name in names if (match := ROW_AND_COLUMN.fullmatch(name)))
    if len(placed) >= FEWEST_COLUMNS:
        (top, left, _), (bottom, right, _) = placed[0], placed[-1]
        height, width = bottom - top + 1, right - left + 1
        every = [(top + place // width, left + place % width) for place in range(len(placed))] if width > 0 else []
        if height * width == len(placed) and [place[:2] for place in placed] == every and max(height, width) <= 4096:
            return [name for _, _, name in placed], (1, height, width)
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
        pixels = bytearray()
        try:
            for name in columns:
                pixels.append(int(str(values[name])))
        except ValueError:
            reason = f"{name!r} is {reading.short_repr(values[name])}, not a pixel"
            raise InputError(f"{source}:{line}: {reason}; write a whole number from 0 to 255") from None
        others = {name: value for name, value in values.items() if name not in replaced}
        yield Record(line, {**others, PIXELS: bytes(pixels)})
