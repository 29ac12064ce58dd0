"""Which files one distillation walks through: python tests/house/trace.py

A call counts if it enters a function of potstill that is not at module level; edges are pairs of files, first hops pairs of
functions in two files. Also counted: how often the student is built, and how often the training file is read to its end.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))


class Trace:
    """Counts calls between the files of potstill while it is active."""

    def __init__(self) -> None:
        import potstill

        self.root = str(Path(potstill.__file__).parent) + os.sep
        self.calls: Counter[tuple[str, str]] = Counter()  # (caller's file, called file)
        self.functions: Counter[str] = Counter()  # "file:function"
        self.order: list[str] = []  # files by their first call

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.root) or code.co_name.startswith("<"):
            return
        file = code.co_filename.removeprefix(self.root)
        if not self.functions_of(file):
            self.order.append(file)
        self.functions[f"{file}:{code.co_qualname}"] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self.root):
            caller = caller.f_back
        if caller is not None:
            origin = caller.f_code.co_filename.removeprefix(self.root)
            if origin != file:
                self.calls[origin, file] += 1

    def functions_of(self, file: str) -> bool:
        return file in self.order


def traced_run(folder: Path) -> Trace:
    """Patient distillation of a small BERT of six layers on 120 rows, for one epoch."""
    from potstill.models.student import save_student
    from tests.support.commands import potstill
    from tests.support.small_models import sentences, small_model, write_csv

    rows = [(text, ("negative", "positive")[label]) for text, label in sentences(180, 0)]
    for name, part in (("train", rows[:120]), ("dev", rows[120:150]), ("test", rows[150:])):
        write_csv(folder / f"{name}.csv", part)
    save_student(small_model("bert", layers=6), folder / "teacher")
    files = [word for name in ("train", "dev", "test") for word in (f"--{name}", folder / f"{name}.csv")]
    words = ["distill", "--teacher", folder / "teacher", *files, "--student", "keep_layers:3", "--method", "patient"]
    words += ["--epochs", "1", "--force", "--quiet"]
    os.environ["POTSTILL_CACHE"] = str(folder / "first")
    assert potstill(*words, "--out", folder / "first-run") == 0  # imports everything: module level is no walk
    os.environ["POTSTILL_CACHE"] = str(folder / "second")
    trace = Trace()
    sys.setprofile(trace)
    try:
        assert potstill(*words, "--out", folder / "run") == 0
    finally:
        sys.setprofile(None)
    return trace


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        trace = traced_run(Path(place))
    print(f"{len(trace.order)} files, {len(trace.calls)} edges, {sum(trace.calls.values()):,} calls between files")
    for file in trace.order:
        print(f"  {file:<40} {sum(n for (_, to), n in trace.calls.items() if to == file):>7,}")
    for name, count in trace.functions.items():
        if name.endswith((":build", ":begin", "keep_layers.py:KeepLayers.build", ":Table._rows")):
            print(f"  {count} x {name}")
