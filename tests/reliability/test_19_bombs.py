from __future__ import annotations

import gzip
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from potstill.data.rows import open_table
from potstill.errors import InputError
from potstill.models.student import load_student, save_student
from potstill.system.files import file_xxh3
from potstill.training import checkpoints
from tests.support.faults import peak_memory
from tests.support.small_models import small_model
from tests.training.test_checkpoints import reseal, save

MOST = 50  # MB
EACH, TIMES = 2**20, 240  # 240 MB
Figure = Callable[..., None]


def refused_in_little_memory(act: Callable[[], Any], words: str) -> float:
    with peak_memory() as most, pytest.raises(InputError, match=words):
        act()
    assert most[0] < MOST, f"{most[0]:.0f} MB"
    return most[0]


# rows


def zipped(path: Path, line: bytes) -> Path:
    """As many parts as make 240 MB, each compressed alone: a gzip file may have several."""
    lines = 4 * EACH // len(line)
    part = gzip.compress(line * lines)
    header = b"text,label\n" if path.name.startswith("rows.csv") else b""
    path.write_bytes(gzip.compress(header) + part * (TIMES // 4))
    return path


def idx_bomb(path: Path) -> Path:
    """240,000 black images of 32 x 32."""
    part = gzip.compress(bytes(4 * EACH))
    path.write_bytes(gzip.compress(struct.pack(">HBBIII", 0, 8, 3, TIMES * 1024, 32, 32)) + part * (TIMES // 4))
    return path


def npz_bomb(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (TIMES * 1024, 32, 32)}
        )
        for _ in range(TIMES):
            file.write(bytes(EACH))
    return path


def parquet(path: Path, texts: pa.Array, **how: Any) -> Path:
    pq.write_table(pa.table({"text": texts, "label": ["0"] * len(texts)}), path, **how)
    return path


def repeated() -> pa.Array:
    """One text of a megabyte, 240 times: a file keeps it once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * TIMES, pa.int32()), pa.array(["a" * EACH]))


ROWS: dict[str, Callable[[Path], Path]] = {
    "csv": lambda folder: zipped(folder / "rows.csv.gz", b"a" * 4093 + b",1\n"),
    "one line": lambda folder: zipped(folder / "rows.csv.gz", b"a" * 4096),
    "json lines": lambda folder: zipped(folder / "rows.jsonl.gz", b'{"text": "%s"}\n' % (b"a" * 4000)),
    "squad": lambda folder: zipped(folder / "rows.json.gz", b'{"data": [{"title": "%s"}]}' % (b"a" * EACH)),
    "conll": lambda folder: zipped(folder / "rows.conll.gz", b"a" * 4000 + b" O\n"),
    "parquet, compressed": lambda folder: parquet(
        folder / "rows.parquet", pa.array([f"{n}" + "a" * EACH for n in range(TIMES)]), compression="zstd"
    ),
    "idx": lambda folder: idx_bomb(folder / "a-images-idx3-ubyte.gz"),
    "npz": lambda folder: npz_bomb(folder / "a.npz"),
    "parquet, one text": lambda folder: parquet(folder / "rows.parquet", repeated(), compression="zstd"),
}


@pytest.mark.parametrize("case", ROWS)
def test_19_files_of_rows_that_grow_are_refused(case: str, tmp_path: Path, figure: Figure) -> None:
    path = ROWS[case](tmp_path)
    assert path.stat().st_size < 2**20
    needed = refused_in_little_memory(lambda: [None for _ in open_table(path).rows()], r"bomb|longer than|more than")
    figure(19, "rows with {:.0f} MB", needed)


# tensors


def header(path: Path, entries: Any, body: int = 0, length: int | None = None) -> None:
    """A safetensors file with this header; the tensors' bytes are a hole in the file."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + body)


def tensor(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


MEGABYTE = 2**20
HEADERS: dict[str, Callable[[Path], None]] = {
    "longer than any": lambda path: header(path, b"{}", length=2**60),
    "longer than the file": lambda path: header(path, b"{}", length=1000),
    "90 MB of blanks": lambda path: header(path, b"{}" + b" " * (90 * MEGABYTE)),
    "100,000 tensors": lambda path: header(path, {f"t{n}": tensor(0, 0) for n in range(100_000)}),
    "nested": lambda path: header(path, b"[" * 100_000),
    "overlapping": lambda path: header(path, {f"t{n}": tensor(0, 240 * MEGABYTE) for n in range(100)}, 240 * MEGABYTE),
    "overlapping by a number": lambda path: header(path, {"a": tensor(0, 16), "b": tensor(12, 28)}, 28),
    "with a gap": lambda path: header(path, {"a": tensor(0, 16), "b": tensor(20, 36)}, 36),
    "beyond the end": lambda path: header(path, {"a": tensor(0, 240 * MEGABYTE)}, MEGABYTE),
    "of another shape": lambda path: header(path, {"a": {**tensor(0, 16), "shape": [2**40]}}, 16),
    "with a negative shape": lambda path: header(path, {"a": {**tensor(0, 16), "shape": [-2, -2]}}, 16),
}
CONFIGS: dict[str, dict[str, Any]] = {
    "words": {"vocab_size": 10**9},
    "width": {"hidden_size": 40_000, "intermediate_size": 40_000},
    "layers": {"num_hidden_layers": 10**7},
    "labels": {"num_labels": 10**7},
    "positions": {"max_position_embeddings": 10**8},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_student(small_model("bert"), tmp_path / "model")
    load_student(tmp_path / "model")  # what is imported for the first one is not the bomb's
    return tmp_path / "model"


@pytest.mark.parametrize("case", HEADERS)
def test_19_tensor_files_that_lie_are_refused(case: str, model: Path, tmp_path: Path, figure: Figure) -> None:
    """As a model's weights, and as a checkpoint's with a checksum that fits."""
    HEADERS[case](model / "model.safetensors")
    needed = refused_in_little_memory(lambda: load_student(model), "model.safetensors|weights")
    path = save(tmp_path / "checkpoints", 1).folder / "weights.safetensors"
    shutil.copy(model / "model.safetensors", path)
    reseal(path.parent, lambda manifest: manifest["files"].update({path.name: entry(path)}))
    more = refused_in_little_memory(lambda: checkpoints.load(path.parent).tensors("weights"), "weights.safetensors")
    figure(19, "tensors with {:.0f} MB", max(needed, more))


def entry(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "xxh3": file_xxh3(path)}


@pytest.mark.parametrize("case", CONFIGS)
def test_19_networks_larger_than_their_weights_are_refused(case: str, model: Path, figure: Figure) -> None:
    settings = json.loads((model / "config.json").read_text()) | CONFIGS[case]
    (model / "config.json").write_text(json.dumps(settings))
    needed = refused_in_little_memory(lambda: load_student(model), "belong together|no model has")
    figure(19, "networks with {:.0f} MB", needed)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_19_settings_of_any_size_or_depth_are_refused(file: str, model: Path, figure: Figure) -> None:
    (model / file).write_bytes(b"{" + b" " * (100 * MEGABYTE) + b"}")
    needed = refused_in_little_memory(lambda: load_student(model), "such a file can need")
    (model / file).write_bytes(b"[" * 100_000)
    needed = max(needed, refused_in_little_memory(lambda: load_student(model), str(model)))
    figure(19, "settings with {:.0f} MB", needed)


def test_19_a_state_of_any_size_or_depth_is_refused(tmp_path: Path, figure: Figure) -> None:
    path = save(tmp_path, 1).folder / "state.json"
    for content in (b"{" + b" " * (100 * MEGABYTE) + b"}", b"[" * 100_000):
        path.write_bytes(content)
        reseal(path.parent, lambda manifest: manifest["files"].update({path.name: entry(path)}))
        refused_in_little_memory(lambda: checkpoints.load(path.parent), "damaged")
