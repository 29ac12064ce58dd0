"""Models in other forms: written to stay, or as ONNX files for the time they are measured in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from potstill.data.rows import Columns
from potstill.errors import InputError
from potstill.inference.export_types import Export
from potstill.inference.predict import rows_for
from potstill.models.fingerprints import fingerprint
from potstill.models.generation.languages import language_prefix
from potstill.models.student import Student, load_student
from potstill.system import paths
from potstill.system.display import Display
from potstill.system.files import fsync_path, locked, sealed, unsealed, write_atomically, xxh3_of
from potstill.system.scratch import draft_of, scratch_folder

MANIFEST = "manifest.json"
MARK = "export.json"  # of a folder that potstill exported to: only its files are ever replaced
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
    with scratch_folder() as place:
        found: Files = {}
        for name, student in models.items():
            try:
                with show.bar(f"{name} as ONNX and int8", 2, "file") as bar:
                    found[name] = (
                        _kept(student, bar.advance) if name == kept else _made(student, place / name, bar.advance)
                    )
            except Exception as error:  # exporters fail in as many ways as there are architectures
                show.say(f"no figures of ONNX for the {name} model: {str(error).splitlines()[0]}")
        yield found


def _kept(student: Student, advance: Callable[[int], None]) -> tuple[Path, Path]:
    """In the cache, under a hash of weights and config; made again where a bit of them is another one."""
    folder = paths.exports() / fingerprint(student.model, "onnx", 0)
    with locked(folder):
        if not _is_whole(folder):
            _made(student, folder, advance)
            sums = {path.name: xxh3_of(path) for path in _files(folder)}
            for path in _files(folder):
                fsync_path(path)
            write_atomically(folder / MANIFEST, sealed({"files": sums}))  # last: where it is true, all files are whole
    return folder / "model.onnx", folder / "int8.onnx"


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name != MANIFEST and not path.name.startswith(".")]


def _is_whole(folder: Path) -> bool:
    try:
        sums = unsealed((folder / MANIFEST).read_bytes())["files"]
        return {path.name: xxh3_of(path) for path in _files(folder)} == sums
    except (OSError, ValueError, KeyError):
        return False


def _made(student: Student, folder: Path, advance: Callable[[int], None]) -> tuple[Path, Path]:
    from potstill.models.onnx.quantizing import quantize
    from potstill.models.onnx.writing import write_onnx

    on_cpu = (
        student
        if student.model.device.type == "cpu"
        else Student(copy.deepcopy(student.model).cpu(), student.tokenizer)
    )
    plain, small = write_onnx(on_cpu, folder), folder / "int8.onnx"
    advance(1)
    quantize(plain, small)
    advance(1)
    return plain, small


def _earlier_export(folder: Path) -> list[str] | None:
    """The names of the files that an earlier export wrote there; None where none did."""
    try:
        mark = unsealed((folder / MARK).read_bytes())
    except (OSError, ValueError):
        return None
    return [*map(str, mark["files"]), MARK] if mark.get("made_by") == "potstill" else None


def export_student(
    model: str, form: Export, out: str, data: str | None, columns: Columns, language: str | None, overwrite: bool
) -> str:
    """Write a student's folder in another form to `out`; returns what was found when it was compared."""
    folder = paths.to_write(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder with --out")
    earlier = _earlier_export(folder)
    if folder.exists() and any(folder.iterdir()) and earlier is None:
        raise InputError(f"{folder} is not empty and not an export of potstill; give another folder with --out")
    if earlier is not None and not overwrite:
        raise InputError(
            f"{folder} holds an earlier export; write --overwrite to replace it, or --out for another folder"
        )
    student = load_student(model)
    before = language_prefix(language, student.tokenizer, model)
    examples = rows_for(student.model.config, data, columns.text, columns.pair) if data else iter(())
    rows = [(before + row.text, row.pair) for row in islice(examples, 2000)]
    with draft_of(folder.resolve()) as draft:
        checked = form.export(student, draft, rows)
        names = sorted(path.name for path in draft.iterdir())
        if users := [name for name in names if (folder / name).exists() and name not in (earlier or ())]:
            raise InputError(f"{folder / users[0]} was not written by potstill; give another folder with --out")
        write_atomically(draft / MARK, sealed({"made_by": "potstill", "files": names}))
        for name in earlier or ():
            if name not in names:  # a part of the earlier model that the new one does not have
                (folder / name).unlink(missing_ok=True)
        size = sum(path.stat().st_size for path in draft.glob(f"{checked.file.name}*")) / 1e6
    where = f"{checked.rows or len(rows)} rows of {data}" if rows else "random rows"
    answers = f" of {checked.answers}" if checked.answers is not None else ""
    told = f"same answer {100 * checked.agreement:.1f} %{answers}, largest difference of {checked.of} {checked.difference:.1e}"
    return f"{folder / checked.file.name}: {size:.1f} MB; on {where}: {told}"
