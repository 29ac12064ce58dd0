"""Where every file lives."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from potstill.errors import InputError


def given(path: str | Path) -> Path:
    """A path as somebody wrote it: ~ is their home also where no shell has seen it; an unknown ~user stays as it is."""
    return Path(os.path.expanduser(path))


def unreadable(path: str | Path, error: OSError) -> InputError:
    """The error of a file that the user named and the system cannot read."""
    return InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions")


def check_readable(path: str | Path) -> None:
    """Refuse a missing file. It is not opened: a pipe could be read only once."""
    try:
        given(path).stat()
    except OSError as error:
        raise unreadable(path, error) from None


def to_write(path: str | Path, what: str = "--out") -> Path:
    """The place of what will be written, refused at once where nothing can be: after hours of work it would be too late."""
    place = given(path)
    if reason := _why_not(place):
        raise InputError(f"{what} {path}: {reason}; give another path, in a folder where you may write")
    return place


def _why_not(place: Path) -> str | None:
    """Why a file or folder cannot be made or replaced there; None where it can."""
    if "\0" in str(place):
        return "a path has no NUL characters"
    there = place.absolute()
    for one in (there, *there.parents):
        try:
            one.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return error.strerror or str(error)
        if one == there:
            if one.is_symlink() and not one.exists():
                return "this is a link that leads nowhere"
            continue  # what lies there is looked at by who wants to replace it
        if not one.is_dir():
            return f"{one} is not a folder"
        if os.statvfs(one).f_flag & os.ST_RDONLY:
            return f"{one} is on a {os.strerror(errno.EROFS).lower()}"
        return None if os.access(one, os.W_OK | os.X_OK) else f"there is no right to write in {one}"
    return None


def cache() -> Path:
    """Tokenised rows, the teacher's memory, texts and exports, and baselines: all can be made again. POTSTILL_CACHE moves it."""
    own = os.environ.get("POTSTILL_CACHE")
    return given(own) if own else given(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "potstill"


def examples() -> Path:
    return cache() / "examples"


def memory(own: str | None) -> Path:
    return given(own) if own else cache() / "memory"


def outputs() -> Path:
    """Texts that teachers wrote."""
    return cache() / "outputs"


def baselines() -> Path:
    return cache() / "baselines"


def exports() -> Path:
    """Teachers as ONNX files, for their lines in the table."""
    return cache() / "exports"


def offloaded() -> Path:
    """Weights of teachers that do not fit into memory."""
    return cache() / "offloaded"


class RunFolder:
    """A run's files: plain ones only, so that everything shown later is a function of this folder."""

    def __init__(self, folder: str | Path) -> None:
        self.root = given(folder)
        self.mark = self.root / "run.json"  # written first: where it is, the folder is a run's
        self.recipe = self.root / "recipe.toml"
        self.student = self.root / "student"
        self.baseline = self.root / "baseline"
        self.measurements = self.root / "measurements.json"
        self.answers = self.root / "answers.safetensors"
        self.report = self.root / "report.html"
        self.grid = self.root / "grid"

    def stage(self, number: int) -> Path:
        return self.root / "stages" / str(number)

    def seed(self, number: int) -> Path:
        """The run of one seed of several."""
        return self.root / f"seed-{number}"

    def heads(self, name: str) -> Path:
        """The student's folder for a further data set of a multi-task run."""
        return self.root / f"student-{name}"
