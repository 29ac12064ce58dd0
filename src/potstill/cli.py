"""The commands. Each is a thin coat over a function of the same name; torch is imported only where it is used."""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from potstill import __version__
from potstill.console import print_differences, print_grid, print_list, print_rows, print_table
from potstill.errors import InputError, TrainingError
from potstill.interrupts import Interrupted
from potstill.options import (
    BatchSize,
    Choices,
    Dev,
    Device,
    Epochs,
    Label,
    Labels,
    Length,
    Out,
    Overwrite,
    Pair,
    Quiet,
    Rate,
    RecipeName,
    Resume,
    Seed,
    Seeds,
    Set,
    TaskOption,
    Test,
    Text,
    Tracker,
    Train,
    columns_of,
    data_flags,
    fields_of,
    number,
    training_flags,
)

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
        print(f"potstill {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def distill(
    recipe: RecipeName = None,
    teacher: Annotated[
        str | None, typer.Option(help="The big model: a folder in Hugging Face's layout, or a hub name.")
    ] = None,
    train: Train = None,
    dev: Dev = None,
    test: Test = None,
    student: Annotated[
        str | None,
        typer.Option(
            help="Its shape: keep_layers:3, fresh:4, keep_layers:3+trim_vocabulary … (`potstill list students`)."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="The objective: soft_targets, patient … (`potstill list methods`).")
    ] = None,
    out: Out = None,
    start: Annotated[
        str | None, typer.Option(help="Weights the student begins from, where they are not the teacher's.")
    ] = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    labels: Labels = None,
    choices: Choices = None,
    task: TaskOption = None,
    epochs: Epochs = None,
    batch: BatchSize = None,
    rate: Rate = None,
    length: Length = None,
    seed: Seed = None,
    seeds: Seeds = None,
    device: Device = None,
    set_: Set = None,
    resume: Resume = "auto",
    overwrite: Overwrite = False,
    no_baseline: Annotated[
        bool, typer.Option("--no-baseline", help="Do not also train the same student on hard labels.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Accept a teacher that is near chance on the data.")] = False,
    tracker: Tracker = None,
    quiet: Quiet = False,
) -> None:
    """Make a smaller student of a teacher, beside the same student fine-tuned alone, and print one table.

    potstill distill --teacher DIR --train train.csv --dev dev.csv --test test.csv --student keep_layers:3 --method patient
    """
    flags = {
        "teacher": ("--teacher", teacher),
        "start": ("--start", start),
        "student": ("--student", student),
        "stage.0.method": ("--method", method),
        "baseline": ("--no-baseline", False if no_baseline else None),
        "force": ("--force", True if force else None),
        **data_flags(train, dev, test, text, pair, label, labels, choices, task),
        **training_flags(epochs, batch, rate, length, seed, seeds, device, tracker),
    }
    _run(recipe, flags, set_, out, resume, overwrite, quiet)


