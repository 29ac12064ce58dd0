"""Models in other forms: written to stay, or as ONNX files for the time they are measured in."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from potstill import paths
from potstill.errors import InputError
from potstill.exports import Export
from potstill.files import locked
from potstill.predicting import rows_for
from potstill.progress import Display
from potstill.rows import Columns
from potstill.students import Student, load_student
from potstill.teacher import weights_hash
from potstill.translators import asked_for

Files = dict[str, tuple[Path, Path]]
"""By model: the float32 file and the one of eight bits."""


@contextmanager
def onnx_files(models: Mapping[str, Student], kept: str, show: Display) -> Iterator[Files]:
    """Files of each model, gone at the end; those of the model named `kept`, the teacher, stay in the cache for later runs.

    What cannot be exported is left out, and said: the figures are worth less than the run that they would end.
    """
    needed = ("onnx", "onnxscript", "onnxruntime")
    if models and not all(map(find_spec, needed)):
        show.say("no figures of ONNX and int8; write pip install 'potstill[onnx]' for them")
        models = {}
    with tempfile.TemporaryDirectory(prefix="potstill-") as place:
        found: Files = {}
        for name, student in models.items():
            try:
                with show.bar(f"{name} as ONNX and int8", 2, "file") as bar:
                    found[name] = (
                        _kept(student, bar.advance) if name == kept else _made(student, Path(place) / name, bar.advance)
                    )
            except Exception as error:  # exporters fail in as many ways as there are architectures
                show.say(f"no figures of ONNX for the {name} model: {str(error).splitlines()[0]}")
        yield found


def _kept(student: Student, advance: Callable[[int], None]) -> tuple[Path, Path]:
    folder = paths.exports() / weights_hash(student.model)
    with locked(folder):
        if not (folder / "whole").exists():
            _made(student, folder, advance)
            (folder / "whole").touch()  # last: where it exists, both files are whole
    return folder / "model.onnx", folder / "int8.onnx"


def _made(student: Student, folder: Path, advance: Callable[[int], None]) -> tuple[Path, Path]:
    from potstill.exports.int8 import quantize
    from potstill.exports.onnx import write

    on_cpu = (
        student
        if student.model.device.type == "cpu"
        else Student(copy.deepcopy(student.model).cpu(), student.tokenizer)
    )
    plain, small = write(on_cpu, folder), folder / "int8.onnx"
    advance(1)
    quantize(plain, small)
    advance(1)
    return plain, small


def export_student(
    model: str, form: Export, out: str, data: str | None, columns: Columns, language: str | None, overwrite: bool
) -> str:
    """Write a student's folder in another form to `out`; returns what was found when it was compared."""
    folder = paths.to_write(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder with --out")
    earlier = (folder / "model.onnx").exists() or (folder / "model.bin").exists()
    if folder.exists() and any(folder.iterdir()) and not (overwrite and earlier):
        raise InputError(
            f"{folder} is not empty; write --overwrite to replace an earlier export, or --out for another folder"
        )
    student = load_student(model)
    before = asked_for(language, student.tokenizer, model)
    found = rows_for(student.model.config, data, columns.text, columns.pair) if data else iter(())
    rows = [(before + row.text, row.pair) for row in islice(found, 2000)]
    checked = form.export(student, folder, rows)
    where = f"{checked.rows or len(rows)} rows of {data}" if rows else "random rows"
    size = checked.file.stat().st_size / 1e6
    answers = f" of {checked.answers}" if checked.answers is not None else ""
    told = f"same answer {100 * checked.agreement:.1f} %{answers}, largest difference of {checked.of} {checked.difference:.1e}"
    return f"{checked.file}: {size:.1f} MB; on {where}: {told}"
