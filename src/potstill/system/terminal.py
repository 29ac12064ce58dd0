"""All that is printed goes through here: nothing in a label, text, file name or model acts on the terminal, and no encoding
of standard output ends a command.

Control characters (ESC, C1 codes such as U+009B, a new line inside a label) and bidirectional overrides are shown as
escapes, `\\x1b` or `\\u202e`. What an encoding lacks is shown by a look-alike or as an escape.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
import sys
import warnings
from typing import Any, TextIO

from potstill.errors import TrainingError

# a tab is harmless; U+2028 and U+2029 end a line for some readers; surrogates stand for bytes of names that are no UTF-8
CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
ACTING = re.compile(f"[{CONTROLS}\u202a-\u202e\u2066-\u2069]")  # the last two: what turns the direction of writing
LOOK_ALIKES = {"–": "-", "—": "-", "−": "-", "×": "x", "±": "+-", "…": "...", "’": "'", "‖": "||"}
REPLACED = "potstill.look-alike"  # name of the handler of what an encoding lacks


def visible(text: object) -> str:
    """One line, in which every character that would act on the terminal is an escape."""
    return ACTING.sub(_escaped, str(text))


def visible_lines(text: object) -> str:
    """The same for a text of several lines. All but the first are indented, so that none can pass for a message of its own."""
    return "\n  ".join(map(visible, str(text).rstrip("\n").split("\n")))


def put(text: object = "", flush: bool = False) -> None:
    """A line on standard output, where results go."""
    print(visible(text), flush=flush)


def put_written(text: str, flush: bool = False) -> None:
    """A line that a model wrote. In a file marks of direction stay: Arabic and Hebrew texts may have them."""
    acting = ACTING if sys.stdout.isatty() else re.compile(f"[{CONTROLS}]")
    print(acting.sub(_escaped, text), flush=flush)


def say(text: object) -> None:
    """A line on standard error, where everything else goes."""
    print(visible(text), file=sys.stderr)


def tell_error(error: object) -> None:
    """What went wrong, on standard error."""
    print(visible_lines(f"potstill: {error}"), file=sys.stderr)


def put_json(value: Any, indent: int | None = None, flush: bool = False) -> None:
    """A value as JSON on standard output, with what acts on terminals, and what the encoding lacks, as JSON's own escapes."""
    try:
        told = json.dumps(value, indent=indent, ensure_ascii=not _is_unicode(sys.stdout), allow_nan=False)
    except ValueError:  # JSON has no NaN, and a reader that gets one fails far from here
        raise TrainingError(
            "the model's answers are not finite numbers, which JSON cannot hold; check its weights, or measure it in float32"
        ) from None
    lines = told.split("\n")  # those of the indent: inside of texts a new line is an escape already
    print("\n".join(ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in lines), flush=flush)


def fitting(text: object) -> str:
    """A visible line as standard output can write it: columns are as wide as what is written."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return visible(text).encode(encoding, REPLACED).decode(encoding)


def is_terminal() -> bool:
    """Whether somebody looks at standard error while it is written; else it is a file, read later."""
    return bool(sys.stderr and sys.stderr.isatty())


def prepare() -> None:
    """Once per process, by the command line: from here on nothing that is printed fails, and what libraries log and warn
    of, which may hold texts of a model's files, is made visible too."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=REPLACED)
    logging.setLogRecordFactory(_VisibleRecord)
    warnings.formatwarning = _visible_warning


class _VisibleRecord(logging.LogRecord):
    def getMessage(self) -> str:
        return visible_lines(super().getMessage())


_formatwarning = warnings.formatwarning


def _visible_warning(*given: Any, **named: Any) -> str:
    return visible_lines(_formatwarning(*given, **named)) + "\n"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def _is_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")


def _look_alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    told = "".join(LOOK_ALIKES.get(one) or one.encode("unicode_escape", "surrogatepass").decode() for one in missing)
    return told, error.end


codecs.register_error(REPLACED, _look_alike)
