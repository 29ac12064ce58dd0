"""The source is a house that can be understood from outside: rooms, short files, a sentence for each."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import BEGIN, END, PAGE, ROOMS, ROOT, SOURCE, lines, tree

FILES = sorted(SOURCE.rglob("*.py"))
# what a translated dialect says in place of the field's words
DIALECT = re.compile(
    r"\bfor one in\b|\bhangs? on\b|\bleave [-\w]+ away\b|\bmodels? that writes?\b|\breaders? of questions\b"
    r"|\btold by nobody\b|\banew\b|\bmend(s|ed|ing)?\b",
    re.IGNORECASE,
)


def test_contributing_prints_the_tree() -> None:
    printed = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert printed == tree(), "write it again with: python -m tests.house.tree --write"


def test_every_file_and_room_has_a_sentence_that_fits_one_line() -> None:
    wrong = {name: text for name, text in lines(SOURCE) if not 10 <= len(text) <= 120}
    assert not wrong


def test_the_top_level_holds_rooms_and_at_most_eight_files() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8
    assert {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()} == set(ROOMS)


def test_no_file_holds_two_ideas() -> None:
    long = {str(file.relative_to(SOURCE)): n for file in FILES if (n := len(file.read_text().splitlines())) > 400}
    assert not long, "split them: a file over 400 lines is two ideas"


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_room_loads_none_of_its_files(room: str) -> None:
    text = (SOURCE / room / "__init__.py").read_text(encoding="utf-8")
    assert text.count('"""') == 2 and text.rstrip().endswith('"""'), "a sentence and nothing else"


def test_the_field_s_words_are_used() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = {file: file.read_text(encoding="utf-8") for file in [*FILES, *(page for page in pages if page.exists())]}
    wrong = [
        f"{file.relative_to(ROOT)}:{number}: {match[0]}"
        for file, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := DIALECT.search(line))
    ]
    assert not wrong, "\n".join(wrong)
