"""Pruned and clustered weights as one file of Huffman codes, decoded to the same bits (Han et al., arXiv:1510.00149)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potstill.api import Checked, Export, Rows, Student, TrainingError, coded, networks, onnx_check, torch


@dataclass(frozen=True)
class Huffman(Export):
    """The same weights in fewer bytes. In memory they are float32 again, and as fast as before."""

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        networks.save_student(student, out)
        file = out / coded.CODED
        weights = coded.take_weights(out)
        coded.write_coded(weights, file)
        again = coded.read_coded(out)
        if different := [name for name, weight in weights.items() if not _same_bits(weight, again.get(name))]:
            raise TrainingError(f"{different[0]} was not decoded to the same bits; use the student's own folder")
        return onnx_check.compare(student, file, rows)


def _same_bits(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))
