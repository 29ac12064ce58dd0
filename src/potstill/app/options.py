"""What can be written on the command line, and which fields of a recipe it sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from potstill.errors import InputError

RecipeName = Annotated[
    str | None,
    typer.Argument(help="A TOML file, or the name of a recipe that `potstill list recipes` shows.", metavar="[RECIPE]"),
]
Teacher = Annotated[str | None, typer.Option(help="The big model: a folder in Hugging Face's layout, or a hub name.")]
StudentShape = Annotated[
    str | None,
    typer.Option(help="Its shape: keep_layers:3, fresh:4, keep_layers:3+trim_vocabulary … (`potstill list students`)."),
]
Encoder = Annotated[
    str | None,
    typer.Argument(
        help="An encoder, or a model that writes: a folder in Hugging Face's layout, or a hub name; none with --student mlp."
    ),
]
MethodName = Annotated[
    str | None, typer.Option(help="The objective: soft_targets, patient … (`potstill list methods`).")
]
Start = Annotated[str | None, typer.Option(help="Weights the student begins from, where they are not the teacher's.")]
NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="Do not also train the same student on hard labels.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Accept a teacher that is near chance on the data, or does not know the language."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Train = Annotated[
    str | None,
    typer.Option(
        help="Rows to learn from: .csv .tsv .jsonl .txt (also .gz), .parquet, two files side by side as FIRST,SECOND, "
        "a data set's folder, or NAME:CONFIG:SPLIT of the hub."
    ),
]
Dev = Annotated[str | None, typer.Option(help="Rows to choose by. Without it a tenth of train is held out.")]
Test = Annotated[list[str] | None, typer.Option(help="Rows to report on; several as --test m=FILE --test mm=FILE.")]
Unlabelled = Annotated[
    str | None, typer.Option(help="More texts that the teacher alone teaches: a text per line (.txt), or a table.")
]
Out = Annotated[str | None, typer.Option(help="The run's folder; the student lies in OUT/student. Default: runs/NAME.")]
Text = Annotated[str | None, typer.Option(help="Column of the text, where its name is not a usual one.")]
Pair = Annotated[str | None, typer.Option(help="Column of the second text.")]
Language = Annotated[
    str | None,
    typer.Option(help="Of a model that knows several: the one to write, as de; >>de<< is put before each text."),
]
Label = Annotated[str | None, typer.Option(help="Column of the label; several 0/1 columns as A,B,C.")]
Labels = Annotated[str | None, typer.Option(help="Names of the classes in the order of the model's outputs, as A,B.")]
LabelMap = Annotated[
    str | None, typer.Option(help="Which class a label of the rows is, as LABEL=CLASS,LABEL=CLASS.", metavar="A=B,…")
]
Choices = Annotated[
    str | None, typer.Option(help="Column of the candidates of multiple choice; one column for each as A,B,C.")
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="classify, multilabel, regress, tag, answer, choose, translate or write, where the rows do not show it.",
    ),
]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training rows.")]
BatchSize = Annotated[int | None, typer.Option("--batch", help="Examples per step.")]
Rate = Annotated[float | None, typer.Option(help="Learning rate.")]
SHORTEST = 3  # a token between those that begin and end a text
Length = Annotated[int | None, typer.Option(min=SHORTEST, help="Tokens read of each text at most.")]
WrittenLength = Annotated[
    int, typer.Option("--length", min=SHORTEST, help="Tokens read of each text, and written for it, at most.")
]
Seed = Annotated[int | None, typer.Option(help="Decides order, dropout and new weights.")]
Seeds = Annotated[
    int | None, typer.Option(help="How many runs, each with a seed of its own; mean and deviation are reported.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any field of the recipe: --set method.beta=500 --set seed=1 --set dropout=0.",
        metavar="PATH=VALUE",
    ),
]
Resume = Annotated[
    str,
    typer.Option(
        help="auto: go on where the same run stopped; a checkpoint's folder; or never.", metavar="auto|PATH|never"
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in OUT.")]
AcceptChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="Go on though rows, a model or a version changed since the run was begun."),
]
Tracker = Annotated[str | None, typer.Option(help="none or tensorboard.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but the result.")]


def data_flags(
    train: str | None,
    dev: str | None,
    test: list[str] | None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labels: str | None = None,
    choices: str | None = None,
    task: str | None = None,
    unlabelled: str | None = None,
    label_map: str | None = None,
) -> dict[str, tuple[str, Any]]:
    return {
        "data.0.train": ("--train", train),
        "data.0.dev": ("--dev", dev),
        "data.0.test": ("--test", tests_of(test) if test else None),
        "data.0.text": ("--text", text),
        "data.0.pair": ("--pair", pair),
        "data.0.label": ("--label", _listed(columns_of(label))),
        "data.0.labels": ("--labels", [name.strip() for name in labels.split(",")] if labels else None),
        "data.0.choices": ("--choices", _listed(columns_of(choices))),
        "data.0.task": ("--task", task),
        "data.0.unlabelled": ("--unlabelled", unlabelled),
        "data.0.label_map": ("--label-map", map_of(label_map) if label_map else None),
    }


def begun_flags(model: str | None, student: str | None) -> dict[str, tuple[str, Any]]:
    """What is fine-tuned: a model as it is, or a student that begins from nothing."""
    if model is not None and student is not None:
        raise InputError("a model is fine-tuned as it is; leave --student away, or the model")
    return {"student": ("--student", student if model is None else [])}


def training_flags(
    epochs: float | None,
    batch: int | None,
    rate: float | None,
    length: int | None,
    seed: int | None,
    seeds: int | None,
    device: str | None,
    tracker: str | None,
) -> dict[str, tuple[str, Any]]:
    return {
        "stage.0.epochs": ("--epochs", epochs),
        "stage.0.batch": ("--batch", batch),
        "stage.0.optimizer.rate": ("--rate", rate),
        "length": ("--length", length),
        "seed": ("--seed", seed),
        "seeds": ("--seeds", seeds),
        "device": ("--device", device),
        "tracker": ("--tracker", tracker),
    }


def student_flags(
    teacher: str | None, start: str | None, student: str | None, method: str | None, no_baseline: bool, force: bool
) -> dict[str, tuple[str, Any]]:
    return {
        "teacher": ("--teacher", teacher),
        "start": ("--start", start),
        "student": ("--student", student),
        "stage.0.method": ("--method", method),
        "baseline": ("--no-baseline", False if no_baseline else None),
        "force": ("--force", True if force else None),
    }


def columns_of(label: str | None) -> str | tuple[str, ...] | None:
    return tuple(part.strip() for part in label.split(",")) if label and "," in label else label


def _listed(columns: str | tuple[str, ...] | None) -> str | list[str] | None:
    return list(columns) if isinstance(columns, tuple) else columns


def tests_of(given: list[str]) -> dict[str, str]:
    """--test FILE, or --test m=FILE --test mm=FILE; a path with = in it is a path where it exists."""
    named: dict[str, str] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or os.path.exists(os.path.expanduser(one)):
            name, path = "test" if len(given) == 1 else Path(one).stem, one
            if name in ("train", "dev"):  # names of other splits: the folder tells whose they are
                name = f"{Path(one).absolute().parent.name or 'test'}-{name}"
        if name in named:
            raise InputError(f"two test sets are named '{name}'; write --test NAME=FILE with a name for each")
        named[name] = path
    return named


def map_of(given: str) -> dict[str, str]:
    """positive=1,negative=0"""
    pairs = [one.partition("=") for one in given.split(",")]
    for ours, equals, theirs in pairs:
        if not equals or not ours.strip() or not theirs.strip():
            raise InputError(f"--label-map {given}: is no list of names; write --label-map positive=1,negative=0")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{flag} {text}: is not a number; write for example {flag} 5e-5,2e-5") from None


def fields_of(given: list[str]) -> dict[str, Any]:
    """--with layers=[1,2] --with rate=0.001"""
    from potstill.recipe.short_forms import parse_value
    from potstill.recipe.user_functions import note_written

    fields = {}
    for one in given:
        field, equals, value = one.partition("=")
        if not equals:
            raise InputError(f"--with {one}: has no value; write --with {one}=VALUE")
        fields[field.strip()] = parse_value(value.strip())
    note_written(fields)
    return fields
