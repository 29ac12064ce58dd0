"""`potstill translate`: a line out for every line in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small import sentences
from writers import trained_marian

from potstill.ctranslate2_files import convert
from potstill.decoding import decoder
from potstill.errors import InputError
from potstill.students import HEADS, save_student
from potstill.translating import lines_of, translated

TEXTS = [text for text, _ in sentences(12, 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("translator")
    convert(trained_marian(), place, "float32")
    return place


def test_every_line_has_its_own_whatever_the_batch(folder: Path, tmp_path: Path) -> None:
    with decoder(trained_marian(), "ctranslate2") as decode:
        expected = [one[0].text for one in decode(TEXTS, 3, 1)]
    odd = [*TEXTS[:5], "", *TEXTS[5:]]
    for batch in (1, 4, 512):
        found = list(translated(str(folder), odd, beam=3, batch=batch))
        assert [*found[:5], *found[6:]] == expected and found[5] == ""
    (tmp_path / "a.txt").write_bytes("\r\n".join(TEXTS[:3]).encode() + b"\r\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\x00 no text")
    lines = list(lines_of([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]))
    assert lines[:3] == TEXTS[:3] and len(lines) == 4 and lines[3].endswith("no text")
    assert len(list(translated(str(folder), lines))) == 4


def test_lines_are_written_as_blocks_are_read(folder: Path) -> None:
    read = 0

    def lines() -> object:
        nonlocal read
        for text in TEXTS:
            read += 1
            yield text

    said = translated(str(folder), lines(), beam=1, batch=4)  # type: ignore[arg-type]
    next(said)
    assert read == 4


def test_the_command_reads_standard_input(folder: Path) -> None:
    words = [sys.executable, "-m", "potstill", "translate", str(folder), "--beam", "2", "--batch", "5"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = "".join(f"{text}\n" for text in TEXTS)
    ended = subprocess.run(words, input=asked.encode(), capture_output=True, env=environment)
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.decode().splitlines() == list(translated(str(folder), TEXTS, beam=2))


@pytest.mark.skipif("Seq2SeqLM" not in HEADS, reason="students that translate cannot be loaded yet")
def test_a_student_s_folder_writes_as_its_export(folder: Path, tmp_path: Path) -> None:
    save_student(trained_marian(), tmp_path / "student")
    assert list(translated(str(tmp_path / "student"), TEXTS, 3)) == list(translated(str(folder), TEXTS, 3))


def test_what_is_wrong_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1"):
        list(translated(str(folder), TEXTS, beam=0))
    with pytest.raises(InputError, match="check the path"):
        list(lines_of([str(tmp_path / "none.txt")]))
    with pytest.raises(InputError, match="no folder"):
        list(translated(str(tmp_path / "none"), TEXTS))
