"""What the attacks have in common: how many there are, a command that may do its worst, and what was there before."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
HERE = Path(__file__).parent
ROOM = 3 * 2**30  # bytes of address space that a command may take beyond what the libraries have
SECONDS = 60.0
SCALE = 1.0 if os.environ.get("POTSTILL_ATTACK") == "full" else float(os.environ.get("POTSTILL_ATTACK", "0.02"))


def many(full: int, least: int = 1) -> int:
    """How many attacks of a kind: the full count with POTSTILL_ATTACK=full, else a share of it (0.02 without a word)."""
    return max(least, round(full * SCALE))


def some(every: Iterable[T], least: int, first: int = 0) -> list[T]:
    """All of them in full; else the first few and a share of the others, the same ones each time, in their order."""
    found = list(every)
    rest = range(first, len(found))
    drawn = random.Random(0).sample(rest, min(len(rest), max(least - first, round(len(rest) * SCALE))))
    return [*found[:first], *(found[place] for place in sorted(drawn))]


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float
    peak: int
    late: bool  # it was ended, since it took too long

    def fault(self, codes: tuple[int, ...] = (0, 1, 2)) -> str | None:
        """What is wrong with how it ended; None where nothing is."""
        if self.late:
            return f"no end within {self.seconds:.0f} s"
        if "Traceback (most recent call last)" in self.err + self.out:
            return f"a traceback: {self.err.strip().splitlines()[-1][:200]}"
        if self.code not in codes:
            return f"exit {self.code}, expected {' or '.join(map(str, codes))}: {self.err.strip()[-300:]}"
        if self.code and not self.told():
            return f"exit {self.code} without what to do: {self.err.strip()[-300:]!r}"
        return None

    def told(self) -> bool:
        """Whether the message says what to do: after a semicolon, as a question, or with the usage."""
        messages = [line for line in self.err.splitlines() if line.startswith("potstill: ")]
        if not messages:
            return "Usage:" in self.err + self.out or "Error" in self.err  # as typer tells it
        rest = self.err[self.err.index(messages[-1]) :]
        return any(sign in rest.lower() for sign in (";", "did you mean", "there are", "expected"))


class Server:
    """Commands in forks of one process, one after the other."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        (place / "cwd").mkdir(exist_ok=True)
        (place / "empty").write_bytes(b"")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        environment["POTSTILL_CACHE"] = str(place / "cache")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.ready = False

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the server died"
        return dict(json.loads(line))

    def run(
        self,
        *words: str | Path,
        stdin: bytes = b"",
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        seconds: float = SECONDS,
        room: int = ROOM,
        encoding: str = "utf-8",
        stop_at: tuple[Path, int] | None = None,
    ) -> Ended:
        """Asked to stop by SIGTERM when a log has so many lines."""
        if not self.ready:
            self.ready = self._answer()["ready"]
        given = self.place / "stdin"
        given.write_bytes(stdin)
        streams = {name: self.place / name for name in ("stdout", "stderr")}
        asked = {
            "words": [str(word) for word in words],
            "cwd": str(cwd or self.place / "cwd"),
            "env": env or {},
            "stdin": str(given),
            "seconds": seconds,
            "room": room,
            "encoding": encoding,
            "log": str(stop_at[0]) if stop_at else "",
            "lines": stop_at[1] if stop_at else 0,
            **{name: str(path) for name, path in streams.items()},
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        out, err = (path.read_bytes().decode("utf-8", "replace") for path in streams.values())
        return Ended(
            tuple(asked["words"]), answer["code"], out, plain(err), *(answer[k] for k in ("seconds", "peak", "late"))
        )

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()


def plain(told: str) -> str:
    """Without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", told)


def snapshot(*places: Path) -> dict[str, bytes | None]:
    """Every file below the places with its bytes, every folder with None."""
    found: dict[str, bytes | None] = {}
    for place in places:
        for path in [place, *sorted(place.rglob("*"))]:
            if path.is_symlink():
                found[str(path)] = os.readlink(path).encode()
            elif path.exists():
                found[str(path)] = path.read_bytes() if path.is_file() else None
    return found


def lost(before: dict[str, bytes | None]) -> list[str]:
    """What of a snapshot is gone or is no longer what it was."""
    now = snapshot(*{Path(path) for path in before})
    return [path for path, content in before.items() if path not in now or now[path] != content]


def summed(faults: list[str], tried: int) -> str:
    """For an assertion: how many of the attacks went through, and the first of them."""
    return f"{len(faults)} of {tried}:\n" + "\n".join(faults[:25])
