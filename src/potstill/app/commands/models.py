"""Commands on a finished model. Each is a thin coat over a function; torch is imported only where it is used."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from potstill.app import options
from potstill.reporting.console import print_table
from potstill.system.terminal import put, put_json, put_written


def predict(
    model: Annotated[str, typer.Argument(help="A student's folder, or any model's of a task that is known here.")],
    file: Annotated[
        str | None,
        typer.Argument(help="Rows to answer; without it, a text or a JSON object per line of standard input."),
    ] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    length: options.Length = None,
) -> None:
    """Answer each row, as JSON lines on standard output.

    echo "a stirring , funny film" | potstill predict runs/x/student
    """
    from potstill.inference.predict import Predictor

    predictor = Predictor(model, length)
    lines = (line.decode("utf-8", "replace").rstrip("\r\n") for line in sys.stdin.buffer)
    for prediction in predictor(predictor.rows_of(file, text, pair) if file else lines):
        put_json(prediction, flush=file is None)


def measure(
    models: Annotated[
        list[str],
        typer.Argument(help="Folders of models; the first is what the others are compared with.", metavar="MODEL…"),
    ],
    data: Annotated[str, typer.Option(help="Labelled rows.")],
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    labels: options.Labels = None,
    choices: options.Choices = None,
    language: options.Language = None,
    length: options.Length = None,
    as_json: options.AsJson = False,
) -> None:
    """Score models on one file, with size and speed, in one run.

    potstill measure runs/x/student ../teacher --data test.csv
    """
    from potstill.data.rows import Columns
    from potstill.measuring.measure_models import measure_models

    columns = Columns(text, pair, options.columns_of(label), choices=options.columns_of(choices))
    found = measure_models(models, data, columns, labels.split(",") if labels else None, length or 128, language)
    if as_json:
        put_json(found, indent=1)
    else:
        print_table(found)


def translate(
    model: Annotated[str, typer.Argument(help="A student's folder, or one of `export --to ctranslate2`.")],
    files: Annotated[
        list[str] | None, typer.Argument(help="Texts, one per line; without them, standard input.", metavar="FILE…")
    ] = None,
    beam: Annotated[int, typer.Option(help="Hypotheses at each step of the search; 1 is greedy.")] = 5,
    language: options.Language = None,
    batch: Annotated[int, typer.Option(help="Lines that are read, sorted by length and written together.")] = 512,
    length: options.WrittenLength = 256,
) -> None:
    """Write for each line of text what the model makes of it, one line each, on standard output.

    potstill translate runs/x/student --beam 5 < sources.txt > translations.txt
    """
    from potstill.inference.translate import lines_of, translate

    for line in translate(model, lines_of(files or []), beam, batch, length, language):
        put_written(line, flush=not files)


def export(
    model: Annotated[str, typer.Argument(help="A student's folder.")],
    to: Annotated[str, typer.Option(help="onnx, int8, ctranslate2 (`potstill list exports`).")],
    out: Annotated[
        str | None, typer.Option(help="The new folder. Default: MODEL-onnx, MODEL-int8, MODEL-ctranslate2.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Rows to compare it with PyTorch on; random ones without it.")
    ] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    language: options.Language = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", help="A field of the export: --with weights=float32.", metavar="FIELD=VALUE"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write a student in another form, compared with PyTorch at once; `predict` and `measure` read it, of ctranslate2
    `translate` and `measure`.

    potstill export runs/x/student --to int8 --data test.csv
    """
    from potstill.data.rows import Columns
    from potstill.inference.export import export_student
    from potstill.recipe import plugins

    form = plugins.make("exports", to, options.fields_of(with_ or []))
    put(export_student(model, form, out or f"{model.rstrip('/')}-{to}", data, Columns(text, pair), language, overwrite))
