"""How many attention heads fit a width."""

from __future__ import annotations

from potstill.api import InputError


def fitting_heads(width: int, even: bool) -> int:
    """Return the number of heads whose size is nearest to 64. Rotary positions need an `even` size."""
    sizes = [size for size in range(1, width + 1) if width % size == 0 and not (even and size % 2)]
    if not sizes:
        raise InputError(f"fresh: rotary positions need an even width, not {width}; write width = {width + 1}")
    return width // min(sizes, key=lambda size: (abs(size - 64), size))
