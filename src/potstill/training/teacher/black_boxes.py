"""Black-box teachers: a command, or a Python function of an installed module, that answers texts with texts.

A command is started once per block of texts, without a shell. It reads one text per line from standard input, writes one
per line to standard output, and exits with 0. A recipe may come from a stranger, so commands are started only with
POTSTILL_COMMANDS=allowed, and functions need the consent of the user too (`recipe/user_functions`).
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


def command_decoder(command: str) -> Decoder:
    """A decoder that returns one hypothesis per text, without a score and for any beam width."""
    if not code_is_allowed():
        raise InputError(
            f"the recipe runs the command {command!r}; set POTSTILL_COMMANDS=allowed in the environment if you trust it"
        )
    words = _words(command)

    def run(texts: list[str]) -> list[str]:
        try:
            ended = subprocess.run(words, input="".join(f"{text}\n" for text in texts).encode(), capture_output=True)
        except OSError as error:
            raise InputError(f"command {command!r} cannot be started ({error.strerror}); write its full path") from None
        if ended.returncode != 0:
            messages = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            raise InputError(
                f"command {command!r} ended with {ended.returncode} ({messages[-1] if messages else 'no message'}); "
                "fix it and run again: texts that it wrote before are kept"
            )
        return ended.stdout.decode("utf-8", "replace").removesuffix("\n").split("\n")

    return _decoder(run, f"command {command!r}")


def function_decoder(name: str) -> Decoder:
    """A decoder from "module:name", a function from a list of texts to a list of texts."""
    function = _function(name)

    def run(texts: list[str]) -> list[str]:
        try:
            answers = list(function(texts))
        except Exception as error:  # the code of a user may raise anything
            raise InputError(
                f"function '{name}' raised {type(error).__name__} ({str(error).strip() or 'no message'}); "
                "fix it and run again: texts that it wrote before are kept"
            ) from error
        for answer in answers:
            if not isinstance(answer, str):
                raise InputError(f"function '{name}' returned {answer!r} for a text; return a str for each text")
        return answers

    return _decoder(run, f"function '{name}'")


def black_box_identity(command: str | None, function: str | None) -> str:
    """The identity of a black box, under which its texts are stored.

    A program that changes under the same name goes unnoticed. For a function the source of its module counts, but not what
    the module imports or reads.
    """
    if command is not None:
        return f"command {command} {shutil.which(_words(command)[0])}"
    names = str(function).partition(":")[0], getattr(_function(str(function)), "__module__", None)
    files = [
        getattr(sys.modules.get(str(name)), "__file__", None) for name in names
    ]  # the function may come from another module
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
    function: Function = user_function("function", name, '"module:name" of a module of your own')
    return function


def _decoder(run: Function, what: str) -> Decoder:
    def decode(texts: Sequence[str], beam: int, best: int) -> list[list[Hypothesis]]:
        if not texts:
            return []
        answers = list(run([" ".join(text.splitlines()) for text in texts]))  # one line per text
        if len(answers) != len(texts):
            raise InputError(
                f"{what} returned {len(answers)} texts for {len(texts)}; it must return one for each, also for an empty one"
            )
        return [[Hypothesis(answer.rstrip("\r"), math.nan)] for answer in answers]

    return decode
