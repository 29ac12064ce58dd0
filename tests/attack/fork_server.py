"""Commands in forks of one process that has torch loaded already: each has its own memory limit, time and standard streams.

A request is a JSON line on standard input, the answer a JSON line on standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def preload() -> None:
    """What every command would import; nothing here starts a thread, which a fork would not have."""
    import transformers.models.bert.modeling_bert
    import transformers.models.bert.tokenization_bert  # noqa: F401

    import potstill

    for module in pkgutil.walk_packages(potstill.__path__, "potstill."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # what needs a library that is not installed
                importlib.import_module(module.name)


def in_the_fork(asked: dict[str, Any]) -> None:
    """The command with the words, folder, environment and streams that were asked for; never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(asked["cwd"])
        os.environ.update(asked["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path, flags in (
            (0, asked["stdin"], os.O_RDONLY),
            (1, asked["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, asked["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            handle = os.open(path, flags, 0o600)
            os.dup2(handle, number)
            os.close(handle)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), encoding=asked["encoding"])
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "wb", closefd=False)),
            encoding=asked["encoding"],
            errors="backslashreplace",
            write_through=True,
        )
        # what is mapped already, shared with all forks, and so much more
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + asked["room"],) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["potstill", *asked["words"]]
        from potstill.app import cli

        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
    except BaseException:
        code = 1
        traceback.print_exc()  # as Python itself would
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def lines_in(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def waited_for(process: int, seconds: float, log: str, lines: int) -> dict[str, Any]:
    """How it ended; with a log, it is asked to stop when that has so many lines."""
    begun = time.monotonic()
    asked = False
    while True:
        if log and not asked and lines_in(log) >= lines:
            os.kill(process, signal.SIGTERM)
            asked = True
        ended, status, used = os.wait4(process, os.WNOHANG)
        taken = time.monotonic() - begun
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return {"code": code, "seconds": taken, "peak": used.ru_maxrss * 1024, "late": False}
        if taken > seconds:
            os.killpg(process, signal.SIGKILL)
            _, _, used = os.wait4(process, 0)
            return {"code": -signal.SIGKILL, "seconds": taken, "peak": used.ru_maxrss * 1024, "late": True}
        time.sleep(0.002 if log else min(0.02, 0.001 + taken / 20))


def main() -> None:
    preload()
    requests, answers = sys.stdin, sys.stdout
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in requests:
        asked = json.loads(line)
        if process := os.fork():
            print(
                json.dumps(waited_for(process, asked["seconds"], asked["log"], asked["lines"])),
                file=answers,
                flush=True,
            )
        else:
            in_the_fork(asked)


if __name__ == "__main__":
    main()
