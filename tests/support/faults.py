"""Faults made on purpose."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A disk that is full for any file beyond this size: the kernel's own error, in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def small_disk(folder: Path, size: int = 40 * 2**20) -> Iterator[Path]:
    """A file system of this many bytes of its own; a test is skipped where nothing may be mounted."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Also for root, whom permissions do not hold."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


@contextmanager
def nearly_full(disk: Path, left: int) -> Iterator[None]:
    """Only so many bytes are left on the disk."""
    ballast = disk / "ballast"
    free = shutil.disk_usage(disk).free
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free - left, 1))
    try:
        yield
    finally:
        ballast.unlink()


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@contextmanager
def peak_memory(limit: float = 4096) -> Iterator[list[float]]:
    """Megabytes that this process needs at most inside, beyond what it had: of Python, C++ and Rust alike.

    What asks for more than `limit` gets an error, so that a failing test does not take the machine's memory.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what tests before this one freed would be taken again without a trace
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark starts anew
    before, most = _status("VmRSS"), [0.0]
    free = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int((_status("VmSize") + limit) * 2**20), free[1]))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_AS, free)
        most[0] = max(0.0, _status("VmHWM") - before)


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024
