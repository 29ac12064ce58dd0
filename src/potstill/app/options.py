"""Options that commands share, built from the recipe's flags, and checks of their values before torch is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter
from typing import Annotated, Any

import typer

from potstill.data.rows import Columns
from potstill.data.sources import locate
from potstill.errors import InputError
from potstill.models.folders import model_folder, onnx_file
from potstill.recipe.flags import DATA, MODELS, RUN, TRAINING, Flag, parse_names
from potstill.recipe.schema import FLAGS, Recipe
from potstill.recipe.short_forms import parse_assignment

MACHINE = "Machine"  # the group of options that only `plan` has
GROUPS = (MODELS, DATA, TRAINING, RUN, MACHINE)
Command = Callable[..., None]


def plugin_option(kind: str, example: str) -> Any:
    """The option for fields of a plug-in, which `plugin_fields` reads."""
    return typer.Option("--with", help=f"A field of the {kind}: --with {example}.", metavar="FIELD=VALUE")


def recipe_option(name: str, group: str | None = None) -> Any:
    """The option of a recipe's flag; `group` is its panel in --help."""
    flag = FLAGS[name]
    return typer.Option(name, help=flag.help, metavar=flag.metavar, min=flag.least, rich_help_panel=group)


RECIPE_HELP = "A TOML file, or the name of a recipe that `potstill list recipes` shows."
RecipeName = Annotated[str | None, typer.Argument(help=RECIPE_HELP, metavar="[RECIPE]")]
Text = Annotated[str | None, recipe_option("--text")]
Pair = Annotated[str | None, recipe_option("--pair")]
Label = Annotated[str | None, recipe_option("--label")]
Labels = Annotated[str | None, recipe_option("--labels")]
Choices = Annotated[str | None, recipe_option("--choices")]
Length = Annotated[int | None, recipe_option("--length")]
LANGUAGE_HELP = "Target language of a multilingual model, as de: >>de<< is put before each text."
Language = Annotated[str | None, typer.Option(help=LANGUAGE_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
run_option = partial(typer.Option, rich_help_panel=RUN)
OUT_HELP = "The run's folder; the student is in OUT/student. Default: runs/NAME."
Out = Annotated[str | None, run_option("--out", help=OUT_HELP)]
SET_HELP = "Any field of the recipe: --set method.beta=500 --set seed=1 --set dropout=0."
Set = Annotated[list[str] | None, run_option("--set", help=SET_HELP, metavar="PATH=VALUE")]
Overwrite = Annotated[bool, run_option("--overwrite", help="Replace an earlier run in OUT.")]
ACCEPT_HELP = "Continue although rows, a model or a version changed since the run began."
AcceptChanges = Annotated[bool, run_option("--accept-changes", help=ACCEPT_HELP)]
Quiet = Annotated[bool, run_option("--quiet", help="Print nothing but the result.")]
RESUME_HELP = "auto: continue where the same run stopped; the folder of a checkpoint; or never."
Resume = Annotated[str, run_option("--resume", help=RESUME_HELP, metavar="auto|PATH|never")]
CELL_HELP = "Train this cell alone, a seed or a point of the grid (`potstill cells`); without it, the rest is done."
CellName = Annotated[str | None, run_option("--cell", help=CELL_HELP, metavar="NAME")]


@dataclass(frozen=True)
class RunOptions:
    """The options of every command that trains one student."""

    out: Out = None
    set_: Set = None
    resume: Resume = "auto"
    overwrite: Overwrite = False
    accept_changes: AcceptChanges = False
    cell: CellName = None
    quiet: Quiet = False


def recipe_command(only: Collection[str] = (), omit: Collection[str] = ()) -> Callable[[Command], Command]:
    """Decorate a command so that its parameter `flags` becomes one option for each flag, and `run` the run's options.

    `only` and `omit` select flags by their names. The command is called with the collected values.
    """
    selected = {
        name.strip("-").replace("-", "_"): flag
        for name, flag in FLAGS.items()
        if name not in omit and (name in only or not only)
    }

    def decorate(command: Command) -> Command:
        parameters = dict(inspect.signature(command, eval_str=True).parameters)
        has_run = parameters.pop("run", None) is not None
        del parameters["flags"]
        options = list(parameters.values()) + [_parameter(name, flag) for name, flag in selected.items()]
        if has_run:
            options = [*inspect.signature(RunOptions, eval_str=True).parameters.values(), *options]

        def run(**values: Any) -> None:
            flags = {flag.path: (flag.name, flag.value(values.pop(name))) for name, flag in selected.items()}
            if has_run:
                values["run"] = RunOptions(**{field.name: values.pop(field.name) for field in fields(RunOptions)})
            command(flags=flags, **values)

        ordered = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in sorted(options, key=_group_number)]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(name: str, flag: Flag) -> Parameter:
    is_switch = flag.value_type is bool
    kind: Any = list[str] if flag.repeated else str if flag.parse else flag.value_type
    annotation: Any = Annotated[kind if is_switch else kind | None, recipe_option(flag.name, flag.group)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=False if is_switch else None, annotation=annotation)


def _group_number(parameter: Parameter) -> int:
    """Groups of --help in the order of GROUPS, behind arguments and options without a group."""
    panel = parameter.annotation.__metadata__[0].rich_help_panel
    return GROUPS.index(panel) if panel in GROUPS else -1


def columns(text: str | None, pair: str | None, label: str | None = None, choices: str | None = None) -> Columns:
    """The columns that the flags name."""

    def one_or_several(names: str | None) -> str | tuple[str, ...] | None:
        return tuple(parse_names(names)) if names and "," in names else names

    return Columns(text, pair, one_or_several(label), choices=one_or_several(choices))


def seconds_of(flag: str, text: str | None) -> float | None:
    """The seconds of a duration such as 90s, 30m or 2h."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InputError(f"{flag} {text}: expected a duration; write for example {flag} 30m, 90s or 2h")
    return seconds


def plugin_fields(texts: list[str] | None) -> dict[str, Any]:
    """The fields of a plug-in from `--with layers=[1,2] --with rate=0.001`."""
    return dict(parse_assignment("--with", text) for text in texts or ())


def check_rows(source: str | None) -> None:
    """Refuse rows that are missing; a name on the hub is not looked up."""
    if source is not None:
        locate(source)


def check_model(model: str) -> None:
    """Refuse a model that is missing; a name on the hub is looked up, and downloaded."""
    if onnx_file(model) is None:
        model_folder(model)


def check_recipe(recipe: Recipe, with_models: bool = True) -> None:
    """Refuse a recipe whose rows or models are missing."""
    for data in recipe.data:
        for source in data.sources:
            check_rows(source)
    if not with_models:
        return
    for model in (*recipe.teachers, recipe.start):
        if model:
            check_model(model)
