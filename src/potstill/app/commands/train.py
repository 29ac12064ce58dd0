"""A network from nothing, as a command; and what every command that trains ends in. Torch is imported only where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from potstill.app import options
from potstill.reporting.console import print_differences, print_grid, print_table
from potstill.system.terminal import say


def train(
    shape: Annotated[
        str | None,
        typer.Option(help="What is made: marian:4+4x256, lstm_translator:2x500, mlp … (`potstill list students`)."),
    ] = None,
    train: options.Train = None,
    dev: options.Dev = None,
    test: options.Test = None,
    out: options.Out = None,
    recipe: Annotated[str | None, typer.Option(help="A TOML file to begin from.")] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    labels: options.Labels = None,
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
    tracker: options.Tracker = None,
    quiet: options.Quiet = False,
) -> None:
    """Make a network from nothing, with random weights, and train it on the rows; it lies in OUT/student.

    potstill train --shape marian:4+4x256 --train train.tsv --dev val.tsv --text en --pair de --task translate --out runs/big
    """
    flags = {
        "student": ("--shape", shape),
        "stage.0.method": ("train", "hard_labels"),
        **options.data_flags(train, dev, test, text, pair, label, labels, None, task),
        **options.training_flags(epochs, batch, rate, length, seed, seeds, device, tracker),
    }
    out = out or (None if recipe else "runs/trained")
    run_recipe(recipe, flags, set_, out, resume, overwrite, accept_changes, quiet, finetuned=True)


def run_recipe(
    recipe: str | None,
    flags: dict[str, tuple[str, Any]],
    sets: list[str] | None,
    out: str | None,
    resume: str,
    overwrite: bool,
    accept_changes: bool,
    quiet: bool,
    finetuned: bool = False,
    encoder: str | None = None,
) -> None:
    """What `distill`, `finetune` and `train` have in common: from words to a run, and its table."""
    from potstill.recipe.resolve import resolve
    from potstill.recipe.schema import Recipe

    resolved = resolve(recipe, flags, sets or ()).recipe  # before torch: a wrong word is told at once
    from potstill.runs import distill as run
    from potstill.system import ranks
    from potstill.system.display import Display

    folder = out or f"runs/{resolved.name if recipe else ('distilled', 'fine-tuned')[finetuned]}"
    if resolved.name == Recipe.model_fields["name"].default:  # on the page a run without a name has its folder's
        resolved = resolved.model_copy(update={"name": Path(folder).name})
    how = (folder, resume, overwrite, Display(quiet), accept_changes)
    found = run.finetune(encoder, resolved, *how) if finetuned else run.distill(resolved, *how)
    if ranks.is_first():
        print_grid(found.get("grid", []))
        print_table(found)
        print_differences(found)
    if not quiet and ranks.is_first():
        say(f"student: {folder}/student   report: {folder}/report.html")
