"""A run's folder: whose it is, who may work in it, and what may be removed from it.

The mark, `run.json`, is written first and by nobody else. Without it a folder that is not empty is somebody else's and is
refused; with it, only files that potstill writes are ever removed, whatever else the user has put beside them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.recipe.resolve import leaves
from potstill.recipe.schema import FREE, Recipe, fingerprint, to_toml
from potstill.runs.inputs import VERSIONS, Content, changes
from potstill.system import ranks
from potstill.system.files import MODEL_FILE, TEMPORARY, remove_files, sealed, unsealed, write_atomically
from potstill.system.paths import RunFolder, given, to_write

FORMAT = 1
LOCK = ".lock"


@ranks.on_first
def choose_folder(
    recipe: Recipe, out: str | Path, resume: str, overwrite: bool, inputs: Iterable[Path]
) -> tuple[RunFolder, Path | None]:
    """The run's folder, refused where it is not a run's; and the checkpoint to begin at where one was named."""
    folder = RunFolder(to_write(out))
    refuse_around_inputs(folder.root, inputs)
    refuse_others(recipe, folder, resume, overwrite)
    checkpoint = given(resume) if resume not in ("auto", "never") else None
    if checkpoint and recipe.grid:
        raise InputError("a grid goes on by itself where it stopped; write --resume auto")
    if checkpoint and not checkpoint.is_dir():
        raise InputError(
            f"there is no checkpoint {resume}; write --resume auto, never, or a folder such as {out}/stages/0/checkpoints/step-00000200"
        )
    return folder, checkpoint


def refuse_around_inputs(out: Path, inputs: Iterable[Path]) -> None:
    """A run and what it is made from lie apart: nothing that the run replaces can then be the user's."""
    place = out.resolve()
    for path in inputs:
        there = path.resolve()
        if place == there or place in there.parents:
            raise InputError(
                f"--out {out} holds {path}, which the run reads; give a folder of its own, such as runs/small"
            )
        if there.is_dir() and there in place.parents:
            raise InputError(
                f"--out {out} lies inside {path}, which the run reads; give a folder of its own, such as runs/small"
            )


def refuse_others(recipe: Recipe, folder: RunFolder, resume: str, overwrite: bool) -> None:
    """An error where the folder holds something else than this run."""
    out = folder.root
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give another folder with --out")
    if not out.exists() or all(_passing(path) for path in out.iterdir()):
        return
    mark = mark_of(folder)
    if mark is None:
        raise InputError(f"{out} is not empty and not a run of potstill; give another folder with --out")
    if overwrite or not holds_work(folder):
        return
    same = mark["recipe"] == fingerprint(recipe) and (mark["seeds"] > 1) == (recipe.seeds > 1)
    if resume == "never" or not same:
        why = "holds this run already" if same else f"holds another run{_what_differs(recipe, folder)}"
        raise InputError(f"{out} {why}; write --overwrite to replace it, or give another folder with --out")
    if mark["seeds"] > recipe.seeds:
        raise InputError(
            f"{out} holds {mark['seeds']} seeds of this run; write --seeds {mark['seeds']}, or give another folder with --out"
        )


def _what_differs(recipe: Recipe, folder: RunFolder) -> str:
    """Settings of the run that lies there and of the one that is wanted: " (optimizer.rate was 5e-05, is 0.001)"."""
    try:
        before = dict(leaves(tomllib.loads(folder.recipe.read_text(encoding="utf-8"))))
        now = dict(leaves(tomllib.loads(to_toml(recipe))))
    except (OSError, ValueError):
        return ""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in FREE - {"seeds"}]
    told = [f"{name} was {_shown(before.get(name))}, is {_shown(now.get(name))}" for name in changed]
    return f" ({', '.join(told[:5])}{', …' if len(told) > 5 else ''})" if told else ""


def _shown(value: object) -> str:
    return "not given" if value is None else json.dumps(value, ensure_ascii=False, default=str)[:80]


def mark_of(folder: RunFolder) -> dict[str, Any] | None:
    """What potstill wrote about the run; None where it did not make this folder."""
    try:
        mark = unsealed(folder.mark.read_bytes())
    except (OSError, ValueError):
        return None
    return mark if mark.get("made_by") == "potstill" and mark.get("format") == FORMAT else None


def holds_work(folder: RunFolder) -> bool:
    """Whether anything was trained there: a run that was refused in its first second leaves nothing to lose."""
    return any(folder.root.rglob("*.safetensors")) or any(folder.root.rglob("cell.json"))


