from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.reliability.write_table import BEGIN, END, PROMISES, main, reached, written_into

NOTES = [
    {"number": 1, "figure": "20 of 20"},
    {"number": 2, "figure": "4 of 4", "most": None},
    {"number": 2, "figure": "4 of 4", "most": None},
    {"number": 2, "figure": "every | method"},
    {"number": 7, "skipped": "nothing may be mounted"},
    {"number": 8, "figure": "100 of 100"},
    {"number": 8, "failed": "test_08_bits"},
    {"number": 19, "figure": "rows with {:.0f} MB", "most": 3.2},
    {"number": 19, "figure": "rows with {:.0f} MB", "most": 31.6},
    {"number": 19, "figure": "rows with {:.0f} MB", "most": 7},
]
FOUND = {
    1: "20 of 20",
    2: "4 of 4; every | method",
    7: "skipped: nothing may be mounted",
    8: "**fails**: test_08_bits",
    11: "not run",
    19: "rows with 32 MB",
    23: "waits for the server",
}


def test_every_promise_has_a_row_and_its_figure_or_the_reason() -> None:
    by_number = {promise.number: promise for promise in PROMISES}
    assert list(by_number) == list(range(1, 31))
    assert {number: reached(by_number[number], NOTES) for number in FOUND} == FOUND


def test_writing_twice_changes_nothing_and_what_stands_around_stays(tmp_path: Path) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "figures.jsonl"
    page.write_text(f"# before\n\n{BEGIN}\nyesterday\n{END}\n\nafter\n")
    figures.write_text("\n".join(map(json.dumps, NOTES)))
    main(figures, page)
    once = page.read_text()
    main(figures, page)
    assert page.read_text() == once
    assert once.startswith("# before\n") and once.endswith("\n\nafter\n") and "yesterday" not in once
    rows = [re.split(r"(?<!\\)\|", line) for line in once.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {7} and len(rows) == 2 + len(PROMISES)


def test_rows_of_other_promises_stay_where_only_some_are_written(tmp_path: Path) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "figures.jsonl"
    page.write_text(f"{BEGIN}\n{END}\n")
    figures.write_text("\n".join(map(json.dumps, NOTES)))
    main(figures, page)
    before = page.read_text().splitlines()
    figures.write_text(json.dumps({"number": 27, "figure": "0 run"}))
    main(figures, page, range(26, 31))
    after = page.read_text().splitlines()
    assert len(after) == len(before)
    changed = [new for new, old in zip(after, before, strict=True) if new != old]
    assert len(changed) == 1 and changed[0].startswith("| 27 |") and "| 0 run |" in changed[0]


def test_a_page_without_its_marks_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="needs the lines"):
        written_into("# a page", NOTES)


def test_every_test_of_a_promise_has_a_promise_and_every_promise_a_test() -> None:
    found = {
        int(number)
        for folder in (Path(__file__).parent, Path(__file__).parents[1] / "attack")
        for path in folder.glob("test_*.py")
        for number in re.findall(r"^def test_(\d\d)_", path.read_text(), re.MULTILINE)
    }
    waiting = {promise.number for promise in PROMISES if promise.waits}
    assert found | waiting == {promise.number for promise in PROMISES}
