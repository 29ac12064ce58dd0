"""Temporary folders. One that a killed process left is removed by the next process that needs a temporary folder.

The owner of a folder holds a lock in it, which ends with the process, even if it is killed.
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
    """A folder that is removed after the body."""
    with _held(Path(tempfile.gettempdir()), "potstill-") as place:
        yield place


@contextmanager
def draft_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`. If the body ends without an error, its files are moved into `folder`, complete and
    flushed; otherwise none is. Other files in `folder` stay."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _held(folder.parent, f"{TEMPORARY}{folder.name}-") as place, disk_errors(folder):
        draft = place / "made"
        draft.mkdir()
        yield draft
        for path in [*draft.rglob("*"), draft]:
            fsync_path(path)
        if not folder.exists() or not any(folder.iterdir()):
            draft.rename(folder)  # in one step, also over an empty folder
        else:
            for path in sorted(
                draft.iterdir(), key=lambda path: path.name.startswith("model.")
            ):  # the model comes last
                if (folder / path.name).is_dir():
                    shutil.rmtree(folder / path.name)
                path.rename(folder / path.name)
        fsync_path(folder.parent)


@contextmanager
def _held(parent: Path, prefix: str) -> Iterator[Path]:
    _remove_left_over(parent, prefix)
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    # locked before it is renamed, so that a lock file is never free while its owner lives
    handle = os.open(place / "locking", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        (place / "locking").rename(place / LOCK)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def _remove_left_over(parent: Path, prefix: str) -> None:
    """Remove the folders of dead processes of this user."""
    for place in parent.glob(f"{prefix}*"):
        try:
            if place.is_symlink() or place.stat().st_uid != os.getuid():
                continue
            handle = os.open(place / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # without a lock it is not ours, or is just being made
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
