"""Safe printing: nothing in a label, text, file name or model can control the terminal, and no encoding of standard output
makes a command fail.

Control characters (ESC, C1 codes such as U+009B, a newline inside a label) and bidirectional overrides are shown as
escapes, `\\x1b` or `\\u202e`. Characters that the encoding lacks are shown as look-alikes or escapes.
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

# tabs are harmless; U+2028 and U+2029 end a line in some programs; surrogates stand for invalid UTF-8 in file names
CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
ACTING = re.compile(f"[{CONTROLS}\u202a-\u202e\u2066-\u2069]")  # and bidirectional overrides
LOOK_ALIKES = {"–": "-", "—": "-", "−": "-", "×": "x", "±": "+-", "…": "...", "’": "'", "‖": "||"}
REPLACED = "potstill.look-alike"  # name of the codec error handler


def visible(text: object) -> str:
    """One line, with control characters as escapes."""
    return ACTING.sub(_escaped, str(text))


def visible_lines(text: object) -> str:
    """The same for several lines. All but the first are indented, so that none looks like a message of its own."""
    return "\n  ".join(map(visible, str(text).rstrip("\n").split("\n")))


def print_line(text: object = "", flush: bool = False) -> None:
    """Print a line to standard output, where results go."""
    print(visible(text), flush=flush)


def print_generated(text: str, flush: bool = False) -> None:
    """Print a line that a model generated. Files keep bidirectional marks, since Arabic and Hebrew texts may have them."""
    pattern = ACTING if sys.stdout.isatty() else re.compile(f"[{CONTROLS}]")
    print(pattern.sub(_escaped, text), flush=flush)


def say(text: object) -> None:
    """Print a line to standard error, where messages go."""
    print(visible(text), file=sys.stderr)


def print_error(error: object) -> None:
    """Print an error to standard error."""
    print(visible_lines(f"potstill: {error}"), file=sys.stderr)


def print_json(value: Any, indent: int | None = None, flush: bool = False) -> None:
    """Print a value as JSON, with control characters, and characters that the encoding lacks, as JSON escapes."""
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=not _is_unicode(sys.stdout), allow_nan=False)
    except ValueError:  # JSON has no NaN, and a program that reads one fails far from here
        raise TrainingError(
            "the outputs of the model are not finite numbers, which JSON cannot hold; check its weights, or measure it in float32"
        ) from None
    lines = text.split("\n")  # from the indent: inside texts a newline is an escape already
    print("\n".join(ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", line) for line in lines), flush=flush)


def as_printed(text: object) -> str:
    """The line as standard output will show it, so that columns can be aligned."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return visible(text).encode(encoding, REPLACED).decode(encoding)


def is_terminal() -> bool:
    """Whether standard error is a terminal, not a file."""
    return bool(sys.stderr and sys.stderr.isatty())


def make_printing_safe() -> None:
    """Make printing safe for the whole process: no encoding fails, and logs and warnings of libraries, which may quote the
    files of a model, are escaped too."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=REPLACED)
    logging.setLogRecordFactory(_VisibleRecord)
    warnings.formatwarning = _visible_warning


def duration(seconds: float) -> str:
    """ "40 s", "12 min", "3.5 h"; never less than a second."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def byte_size(count: float) -> str:
    """ "512 B", "1.25 GB": decimal units, three digits."""
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:.0f} B"


class _VisibleRecord(logging.LogRecord):
    def getMessage(self) -> str:
        return visible_lines(super().getMessage())


_formatwarning = warnings.formatwarning


def _visible_warning(*args: Any, **kwargs: Any) -> str:
    return visible_lines(_formatwarning(*args, **kwargs)) + "\n"


def _escape(text: str) -> str:
    return text.encode("unicode_escape", "surrogatepass").decode()


def _escaped(match: re.Match[str]) -> str:
    return _escape(match[0])


def _is_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")


def _look_alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(LOOK_ALIKES.get(character) or _escape(character) for character in missing), error.end


codecs.register_error(REPLACED, _look_alike)
