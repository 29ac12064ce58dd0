"""29: what is read is what is written, or it is refused: fuzzed files beside readers that share nothing with ours."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from potstill.data.examples import store
from potstill.data.rows import Columns, open_table
from potstill.errors import InputError
from potstill.tasks.label_matching import labels_of, make_task
from tests.attack.attacks import many, summed
from tests.attack.fuzzed import FORMATS, LABELS, File
from tests.attack.plain_readers import Names, Read
from tests.support.small_models import write_csv


def ours(source: str, form: str | None) -> tuple[list[Read], Names]:
    """What potstill reads, with the columns that it took."""
    table = open_table(source, Columns(), form=form)  # type: ignore[arg-type]
    rows = [Read(row.text, row.pair, row.label) for row in table.rows()]
    label = table.columns.label
    return rows, Names(str(table.columns.text), table.columns.pair, label if isinstance(label, str) else None)


def judged(file: File) -> tuple[str, str]:
    """ "read", "refused", or "wrong" with the reason."""
    try:
        found, names = ours(file.source, file.form)
    except InputError as error:
        told = str(error)
        if ";" not in told or str(Path(file.source.split(",")[0]).parent) not in told:
            return "wrong", f"a refusal without a place or what to do: {told[:200]!r}"
        wrongly = file.whole and file.readings(file.names)
        return ("wrong" if wrongly else "refused"), f"refused: {told[-200:]}"
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {str(error)[:200]}"
    readings = file.readings(names)
    if any(same(found, other) for other in readings):
        return "read", ""
    return "wrong", first_difference(found, readings)


def first_difference(found: list[Read], readings: list[list[Read]]) -> str:
    if not readings:
        return f"reads {len(found)} rows where others refuse: {str(found)[:200]}"
    other = readings[0]
    if len(found) != len(other):
        return f"reads {len(found)} rows, others {len(other)}"
    ours, theirs = next((a, b) for a, b in zip(found, other, strict=True) if not same([a], [b]))
    return f"reads {str(ours)[:200]}, others {str(theirs)[:200]}"


def same(found: list[Read], other: list[Read]) -> bool:
    """Places of answers are tuples of another kind there."""
    return [(*one[:2], plainly(one.label)) for one in found] == [(*one[:2], plainly(one.label)) for one in other]


def plainly(label: object) -> object:
    return (
        tuple(tuple(part) if isinstance(part, tuple) else part for part in label) if isinstance(label, tuple) else label
    )


def each_of(kind: str, count: int, folder: Path) -> Iterator[tuple[int, str, str]]:
    """Number, verdict and reason of every file, in a child: a library that gives up takes only the child with it."""
    make, _ = FORMATS[kind]
    number = 0
    while number < count:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8", errors="backslashreplace") as out:
                for at in range(number, count):
                    place = folder / "files"
                    shutil.rmtree(place, ignore_errors=True)
                    place.mkdir()
                    verdict, reason = judged(make(random.Random(f"{kind} {at}"), place))
                    line = reason.replace("\n", "⏎").replace("\r", "␍")
                    print(f"{at}\t{verdict}\t{line}", file=out, flush=verdict == "wrong" or kind == "Parquet")
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                at, verdict, reason = line.rstrip("\n").split("\t", 2)
                yield int(at), verdict, reason
                number = int(at) + 1
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code and number < count:
            yield number, "wrong", f"the process ended by {signal.Signals(-code).name if code < 0 else code}"
            number += 1


@pytest.mark.slow  # it forks, which is safe only where no library has started threads: make attack runs it
@pytest.mark.parametrize("kind", FORMATS)
def test_29_fuzzed_files_are_read_as_others_read_them_or_refused(
    kind: str, tmp_path: Path, figure: Callable[..., None]
) -> None:
    count = many(FORMATS[kind][1])
    verdicts: Counter[str] = Counter()
    wrong = []
    for number, verdict, reason in each_of(kind, count, tmp_path):
        verdicts[verdict] += 1
        if verdict == "wrong":
            wrong.append(f"{kind} {number}: {reason}")
    assert sum(verdicts.values()) == count
    assert not wrong, summed(wrong, count)
    assert verdicts["read"] >= 0.25 * count, f"too few are read to say anything: {verdicts}"
    figure(29, f"{kind} {verdicts['read']:,} read, {verdicts['refused']:,} refused, 0 wrong")


def spelled(label: str) -> str:
    """A label of a text file, where 1.0 may stand for 1."""
    whole, point, rest = label.strip().partition(".")
    return (
        whole
        if point and whole.lstrip("-").isascii() and whole.lstrip("-").isdigit() and not rest.strip("0")
        else label.strip()
    )


def test_29_labels_are_texts_from_the_file_to_the_class(
    tmp_path: Path, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that differ are two classes, each under its own name, or the file is refused."""
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    sets = many(1000)
    wrong, read = [], 0
    for number in range(sets):
        chance = random.Random(f"labels {number}")
        labels = chance.sample([one for one in LABELS if one], chance.randint(2, 5))
        rows = [(f"text {at}", labels[at % len(labels)]) for at in range(2 * len(labels))]
        write_csv(tmp_path / "rows.csv", rows)
        table = open_table(tmp_path / "rows.csv")
        try:
            task, _ = make_task(None, None, labels_of(table), None, table.source, table.form)
            if task.outcome != "class":
                continue  # all of them are numbers
            examples = store(table, task)
            said = [task.labels[int(target)] for target in examples.targets]
        except InputError:
            continue
        except Exception as error:
            wrong.append(f"{labels}: {type(error).__name__}: {error}")
            continue
        read += 1
        merged = len({spelled(label) for label in labels}) > len(set(said))
        renamed = [
            (label, name) for (_, label), name in zip(rows, said, strict=True) if spelled(name) != spelled(label)
        ]
        if merged or renamed:
            wrong.append(f"{labels} became {said[: len(labels)]}")
    assert not wrong, summed(wrong, sets)
    assert read >= 0.25 * sets
    figure(29, f"{read:,} sets of odd labels, each its own class")
