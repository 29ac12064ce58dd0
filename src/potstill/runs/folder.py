"""A run's folder: to which run it belongs, which process may work in it, and which files may be removed from it.

The mark, `run.json`, is written first. A folder with files but without a mark is not a run's, and is refused. In a folder with
a mark, only files that potstill writes are ever removed; the user's files beside them stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potstill.errors import InputError, TrainingError
from potstill.inference.export import MARK
from potstill.recipe.resolve import leaves
from potstill.recipe.schema import FREE, Recipe, fingerprint, to_toml
from potstill.runs.input_files import VERSIONS, Digests, changes
from potstill.system import interrupts, ranks
from potstill.system.files import MODEL_FILE, TEMPORARY, remove_files, seal, unseal, write_atomically
from potstill.system.paths import RunFolder, expand_user, output_path

FORMAT = 1
LOCK = ".lock"


@dataclass(frozen=True)
class Opening:
    """How a run's folder is opened."""

    inputs: Digests
    accepted: Sequence[str] = ()  # inputs that changed since the run was started, and that the user accepted
    overwrite: bool = False


@ranks.on_first
def choose_folder(
    recipe: Recipe, out: str | Path, resume: str, overwrite: bool, inputs: Iterable[Path]
) -> tuple[RunFolder, Path | None]:
    """The run's folder, refused if it holds something else; and the checkpoint to start at, if one was named."""
    folder = usable_folder(out, inputs)
    refuse_others(recipe, folder, resume, overwrite)
    checkpoint = expand_user(resume) if resume not in ("auto", "never") else None
    if checkpoint and recipe.grid:
        raise InputError("a grid continues by itself where it stopped; write --resume auto")
    if checkpoint and not checkpoint.is_dir():
        instead = f"write --resume auto, never, or a folder such as {out}/stages/0/checkpoints/step-00000200"
        raise InputError(f"there is no checkpoint {resume}; {instead}")
    return folder, checkpoint


@ranks.on_first
def usable_folder(out: str | Path, inputs: Iterable[Path]) -> RunFolder:
    """A folder for a run, whichever it is; refused if it holds anything but a run, or is around what the run reads."""
    folder = RunFolder(output_path(out))
    refuse_around_inputs(folder.root, inputs)
    if folder.root.exists() and not folder.root.is_dir():
        raise InputError(f"{folder.root} is a file; give another folder with --out")
    if not _is_empty(folder) and mark_of(folder) is None:
        raise InputError(f"{folder.root} is not empty and not a run of potstill; give another folder with --out")
    return folder


def _is_empty(folder: RunFolder) -> bool:
    out = folder.root
    return not out.exists() or all(path.name == LOCK or path.name.startswith(TEMPORARY) for path in out.iterdir())


def refuse_around_inputs(out: Path, inputs: Iterable[Path]) -> None:
    """Refuse a folder that contains an input or is inside one: what a run replaces must never be the user's."""
    place = out.resolve()
    for path in inputs:
        there = path.resolve()
        inside = there.is_dir() and there in place.parents
        if inside or place == there or place in there.parents:
            relation = "is inside" if inside else "contains"
            instead = "give a separate folder, such as runs/small"
            raise InputError(f"--out {out} {relation} {path}, which the run reads; {instead}")


def refuse_others(recipe: Recipe, folder: RunFolder, resume: str, overwrite: bool) -> None:
    """Refuse the folder of another run, and of this one if it shall not continue."""
    out, mark = folder.root, mark_of(folder)
    if mark is None or overwrite or not holds_work(folder):
        return
    same = mark["recipe"] == fingerprint(recipe) and (mark["seeds"] > 1) == (recipe.seeds > 1)
    if resume == "never" or not same:
        why = "holds this run already" if same else f"holds another run{_differences(recipe, folder)}"
        raise InputError(f"{out} {why}; write --overwrite to replace it, or give another folder with --out")
    if mark["seeds"] > recipe.seeds:
        instead = f"write --seeds {mark['seeds']}, or give another folder with --out"
        raise InputError(f"{out} holds {mark['seeds']} seeds of this run; {instead}")


def _differences(recipe: Recipe, folder: RunFolder) -> str:
    """Settings in which the run in the folder differs from this one: " (optimizer.rate was 5e-05, is 0.001)"."""
    try:
        before = dict(leaves(tomllib.loads(folder.recipe.read_text(encoding="utf-8"))))
        now = dict(leaves(tomllib.loads(to_toml(recipe))))
    except (OSError, ValueError):
        return ""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name) and name not in FREE - {"seeds"}]

    def text(value: object) -> str:
        return "not given" if value is None else json.dumps(value, ensure_ascii=False, default=str)[:80]

    changed = [f"{name} was {text(before.get(name))}, is {text(now.get(name))}" for name in names]
    return f" ({', '.join(changed[:5])}{', …' if len(changed) > 5 else ''})" if changed else ""


def mark_of(folder: RunFolder) -> dict[str, Any] | None:
    """The run's mark; None if potstill did not make this folder."""
    try:
        mark = unseal(folder.mark.read_bytes())
    except (OSError, ValueError):
        return None
    return mark if mark.get("made_by") == "potstill" and mark.get("format") == FORMAT else None


def holds_work(folder: RunFolder) -> bool:
    """True if anything was trained: a run that was refused in its first second leaves nothing to lose."""
    return any(any(folder.root.rglob(name)) for name in ("*.safetensors", "cell.json", "result.json"))


