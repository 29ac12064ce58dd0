"""Weights of few values as one safetensors file of Huffman codes: written, checked, and decoded to the same bits.

A matrix whose numbers repeat is stored as the values that occur and a code for each of its places; one of mostly zeros as
the gaps between the others and their codes (relative indices: Han et al., 2016, arXiv:1510.00149); all else as it is.
Whichever takes fewest bytes. For a matrix NAME the file holds

    NAME:values   float32, what may stand there        NAME:gap_lengths, NAME:gap_bits, NAME:gap_lanes
    NAME:lengths  uint8, bits of the code of each      the same three for the gaps, if zeros are left out: a gap of g zeros
    NAME:bits     uint8, the codes                     before a value is the symbol g, 255 zeros without a value are 255
    NAME:lanes    int32, bits of every LANE codes

and the metadata their shapes and counts, and a checksum of all. A file may be hostile: nothing is allocated that its size
does not justify.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from potstill.errors import InputError
from potstill.models.compression import huffman
from potstill.models.safety import CODED, EXTRA_NUMBERS, coded_matrices

FORMAT = "potstill-huffman-1"
MOST_VALUES = 1 << 15  # different numbers of a coded matrix
MOST_PER_BYTE = 256  # numbers that a byte of the file may stand for: 99.9 % zeros take more
FAR = 255  # the gap symbol of so many zeros without a value after them
AGAIN = "write it again with potstill export --to huffman"
PARTS = ("values", "lengths", "bits", "lanes")
GAP_PARTS = ("gap_lengths", "gap_bits", "gap_lanes")


class _Matrix(NamedTuple):
    """A coded matrix: its tensors, and what the metadata say of it."""

    tensors: dict[str, np.ndarray]
    shape: list[int]
    codes: int  # of values
    gaps: int  # codes of gaps; 0: zeros are values too

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.tensors.values())


def take_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights that transformers saved in a folder, and remove their files."""
    files = sorted(folder.glob("*.safetensors"))
    weights = {name: tensor.clone() for file in files for name, tensor in load_file(file).items()}
    for file in (*files, folder / "model.safetensors.index.json"):
        file.unlink(missing_ok=True)
    return weights


def write_coded(weights: dict[str, Tensor], file: Path) -> None:
    """Write weights so that `read_coded` gives the same bits."""
    tensors: dict[str, Tensor] = {}
    matrices: dict[str, Any] = {}
    for name, weight in weights.items():
        coded = _coded(weight)
        if coded is None:
            tensors[name] = weight.contiguous()
            continue
        tensors |= {f"{name}:{part}": torch.from_numpy(array) for part, array in coded.tensors.items()}
        matrices[name] = [coded.shape, coded.codes, coded.gaps]
    told = json.dumps(matrices, separators=(",", ":"))
    save_file(tensors, file, {"format": FORMAT, "matrices": told, "xxh3": _checksum(tensors, told)})


def read_coded(folder: Path) -> dict[str, Tensor]:
    """Decode the weights of a folder; an `InputError` if the file is damaged or asks for more than it can hold."""
    file = folder / CODED
    try:
        matrices = coded_matrices(file)
        tensors = load_file(file)
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
        if about.get("format") != FORMAT:
            raise ValueError(f"its format is {about.get('format')!r:.40}, not {FORMAT}")
        if about.get("xxh3") != _checksum(tensors, about["matrices"]):
            raise ValueError("its checksum is another one")
        numbers = sum(math.prod(shape) for shape, _, _ in matrices.values())
        if numbers > MOST_PER_BYTE * file.stat().st_size + EXTRA_NUMBERS:
            raise ValueError(f"it describes {numbers:,} numbers, far more than it has bytes for")
        weights = {
            name: torch.from_numpy(_decoded(tensors, name, shape, count, gaps))
            for name, (shape, count, gaps) in matrices.items()
        }
        coded = {f"{name}:{part}" for name in matrices for part in (*PARTS, *GAP_PARTS)}
        return weights | {name: tensor for name, tensor in tensors.items() if name not in coded}
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(f"{file} cannot be decoded: {str(error)[:200]}; {AGAIN}") from None