@app.command()
def finetune(
    model: Annotated[str, typer.Argument(help="An encoder: a folder in Hugging Face's layout, or a hub name.")],
    train: Train = None,
    dev: Dev = None,
    test: Test = None,
    out: Out = None,
    recipe: Annotated[
        str | None, typer.Option(help="A TOML file to begin from, for example with a [grid] over rates.")
    ] = None,
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    labels: Labels = None,
    choices: Choices = None,
    task: TaskOption = None,
    epochs: Epochs = None,
    batch: BatchSize = None,
    rate: Annotated[
        str | None, typer.Option(help="Learning rate, or several as 5e-5,2e-5: the best by dev is kept.")
    ] = None,
    length: Length = None,
    seed: Seed = None,
    seeds: Seeds = None,
    device: Device = None,
    set_: Set = None,
    resume: Resume = "auto",
    overwrite: Overwrite = False,
    tracker: Tracker = None,
    quiet: Quiet = False,
) -> None:
    """Make a teacher: fine-tune an encoder on labelled rows; it lies in OUT/student.

    potstill finetune DIR --train train.csv --dev dev.csv --test test.csv --rate 5e-5,2e-5 --out runs/teacher
    """
    rates = [number(one, "--rate") for one in rate.split(",")] if rate else []
    flags = {
        "stage.0.method": ("finetune", "hard_labels"),
        "grid": ("--rate", {"optimizer.rate": rates} if len(rates) > 1 else None),
        **data_flags(train, dev, test, text, pair, label, labels, choices, task),
        **training_flags(epochs, batch, rates[0] if len(rates) == 1 else None, length, seed, seeds, device, tracker),
    }
    _run(recipe, flags, set_, out, resume, overwrite, quiet, encoder=model)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A student's folder, or any model's of a task that is known here.")],
    file: Annotated[
        str | None,
        typer.Argument(help="Rows to answer; without it, a text or a JSON object per line of standard input."),
    ] = None,
    text: Text = None,
    pair: Pair = None,
    length: Length = None,
) -> None:
    """Answer each row, as JSON lines on standard output.

    echo "a stirring , funny film" | potstill predict runs/x/student
    """
    from potstill.predict import asked_in
    from potstill.predict import predict as answers

    lines = (line.decode("utf-8", "replace").rstrip("\r\n") for line in sys.stdin.buffer)
    for one in answers(model, asked_in(model, file, text, pair) if file else lines, length):
        print(json.dumps(one, ensure_ascii=False), flush=file is None)


