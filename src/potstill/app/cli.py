"""The command line: assembles the commands of `app.commands`, and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from errno import EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM, EROFS
from typing import Annotated

import typer

from potstill import __version__
from potstill.app.commands import models, runs, train
from potstill.errors import InputError, TrainingError
from potstill.system.interrupts import Interrupted
from potstill.system.terminal import make_printing_safe, print_error, print_line

# how threads of OpenMP wait for each other
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SPINS = "1000"  # bench/neighbours.py: no slower alone, and much faster beside another process on the same cores

# errors of the system that are about a path the user wrote
WRONG_PATH = {ENOENT, ENOTDIR, EISDIR, ENAMETOOLONG, ELOOP, EACCES, EPERM, EROFS}

HELP = "Turn a language model that is too big into one that is small, fast and nearly as good, and prove it."
app = typer.Typer(
    name="potstill", help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"potstill {__version__}")
        raise typer.Exit


_version = typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")


@app.callback()
def program(version: Annotated[bool, _version] = False) -> None: ...


TRAINING_COMMANDS = (train.distill, train.finetune, train.train, train.pretrain, train.plan)
MODEL_COMMANDS = (models.predict, models.translate, models.measure, models.export, models.augment)
for command in (*TRAINING_COMMANDS, *MODEL_COMMANDS, runs.report, runs.study, runs.cells, runs.list_, runs.show):
    app.command(name=command.__name__.strip("_"))(command)


def main() -> None:
    """Exit codes: 0 success, 1 the run failed, 2 the input is wrong, 130 and 143 stopped by a signal after saving."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPINS  # read when torch is loaded
    make_printing_safe()
    try:
        app()
    except (InputError, TrainingError) as error:
        print_error(error)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except BrokenPipeError:  # the reader of `potstill predict … | head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        is_path = error.errno in WRONG_PATH
        advice = "check the path and its permissions" if is_path else "fix it and run the same command again"
        print_error(f"{error.strerror or error}: {error.filename or 'no file is known'}; {advice}")
        sys.exit(2 if is_path else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Interrupted as stopped:
        print_error("stopped; the same command continues from here")
        sys.exit(stopped.code)
