"""Formats are found by listing `potstill.data.formats`; a text file is read without the libraries of other formats."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from potstill.data import formats, sources
from potstill.data.formats.reading import FileFormat

READ = """
import sys
from potstill.data.rows import open_table
print(*[row.text for row in open_table(sys.argv[1]).rows()], *{'torch', 'pyarrow', 'datasets'} & set(sys.modules))
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "text,label\na,1\n"), ("a.txt", "a\n"), ("a.jsonl", '{"text": "a"}\n'), ("a.conll", "a O\n")],
)
def test_a_text_file_is_read_without_torch_and_arrow(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    command = [sys.executable, "-c", READ, str(tmp_path / name)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["a"]


def test_a_format_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with FORMATS in the folder is all that a new format needs."""
    (tmp_path / "shouted.py").write_text(
        "from potstill.data.formats.reading import FileFormat, Opened, Record\n"
        "def open_shouted(path, source):\n"
        "    texts = path.read_text().split('!')[:-1]\n"
        "    records = lambda _: (Record(n, {'text': text}) for n, text in enumerate(texts, 1))\n"
        "    return Opened(['text'], records, 'shouted')\n"
        "FORMATS = (FileFormat(('.shouted',), open_shouted),)\n"
    )
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    monkeypatch.setattr(sources, "file_formats", sources.file_formats.__wrapped__)
    (tmp_path / "a.shouted").write_text("one!two!")
    opened = sources.locate(str(tmp_path / "a.shouted"))()
    assert [record.values["text"] for record in opened.records(["text"])] == ["one", "two"]
    assert opened.fingerprint == opened.digest() != ""


def test_every_ending_belongs_to_one_format_or_the_others_look_into_the_file() -> None:
    plain: dict[str, FileFormat] = {}
    for file_format in sources.file_formats():
        for ending in file_format.endings:
            assert ending == ending.lower()
            if file_format.has_content is None:
                assert ending not in plain
                plain[ending] = file_format
