"""ONNX with weights of eight bits, for ONNX Runtime: a quarter of the bytes, and faster on most processors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from potstill.api import (
    Checked,
    Export,
    InputError,
    Rows,
    Student,
    form_speed,
    onnx_check,
    onnx_quantizing,
    onnx_writing,
    scratch,
)

CALIBRATED = 128  # rows, at most


@dataclass(frozen=True)
class Int8(Export):
    """Weights in eight bits with a scale per channel; activations are rounded to eight bits too.

    embeddings: quantise the embedding table too, with a scale per row.
    activations: dynamic: scales of each batch; static: scales of calibration rows; auto: the faster one on this machine.
    """

    embeddings: bool = True
    activations: Literal["dynamic", "static", "auto"] = "dynamic"

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        if self.activations == "static" and not rows:
            raise InputError("static activations are calibrated on rows; write --data with rows")
        calibration, others = ((), rows) if self.activations == "dynamic" else split(rows)
        with scratch.scratch_folder() as folder:
            plain = onnx_writing.write_onnx(student, folder)

            def write(form: str) -> Path:
                batches = onnx_check.inputs_of(student, calibration) if form == "static" else None
                return onnx_quantizing.write_int8(student, plain, out, self.embeddings, batches)

            def checked(form: str) -> Checked:
                return onnx_check.compare(student, write(form), others, beside={"ONNX in float32": plain})

            if self.activations != "auto" or not rows:
                return checked("static" if self.activations == "static" else "dynamic")
            forms = {form: checked(form) for form in ("dynamic", "static")}
            kept, note = form_speed.faster_form(forms)
            if kept != "static":  # which was written last
                write(kept)
        return replace(forms[kept], note=note)


def split(rows: Rows) -> tuple[Rows, Rows]:
    """Every second row or fewer to calibrate on, and the others to compare on; one row is for both."""
    step = max(2, -(-len(rows) // CALIBRATED))
    calibration = rows[::step]
    others = [row for place, row in enumerate(rows) if place % step]
    return calibration, others or calibration
