"""The tree of the source with a sentence for each file, as CONTRIBUTING.md prints it: python -m tests.house.tree --write

The sentence of a file is the first line of its docstring, the sentence of a room is the docstring of its `__init__.py`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/potstill"
PAGE = ROOT / "CONTRIBUTING.md"
ROOMS = (
    "system",
    "recipe",
    "data",
    "models",
    "tasks",
    "inference",
    "training",
    "measuring",
    "reporting",
    "runs",
    "plugins",
    "app",
)
BEGIN, END = "<!-- tree -->\n```text\n", "```\n<!-- /tree -->"


def sentence(file: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].strip()


def lines(folder: Path, indent: str = "") -> Iterator[tuple[str, str]]:
    """(name, sentence) of each file and folder; rooms in the order of their layers, from the ground up."""
    files = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
    for file in files:
        yield f"{indent}{file.name}", sentence(file)
    folders = sorted(inner for inner in folder.iterdir() if (inner / "__init__.py").exists())
    if folder == SOURCE:
        folders.sort(key=lambda room: ROOMS.index(room.name))
    for inner in folders:
        yield f"{indent}{inner.name}/", sentence(inner / "__init__.py")
        yield from lines(inner, indent + "  ")


def tree() -> str:
    rows = [("__init__.py", sentence(SOURCE / "__init__.py")), *lines(SOURCE)]
    return "".join(f"{name:<28}{text}".rstrip() + "\n" for name, text in rows)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}{tree()}{END}{after}"
    if "--write" in sys.argv:
        PAGE.write_text(new, encoding="utf-8")
    else:
        print(tree(), end="")
