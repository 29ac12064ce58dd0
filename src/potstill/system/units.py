"""Durations and sizes as people write them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """ "40 s", "12 min", "3.5 h"; never less than a second."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def byte_size(count: float) -> str:
    """ "512 B", "1.25 GB": decimal units, three digits."""
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:.0f} B"
