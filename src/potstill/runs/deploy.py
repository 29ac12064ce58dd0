"""Keep the form of the student that users run: ONNX in eight bits, or in float32 where eight bits do not pay."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from potstill.inference.export import MARK
from potstill.measuring.measurements import STUDENT, TEACHER, Deployed, MeasuredModel, Speed
from potstill.system.files import draft_folder, seal, write_atomically
from potstill.tasks.task import Task

LEAST_AGREEMENT = 0.97  # share of rows on which eight bits must predict what the student in PyTorch predicts
WORTH = 1.1  # float32 is kept if it is so many times faster, although it is four times as large
FLOAT = 4  # bytes

Speeds = Mapping[tuple[str, str], Speed]
"""By model and engine."""


def wants_form(deploy: str, timing: str) -> bool:
    """Whether the student is exported: where the recipe says so, or where its ONNX forms are measured anyway."""
    return deploy in ("int8", "onnx") or (deploy == "auto" and timing == "all")


def has_forms(task: Task) -> bool:
    """Whether a student of this task can be exported to ONNX."""
    return not (task.generates or task.two_heads)


def missing_form(deploy: str, task: Task) -> str:
    """What to say where the recipe names a form that a student of this task does not have; else nothing."""
    if deploy not in ("int8", "onnx") or has_forms(task):
        return ""
    return (
        f"deploy = '{deploy}' is not for task '{task.name}', so no deployed form is kept; see `potstill list exports`"
    )


def chosen_form(deploy: str, agreement: float | None, speeds: Speeds) -> str:
    """int8 or onnx. Both numbers may be missing: a number has no equal predictions, and only the first seed is timed."""
    if deploy != "auto":
        return deploy
    rates = [speeds.get((name, "onnx"), {}).get("examples_per_second") for name in (STUDENT, f"{STUDENT} int8")]
    float32, int8 = rates
    slower = float32 is not None and int8 is not None and float32 > WORTH * int8
    return "onnx" if slower or (agreement is not None and agreement < LEAST_AGREEMENT) else "int8"


def deploy_student(
    deploy: str,
    files: tuple[Path, Path],
    folder: Path,
    agreement: float | None,
    speeds: Speeds,
    teacher: MeasuredModel | None,
) -> Deployed:
    """Write the chosen one of two ONNX files, with config and tokenizer, to a folder that is complete or absent.

    It is compared with the teacher in PyTorch and float32, at 32 texts at once.
    """
    form = chosen_form(deploy, agreement, speeds)
    float32, int8 = files
    beside = [path for path in float32.parent.iterdir() if path.is_file() and ".onnx" not in path.name]
    data = float32.with_name(f"{float32.name}.data")  # the weights of a network of more than 2 GB
    with draft_folder(folder) as draft:
        shutil.copyfile(int8 if form == "int8" else float32, draft / "model.onnx")
        for path in [*beside, *([data] if form == "onnx" and data.exists() else [])]:
            shutil.copyfile(path, draft / path.name)
        size = sum(path.stat().st_size for path in draft.glob("model.onnx*"))
        names = sorted(path.name for path in draft.iterdir())
        write_atomically(draft / MARK, seal({"made_by": "potstill", "files": names}))
    ours = speeds.get((f"{STUDENT} int8" if form == "int8" else STUDENT, "onnx"), {})
    theirs = speeds.get((TEACHER, "pytorch"), {})
    both = [speed.get("examples_per_second") for speed in (ours, theirs)]
    return Deployed(
        form=form,
        bytes=size,
        agreement=agreement if form == "int8" else None,
        teacher_bytes=FLOAT * teacher.parameters if teacher is not None and teacher.parameters else None,
        times_faster=both[0] / both[1] if both[0] and both[1] else None,
    )
