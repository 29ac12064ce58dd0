"""Write a student's folder in another form, such as ONNX, and compare it with PyTorch."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from potstill.data.rows import Columns
from potstill.errors import InputError
from potstill.inference.export_types import Export
from potstill.inference.predict import rows_for
from potstill.models.generation.languages import language_prefix
from potstill.models.student import load_student
from potstill.system import paths
from potstill.system.files import draft_folder, seal, unseal, write_atomically

MARK = "export.json"  # in folders that potstill exported to: only files that it lists are ever replaced
MOST_ROWS = 2000  # that an export is compared on


def export_student(
    model: str, form: Export, out: str, data: str | None, columns: Columns, language: str | None, overwrite: bool
) -> str:
    """Write the model to the folder `out`; return a sentence about its size and how it compares with PyTorch on `data`."""
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
    with draft_folder(folder.resolve()) as draft:
        checked = form.export(student, draft, rows)
        names = sorted(path.name for path in draft.iterdir())
        if foreign := [name for name in names if (folder / name).exists() and name not in (earlier or ())]:
            raise InputError(f"{folder / foreign[0]} was not written by potstill; give another folder with --out")
        write_atomically(draft / MARK, seal({"made_by": "potstill", "files": names}))
        for name in earlier or ():
            if name not in names:  # a file of the earlier export that the new one does not have
                (folder / name).unlink(missing_ok=True)
        size = sum(path.stat().st_size for path in draft.glob(f"{checked.file.name}*")) / 1e6
        plain = 4 * sum(parameter.numel() for parameter in student.model.parameters()) / 1e6
    where = f"{checked.rows or len(rows)} rows of {data}" if rows else "random rows"
    answers = f" of {checked.answers}" if checked.answers is not None else ""
    same = f"same prediction {100 * checked.agreement:.1f} %{answers}"
    difference = f"largest difference of {checked.of} {checked.difference:.1e}"
    smaller = f", {plain / size:.1f} times smaller than float32" if plain > 1.05 * size else ""
    return f"{folder / checked.file.name}: {size:.1f} MB{smaller}; on {where}: {same}, {difference}"


def _earlier_export(folder: Path) -> list[str] | None:
    """The names of the files that an earlier export wrote to this folder; None if there was none."""
    try:
        mark = unseal((folder / MARK).read_bytes())
    except (OSError, ValueError):
        return None
    return [*map(str, mark["files"]), MARK] if mark.get("made_by") == "potstill" else None
