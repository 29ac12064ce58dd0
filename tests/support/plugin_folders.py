"""A small plug-in folder with one or two of each kind, so that tests of recipes need no torch."""

from __future__ import annotations

from pathlib import Path

METHOD = '''"""Slow cooking (Cook, 1999)."""
from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from potstill.api import Batch, Method, Signals, Term, Wants

@dataclass(frozen=True)
class Slow(Method):
    """L = CE"""
    temperature: float = 5.0
    layers: tuple[int, ...] = (1, 2)
    map: Literal["skip", "last"] = "skip"
    limit: float | None = 1.0
    warm: bool = False

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]: ...

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]: ...
'''
STUDENT = '''"""A slice of the teacher."""
from dataclasses import dataclass
from potstill.api import Builder

@dataclass(frozen=True)
class Slice(Builder):
    layers: int
    width: int | None = None

    def build(self, current, context): ...
'''
BARE_METHOD = """from dataclasses import dataclass
from potstill.api import Method

@dataclass(frozen=True)
class Whole(Method):
    def wants(self, student_layers, teacher_layers): ...

    def losses(self, student, teacher, batch): ...
"""
BARE_STUDENT = """from dataclasses import dataclass
from potstill.api import Builder

@dataclass(frozen=True)
class Whole(Builder):
    def build(self, current, context): ...
"""
MAKER = """from dataclasses import dataclass
from potstill.api import DataMaker

@dataclass(frozen=True)
class Some(DataMaker):
    rows: int = 10

    def make(self, examples, context): ...
"""


def write_plugins(folder: Path) -> None:
    files = {
        "methods/slow": METHOD,
        "methods/quick": BARE_METHOD,
        "students/slice": STUDENT,
        "students/whole": BARE_STUDENT,
        "data/some": MAKER,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)
