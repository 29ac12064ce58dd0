"""One runner for lists of cells: the points of a grid, the seeds of a run, the runs of a study."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from potstill.system import interrupts, ranks
from potstill.system.files import TEMPORARY, try_lock

Result = TypeVar("Result")
CLAIM = f"{TEMPORARY}claim"  # the file in a cell's folder that is locked by the process that trains it
POLL = 1.0  # seconds between two looks at the cells that other processes are training


def run_cells(
    folders: Mapping[str, Path], finished: Callable[[str], Result | None], work: Callable[[str], Result]
) -> dict[str, Result]:
    """Do the work of every cell that has no result yet; return all results in the order of the names.

    Several processes may work on one list: a cell that another process has claimed is left to it, and taken over if that
    process ends without a result. `finished` reads the result of a cell; None: it has none.
    """
    results: dict[str, Result] = {}
    while len(results) < len(folders):
        before = len(results)
        for name in [name for name in folders if name not in results]:
            if (result := finished(name)) is None:
                with claim(folders[name]) as mine:
                    # another process may have finished it since
                    result = finished(name) if mine else None
                    result = work(name) if mine and result is None else result
            if result is not None:
                results[name] = result
        if len(results) == before:
            interrupts.stop_if_asked()
            time.sleep(POLL)
    return {name: results[name] for name in folders}


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Whether this process may work on the cell in this folder. Ranks of one run share the claim of the first."""
    if ranks.is_first():
        new = [place for place in (folder, *folder.parents) if not place.exists()]
        with try_lock(folder / CLAIM) as mine:
            try:
                yield ranks.on_first(lambda: mine)()
            finally:
                if mine:
                    remove_empty(folder, new)
    else:
        yield ranks.on_first(bool)()


def remove_empty(folder: Path, new: list[Path]) -> None:
    """Remove the claim, and these folders, if nothing was written beside it: the cell was refused."""
    with contextlib.suppress(OSError):
        if all(path.name == CLAIM for path in folder.iterdir()):
            (folder / CLAIM).unlink()
            for place in new:
                place.rmdir()
