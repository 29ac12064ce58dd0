"""Paths that users write, the folders of the cache, and the files of a run."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from potstill.errors import InputError


def expand_user(path: str | Path) -> Path:
    """A path that a user wrote, with ~ expanded even if no shell has seen it. An unknown ~user stays as it is."""
    return Path(os.path.expanduser(path))


def unreadable(path: str | Path, error: OSError) -> InputError:
    """The error of a file that the user named and the system cannot read."""
    return InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions")


def check_readable(path: str | Path) -> None:
    """Refuse a missing file. It is not opened: a pipe could be read only once."""
    try:
        expand_user(path).stat()
    except OSError as error:
        raise unreadable(path, error) from None


def output_path(path: str | Path, what: str = "--out") -> Path:
    """The path of an output. Refuse it now if it cannot be written, not after hours of work."""
    place = expand_user(path)
    if reason := _why_not(place):
        raise InputError(f"{what} {path}: {reason}; give another path, in a folder where you may write")
    return place


def _why_not(place: Path) -> str | None:
    """The reason why a file or folder cannot be written there; None if it can."""
    if "\0" in str(place):
        return "a path cannot hold NUL characters"
    absolute = place.absolute()
    for path in (absolute, *absolute.parents):
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return error.strerror or str(error)
        if path == absolute:
            if path.is_symlink() and not path.exists():
                return "this is a broken link"
            continue  # the caller decides whether it may be replaced
        if not path.is_dir():
            return f"{path} is not a folder"
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{path} is on a {os.strerror(errno.EROFS).lower()}"
        return None if os.access(path, os.W_OK | os.X_OK) else f"you have no permission to write in {path}"
    return None


def cache() -> Path:
    """The cache, which can be deleted at any time. Its folders are examples (tokenised rows), memory (answers of teachers),
    outputs (their texts), exports (their ONNX files), offloaded (their weights that do not fit into memory), stages (results
    of training) and speed (what was measured of this machine)."""
    own = os.environ.get("POTSTILL_CACHE")
    return expand_user(own) if own else expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "potstill"


def memory(own: str | None) -> Path:
    return expand_user(own) if own else cache() / "memory"


class RunFolder:
    """The files of a run. Reports are made from these files alone."""

    def __init__(self, folder: str | Path) -> None:
        self.root = expand_user(folder)
        self.mark = self.root / "run.json"  # written first: it marks the folder as a run
        self.recipe = self.root / "recipe.toml"
        self.student = self.root / "student"
        self.deployed = self.root / "deployed"  # the student as ONNX
        self.baseline = self.root / "baseline"
        self.baseline_run = self.root / "baseline-run"  # its stages
        self.measurements = self.root / "measurements.json"
        self.answers = self.root / "answers.safetensors"
        self.report = self.root / "report.html"
        self.grid = self.root / "grid"

    def stage(self, number: int) -> Path:
        return self.root / "stages" / str(number)

    def heads(self, name: str) -> Path:
        """The student for a further data set of a multi-task run."""
        return self.root / f"student-{name}"
