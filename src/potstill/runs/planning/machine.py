"""What there is room for: memory of the device, and the disks that a run writes to."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from potstill.system.units import byte_size
from potstill.training import checkpoints

TRIED = 32 * 1024**2  # bytes of a checkpoint that is written to see how fast the disk is


@dataclass(frozen=True)
class Disk:
    """A folder that a run writes to, and what it will hold there."""

    what: str
    folder: Path
    kept: int  # bytes that stay
    passing: int  # bytes beside them at the worst moment


def private_bytes() -> int:
    """Memory of this process that belongs to no file; 0 where the system does not tell."""
    return _kilobytes("/proc/self/status", "RssAnon")


def device_memory(device: torch.device) -> int:
    """Bytes that a run may use here: free ones, and those that this process has and a run would have instead of it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) + torch.cuda.memory_reserved(device)
    free = _kilobytes("/proc/meminfo", "MemAvailable") + private_bytes()
    return free or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _kilobytes(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def existing(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    folder = folder.absolute()
    return next(one for one in (folder, *folder.parents) if one.is_dir())


def overfull(disks: list[Disk]) -> str | None:
    """The first folder whose disk is too small for it and all before it on the same disk, in words."""
    used: dict[int, int] = {}
    passing: dict[int, int] = {}
    for one in disks:
        place = existing(one.folder)
        disk = place.stat().st_dev
        used[disk] = used.get(disk, 0) + one.kept
        passing[disk] = max(passing.get(disk, 0), one.passing)
        needed, free = used[disk] + passing[disk], shutil.disk_usage(place).free
        if needed > free:
            told = (
                f"{one.what} in {one.folder}: {byte_size(needed)} are needed on this disk, {byte_size(free)} are free"
            )
            return f"{told}; free some, or give a folder on another disk"
    return None


def seconds_of_saving(folder: Path) -> tuple[float, float]:
    """Of a checkpoint in this folder, with its checksums, and of each of its bytes; 0 where nothing can be written."""
    spent = []
    try:
        with tempfile.TemporaryDirectory(prefix=".potstill-", dir=existing(folder)) as place:
            for step, size in enumerate((4, TRIED)):
                begun = time.perf_counter()
                checkpoints.save(Path(place), step, {"weights": {"zeros": torch.zeros(size // 4)}}, {})
                checkpoints.rotate(Path(place), keep=1)
                spent.append(time.perf_counter() - begun)
    except OSError:
        return 0.0, 0.0
    return spent[0], max(spent[1] - spent[0], 0.0) / TRIED
