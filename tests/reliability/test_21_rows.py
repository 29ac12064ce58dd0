from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import test_columns as generated
from tests.data.test_rows import RIGHT, WRONG, parquet_bytes, texts_and_labels, written
from tests.support.commands import FAST, files, potstill

MORE = {  # name, content: line, words of the message
    "unknown label": ("a.csv", "text,label\nfine,1\nbad,0\nodd,maybe\n", 4, "maybe"),
    "several unknown labels": ("a.tsv", "text\tlabel\nfine\tgood\nbad\tpoor\nodd\tmaybe\n", 2, "good"),
    "no parquet": ("a.parquet", "text,label\nfine,1\n", 1, "not a Parquet file"),
    "null in parquet": ("a.parquet", parquet_bytes(text=["a", None], label=["1", "0"]), 2, "not a text"),
    "numbers in parquet": ("a.parquet", parquet_bytes(text=[1, 2], label=["1", "0"]), 1, "not a text"),
}


def test_21_odd_files_give_the_right_rows(tmp_path: Path, figure: Callable[..., None]) -> None:
    for number, (name, content, expected) in enumerate(RIGHT.values()):
        (tmp_path / str(number)).mkdir()
        assert texts_and_labels(written(tmp_path / str(number), name, content)) == expected
    figure(21, f"{len(RIGHT)} of {len(RIGHT)} odd files give the right rows")


def test_21_malformed_files_end_with_the_place_and_what_to_do(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[..., None]
) -> None:
    cases = WRONG | MORE
    told = 0
    for number, (case, (name, content, line, words)) in enumerate(cases.items()):
        (tmp_path / str(number)).mkdir()
        path = written(tmp_path / str(number), name, content)
        run = ["distill", "--teacher", home / "teacher/student", *files(home), "--train", path]
        code = potstill(*run, "--out", tmp_path / "run", *FAST)
        message = capsys.readouterr().err
        assert code == 2, (case, message)
        assert message.startswith(f"potstill: {path}:{line}: ") and words in message and ";" in message, (case, message)
        told += 1
    assert not (tmp_path / "run").exists()
    figure(21, f"{told} of {len(cases)} malformed ones end with file:line and what to do")


def test_21_translations_and_texts_to_be_written(tmp_path: Path, figure: Callable[..., None]) -> None:
    """Read as a run reads them; which command trains on them does not matter to the rows."""
    checks = [(generated.check_right, case) for case in generated.RIGHT.values()]
    checks += [(generated.check_wrong, case) for case in generated.WRONG.values()]
    for number, (check, case) in enumerate(checks):
        (tmp_path / str(number)).mkdir()
        check(case, tmp_path / str(number))
    right, wrong = len(generated.RIGHT), len(generated.WRONG)
    figure(21, f"of translations and texts to be written {right} of {right} and {wrong} of {wrong}")
