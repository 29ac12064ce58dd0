"""Run a study: its runs one after the other, each in its folder, then the page with their answer."""

from __future__ import annotations

from pathlib import Path

from potstill.errors import InputError, TrainingError
from potstill.recipe.schema import Recipe
from potstill.runs.distill import distill
from potstill.runs.study_types import Answer, Found, Part, Study
from potstill.system.display import Display
from potstill.system.files import write_atomically
from potstill.system.paths import output_path

MARK = "<!-- written by potstill study -->"  # ends every page: what has it may be replaced by another


def run_study(
    study: Study,
    recipe: Recipe,
    out: Path,
    overwrite: bool = False,
    show: Display | None = None,
    accept_changes: bool = False,
) -> Answer:
    """Runs that are complete are read, not run again. Writes OUT/study.md and its figures, OUT/study.svg …"""
    show = show or Display(quiet=True)
    refuse_place(out := output_path(out), overwrite)
    if recipe.grid:
        raise InputError("a study makes its own runs; leave the grid out of its recipe")
    wanted = study.runs(recipe)
    found: dict[str, Found] = {}
    for number, (name, one) in enumerate(wanted.items()):
        show.say(f"{name}, run {number + 1} of {len(wanted)}")
        try:
            found[name] = Found(out / name, distill(one, out / name, "auto", overwrite, show, accept_changes))
        except TrainingError as error:
            if not study.may_diverge(name):
                raise
            show.say(f"{name}: {error}")
    answer = study.answer(found)
    write_atomically(out / "study.md", f"{markdown(answer)}\n{MARK}\n".encode())
    write_atomically(out / "study.svg", standalone(answer.figure).encode())
    for number, part in enumerate(answer.parts, 2):
        if part.figure:
            write_atomically(out / f"study-{number}.svg", standalone(part.figure).encode())
    return answer


def refuse_place(out: Path, overwrite: bool) -> None:
    """Where the page and its figures will lie: not in the place of what potstill did not write."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder with --out")
    page = out / "study.md"
    ours = page.is_file() and page.read_text(encoding="utf-8", errors="replace").rstrip().endswith(MARK)
    there = [*out.glob("study.md"), *out.glob("study*.svg")]
    if there and not ours and not overwrite:
        raise InputError(f"{there[0]} is not of a study here; move it away, or give another folder with --out")


def markdown(answer: Answer) -> str:
    told = "\n".join(f"- {sentence}" for sentence in answer.sentences)
    first = f"# {answer.title}\n\n{told}\n\n{table(answer)}\n\n![{answer.title}](study.svg)\n"
    return "\n".join([first, *(further(part, number) for number, part in enumerate(answer.parts, 2))])


def further(part: Part, number: int) -> str:
    figure = f"\n![{part.title}](study-{number}.svg)\n" if part.figure else ""
    return f"## {part.title}\n\n{table(part)}\n{figure}"


def table(told: Answer | Part) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(told.header), "|" + "---|" * len(told.header), *map(line, told.rows)])


def standalone(svg: str) -> str:
    """An inline picture as a file of its own: dark on white, whatever the page around it."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head, _, body = svg.partition(">")
    paper = '<rect width="100%" height="100%" fill="white"/>'
    fonts = '<g font-family="sans-serif">'
    return f"{head.replace('<svg', f'<svg {spaces}', 1)}>{paper}{fonts}{body.replace('</svg>', '</g></svg>')}".replace(
        "currentColor", "#222"
    )