@app.command()
def measure(
    models: Annotated[
        list[str],
        typer.Argument(help="Folders of models; the first is what the others are compared with.", metavar="MODEL…"),
    ],
    data: Annotated[str, typer.Option(help="Labelled rows.")],
    text: Text = None,
    pair: Pair = None,
    label: Label = None,
    labels: Labels = None,
    choices: Choices = None,
    length: Length = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score models on one file, with size and speed, in one run.

    potstill measure runs/x/student ../teacher --data test.csv
    """
    from potstill.predict import measure_models
    from potstill.rows import Columns

    columns = Columns(text, pair, columns_of(label), choices=columns_of(choices))
    found = measure_models(models, data, columns, labels.split(",") if labels else None, length or 128)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        print_table(found)


@app.command()
def export(
    model: Annotated[str, typer.Argument(help="A student's folder.")],
    to: Annotated[str, typer.Option(help="onnx or int8 (`potstill list exports`).")],
    out: Annotated[str | None, typer.Option(help="The new folder. Default: MODEL-onnx, MODEL-int8.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Rows to compare it with PyTorch on; random ones without it.")
    ] = None,
    text: Text = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write a student in another form, compared with PyTorch at once; `predict` and `measure` read it.

    potstill export runs/x/student --to int8 --data test.csv
    """
    from potstill import plugins

    form = plugins.make("exports", to, {})
    folder = Path(out or f"{model.rstrip('/')}-{to}")
    if folder.exists() and any(folder.iterdir()) and not (overwrite and (folder / "model.onnx").exists()):
        raise InputError(
            f"{folder} is not empty; write --overwrite to replace an earlier export, or --out for another folder"
        )
    from potstill.predict import rows_for
    from potstill.students import load_student

    student = load_student(model)
    rows = [(row.text, row.pair) for row in islice(rows_for(student.model.config, data, text), 2000)] if data else []
    checked = form.export(student, folder, rows)
    where = f"{len(rows)} rows of {data}" if rows else "random rows"
    size = checked.file.stat().st_size / 1e6
    found = f"same answer {100 * checked.agreement:.1f} %, largest difference of a logit {checked.difference:.1e}"
    print(f"{checked.file}: {size:.1f} MB; on {where}: {found}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, as --out named them.", metavar="RUN…")],
    out: Annotated[
        Path | None, typer.Option(help="The page. Default: RUN/report.html, or report.html for several.")
    ] = None,
) -> None:
    """Put runs side by side on one page: figures, curves, and which differences are shown.

    potstill report runs/kd runs/skip runs/last --out compared.html
    """
    from potstill.report import write_report
    from potstill.results import comparisons

    told = comparisons(runs) if len(runs) > 1 else None
    page = write_report(runs, out or (runs[0] if len(runs) == 1 else Path()) / "report.html", told)
    print_differences({"differences": told or []})
    print(page)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="size-curve, better-teacher … (`potstill list studies`).")],
    recipe: RecipeName = None,
    out: Annotated[
        str | None, typer.Option(help="The study's folder, one run in each sub-folder. Default: runs/NAME.")
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", help="A field of the study: --with 'layers=[1, 2, 4]'.", metavar="FIELD=VALUE"),
    ] = None,
    seeds: Seeds = None,
    set_: Set = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Answer a question by several runs: a table, a figure, and sentences that say what is shown and what is not.

    potstill study size-curve my.toml --seeds 3 --with 'layers=[1, 2, 4, 8]'
    """
    from potstill import plugins
    from potstill.recipe import resolve

    asked = plugins.make("studies", name.replace("-", "_"), fields_of(with_ or []))
    resolved = resolve(recipe, {"seeds": ("--seeds", seeds)}, set_ or ()).recipe
    from potstill.progress import Display
    from potstill.study import run_study

    folder = Path(out or f"runs/{name}")
    answer = run_study(asked, resolved, folder, overwrite, Display(quiet))
    print_rows(answer.header, answer.rows)
    print("\n".join(answer.sentences))
    if not quiet:
        print(f"page: {folder}/study.md   figure: {folder}/study.svg", file=sys.stderr)


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="methods, students, data, exports, studies or recipes; all without it.")
    ] = None,
) -> None:
    """What can be named: methods, students, data makers, exports and studies; and the recipes that are shipped."""
    print_list(kind)


@app.command()
def show(
    recipe: RecipeName = None,
    set_: Set = None,
) -> None:
    """A recipe with every value it resolves to, and where each is from."""
    from potstill.recipe import resolve
    from potstill.recipe import show as shown

    print(shown(resolve(recipe, {}, set_ or ())), end="")


def _run(
    recipe: str | None,
    flags: dict[str, tuple[str, Any]],
    sets: list[str] | None,
    out: str | None,
    resume: str,
    overwrite: bool,
    quiet: bool,
    encoder: str | None = None,
) -> None:
    from potstill.recipe import Recipe, resolve

    resolved = resolve(recipe, flags, sets or ()).recipe  # before torch: a wrong word is told at once
    from potstill import ranks, run
    from potstill.progress import Display

    folder = out or f"runs/{resolved.name if recipe else 'fine-tuned' if encoder else 'distilled'}"
    if resolved.name == Recipe.model_fields["name"].default:  # on the page a run without a name has its folder's
        resolved = resolved.model_copy(update={"name": Path(folder).name})
    how = (folder, resume, overwrite, Display(quiet))
    found = run.finetune(encoder, resolved, *how) if encoder else run.distill(resolved, *how)
    if not ranks.is_first():
        return
    print_grid(found.get("grid", []))
    print_table(found)
    print_differences(found)
    if not quiet:
        print(f"student: {folder}/student   report: {folder}/report.html", file=sys.stderr)


def main() -> None:
    """Exit codes: 0 done, 1 the run failed, 2 the input is wrong, 130 and 143 stopped by a signal after saving."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        app()
    except InputError as error:
        print(f"potstill: {error}", file=sys.stderr)
        sys.exit(2)
    except TrainingError as error:
        print(f"potstill: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of `potstill predict … | head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(
            f"potstill: {error.strerror or error}: {error.filename or ''}; what was saved before stays usable",
            file=sys.stderr,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Interrupted as stopped:
        print("potstill: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(stopped.code)
    finally:
        if together := sys.modules.get("potstill.ranks"):
            together.leave()
