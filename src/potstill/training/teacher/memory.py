"""The answers of a teacher on disk: asked once, read by every run with that teacher.

A folder holds Arrow IPC shards, each with sorted keys and one column per signal, and a manifest that lists them. The
manifest is written last: a listed shard is complete, and any other is left over from a killed process.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from potstill.errors import InputError
from potstill.system.files import TEMPORARY, file_xxh3, folder_lock, seal, unseal, write_atomically

log = logging.getLogger(__name__)

SHARD_NAME = re.compile(r"shard-(\d{5,})\.arrow", re.ASCII)
KEY = "key"
ARROW = {"float32": pa.float32(), "int32": pa.int32()}

Values = NDArray[np.float32] | NDArray[np.int32]


class Column(NamedTuple):
    """What a row of a column is."""

    shape: tuple[int, ...]
    dtype: Literal["float32", "int32"] = "float32"


class Entry(NamedTuple):
    """A shard as the manifest lists it."""

    name: str
    rows: int
    columns: dict[str, Column]
    xxh3: str


@dataclass(frozen=True)
class Shard:
    """An open shard, memory-mapped."""

    entry: Entry
    keys: NDArray[np.int64]  # (rows,) sorted
    values: dict[str, Values]  # (rows, *shape) per column


class Memory:
    """The answers of one teacher, by the key of the example. Shards are memory-mapped, never loaded as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._shards: list[Shard] | None = None  # None: the manifest was not read yet
        self._manifest_seen: bytes | None = None
        self._listed: set[str] = set()  # names in the manifest, damaged ones included
        self._locked = False

    def missing(self, keys: NDArray[np.int64], columns: Sequence[str]) -> NDArray[np.bool_]:
        """(n,) True if any of the columns has no value for that key."""
        keys = _checked_keys(keys)
        missing = np.zeros(len(keys), dtype=np.bool_)
        for column in columns:
            stored = np.zeros(len(keys), dtype=np.bool_)
            for shard in self._with(column):
                stored |= _find(shard.keys, keys)[1]
            missing |= ~stored
        return missing

    def read(self, keys: NDArray[np.int64], column: str) -> Values:
        """(n, *shape) in the order of the keys."""
        keys = _checked_keys(keys)
        shards = self._with(column)
        if not shards:
            raise InputError(f"{self.folder} has no '{column}'; ask the teacher for it first")
        shape, dtype = shards[0].entry.columns[column]
        values: Values = np.empty((len(keys), *shape), dtype)
        missing = np.ones(len(keys), dtype=np.bool_)
        for shard in shards:  # the first shard that has a key answers for it
            places, there = _find(shard.keys, keys)
            there &= missing
            values[there] = shard.values[column][places[there]]
            missing &= ~there
        if missing.any():
            raise InputError(
                f"{self.folder} has no '{column}' for {int(missing.sum())} of {len(keys)} examples; "
                "ask the teacher for the examples that missing() returns first"
            )
        return values

    def write(self, keys: NDArray[np.int64], columns: Mapping[str, Values], number: int | None = None) -> None:
        """Add a shard with (n, *shape) float32 or int32 per column. The first answer to a key stays.

        It gets this `number` if it is free, else the lowest free one.
        """
        keys = _checked_keys(keys)
        for column, values in columns.items():
            _check_values(column, values, len(keys))
        if len(keys) == 0 or not columns:
            return
        with self.lock():
            given = {column: _column_of(columns[column]) for column in sorted(columns)}
            for column, kind in given.items():
                for shard in self._with(column):
                    if (there := shard.entry.columns[column]) != kind:
                        raise ValueError(
                            f"'{column}' has rows of {there.dtype} of shape {there.shape} in {self.folder}, not {kind.dtype} "
                            f"of {kind.shape}; use another name"
                        )
            if number is None or _name(number) in self._names:
                number = self.free_number()
            data = memoryview(_shard_bytes(keys, columns))
            write_atomically(self.folder / _name(number), data)
            entry = Entry(_name(number), len(np.unique(keys)), given, xxhash.xxh3_128_hexdigest(data))
            shards = [*self._opened(), _open(self.folder, entry)]
            shards.sort(key=lambda shard: (len(shard.entry.name), shard.entry.name))
            manifest = _manifest_bytes([shard.entry for shard in shards])
            write_atomically(self._manifest, manifest)
            self._shards, self._manifest_seen = shards, manifest
            self._listed = self._names

    def free_number(self) -> int:
        """The lowest number that no intact shard has. Left-over and damaged shards are overwritten."""
        taken = self._names
        return next(number for number in range(len(taken) + 1) if _name(number) not in taken)

    def size_with(self, added: Sequence[tuple[int, Mapping[str, Column]]]) -> int:
        """Bytes of the folder after adding shards, each given as its number of keys and its columns."""
        present = [shard.entry for shard in self._opened()]
        new = [
            Entry(_name(len(present) + place), rows, dict(sorted(columns.items())), "0" * 32)
            for place, (rows, columns) in enumerate(added)
        ]
        entries = [*present, *new]
        manifest = _manifest_bytes(entries) if entries else b""
        return len(manifest) + sum(shard_size(entry.rows, entry.columns) for entry in entries)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing, and read what they wrote before."""
        if self._locked:
            yield
            return
        with folder_lock(self.folder):
            try:
                self._locked = True
                self.refresh()
                self._sweep()
                yield
            finally:
                self._locked = False

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _opened(self) -> list[Shard]:
        if self._shards is None:
            self.refresh()
        assert self._shards is not None
        return self._shards

    @property
    def _names(self) -> set[str]:
        return {shard.entry.name for shard in self._opened()}

    def _with(self, column: str) -> list[Shard]:
        return [shard for shard in self._opened() if column in shard.values]

    def refresh(self) -> None:
        """Open the shards that the manifest lists now, and verify each once. The teacher is asked again for damaged ones."""
        link = self._manifest.is_symlink()
        data = b"a symbolic link" if link else self._manifest.read_bytes() if self._manifest.exists() else None
        if self._shards is not None and data == self._manifest_seen:
            return
        opened = {(shard.entry.name, shard.entry.xxh3): shard for shard in self._shards or []}
        shards = []
        entries = self._entries(data)
        for entry in entries:
            try:
                shards.append(opened.get((entry.name, entry.xxh3)) or _open(self.folder, entry))
            except (ValueError, FileNotFoundError) as error:  # pyarrow's ArrowInvalid is a ValueError
                path = self.folder / entry.name
                log.warning("%s is damaged (%s): the teacher is asked again for its answers", path, error)
        self._shards, self._listed, self._manifest_seen = shards, {entry.name for entry in entries}, data

    def _entries(self, manifest: bytes | None) -> list[Entry]:
        try:
            return _parsed(manifest) if manifest is not None else []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is damaged (%s): this memory starts empty", self._manifest, error)
            return []

    def _sweep(self) -> None:
        """Remove what a killed process left. Only under the lock, or it could be the work of a running process."""
        for path in self.folder.iterdir():
            unlisted = SHARD_NAME.fullmatch(path.name) and path.name not in self._listed
            if (path.name.startswith(TEMPORARY) or unlisted) and not path.is_dir():
                path.unlink()


def _name(number: int) -> str:
    return f"shard-{number:05d}.arrow"


def _checked_keys(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    keys = np.asarray(keys)
    if keys.ndim != 1 or (keys.dtype != np.int64 and len(keys)):
        raise ValueError(f"keys are (n,) int64, not {keys.shape} {keys.dtype}")
    return keys.astype(np.int64, copy=False)


def _column_of(values: Values) -> Column:
    return Column(values.shape[1:], "int32" if values.dtype == np.int32 else "float32")


def _check_values(column: str, values: Values, rows: int) -> None:
    if not column or column == KEY:
        raise ValueError(f"'{column}' cannot name a column; use another name")
    if values.dtype not in (np.float32, np.int32) or values.ndim < 1 or len(values) != rows:
        raise ValueError(f"'{column}' must be ({rows}, ...) float32 or int32, not {values.shape} {values.dtype}")
    if rows and values.size == 0:
        raise ValueError(f"'{column}' has rows of shape {values.shape[1:]}, which are empty; omit it")
    if not np.isfinite(values).all():
        raise ValueError(f"'{column}' holds numbers that are not finite; memory stores finite numbers only")


def _find(stored: NDArray[np.int64], keys: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The place of each key among the sorted stored ones, and whether it is there."""
    places = np.minimum(np.searchsorted(stored, keys), len(stored) - 1)
    return places, stored[places] == keys


