"""Teachers of which only the answers are known, and a process that asks one until it is killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.support.small_models import write_csv

asked: list[str] = []
PAUSE = 0.0


def backwards(texts: list[str]) -> list[str]:
    asked.extend(texts)
    time.sleep(PAUSE)
    return [text[::-1] for text in texts]


def too_few(texts: list[str]) -> list[str]:
    return texts[1:]


def nothing(texts: list[str]) -> None:
    return None


def unknown(texts: list[str]) -> list[str | None]:
    return [None for _ in texts]


def broken(texts: list[str]) -> list[str]:
    raise OSError("no line")


def main(place: Path, rows: int, block: int, teacher: str) -> None:
    """Makes the examples of `rows` pairs, slowly; the cache is where the environment says."""
    global PAUSE
    from potstill.plugins.data.teacher_outputs import TeacherOutputs

    TeacherOutputs.block = block
    PAUSE = 0.2
    sys.modules["tests.support.black_box"] = sys.modules["__main__"]
    outputs_of(place, rows, teacher)


def outputs_of(place: Path, rows: int, teacher: str):  # type: ignore[no-untyped-def]
    from potstill.data.examples import store
    from potstill.data.making import MakeContext
    from potstill.data.rows import open_table
    from potstill.plugins.data.teacher_outputs import TeacherOutputs
    from potstill.tasks.label_matching import make_task
    from tests.support.small_models import sentences

    pairs = [(text, text.upper(), place % 2) for place, (text, _) in enumerate(sentences(rows, 3))]
    place.mkdir(parents=True, exist_ok=True)
    write_csv(place / "rows.csv", pairs, ("text1", "text2", "label"))
    table = open_table(place / "rows.csv")
    task, _ = make_task(None, None, ["0", "1"], None, "rows", table.form)
    examples = store(table, task)
    if teacher == "black box":
        return TeacherOutputs(function="tests.support.black_box:backwards").make(examples, MakeContext(0))
    from tests.support.generative_models import trained_marian

    return TeacherOutputs(beam=2).make(examples, MakeContext(0, teacher=trained_marian(), longest=24))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
