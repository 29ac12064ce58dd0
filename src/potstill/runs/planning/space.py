"""Does a run fit into the memory of its device and onto its disks? How fast is the disk?"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from potstill.system.terminal import byte_size
from potstill.training import checkpoints

TRIAL_BYTES = 32 * 1024**2  # of a checkpoint that is written to see how fast the disk is


@dataclass(frozen=True)
class Disk:
    """A folder that a run writes to, and the bytes it will hold."""

    what: str
    folder: Path
    kept: int  # bytes that stay
    passing: int  # further bytes at the worst moment

    @property
    def free(self) -> int:
        return shutil.disk_usage(existing(self.folder)).free

    @property
    def device(self) -> int:
        return existing(self.folder).stat().st_dev


def private_bytes() -> int:
    """Memory of this process that is not mapped from files; 0 if the system does not tell."""
    return _proc_bytes("/proc/self/status", "RssAnon")


def device_memory(device: torch.device) -> int:
    """Bytes that a run may use here: free ones, and those of this process, which the run would have instead."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) + torch.cuda.memory_reserved(device)
    free = _proc_bytes("/proc/meminfo", "MemAvailable") + private_bytes()
    return free or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _proc_bytes(file: str, name: str) -> int:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def what_does_not_fit(needed: dict[str, int], limit: int, disks: list[Disk]) -> str | None:
    """The first thing that does not fit, in the order of a run, and what to write instead."""
    device = f"of the device's memory, and {byte_size(limit)} are available"
    weights = needed["program"] + needed["weights"]
    if weights > limit:
        instead = "use a smaller teacher or student, or give more with --memory"
        return f"the weights of teacher and student need {byte_size(weights)} {device}; {instead}"
    full = full_disk(disks[:1]) if len(disks) > 1 else None
    if full is None and needed["peak"] > limit:
        instead = "write --set tokens=N with a smaller N for smaller micro-batches, or use a smaller student"
        return f"training needs {byte_size(needed['peak'])} {device}; {instead}"
    return full or full_disk(disks)


def full_disk(disks: list[Disk]) -> str | None:
    """A message about the first folder whose disk is too small for it and for the folders before it on that disk."""
    for number, disk in enumerate(disks, 1):
        same = [other for other in disks[:number] if other.device == disk.device]
        needed = sum(other.kept for other in same) + max(other.passing for other in same)
        if needed > disk.free:
            sizes = f"{byte_size(needed)} are needed on this disk, and {byte_size(disk.free)} are free"
            return f"{disk.what} in {disk.folder}: {sizes}; free some space, or give a folder on another disk"
    return None


def seconds_of_saving(folder: Path) -> tuple[float, float]:
    """Seconds to save an empty checkpoint in this folder, and seconds for each byte; 0 if nothing can be written."""
    seconds = []
    try:
        with tempfile.TemporaryDirectory(prefix=".potstill-", dir=existing(folder)) as trial:
            for step, size in enumerate((4, TRIAL_BYTES)):
                start = time.perf_counter()
                checkpoints.save(Path(trial), step, {"weights": {"zeros": torch.zeros(size // 4)}}, {})
                checkpoints.rotate(Path(trial), keep=1)
                seconds.append(time.perf_counter() - start)
    except OSError:
        return 0.0, 0.0
    return seconds[0], max(seconds[1] - seconds[0], 0.0) / TRIAL_BYTES
