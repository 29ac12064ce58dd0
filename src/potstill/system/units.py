"""Durations and byte counts as text."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return seconds as "42 s", "7 min" or "1.5 h"."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def byte_size(count: float) -> str:
    """Return a number of bytes as "512 B", "3.4 MB" or "1.2 GB"."""
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:.0f} B"