@ranks.on_first
def refuse_changed(folder: RunFolder, inputs: Content, accept: bool) -> list[str]:
    """What the run was begun with and is another now; an error unless the user accepts it.

    Of a finished run other versions are no change: nothing goes on there.
    """
    mark = mark_of(folder)
    if mark is None or not holds_work(folder):
        return []
    finished = folder.measurements.exists()
    compared = {text: files for text, files in inputs.items() if not (finished and text == VERSIONS)}
    changed = changes(mark["inputs"], compared)
    if changed and not accept:
        todo = "keep its figures" if finished else "go on all the same"
        raise InputError(
            f"{folder.root} was begun with other inputs; changed since: {', '.join(changed)}. Write --overwrite to begin anew, "
            f"--accept-changes to {todo}, or give another folder with --out"
        )
    return changed


def changed_inputs(folder: RunFolder) -> dict[str, list[str]]:
    """For the measurements: which inputs changed while the run went on, with the user's consent; empty where none did."""
    accepted = (mark_of(folder) or {}).get("accepted")
    return {"changed_inputs": accepted} if accepted else {}


@ranks.on_first
def open_folder(
    recipe: Recipe,
    folder: RunFolder,
    overwrite: bool,
    inputs: Content | None = None,
    accepted: Sequence[str] = (),
) -> None:
    """Only now, when everything that was named has been found, is an earlier run replaced. The mark is written first.

    `accepted`: inputs that changed while the run was going on, with the user's consent.
    """
    mark = mark_of(folder)
    if mark is not None and (overwrite or not holds_work(folder)):
        remove_run(folder)
        mark = None
    folder.root.mkdir(parents=True, exist_ok=True)
    earlier = mark["accepted"] if mark else []
    content = {
        "made_by": "potstill",
        "format": FORMAT,
        "recipe": fingerprint(recipe),
        "seeds": recipe.seeds,
        "heads": [data.name for data in recipe.data[1:]],
        "inputs": inputs or {},
        "accepted": list(dict.fromkeys([*earlier, *accepted])),
    }
    write_atomically(folder.mark, sealed(content))
    write_atomically(folder.recipe, f"# fingerprint {fingerprint(recipe)}\n{to_toml(recipe)}".encode())


def remove_run(folder: RunFolder) -> None:
    """The files of a run, and folders that are empty then; what the user has put among them stays. The mark goes last."""
    mark = mark_of(folder)
    ours = files_of_a_run(mark["heads"] if mark else [])
    remove_files(folder.root, lambda path: path != folder.mark.name and bool(ours.fullmatch(path)))
    folder.mark.unlink(missing_ok=True)


def files_of_a_run(heads: Iterable[str]) -> re.Pattern[str]:
    """The paths of all files that a run writes, as seen from its folder. `heads`: data sets that have a head of their own.

    What `potstill export` writes beside the student (student-onnx) is not the run's.
    """
    run, temporary = r"(seed-\d+/)?", re.escape(TEMPORARY)
    stage = rf"{run}(grid/[^/]+/)?(stages/\d+|finished)"
    model = "|".join(
        re.escape(f"{kind}{name}") for kind in ("student", "baseline") for name in ("", *(f"-{one}" for one in heads))
    )
    return re.compile(
        rf"{run}(recipe\.toml|run\.json|measurements\.json|answers\.safetensors|report\.html)"
        rf"|{run}({model})/({MODEL_FILE.pattern})"
        rf"|{run}grid/[^/]+/cell\.json"
        rf"|{stage}/(steps\.csv|epochs\.csv|tensorboard/events\.out\.tfevents\.[^/]+)"
        rf"|{stage}/(checkpoints/|best/|ends/|\d+/)(\.old-|{temporary})?step-\d+/(\w+\.safetensors|(state|manifest)\.json)"
        rf"|(.*/)?{temporary}.*",
        re.ASCII,
    )


@ranks.entered_on_first
@contextmanager
def alone_in(folder: RunFolder) -> Iterator[None]:
    """One process at a time works in a run's folder; a second one is told so instead of waiting for hours."""
    made = not folder.root.exists()
    folder.root.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is working in {folder.root}; wait until it ends, or give another folder with --out"
            ) from None
        try:
            yield
        finally:
            if not folder.mark.exists():  # refused before anything was made: nothing is left behind
                with contextlib.suppress(OSError):
                    (folder.root / LOCK).unlink(missing_ok=True)
                    if made:
                        folder.root.rmdir()
    finally:
        os.close(handle)


def _passing(path: Path) -> bool:
    """A lock, or what a process that died was writing."""
    return path.name == LOCK or path.name.startswith(TEMPORARY)
