"""Commands that train a student, and `plan`, which estimates the cost. Torch is imported after the input is checked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from potstill.app import options
from potstill.app.options import RunOptions, check_model, check_recipe, recipe_command
from potstill.errors import InputError
from potstill.recipe.flags import MODELS, TRAINING
from potstill.recipe.resolve import Flags, resolve
from potstill.recipe.schema import Recipe
from potstill.runs.defaults import complete_recipe
from potstill.system.display import Display
from potstill.system.paths import RunFolder
from potstill.system.terminal import print_json, print_line, say

machine_option = partial(typer.Option, rich_help_panel=options.MACHINE)
MODEL_HELP = "An encoder or a generative model in Hugging Face's layout, or a hub name; omit it with --student mlp."
GRID_HELP = "A TOML file to start from, for example with a \\[grid] over rates."
RATE_HELP = "Learning rate, or several as 5e-5,2e-5: the best by dev is kept."
SHAPE_HELP = "The network: marian:4+4x256, lstm_translator:2x500, mlp … (`potstill list students`)."
ENCODER_HELP = "An encoder to go on with; omit it for a new one."
NEW_ENCODER_HELP = "A new encoder: bert:LAYERSxWIDTH, or another student. Default: bert:6x384."
TOKENIZER_HELP = "A folder with the tokenizer of a new encoder. Default: one that is trained on the text."
WITHIN_HELP = "Train for as many epochs as `plan` estimates for 30m, 2h, …, instead of --epochs."
PEAK_HELP = "Estimate hours for a machine that multiplies matrices at so many GFLOPS."
NEW_ENCODER = "bert:6x384"
TEACHER_FLAGS = ("--teacher", "--start", "--unlabelled", "--method", "--no-baseline", "--force")  # without a teacher


@recipe_command()
def distill(run: RunOptions, flags: Flags, recipe: options.RecipeName = None) -> None:
    """Distil a teacher into a smaller student, compare it with the same student fine-tuned alone, and print one table.

    potstill distill --teacher DIR --train train.csv --dev dev.csv --test test.csv --student keep_layers:3 --method patient
    """
    run_recipe(recipe, flags, run, run_name="distilled")


@recipe_command(omit=(*TEACHER_FLAGS, "--rate"))
def finetune(
    run: RunOptions,
    flags: Flags,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    recipe: Annotated[str | None, typer.Option(help=GRID_HELP)] = None,
    rate: Annotated[str | None, typer.Option(help=RATE_HELP, rich_help_panel=TRAINING)] = None,
) -> None:
    """Make a teacher: fine-tune an encoder, a translation model or a language model. The result is in OUT/student.

    potstill finetune DIR --train train.csv --dev dev.csv --test test.csv --rate 5e-5,2e-5 --out runs/teacher
    """
    _, student = flags["student"]
    if model is not None and student is not None:
        raise InputError("give either MODEL or --student, not both")
    try:
        rates = [float(text) for text in rate.split(",")] if rate else []
    except ValueError:
        raise InputError(f"--rate {rate}: expected numbers; write for example --rate 5e-5,2e-5") from None
    flags = {
        **flags,
        "student": ("--student", student if model is None else []),
        "stage.0.method": ("finetune", "hard_labels"),
        "grid": ("--rate", {"optimizer.rate": rates} if len(rates) > 1 else None),
        "stage.0.optimizer.rate": ("--rate", rates[0] if len(rates) == 1 else None),
    }
    run_recipe(recipe, flags, run, run_name="fine-tuned", by_labels=True, model=model)


@recipe_command(omit=(*TEACHER_FLAGS, "--student", "--choices", "--label-map"))
def train(
    run: RunOptions,
    flags: Flags,
    shape: Annotated[str | None, typer.Option(help=SHAPE_HELP, rich_help_panel=MODELS)] = None,
    recipe: Annotated[str | None, typer.Option(help="A TOML file to start from.")] = None,
) -> None:
    """Train a network with random weights on the rows. The result is in OUT/student.

    potstill train --shape marian:4+4x256 --train train.tsv --dev val.tsv --text en --pair de --task translate --out runs/big
    """
    flags = {"student": ("--shape", shape), "stage.0.method": ("train", "hard_labels"), **flags}
    run_recipe(recipe, flags, run, run_name="trained", by_labels=True)


@recipe_command(omit=(*TEACHER_FLAGS, "--student", "--pair", "--label", "--labels", "--choices", "--label-map"))
def pretrain(
    run: RunOptions,
    flags: Flags,
    model: Annotated[str | None, typer.Argument(help=ENCODER_HELP)] = None,
    shape: Annotated[str | None, typer.Option(help=NEW_ENCODER_HELP, rich_help_panel=MODELS)] = None,
    tokenizer: Annotated[str | None, typer.Option(help=TOKENIZER_HELP, rich_help_panel=MODELS)] = None,
    recipe: Annotated[str | None, typer.Option(help=GRID_HELP)] = None,
    within: Annotated[str | None, typer.Option(help=WITHIN_HELP, rich_help_panel=TRAINING)] = None,
) -> None:
    """Train an encoder on running text: masked tokens, in windows of consecutive sentences. The result is in OUT/student.

    potstill pretrain --train texts/ --out runs/encoder
    """
    if model is not None and (shape or tokenizer):
        raise InputError("give either MODEL or --shape and --tokenizer, not both")
    if within is not None and flags["stage.0.epochs"][1] is not None:
        raise InputError("give either --within or --epochs, not both")
    seconds = options.seconds_of("--within", within)
    new = shape or (NEW_ENCODER if model is None and recipe is None else None)
    flags = {
        "data.0.task": ("pretrain", "mask" if recipe is None else None),
        "data.0.windows": ("pretrain", True if recipe is None else None),
        "student": ("--shape", new if model is None else []),
        "student.0.tokenizer": ("--tokenizer", tokenizer),
        "stage.0.method": ("pretrain", "hard_labels"),
        **{path: flag for path, flag in flags.items() if path != "data.0.task" or flag[1] is not None},
    }
    run_recipe(recipe, flags, run, run_name="pretrained", by_labels=True, model=model, seconds=seconds)


@recipe_command()
def plan(
    *,
    recipe: options.RecipeName = None,
    out: options.Out = None,
    set_: options.Set = None,
    quiet: options.Quiet = False,
    flags: Flags,
    as_json: options.AsJson = False,
    peak: Annotated[float | None, machine_option("--peak", help=PEAK_HELP)] = None,
    devices: Annotated[int, machine_option("--devices", help="Estimate hours for so many devices.")] = 1,
    memory: Annotated[float | None, machine_option("--memory", help="Memory of such a device in GB.")] = None,
) -> None:
    """Estimate what `distill` with the same flags costs: steps, operations, memory, disk and hours, and what will not fit.

    potstill plan --teacher DIR --train train.csv --dev dev.csv --student keep_layers:3 --method patient --seeds 3
    """
    resolved = resolve(recipe, flags, set_ or ()).recipe
    check_recipe(resolved)
    from potstill.reporting.console import print_plan
    from potstill.runs.planning.plan import plan as make_plan

    folder = out or f"runs/{resolved.name if recipe else 'distilled'}"
    costs = make_plan(resolved, folder, peak, devices, memory, Display(quiet or as_json))
    if as_json:
        print_json(costs, indent=1)
    else:
        print_plan(costs)


def run_recipe(
    recipe: str | None,
    flags: Flags,
    run: RunOptions,
    run_name: str,
    by_labels: bool = False,
    model: str | None = None,
    seconds: float | None = None,
) -> None:
    """Resolve the recipe, train and print the table. `by_labels`: without a teacher, from `model` or from random weights.

    `seconds`: for the whole run, from which its epochs follow.
    """
    resolved = resolve(recipe, flags, run.set_ or ()).recipe
    folder = run.out or f"runs/{resolved.name if recipe else run_name}"
    if run.overwrite or not RunFolder(folder).mark.exists():  # an earlier run says itself which of its inputs changed
        check_recipe(resolved)
        if resolved.chooses_student and not by_labels:
            complete_recipe(resolved)  # refuses a teacher of which potstill can choose no student
        if model is not None:
            check_model(model)
    if resolved.name == Recipe.model_fields["name"].default:  # on the page, a run without a name has its folder's
        resolved = resolved.model_copy(update={"name": Path(folder).name})
    from potstill.measuring.measurements import Measurements
    from potstill.reporting.console import print_comparisons, print_grid, print_measurements
    from potstill.reporting.deployed import deployed_sentence
    from potstill.runs import distill as runs
    from potstill.system import ranks

    if seconds is not None:
        from potstill.runs.planning.within import epochs_within

        epochs = epochs_within(runs.by_labels(model, resolved), folder, seconds, run.overwrite, Display(run.quiet))
        stage = resolved.stage[-1].model_copy(update={"epochs": epochs, "min_steps": 0})
        resolved = resolved.model_copy(update={"stage": [*resolved.stage[:-1], stage]})
    settings = (folder, run.resume, run.overwrite, Display(run.quiet), run.accept_changes, run.cell)
    written = runs.finetune(model, resolved, *settings) if by_labels else runs.distill(resolved, *settings)
    if not ranks.is_first():
        return
    if not written:
        return print_line(f"{run.cell} is done")
    measurements = Measurements.from_json(written)
    print_grid(measurements.grid)
    print_measurements(measurements)
    print_comparisons(measurements.differences)
    if sentence := deployed_sentence(measurements):
        print_line(f"{folder}/deployed, {sentence}")
    if not run.quiet:
        say(f"student: {folder}/student   report: {folder}/report.html")
    if sentence and not run.quiet:
        say(f"try it: potstill predict {folder}/deployed rows.csv")
