"""Teachers of which only the answers are known: a command, or a function of a module that is installed.

A command is started once for every block of texts, without a shell. It reads one text per line on standard input, writes
one per line on standard output, and ends with 0. A recipe may come from a stranger: commands are started only where
POTSTILL_COMMANDS=allowed, and functions that a recipe names need the user's consent too (`recipe.user_functions`).
"""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from potstill.errors import InputError
from potstill.models.generation.decoding import Decoder, Hypothesis
from potstill.recipe.user_functions import code_is_allowed, user_function

Function = Callable[[list[str]], Sequence[str]]


def by_command(command: str) -> Decoder:
    """One hypothesis of unknown score for each text, whatever the beam."""
    if not code_is_allowed():
        raise InputError(
            f"the recipe wants to start {command!r}; set POTSTILL_COMMANDS=allowed in the environment if you trust it"
        )
    words = _words(command)

    def run(texts: list[str]) -> list[str]:
        try:
            ended = subprocess.run(words, input="".join(f"{one}\n" for one in texts).encode(), capture_output=True)
        except OSError as error:
            raise InputError(
                f"command {command!r} cannot be started ({error.strerror}); write its whole path"
            ) from None
        if ended.returncode != 0:
            said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            raise InputError(
                f"command {command!r} ended with {ended.returncode} ({said[-1] if said else 'without a word'}); "
                "mend it, then go on: what it wrote before is kept"
            )
        return ended.stdout.decode("utf-8", "replace").removesuffix("\n").split("\n")

    return _decoder(run, f"command {command!r}")


def by_function(name: str) -> Decoder:
    """ "module:name", a list of texts in, a text for each out."""
    function = _function(name)

    def run(texts: list[str]) -> list[str]:
        try:
            said = list(function(texts))
        except Exception as error:  # whatever a user's code raises
            raise InputError(
                f"function '{name}' ended with {type(error).__name__} ({str(error).strip() or 'without a word'}); "
                "mend it, then go on: what it wrote before is kept"
            ) from error
        for one in said:
            if not isinstance(one, str):
                raise InputError(f"function '{name}' gave {one!r} for a text; return a str for each, also an empty one")
        return said

    return _decoder(run, f"function '{name}'")


def what_decides(command: str | None, function: str | None) -> str:
    """What the answers are remembered under. That a program changed under its name cannot be seen; of a function its module
    is looked at, not what that imports or reads."""
    if command is not None:
        return f"command {command} {shutil.which(_words(command)[0])}"
    names = str(function).partition(":")[0], getattr(_function(str(function)), "__module__", None)
    files = [getattr(sys.modules.get(str(name)), "__file__", None) for name in names]  # it may be imported from another
    sources = [Path(file).read_bytes() for file in files if file and file.endswith(".py")]
    return f"function {function} {xxhash.xxh3_128_hexdigest(b''.join(sources))}"


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"command {command!r}: {error}; quote it as in a shell") from None
    if not words:
        raise InputError("the command is empty; write one that reads a text per line and writes a text per line")
    return words


def _function(name: str) -> Function:
    found: Function = user_function("function", name, '"module:name" of a module of your own')
    return found


def _decoder(run: Function, what: str) -> Decoder:
    def decode(texts: Sequence[str], beam: int, best: int) -> list[list[Hypothesis]]:
        if not texts:
            return []
        said = list(run([" ".join(one.splitlines()) for one in texts]))  # a line is a text
        if len(said) != len(texts):
            raise InputError(
                f"{what} gave {len(said)} texts for {len(texts)}; write one line for each, also an empty one"
            )
        return [[Hypothesis(one.rstrip("\r"), math.nan)] for one in said]

    return decode