def _checksum(tensors: dict[str, Tensor], told: str) -> str:
    digest = xxhash.xxh3_128(told.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _coded(weight: Tensor) -> _Matrix | None:
    """The shortest code of a float32 matrix; None if no code is shorter than its bytes."""
    if weight.ndim != 2 or weight.dtype != torch.float32 or not weight.numel():
        return None
    # bits, not numbers: minus zero and zero are two values, and no rounding is ever involved
    flat = weight.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint32)
    for part in (flat[: 4 * MOST_VALUES], flat):
        if len(np.unique(part)) > MOST_VALUES:
            return None
    forms = [_of_all(flat, list(weight.shape))]
    if 0 < np.count_nonzero(flat) < len(flat):
        forms.append(_of_others(flat, list(weight.shape)))
    best = min(forms, key=lambda form: form.bytes)
    return best if best.bytes < flat.nbytes else None


def _of_all(flat: np.ndarray, shape: list[int]) -> _Matrix:
    return _Matrix(_values(flat), shape, len(flat), 0)


def _of_others(flat: np.ndarray, shape: list[int]) -> _Matrix:
    """Without the zeros."""
    places = np.flatnonzero(flat)
    gaps = np.diff(places, prepend=-1) - 1
    far = gaps // FAR
    symbols = np.full(len(gaps) + int(far.sum()), FAR)
    symbols[np.arange(len(gaps)) + far.cumsum()] = gaps % FAR
    tensors = _values(flat[places])
    tensors |= {f"gap_{part}": array for part, array in _codes(symbols, FAR + 1).items()}
    return _Matrix(tensors, shape, len(places), len(symbols))


def _values(numbers: np.ndarray) -> dict[str, np.ndarray]:
    values, symbols = np.unique(numbers, return_inverse=True)
    return {"values": values.view(np.float32), **_codes(symbols, len(values))}


def _codes(symbols: np.ndarray, kinds: int) -> dict[str, np.ndarray]:
    lengths = huffman.code_lengths(np.bincount(symbols, minlength=kinds))
    stream, lanes = huffman.encode(symbols, lengths)
    return {"lengths": lengths, "bits": stream, "lanes": lanes.astype(np.int32)}


def _decoded(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], count: int, gaps: int) -> np.ndarray:
    """(rows, columns) float32"""

    def symbols(prefix: str, number: int) -> np.ndarray:
        def part(kind: str, dtype: torch.dtype) -> np.ndarray:
            tensor = tensors[f"{name}:{prefix}{kind}"]
            if tensor.dtype != dtype or tensor.ndim != 1:
                raise ValueError(f"{name}:{prefix}{kind} has another type than it should")
            return np.asarray(tensor)

        stream, lanes, lengths = part("bits", torch.uint8), part("lanes", torch.int32), part("lengths", torch.uint8)
        if len(lengths) > MOST_VALUES:
            raise ValueError(f"{name} has too many codes")
        return huffman.decode(stream, lanes, lengths, number)

    values = tensors[f"{name}:values"].numpy()
    if values.dtype != np.float32 or values.shape != tensors[f"{name}:lengths"].shape:
        raise ValueError(f"{name} has not as many values as codes")
    total = math.prod(shape)
    if not gaps:
        if count != total:
            raise ValueError(f"{name} has not as many codes as places")
        return values[symbols("", count)].reshape(shape)
    steps = symbols("gap_", gaps)
    if steps.max() > FAR:
        raise ValueError(f"{name} has gaps that no code stands for")
    ends = np.where(steps < FAR, steps + 1, FAR).cumsum(dtype=np.int64)
    places = ends[steps < FAR] - 1
    if len(places) != count or ends[-1] > total:
        raise ValueError(f"{name} has values beyond its shape")
    dense = np.zeros(total, np.float32)
    dense[places] = values[symbols("", count)]
    return dense.reshape(shape)