def _schema(columns: Mapping[str, Column]) -> pa.Schema:
    """The key, then the columns by name. Each value is a list of numbers, a flattened array of the column's shape."""
    fields = [pa.field(KEY, pa.int64(), nullable=False)]
    for name, (shape, dtype) in sorted(columns.items()):
        item = pa.field("item", ARROW[dtype], nullable=False)
        fields.append(pa.field(name, pa.list_(item, math.prod(shape)), nullable=False))
    return pa.schema(fields)


def _array(kind: pa.DataType, values: NDArray[np.generic]) -> pa.Array:
    """An Arrow array over the same memory. pa.array() and to_numpy() would import pandas if it is installed."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _shard_bytes(keys: NDArray[np.int64], columns: Mapping[str, Values]) -> pa.Buffer:
    """An Arrow IPC file with one record batch; the same rows give the same bytes."""
    unique, first = np.unique(keys, return_index=True)
    schema = _schema({column: _column_of(values) for column, values in columns.items()})
    arrays = [_array(pa.int64(), unique)]
    for field in list(schema)[1:]:
        flat = _array(field.type.value_type, columns[field.name][first].reshape(-1))
        arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue()


def shard_size(rows: int, columns: Mapping[str, Column]) -> int:
    """Bytes of a shard. What Arrow adds depends on the columns alone, and every buffer is padded to 8 bytes."""

    def buffers(count: int) -> int:
        return 8 * count + sum(-(-4 * count * math.prod(column.shape) // 8) * 8 for column in columns.values())

    row = {name: np.zeros((1, *column.shape), column.dtype) for name, column in columns.items()}
    return int(_shard_bytes(np.zeros(1, np.int64), row).size) - buffers(1) + buffers(rows)


def _open(folder: Path, entry: Entry) -> Shard:
    """Memory-map a shard; ValueError if it is not exactly what the manifest says."""
    path, rows = folder / entry.name, entry.rows
    if path.is_symlink():
        raise ValueError("it is a symbolic link")
    if file_xxh3(path) != entry.xxh3:
        raise ValueError("it does not match its checksum")
    with pa.memory_map(str(path)) as source:  # the arrays keep the mapping alive after the file is closed
        reader = pa.ipc.open_file(source)
        if reader.num_record_batches != 1 or not reader.schema.equals(_schema(entry.columns)):
            raise ValueError("its columns are not those of the manifest")
        batch = reader.get_batch(0)
    batch.validate(full=True)
    if batch.num_rows != rows:
        raise ValueError("its rows are not those of the manifest")
    keys = np.frombuffer(batch.column(KEY).buffers()[-1], np.int64, rows)
    values: dict[str, Values] = {
        name: np.frombuffer(batch.column(name).buffers()[-1], dtype, rows * math.prod(shape)).reshape(rows, *shape)
        for name, (shape, dtype) in entry.columns.items()
    }
    return Shard(entry, keys, values)


def _manifest_bytes(entries: Sequence[Entry]) -> bytes:
    """Shapes by column; `integers` names the columns of int32, and is absent where there are none, as in old folders."""
    listed: list[dict[str, Any]] = []
    for entry in entries:
        integers = [name for name, column in entry.columns.items() if column.dtype == "int32"]
        shapes = {name: column.shape for name, column in entry.columns.items()}
        listed.append({**entry._asdict(), "columns": shapes, **({"integers": integers} if integers else {})})
    return seal({"shards": listed})


def _parsed(manifest: bytes) -> list[Entry]:
    """The listed shards; an error of some kind if write() did not make this manifest."""
    entries = []
    for entry in unseal(manifest)["shards"]:
        if not SHARD_NAME.fullmatch(entry["name"]):
            raise ValueError(f"{entry['name']!r} is not the name of a shard")
        integers = entry.get("integers", [])
        columns = {
            name: Column(tuple(int(size) for size in shape), "int32" if name in integers else "float32")
            for name, shape in entry["columns"].items()
        }
        sizes = [size for column in columns.values() for size in column.shape]
        if entry["rows"] < 1 or KEY in columns or any(size < 1 for size in sizes):
            raise ValueError(f"{entry['name']} has impossible rows or columns")
        entries.append(Entry(entry["name"], int(entry["rows"]), columns, str(entry["xxh3"])))
    if len({entry.name for entry in entries}) != len(entries):
        raise ValueError("a shard is listed twice")
    return entries
