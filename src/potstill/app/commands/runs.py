"""Commands about several runs, and about what recipes can name. Torch is imported after the input is checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from potstill.app import options
from potstill.app.options import check_recipe, recipe_command
from potstill.errors import InputError
from potstill.recipe import plugins
from potstill.recipe.cells import all_cells
from potstill.recipe.resolve import RECIPES, Flags, resolve, shipped
from potstill.recipe.resolve import show as lines_of
from potstill.runs.defaults import complete_recipe, completed
from potstill.system.display import Display
from potstill.system.terminal import print_line, say

KIND_HELP = "methods, students, data, exports, studies or recipes; default: all."
STUDY_CELL_HELP = "Train this run of the study alone, without an answer; OUT holds one folder for each run."
OUT_HELP = "The study's folder, one run in each sub-folder. Default: runs/NAME."


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, as --out named them.", metavar="RUN…")],
    out: Annotated[
        Path | None, typer.Option(help="The page. Default: RUN/report.html; for several: report.html.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that potstill did not write.")] = False,
) -> None:
    """Show runs side by side on one page: figures, curves, and which differences are significant.

    potstill report runs/kd runs/skip runs/last --out compared.html
    """
    from potstill.measuring.run_folder import read_measurements

    for folder in runs:
        read_measurements(folder)  # refuses what is no finished run
    from potstill.measuring.comparisons import comparisons
    from potstill.reporting.console import print_comparisons
    from potstill.reporting.page import refuse_place, write_report

    page = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    refuse_place(page, overwrite)  # before the comparisons, which take long
    differences = comparisons(runs) if len(runs) > 1 else None
    page = write_report(runs, page, differences, overwrite)
    print_comparisons(differences or [])
    print_line(page)


@recipe_command(only=("--teacher", "--train", "--dev", "--test", "--seeds"))
def study(
    flags: Flags,
    name: Annotated[str, typer.Argument(help="size-curve, better-teacher … (`potstill list studies`).")],
    recipe: options.RecipeName = None,
    out: Annotated[str | None, options.run_option("--out", help=OUT_HELP)] = None,
    with_: Annotated[list[str] | None, options.plugin_option("study", "'layers=[1, 2, 4]'")] = None,
    set_: options.Set = None,
    overwrite: options.Overwrite = False,
    accept_changes: options.AcceptChanges = False,
    cell: Annotated[str | None, options.run_option("--cell", help=STUDY_CELL_HELP, metavar="RUN")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Answer a question by several runs: a table, a figure, and sentences that say what is shown and what is not.

    potstill study size-curve my.toml --teacher DIR --seeds 3 --with 'layers=[1, 2, 4, 8]'
    """
    question = plugins.make("studies", name.replace("-", "_"), options.plugin_fields(with_))
    resolved = resolve(recipe, flags, set_ or ()).recipe
    check_recipe(resolved, with_models=False)  # a study may replace the teacher
    from potstill.reporting.console import print_rows
    from potstill.runs.study import run_study

    folder = Path(out or f"runs/{name}")
    answer = run_study(question, resolved, folder, overwrite, Display(quiet), accept_changes, cell)
    if answer is None:
        return print_line(f"{cell} is done")
    print_rows(answer.header, answer.rows)
    for sentence in answer.sentences:
        print_line(sentence)
    if not quiet:
        say(f"page: {folder}/study.md   figure: {folder}/study.svg")


@recipe_command()
def cells(flags: Flags, recipe: options.RecipeName = None, set_: options.Set = None) -> None:
    """List the cells of a run: its seeds, and the points of its grid. Each can be trained by itself, by any process.

    potstill cells my.toml --seeds 3        potstill distill my.toml --seeds 3 --out runs/my --cell seed-1
    """
    complete, _ = complete_recipe(resolve(recipe, flags, set_ or ()).recipe)
    for cell in all_cells(complete):
        print_line(f"{cell.name:<40} {cell.title}")


def show(recipe: options.RecipeName = None, set_: options.Set = None) -> None:
    """Show a recipe with every value it resolves to, and the source of each."""
    for line in lines_of(completed(resolve(recipe, {}, set_ or ()))).removesuffix("\n").split("\n"):
        print_line(line)


def list_(kind: Annotated[str | None, typer.Argument(help=KIND_HELP, metavar="[KIND]")] = None) -> None:
    """List what recipes and commands can name: methods, students, data makers, exports, studies, and shipped recipes."""
    listings: dict[str, Iterator[str]] = {plugin_kind: plugin_lines(plugin_kind) for plugin_kind in plugins.BASES}
    listings["recipes"] = recipe_lines()
    if kind not in (None, *listings):
        raise InputError(f"there is no list of '{kind}'; write one of {', '.join(listings)}")
    for name, lines in listings.items():
        if kind is None:
            print_line(f"{name}:")
        for line in lines if kind in (None, name) else ():
            print_line(line if kind else f"  {line}")


def plugin_lines(kind: plugins.Kind) -> Iterator[str]:
    for name in plugins.names(kind):
        summary, fields = plugins.describe(kind, name)
        yield f"{name:<18} {summary}"
        for field, expected, default in fields:
            yield f"{'':<18}   {field} = {default}  ({expected})"


def recipe_lines() -> Iterator[str]:
    width = max(map(len, shipped()))
    for name in shipped():
        first_line = (RECIPES / f"{name}.toml").read_text().splitlines()[0].lstrip("# ")
        yield f"{name:<{width}} {first_line}"
