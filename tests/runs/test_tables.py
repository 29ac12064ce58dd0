"""Files of a data set are opened together, and what is not read of them is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from potstill.recipe.schema import Data
from potstill.runs.tables import NAMED, open_tables


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("text,label", []),
        ("text,pair,label", []),
        (
            "text,other,label",
            ["the columns 'text', 'label' are read, 'other' not; --text, --pair and --label name others"],
        ),
    ],
)
def test_columns_that_are_not_read_are_said(header: str, said: list[str], tmp_path: Path) -> None:
    """Once, for train: a second text under an unusual name would be missed."""
    lines: list[str] = []
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text(f"{header}\n{header}\n")
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "dev")}
    tables = open_tables(Data(**files), None, lines.append)
    assert lines == [f"{files['train']}: {line}" for line in said]
    assert tables["train"].columns.pair == ("pair" if "pair" in header else None)


def test_of_many_columns_the_first_are_named(tmp_path: Path) -> None:
    lines: list[str] = []
    names = ",".join(f"c{number}" for number in range(NAMED + 2))
    (tmp_path / "train.csv").write_text(f"text,{names}\n{'x,' * (NAMED + 2)}x\n")
    open_tables(Data(train=str(tmp_path / "train.csv")), None, lines.append)
    assert f"'c{NAMED - 1}' and 2 more not" in lines[0] and f"'c{NAMED}'" not in lines[0]
