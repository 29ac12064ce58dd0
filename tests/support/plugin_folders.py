"""A small plug-in folder with one or two of each kind, so that tests of recipes need no torch."""

from __future__ import annotations

from pathlib import Path

METHOD = '''"""Slow cooking (Cook, 1999)."""
from __future__ import annotations
from dataclasses import dataclass
from typing import Literal

@dataclass(frozen=True)
class Slow:
    """L = CE"""
    temperature: float = 5.0
    layers: tuple[int, ...] = (1, 2)
    map: Literal["skip", "last"] = "skip"
    limit: float | None = 1.0
    warm: bool = False
'''
STUDENT = '''"""A slice of the teacher."""
from dataclasses import dataclass

@dataclass(frozen=True)
class Slice:
    layers: int
    width: int | None = None
'''
BARE = """from dataclasses import dataclass

@dataclass(frozen=True)
class Whole:
    pass
"""
MAKER = """from dataclasses import dataclass

@dataclass(frozen=True)
class Some:
    rows: int = 10
"""


def write_plugins(folder: Path) -> None:
    files = {
        "methods/slow": METHOD,
        "methods/quick": BARE,
        "students/slice": STUDENT,
        "students/whole": BARE,
        "data/some": MAKER,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)
