"""Options of commands. Those that set a field of a recipe are built from its schema, so a flag is written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import Parameter
from typing import Annotated, Any

import typer

from potstill.data.rows import Columns
from potstill.errors import InputError
from potstill.recipe.flags import DATA, MODELS, RUN, TRAINING, parse_columns
from potstill.recipe.schema import FlagField, flag_fields
from potstill.recipe.short_forms import parse_value
from potstill.recipe.user_functions import trust_command_line

MACHINE = "Machine"  # the group of options that only `plan` has
GROUPS = (MODELS, DATA, TRAINING, RUN, MACHINE)
FLAG_FIELDS = {field.flag.name: field for field in flag_fields()}
SHORTEST = FLAG_FIELDS["--length"].least  # tokens of a text


def plugin_option(kind: str, example: str) -> Any:
    """The option for fields of a plug-in, which `plugin_fields` reads."""
    return typer.Option("--with", help=f"A field of the {kind}: --with {example}.", metavar="FIELD=VALUE")


def recipe_option(name: str) -> Any:
    """The option of a recipe's flag, for a command that takes no recipe."""
    flag = FLAG_FIELDS[name].flag
    return typer.Option(name, help=flag.help, metavar=flag.metavar, min=FLAG_FIELDS[name].least)


RecipeName = Annotated[
    str | None,
    typer.Argument(help="A TOML file, or the name of a recipe that `potstill list recipes` shows.", metavar="[RECIPE]"),
]
Text = Annotated[str | None, recipe_option("--text")]
Pair = Annotated[str | None, recipe_option("--pair")]
Label = Annotated[str | None, recipe_option("--label")]
Labels = Annotated[str | None, recipe_option("--labels")]
Choices = Annotated[str | None, recipe_option("--choices")]
Length = Annotated[int | None, recipe_option("--length")]
Language = Annotated[
    str | None,
    typer.Option(help="Target language of a multilingual model, as de: >>de<< is put before each text."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
run_option = partial(typer.Option, rich_help_panel=RUN)
Out = Annotated[
    str | None, run_option("--out", help="The run's folder; the student is in OUT/student. Default: runs/NAME.")
]
SET_HELP = "Any field of the recipe: --set method.beta=500 --set seed=1 --set dropout=0."
Set = Annotated[list[str] | None, run_option("--set", help=SET_HELP, metavar="PATH=VALUE")]
Overwrite = Annotated[bool, run_option("--overwrite", help="Replace an earlier run in OUT.")]
AcceptChanges = Annotated[
    bool,
    run_option("--accept-changes", help="Continue although rows, a model or a version changed since the run began."),
]
Quiet = Annotated[bool, run_option("--quiet", help="Print nothing but the result.")]


@dataclass(frozen=True)
class RunOptions:
    """The options of every command that trains one student."""

    out: Out = None
    set_: Set = None
    resume: Annotated[
        str,
        run_option(
            "--resume",
            help="auto: continue where the same run stopped; the folder of a checkpoint; or never.",
            metavar="auto|PATH|never",
        ),
    ] = "auto"
    overwrite: Overwrite = False
    accept_changes: AcceptChanges = False
    quiet: Quiet = False


def recipe_command(
    only: Collection[str] = (), omit: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command so that its parameter `flags` becomes one option for each flag of the recipe's fields.

    `only` and `omit` select flags by their names. A parameter whose type is a dataclass becomes one option for each
    field. The command is called with the collected values.
    """
    selected = {
        name.strip("-").replace("-", "_"): field
        for name, field in FLAG_FIELDS.items()
        if name not in omit and (name in only or not only)
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[Parameter] = []
        groups: dict[str, type] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "flags":
                parameters += [_parameter(name, field) for name, field in selected.items()]
            elif isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
                groups[parameter.name] = parameter.annotation
                parameters += inspect.signature(parameter.annotation, eval_str=True).parameters.values()
            else:
                parameters.append(parameter)

        def run(**values: Any) -> None:
            flags = {field.path: (field.flag.name, field.value(values.pop(name))) for name, field in selected.items()}
            grouped = {
                name: group(**{field.name: values.pop(field.name) for field in fields(group)})
                for name, group in groups.items()
            }
            command(flags=flags, **grouped, **values)

        ordered = sorted(parameters, key=_group_number)
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in ordered]
        )
        return run

    return decorate


def _parameter(name: str, field: FlagField) -> Parameter:
    flag = field.flag
    option = typer.Option(flag.name, help=flag.help, metavar=flag.metavar, min=field.least, rich_help_panel=flag.group)
    if field.value_type is bool:
        return Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
    kind: Any = list[str] if flag.repeated else str if flag.parse else field.value_type
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def _group_number(parameter: Parameter) -> int:
    """Groups of --help in the order of GROUPS, behind arguments and options without a group."""
    panel = parameter.annotation.__metadata__[0].rich_help_panel
    return GROUPS.index(panel) if panel in GROUPS else -1


def columns(text: str | None, pair: str | None, label: str | None = None, choices: str | None = None) -> Columns:
    """The columns that the flags name."""
    label_columns, choice_columns = (parse_columns(names) if names else None for names in (label, choices))
    return Columns(
        text,
        pair,
        tuple(label_columns) if isinstance(label_columns, list) else label_columns,
        choices=tuple(choice_columns) if isinstance(choice_columns, list) else choice_columns,
    )


def plugin_fields(texts: list[str] | None) -> dict[str, Any]:
    """The fields of a plug-in from `--with layers=[1,2] --with rate=0.001`."""
    values = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--with {text}: has no value; write --with {text}=VALUE")
        values[name.strip()] = parse_value(value.strip())
    trust_command_line(values)
    return values
