"""Folders for the time of a process. One that was killed leaves its own behind: the next that needs one takes it away.

A folder's owner holds a lock in it, and the lock ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potstill.system.files import TEMPORARY, disk_errors, fsync_path

LOCK = ".lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """For files that nobody needs afterwards."""
    with _held(Path(tempfile.gettempdir()), "potstill-") as place:
        yield place


@contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`. When the body has ended well, its files are in `folder`, whole and on disk; else
    nothing of them is. Other files that lie in `folder` stay."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _held(folder.parent, f"{TEMPORARY}{folder.name}-") as place, disk_errors(folder):
        made = place / "made"
        made.mkdir()
        yield made
        for path in [*made.rglob("*"), made]:
            fsync_path(path)
        if not folder.exists() or not any(folder.iterdir()):
            made.rename(folder)  # also over an empty one, in one step
        else:
            for path in sorted(made.iterdir(), key=lambda one: one.name.startswith("model.")):  # the model is the last
                if (folder / path.name).is_dir():
                    shutil.rmtree(folder / path.name)
                path.rename(folder / path.name)
        fsync_path(folder.parent)


@contextmanager
def _held(parent: Path, prefix: str) -> Iterator[Path]:
    _remove_left_over(parent, prefix)
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    # locked before it has its name: whoever finds the name finds the lock taken
    handle = os.open(place / "locking", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        (place / "locking").rename(place / LOCK)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def _remove_left_over(parent: Path, prefix: str) -> None:
    """Of processes of this user that are dead."""
    for place in parent.glob(f"{prefix}*"):
        try:
            if place.is_symlink() or place.stat().st_uid != os.getuid():
                continue
            handle = os.open(place / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it has no lock: it is not ours, or is just being made
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
