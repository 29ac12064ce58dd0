"""Options of the training commands follow from the recipe's fields."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from potstill.app import cli
from potstill.app.options import RunOptions, recipe_command
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import FLAGS

WRITTEN: dict[str, tuple[str, Any]] = {  # what is written, and the value of the field; others are written as they are
    "--test": ("m=a.csv", {"m": "a.csv"}),
    "--label": ("a, b", ["a", "b"]),
    "--choices": ("c", "c"),
    "--labels": ("no, yes", ["no", "yes"]),
    "--label-map": ("yes=1,no=0", {"yes": "1", "no": "0"}),
    "--no-baseline": ("", False),
    "--force": ("", True),
    "--task": ("tag", "tag"),
    "--tracker": ("tensorboard", "tensorboard"),
    "--epochs": ("0.5", 0.5),
    "--rate": ("2e-5", 2e-5),
}


def flags_of(*words: str) -> dict[str, tuple[str, Any]]:
    """The flags that a command is called with."""
    received: dict[str, tuple[str, Any]] = {}
    app = typer.Typer()

    @app.command()
    @recipe_command()
    def command(flags: dict[str, tuple[str, Any]], run: RunOptions) -> None:
        received.update(flags)

    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return received


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_sets_its_field(name: str) -> None:
    field = FLAGS[name]
    text, value = WRITTEN.get(name, ("7", 7 if field.value_type is int else "7"))
    flags = flags_of(name, text) if text else flags_of(name)
    assert flags[field.path] == (name, value)
    assert {path for path, (_, given) in flags.items() if given is not None} == {field.path}


def test_flags_that_resolve_are_the_recipe_s_values() -> None:
    flags = flags_of("--train", "a.csv", "--rate", "2e-5", "--batch", "8", "--no-baseline", "--test", "t.csv")
    resolved = resolve(None, flags)
    recipe = resolved.recipe
    assert (recipe.data[0].train, recipe.data[0].test, recipe.baseline) == ("a.csv", {"test": "t.csv"}, False)
    assert (recipe.stage[0].optimizer.rate, recipe.stage[0].batch) == (2e-5, 8)
    assert resolved.sources["stage.0.batch"] == "--batch" and resolved.sources["seed"] == "default"


def test_distill_and_plan_take_every_flag_with_its_help() -> None:
    group: Any = typer.main.get_command(cli.app)
    for name in ("distill", "plan"):
        helps = {parameter.opts[0]: getattr(parameter, "help", "") for parameter in group.commands[name].params}
        assert {flag: field.help for flag, field in FLAGS.items()}.items() <= helps.items()


@pytest.mark.parametrize("own", [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "5"}, {"KMP_BLOCKTIME": "0"}])
def test_threads_spin_for_a_short_time_unless_the_user_chose(own: dict[str, str], monkeypatch) -> None:
    environment = dict(own)
    monkeypatch.setattr("os.environ", environment)
    monkeypatch.setattr("sys.argv", ["potstill", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    chosen = {name: environment[name] for name in cli.WAITING if name in environment}
    assert chosen == (own or {"GOMP_SPINCOUNT": cli.SPINS})
