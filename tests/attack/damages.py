"""Ways to damage a file: by bytes, as disks and copies do, and by values, as hands and other programs do."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

# fmt: off
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ", "x", "\0", "\ud800",
    "../x", "/etc/passwd", "<b>", "9" * 400, [], [[]], [None], {}, {"": None}, {"0": "a", "0.0": "b"}, [1, "a"], "many", "a" * 10_000,
    ["a"] * 1000,
)
# fmt: on


def files_of(folder: Path, *without: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (*without, ".lock"))


def damaged_bytes(chance: random.Random, path: Path) -> str:
    """Bits, ends, holes; returns what was done."""
    data = bytearray(path.read_bytes())
    kind = chance.choice(("bit", "bit", "bit", "cut", "empty", "removed", "longer", "zeros", "noise", "folder"))
    if kind == "bit" and data:
        for _ in range(chance.choice((1, 1, 3))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[chance.randrange(len(data) + 1) :]
    elif kind == "empty":
        data.clear()
    elif kind == "longer":
        data += chance.randbytes(chance.choice((1, 8, 4096)))
    elif kind == "zeros" and data:
        begin = chance.randrange(len(data))
        data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))
    elif kind == "noise":
        data[:] = chance.randbytes(len(data))
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind != "removed":
        path.write_bytes(data)
    return f"{path.name}: {kind}"


def damaged_values(chance: random.Random, path: Path) -> str:
    """One to three values of a JSON file replaced, renamed, removed or repeated."""
    told = json.loads(path.read_text())
    done = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(_places(told))
        if not places:
            break
        holder, key = chance.choice(places)
        kind = chance.choice(("value", "value", "value", "removed", "renamed"))
        if kind == "removed":
            del holder[key]
        elif kind == "renamed" and isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key)
        else:
            holder[key] = chance.choice(VALUES)
        done.append(f"{kind} at {str(key)[:40]}")
    if chance.random() < 0.05:
        told = chance.choice(VALUES)
    path.write_text(json.dumps(told))
    return f"{path.name}: {', '.join(done)}"


def _places(value: Any) -> Any:
    """Every holder and key below; those of long lists are few."""
    children = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))[:5]
        if isinstance(value, list)
        else []
    )
    for key, child in children[:400]:
        yield value, key
        yield from _places(child)


def damaged(chance: random.Random, path: Path) -> str:
    if path.suffix == ".json" and chance.random() < 0.7:
        return damaged_values(chance, path)
    return damaged_bytes(chance, path)