@ranks.on_first
def refuse_changed(folder: RunFolder, inputs: Digests, accept: bool) -> list[str]:
    """The inputs that changed since the run was started; an error unless the user accepts them.

    For a finished run, other versions are no change, since it does not continue.
    """
    mark = mark_of(folder)
    if mark is None or not holds_work(folder):
        return []
    finished = folder.measurements.exists()
    compared = {text: files for text, files in inputs.items() if not (finished and text == VERSIONS)}
    changed = changes(mark["inputs"], compared)
    if changed and not accept:
        accepting = f"--accept-changes to {'keep its figures' if finished else 'continue with them'}"
        instead = f"Write --overwrite to start again, {accepting}, or give another folder with --out"
        raise InputError(f"{folder.root} was started with other inputs; changed since: {', '.join(changed)}. {instead}")
    return changed


def accepted_changes(folder: RunFolder) -> list[str]:
    """Return the inputs that changed during the run and that the user accepted."""
    return list((mark_of(folder) or {}).get("accepted") or [])


@ranks.on_first
def open_folder(recipe: Recipe, folder: RunFolder, opening: Opening) -> None:
    """Write the mark, then the recipe. An earlier run is replaced only now, when all inputs have been found."""
    mark = mark_of(folder)
    other = mark is not None and mark["recipe"] != fingerprint(recipe)
    if mark is not None and (opening.overwrite or (other and not holds_work(folder))):
        remove_run(folder)
        mark = None
    folder.root.mkdir(parents=True, exist_ok=True)
    earlier = mark["accepted"] if mark else []
    content = {
        "made_by": "potstill",
        "format": FORMAT,
        "recipe": fingerprint(recipe),
        "seeds": recipe.seeds,
        "heads": [data.name for data in recipe.last_data[1:]],
        "inputs": opening.inputs,
        "accepted": list(dict.fromkeys([*earlier, *opening.accepted])),
    }
    write_atomically(folder.mark, seal(content))
    write_atomically(folder.recipe, f"# fingerprint {fingerprint(recipe)}\n{to_toml(recipe)}".encode())


def remove_run(folder: RunFolder) -> None:
    """Remove the files of a run and the folders that are empty then, the mark last. The user's files stay."""
    mark = mark_of(folder)
    files = files_of_a_run(mark["heads"] if mark else [])
    remove_files(folder.root, lambda path: path != folder.mark.name and bool(files.fullmatch(path)))
    folder.mark.unlink(missing_ok=True)


def files_of_a_run(heads: Iterable[str]) -> re.Pattern[str]:
    """The paths of all files that a run writes, relative to its folder. `heads`: data sets after the first.

    What `potstill export` writes beside the student (student-onnx) does not belong to the run.
    """
    run, temporary = r"(seed-\d+/)?", re.escape(TEMPORARY)
    stage = rf"{run}(baseline-run/)?(grid/[^/]+/)?(stages/\d+|finished)"
    model = "|".join(
        re.escape(f"{kind}{name}") for kind in ("student", "baseline") for name in ("", *(f"-{head}" for head in heads))
    )
    return re.compile(
        rf"{run}(recipe\.toml|run\.json|measurements\.json|answers\.safetensors|report\.html)"
        rf"|{run}({model})/({MODEL_FILE.pattern})"
        rf"|{run}deployed/({MODEL_FILE.pattern}|{re.escape(MARK)})"
        rf"|{run}(baseline-run/)?grid/[^/]+/cell\.json"
        rf"|{stage}/(steps\.csv|epochs\.csv|result\.json|tensorboard/events\.out\.tfevents\.[^/]+)"
        rf"|{stage}/(checkpoints/|best/|ends/|rewind/|\d+/)(\.old-|{temporary})?step-\d+/(\w+\.safetensors|(state|manifest)\.json)"
        rf"|(.*/)?{temporary}.*",
        re.ASCII,
    )


class FolderLock:
    """The lock of a run's folder: shared by processes that train its cells, held by one alone while it finishes the run."""

    def __init__(self, folder: RunFolder, shared: bool) -> None:
        self.folder, self.shared = folder, shared
        self.is_new = not folder.root.exists()

    def __enter__(self) -> FolderLock:
        ranks.on_first(self._take)()
        return self

    def _take(self) -> None:
        root = self.folder.root
        root.mkdir(parents=True, exist_ok=True)
        self.handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self.handle, (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.handle)
            instead = "wait until it ends, or give another folder with --out"
            raise InputError(f"another process is working in {root}; {instead}") from None

    def alone(self) -> None:
        """Wait until no other process works in the folder."""
        ranks.on_first(self._wait)()

    def _wait(self) -> None:
        fcntl.flock(self.handle, fcntl.LOCK_UN)  # two processes that hold on to their share would wait for ever
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            interrupts.stop_if_asked()
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        if not ranks.is_first():
            return
        try:
            if not self.folder.mark.exists():  # refused before anything was written: leave nothing behind
                with contextlib.suppress(OSError):
                    (self.folder.root / LOCK).unlink(missing_ok=True)
                    if self.is_new:
                        self.folder.root.rmdir()
        finally:
            os.close(self.handle)


@contextmanager
def disk_errors_in(folder: RunFolder) -> Iterator[None]:
    """If the disk fails after something was saved, say that it was."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if not holds_work(folder):
            raise
        reason = f"{error.strerror or error}: {error.filename or folder.root}"
        raise TrainingError(f"{reason}; what was saved before stays usable") from error
