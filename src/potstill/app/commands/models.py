"""Commands for a finished model, and `augment` for rows. Torch is imported after the input is checked."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from potstill.app import options
from potstill.app.options import check_model, check_rows
from potstill.errors import InputError
from potstill.models.folders import SHORTEST
from potstill.recipe import plugins
from potstill.recipe.flags import parse_names
from potstill.system.display import Display
from potstill.system.paths import check_readable
from potstill.system.terminal import print_generated, print_json, print_line, say

ROWS_HELP = "Rows to predict; default: a text or a JSON object per line of standard input."
MODELS_HELP = "Folders of models; the others are compared with the first."
NGRAM_HELP = "keep: some copies are only an n-gram; mask: the n-gram is masked."
AGREE_HELP = "Write nothing if fewer of the rows than this share are predicted as before, for example 0.97."
FILES_HELP = "Texts, one per line; default: standard input."


def predict(
    model: Annotated[str, typer.Argument(help="A student's folder, or that of any model for a task potstill knows.")],
    file: Annotated[str | None, typer.Argument(help=ROWS_HELP)] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    length: options.Length = None,
) -> None:
    """Predict each row; writes JSON lines to standard output.

    echo "a stirring , funny film" | potstill predict runs/x/student
    """
    check_model(model)
    check_rows(file)
    from potstill.inference.predict import Predictor

    predictor = Predictor(model, length, say)
    lines = (line.decode("utf-8", "replace").rstrip("\r\n") for line in sys.stdin.buffer)
    for prediction in predictor(predictor.rows_of(file, text, pair) if file else lines):
        print_json(prediction, flush=file is None)


def measure(
    models: Annotated[list[str], typer.Argument(help=MODELS_HELP, metavar="MODEL…")],
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
    for model in models:
        check_model(model)
    check_rows(data)
    from potstill.measuring.measure_models import measure_models
    from potstill.measuring.measurements import Measurements
    from potstill.reporting.console import print_measurements

    columns = options.columns(text, pair, label, choices)
    names = parse_names(labels) if labels else None
    measurements = measure_models(models, data, columns, names, length or 128, language)
    if as_json:
        print_json(measurements, indent=1)
    else:
        print_measurements(Measurements.from_json(measurements))


def translate(
    model: Annotated[str, typer.Argument(help="A student's folder, or one written by `export --to ctranslate2`.")],
    files: Annotated[list[str] | None, typer.Argument(help=FILES_HELP, metavar="FILE…")] = None,
    beam: Annotated[int, typer.Option(help="Hypotheses at each step of the search; 1 is greedy.")] = 5,
    language: options.Language = None,
    batch: Annotated[int, typer.Option(help="Lines that are read, sorted by length and translated together.")] = 512,
    length: Annotated[int, typer.Option(min=SHORTEST, help="Tokens read of each text, and generated, at most.")] = 256,
) -> None:
    """Translate each line of text, or continue it with a language model; writes one line each to standard output.

    potstill translate runs/x/student --beam 5 < sources.txt > translations.txt
    """
    check_model(model)
    for file in files or ():
        check_readable(file)
    from potstill.inference.translate import lines_of
    from potstill.inference.translate import translate as translations

    for line in translations(model, lines_of(files or []), beam, batch, length, language):
        print_generated(line, flush=not files)


def export(
    model: Annotated[str, typer.Argument(help="A student's folder.")],
    to: Annotated[str, typer.Option(help="onnx, int8, int4, float16, ctranslate2, huffman.")],
    out: Annotated[str | None, typer.Option(help="The new folder. Default: MODEL-TO, for example MODEL-onnx.")] = None,
    data: Annotated[str | None, typer.Option(help="Rows to compare it with PyTorch on. Default: random ones.")] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    language: options.Language = None,
    agree: Annotated[float | None, typer.Option(min=0, max=1, help=AGREE_HELP)] = None,
    with_: Annotated[list[str] | None, options.plugin_option("export", "weights=float32")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Export a student to another format and compare it with PyTorch at once.

    `predict` and `measure` read ONNX files, `translate` and `measure` those of CTranslate2.

    potstill export runs/x/student --to int8 --data test.csv --agree 0.97
    """
    form = plugins.make("exports", to, options.plugin_fields(with_))
    if agree is not None and data is None:
        raise InputError("--agree counts rows that are predicted as before; write --data with rows")
    check_model(model)
    check_rows(data)
    from potstill.inference.export import export_student

    folder = out or f"{model.rstrip('/')}-{to}"
    exported = export_student(model, form, folder, data, options.columns(text, pair), language, overwrite, agree)
    if as_json:
        print_json(exported.to_json(), indent=1)
    else:
        for line in str(exported).splitlines():
            print_line(line)


def augment(
    file: Annotated[str, typer.Argument(help="Rows of one text or a pair, in any format that --train takes.")],
    out: Annotated[str, typer.Option(help="The new file: .csv .tsv .jsonl (also .gz).")],
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random changes.")] = 0,
    copies: Annotated[
        int | None, typer.Option(help="Copies of each row at most; default: 20, or 10 for pairs.")
    ] = None,
    ngram: Annotated[str | None, typer.Option(help=NGRAM_HELP, metavar="keep|mask")] = None,
    with_: Annotated[list[str] | None, options.plugin_option("data maker", "p_mask=0.2")] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Write the rows, followed by copies with masked and replaced words, and n-grams of them.

    potstill augment train.csv --out augmented.csv --seed 0 --copies 20
    """
    flags = {"draw": seed, "copies": copies, "ngram": ngram}
    fields = options.plugin_fields(with_) | {name: value for name, value in flags.items() if value is not None}
    maker = plugins.make("data", "augmented", fields)
    check_rows(file)
    from potstill.data.augment.files import augment_file
    from potstill.data.making import MakeContext

    make = partial(maker.make, context=MakeContext(seed, show=Display(quiet)))
    columns = options.columns(text, pair, label)
    rows, copied = augment_file(file, out, make, columns, maker.labels != "dropped", overwrite)
    if not quiet:
        say(f"{out}: {rows} rows and {copied} copies")
