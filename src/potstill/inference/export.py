"""Write a student's folder in another form, such as ONNX, and compare it with PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from potstill.data.rows import Columns
from potstill.errors import InputError, TrainingError
from potstill.inference.export_types import Checked, Export, Seconds
from potstill.inference.predict import rows_for
from potstill.models.generation.languages import language_prefix
from potstill.models.student import load_student
from potstill.system import paths
from potstill.system.files import draft_folder, seal, unseal, write_atomically
from potstill.system.processor import described

MARK = "export.json"  # in folders that potstill exported to: only files that it lists are ever replaced
MOST_ROWS = 2000  # that an export is compared on
FLOAT = 4  # bytes
SLOWER = 1.1  # times, from which it is said: less is within the noise of a few texts


def export_student(
    model: str,
    form: Export,
    out: str,
    data: str | None,
    columns: Columns,
    language: str | None,
    overwrite: bool,
    agree: float | None = None,
) -> Exported:
    """Write the model to the folder `out`, and compare it with PyTorch on `data`.

    `agree`: the share of rows that must be predicted as before; with less nothing is written.
    """
    folder = paths.output_path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder with --out")
    earlier = _earlier_export(folder)
    if folder.exists() and any(folder.iterdir()) and earlier is None:
        raise InputError(f"{folder} is not empty and not an export of potstill; give another folder with --out")
    if earlier is not None and not overwrite:
        raise InputError(f"{folder} holds an earlier export; write --overwrite to replace it, or another --out")
    student = load_student(model)
    prefix = language_prefix(language, student.tokenizer, model)
    examples = rows_for(student.model.config, data, columns.text, columns.pair) if data else iter(())
    rows = [(prefix + row.text, row.pair) for row in islice(examples, MOST_ROWS)]
    if agree is not None and not rows:
        raise InputError(
            f"--agree counts rows that are predicted as before, and {data} has none; give rows with --data"
        )
    with draft_folder(folder.resolve()) as draft:
        checked = form.export(student, draft, rows)
        compared = len(rows) if checked.rows is None else checked.rows
        if agree is not None and not compared:
            raise InputError(
                f"none of the rows of {data} has a second text to predict; give such rows, or omit --agree"
            )
        if agree is not None:
            _refuse_other_answers(checked, agree, data)
        names = sorted(path.name for path in draft.iterdir())
        if foreign := [name for name in names if (folder / name).exists() and name not in (earlier or ())]:
            raise InputError(f"{folder / foreign[0]} was not written by potstill; give another folder with --out")
        write_atomically(draft / MARK, seal({"made_by": "potstill", "files": names}))
        for name in earlier or ():
            if name not in names:  # a file of the earlier export that the new one does not have
                (folder / name).unlink(missing_ok=True)
        size = sum(path.stat().st_size for path in draft.glob(f"{checked.file.name}*"))
        is_torch = any(draft.glob("*.safetensors"))
    dense = FLOAT * sum(parameter.numel() for parameter in student.model.parameters())
    where = f"{compared} rows of {data}" if compared and data else "random rows"
    return Exported(folder / checked.file.name, checked, where, dense, size, dense if is_torch else size)


@dataclass(frozen=True)
class Exported:
    """A finished export: its sizes, how it compares with the model, and how fast it is here."""

    file: Path
    checked: Checked
    where: str  # what it was compared on
    dense_bytes: int  # of all parameters in float32
    bytes: int  # of the file
    memory_bytes: int  # of the weights as the engine holds them: PyTorch in float32, others as they are stored

    def __str__(self) -> str:
        dense, stored, memory = (size / 1e6 for size in (self.dense_bytes, self.bytes, self.memory_bytes))
        smaller = (
            f", {dense / stored:.1f} times smaller than the {dense:.1f} of float32" if dense > 1.05 * stored else ""
        )
        checked, lines = self.checked, [f"{self.file}: {stored:.1f} MB{smaller}; in memory {memory:.1f} MB"]
        answers = f" of {checked.answers}" if checked.answers is not None else ""
        same = "" if checked.agreement is None else f"same prediction {100 * checked.agreement:.1f} %{answers}, "
        lines.append(f"on {self.where}: {same}largest difference of {checked.of} {checked.difference:.1e}")
        for form, (alone, in_batch) in checked.seconds.items():
            lines.append(f"{form}: {1000 * alone:.3g} ms for one text, {1000 * in_batch:.3g} ms for each of a batch")
        return "\n".join([*lines, *self.notes])

    @property
    def notes(self) -> list[str]:
        return [note for note in (_slower(self.checked.seconds), self.checked.note) if note]

    def to_json(self) -> dict[str, Any]:
        checked = self.checked
        return {
            "file": str(self.file),
            "bytes": self.bytes,
            "dense_bytes": self.dense_bytes,
            "memory_bytes": self.memory_bytes,
            "compared_on": self.where,
            "agreement": checked.agreement,
            "largest_difference": checked.difference,
            "difference_of": checked.of,
            "milliseconds": {
                form: {"alone": 1000 * alone, "in_batch": 1000 * in_batch}
                for form, (alone, in_batch) in checked.seconds.items()
            },
            "device": described(torch.get_num_threads()),
            "notes": self.notes,
        }


def _refuse_other_answers(checked: Checked, agree: float, data: str | None) -> None:
    """Refuse an export that predicts something else than the student on more than 1 - `agree` of the rows."""
    if checked.agreement is None:
        raise InputError("numbers are predicted, which are never quite equal; omit --agree and read the difference")
    if checked.agreement < agree:
        rows = f"{checked.answers} texts" if checked.answers is not None else "the rows"
        least = math.floor(1000 * checked.agreement) / 1000
        raise TrainingError(
            f"nothing was written: the export predicts {100 * checked.agreement:.1f} % of {rows} of {data} as the student "
            f"does, fewer than the {100 * agree:g} % of --agree; write another form (`potstill list exports`), "
            f"or --agree {least:g}"
        )


def _slower(seconds: Mapping[str, Seconds]) -> str:
    """What to say if an export is slower than another form that was timed beside it."""
    if not seconds:
        return ""
    (_, this), *others = seconds.items()
    for name, other in others:
        ratios = [own / theirs for own, theirs in zip(this, other, strict=True)]
        if max(ratios) > SLOWER:
            alone, together = (f"{ratio:.2f} times the time" for ratio in ratios)
            where = described(torch.get_num_threads())
            return f"slower than {name} on {where}: {alone} for one text, {together} in batches of 32"
    return ""


def _earlier_export(folder: Path) -> list[str] | None:
    """The names of the files that an earlier export wrote to this folder; None if there was none."""
    try:
        mark = unseal((folder / MARK).read_bytes())
    except (OSError, ValueError):
        return None
    return [*map(str, mark["files"]), MARK] if mark.get("made_by") == "potstill" else None
