"""The commands. Each is a thin coat over a function of the same name; torch is imported only where it is used."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from potstill import __version__
from potstill.app import options
from potstill.app.commands import data as data_commands
from potstill.app.commands import models as model_commands
from potstill.app.commands.train import run_recipe, train
from potstill.errors import InputError, TrainingError
from potstill.reporting.console import print_differences, print_list, print_plan, print_rows
from potstill.system.interrupts import Interrupted
from potstill.system.terminal import prepare, put, put_json, say, tell_error

# of an error of the system that is about a path which somebody wrote
NO_SUCH_PATH = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
}

app = typer.Typer(
    name="potstill",
    help="Turn a language model that is too big into one that is small, fast and nearly as good, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        put(f"potstill {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def distill(
    recipe: options.RecipeName = None,
    teacher: options.Teacher = None,
    train: options.Train = None,
    dev: options.Dev = None,
    test: options.Test = None,
    unlabelled: options.Unlabelled = None,
    student: options.StudentShape = None,
    method: options.MethodName = None,
    out: options.Out = None,
    start: options.Start = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    labels: options.Labels = None,
    label_map: options.LabelMap = None,
    choices: options.Choices = None,
    task: options.TaskOption = None,
    epochs: options.Epochs = None,
    batch: options.BatchSize = None,
    rate: options.Rate = None,
    length: options.Length = None,
    seed: options.Seed = None,
    seeds: options.Seeds = None,
    device: options.Device = None,
    set_: options.Set = None,
    resume: options.Resume = "auto",
    overwrite: options.Overwrite = False,
    accept_changes: options.AcceptChanges = False,
    no_baseline: options.NoBaseline = False,
    force: options.Force = False,
    tracker: options.Tracker = None,
    quiet: options.Quiet = False,
) -> None:
    """Make a smaller student of a teacher, beside the same student fine-tuned alone, and print one table.

    potstill distill --teacher DIR --train train.csv --dev dev.csv --test test.csv --student keep_layers:3 --method patient
    """
    flags = {
        **options.student_flags(teacher, start, student, method, no_baseline, force),
        **options.data_flags(train, dev, test, text, pair, label, labels, choices, task, unlabelled, label_map),
        **options.training_flags(epochs, batch, rate, length, seed, seeds, device, tracker),
    }
    run_recipe(recipe, flags, set_, out, resume, overwrite, accept_changes, quiet)


@app.command()
def finetune(
    model: options.Encoder = None,
    train: options.Train = None,
    dev: options.Dev = None,
    test: options.Test = None,
    student: options.StudentShape = None,
    out: options.Out = None,
    recipe: Annotated[
        str | None, typer.Option(help="A TOML file to begin from, for example with a \\[grid] over rates.")
    ] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    labels: options.Labels = None,
    label_map: options.LabelMap = None,
    choices: options.Choices = None,
    task: options.TaskOption = None,
    epochs: options.Epochs = None,
    batch: options.BatchSize = None,
    rate: Annotated[
        str | None, typer.Option(help="Learning rate, or several as 5e-5,2e-5: the best by dev is kept.")
    ] = None,
    length: options.Length = None,
    seed: options.Seed = None,
    seeds: options.Seeds = None,
    device: options.Device = None,
    set_: options.Set = None,
    resume: options.Resume = "auto",
    overwrite: options.Overwrite = False,
    accept_changes: options.AcceptChanges = False,
    tracker: options.Tracker = None,
    quiet: options.Quiet = False,
) -> None:
    """Make a teacher: fine-tune an encoder, a translator or a language model; it lies in OUT/student.

    potstill finetune DIR --train train.csv --dev dev.csv --test test.csv --rate 5e-5,2e-5 --out runs/teacher
    """
    rates = [options.number(one, "--rate") for one in rate.split(",")] if rate else []
    flags = {
        **options.begun_flags(model, student),
        "stage.0.method": ("finetune", "hard_labels"),
        "grid": ("--rate", {"optimizer.rate": rates} if len(rates) > 1 else None),
        **options.data_flags(train, dev, test, text, pair, label, labels, choices, task, None, label_map),
        **options.training_flags(
            epochs, batch, rates[0] if len(rates) == 1 else None, length, seed, seeds, device, tracker
        ),
    }
    run_recipe(recipe, flags, set_, out, resume, overwrite, accept_changes, quiet, finetuned=True, encoder=model)


app.command()(train)


@app.command()
def plan(
    recipe: options.RecipeName = None,
    teacher: options.Teacher = None,
    train: options.Train = None,
    dev: options.Dev = None,
    test: options.Test = None,
    unlabelled: options.Unlabelled = None,
    student: options.StudentShape = None,
    method: options.MethodName = None,
    out: options.Out = None,
    start: options.Start = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    labels: options.Labels = None,
    label_map: options.LabelMap = None,
    choices: options.Choices = None,
    task: options.TaskOption = None,
    epochs: options.Epochs = None,
    batch: options.BatchSize = None,
    rate: options.Rate = None,
    length: options.Length = None,
    seed: options.Seed = None,
    seeds: options.Seeds = None,
    device: options.Device = None,
    set_: options.Set = None,
    no_baseline: options.NoBaseline = False,
    force: options.Force = False,
    tracker: options.Tracker = None,
    peak: Annotated[
        float | None, typer.Option(help="Count hours for a machine whose products reach so many GFLOPS.")
    ] = None,
    devices: Annotated[int, typer.Option(help="Count hours for so many of them.")] = 1,
    memory: Annotated[float | None, typer.Option(help="What a device there has, in GB.")] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """What `distill` with the same words would cost: steps, operations, memory, disk, hours, and what will not fit.

    potstill plan --teacher DIR --train train.csv --dev dev.csv --student keep_layers:3 --method patient --seeds 3
    """
    flags = {
        **options.student_flags(teacher, start, student, method, no_baseline, force),
        **options.data_flags(train, dev, test, text, pair, label, labels, choices, task, unlabelled, label_map),
        **options.training_flags(epochs, batch, rate, length, seed, seeds, device, tracker),
    }
    from potstill.recipe.resolve import resolve

    resolved = resolve(recipe, flags, set_ or ()).recipe
    from potstill.runs.planning import plan as planned
    from potstill.system.display import Display

    folder = out or f"runs/{resolved.name if recipe else 'distilled'}"
    found = planned.plan(resolved, folder, peak, devices, memory, Display(quiet or as_json))
    if as_json:
        put_json(found, indent=1)
    else:
        print_plan(found)


for command in (
    model_commands.predict,
    model_commands.translate,
    model_commands.measure,
    model_commands.export,
    data_commands.augment,
):
    app.command()(command)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, as --out named them.", metavar="RUN…")],
    out: Annotated[
        Path | None, typer.Option(help="The page. Default: RUN/report.html, or report.html for several.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is no page of potstill.")] = False,
) -> None:
    """Put runs side by side on one page: figures, curves, and which differences are shown.

    potstill report runs/kd runs/skip runs/last --out compared.html
    """
    from potstill.measuring.comparisons import comparisons
    from potstill.reporting.page import refuse_place, write_report

    page = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    refuse_place(page, overwrite)  # before what takes long
    told = comparisons(runs) if len(runs) > 1 else None
    page = write_report(runs, page, told, overwrite)
    print_differences({"differences": told or []})
    put(page)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="size-curve, better-teacher … (`potstill list studies`).")],
    recipe: options.RecipeName = None,
    teacher: options.Teacher = None,
    train: options.Train = None,
    dev: options.Dev = None,
    test: options.Test = None,
    out: Annotated[
        str | None, typer.Option(help="The study's folder, one run in each sub-folder. Default: runs/NAME.")
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", help="A field of the study: --with 'layers=[1, 2, 4]'.", metavar="FIELD=VALUE"),
    ] = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    overwrite: options.Overwrite = False,
    accept_changes: options.AcceptChanges = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer a question by several runs: a table, a figure, and sentences that say what is shown and what is not.

    potstill study size-curve my.toml --teacher DIR --seeds 3 --with 'layers=[1, 2, 4, 8]'
    """
    from potstill.recipe import plugins
    from potstill.recipe.resolve import resolve

    asked = plugins.make("studies", name.replace("-", "_"), options.fields_of(with_ or []))
    flags = {
        "teacher": ("--teacher", teacher),
        **options.data_flags(train, dev, test),
        "seeds": ("--seeds", seeds),
    }
    resolved = resolve(recipe, flags, set_ or ()).recipe
    from potstill.runs.study import run_study
    from potstill.system.display import Display

    folder = Path(out or f"runs/{name}")
    answer = run_study(asked, resolved, folder, overwrite, Display(quiet), accept_changes)
    print_rows(answer.header, answer.rows)
    for sentence in answer.sentences:
        put(sentence)
    if not quiet:
        say(f"page: {folder}/study.md   figure: {folder}/study.svg")


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="methods, students, data, exports, studies, recipes; or all.")
    ] = None,
) -> None:
    """What can be named: methods, students, data makers, exports and studies; and the recipes that are shipped."""
    print_list(kind)


@app.command()
def show(
    recipe: options.RecipeName = None,
    set_: options.Set = None,
) -> None:
    """A recipe with every value it resolves to, and where each is from."""
    from potstill.recipe.resolve import resolve
    from potstill.recipe.resolve import show as shown

    for line in shown(resolve(recipe, {}, set_ or ())).removesuffix("\n").split("\n"):
        put(line)


def main() -> None:
    """Exit codes: 0 done, 1 the run failed, 2 the input is wrong, 130 and 143 stopped by a signal after saving."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    prepare()
    try:
        app()
    except InputError as error:
        tell_error(error)
        sys.exit(2)
    except TrainingError as error:
        tell_error(error)
        sys.exit(1)
    except BrokenPipeError:  # the reader of `potstill predict … | head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        about_a_path = error.errno in NO_SUCH_PATH
        mend = "check the path and its permissions" if about_a_path else "mend it and write the same command again"
        tell_error(f"{error.strerror or error}: {error.filename or 'no file is known'}; {mend}")
        sys.exit(2 if about_a_path else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Interrupted as stopped:
        tell_error("stopped; the same command goes on from here")
        sys.exit(stopped.code)
    finally:
        if together := sys.modules.get("potstill.system.ranks"):
            together.leave()
