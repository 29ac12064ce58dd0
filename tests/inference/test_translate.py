"""`potstill translate`: a line out for every line in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import MarianConfig, MarianMTModel

from potstill.errors import InputError
from potstill.inference.translate import lines_of, translate
from potstill.models.generation.ctranslate2 import convert
from potstill.models.generation.decoding import decoder
from potstill.models.student import Student, save_student
from potstill.models.tokenizers.joint_bpe import joint_bpe
from potstill.system.randomness import seeded
from tests.support.commands import potstill
from tests.support.generative_models import shape_of, small_writer, trained_marian
from tests.support.small_models import sentences

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
        found = list(translate(str(folder), odd, beam=3, batch=batch))
        assert [*found[:5], *found[6:]] == expected and found[5] == ""
    (tmp_path / "a.txt").write_bytes("\r\n".join(TEXTS[:3]).encode() + b"\r\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\x00 no text")
    lines = list(lines_of([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]))
    assert lines[:3] == TEXTS[:3] and len(lines) == 4 and lines[3].endswith("no text")
    assert len(list(translate(str(folder), lines))) == 4


def test_lines_are_written_as_blocks_are_read(folder: Path) -> None:
    read = 0

    def lines() -> object:
        nonlocal read
        for text in TEXTS:
            read += 1
            yield text

    said = translate(str(folder), lines(), beam=1, batch=4)  # type: ignore[arg-type]
    next(said)
    assert read == 4


def test_the_command_reads_standard_input(folder: Path) -> None:
    words = [sys.executable, "-m", "potstill", "translate", str(folder), "--beam", "2", "--batch", "5"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = "".join(f"{text}\n" for text in TEXTS)
    ended = subprocess.run(words, input=asked.encode(), capture_output=True, env=environment)
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.decode().splitlines() == list(translate(str(folder), TEXTS, beam=2))


def test_a_student_s_folder_writes_as_its_export(folder: Path, tmp_path: Path) -> None:
    save_student(trained_marian(), tmp_path / "student")
    assert list(translate(str(tmp_path / "student"), TEXTS, 3)) == list(translate(str(folder), TEXTS, 3))


def test_what_is_wrong_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1"):
        list(translate(str(folder), TEXTS, beam=0))
    with pytest.raises(InputError, match="check the path"):
        list(lines_of([str(tmp_path / "none.txt")]))
    with pytest.raises(InputError, match="no folder"):
        list(translate(str(tmp_path / "none"), TEXTS))


def test_an_exported_translator_is_measured_beside_its_student(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_student(trained_marian(), tmp_path / "student")
    rows = "".join(f"{text}\t{text}\n" for text in TEXTS)
    (tmp_path / "test.tsv").write_text(f"en\tde\n{rows}")
    data = ["--data", tmp_path / "test.tsv", "--text", "en", "--pair", "de"]
    exact = ["--with", "weights=float32", "--out", tmp_path / "exact"]
    assert potstill("export", tmp_path / "student", "--to", "ctranslate2", *data, *exact) == 0
    assert potstill("export", tmp_path / "student", "--to", "ctranslate2", *data, "--out", tmp_path / "rounded") == 0
    assert (tmp_path / "rounded/model.bin").stat().st_size < (tmp_path / "exact/model.bin").stat().st_size
    capsys.readouterr()
    assert potstill("measure", tmp_path / "student", tmp_path / "exact", *data, "--json") == 0
    ours, theirs = json.loads(capsys.readouterr().out)["models"].values()
    mine, other = (one["quality"]["task"]["test"] for one in (ours, theirs))
    assert other["agreement"] == 1.0 and mine["bleu"] > 0
    assert {name: other[name] for name in ("rows", "bleu", "bleu_beam", "chrf")} == pytest.approx(
        {name: mine[name] for name in ("rows", "bleu", "bleu_beam", "chrf")}
    )
    assert other["mode"] == pytest.approx(mine["mode"], rel=1e-3)
    assert "perplexity" in mine and "perplexity" not in other and theirs["parameters"] == ours["parameters"]
    assert theirs["bytes"] == (tmp_path / "exact/model.bin").stat().st_size and "greedy" in theirs["speed"]
    assert potstill("measure", tmp_path / "exact", tmp_path / "student", *data) == 0
    convert(small_writer("gpt2"), tmp_path / "language model", "float32")
    assert potstill("measure", tmp_path / "language model", *data) == 2
    assert "give the folder of the student instead" in capsys.readouterr().err


def test_the_language_to_be_written_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = joint_bpe(TEXTS, 300, ["de", "fr"])
    with seeded(0):
        model = MarianMTModel(MarianConfig(**shape_of("marian", len(tokenizer), int(tokenizer.pad_token_id))))
    save_student(Student(model.eval(), tokenizer), tmp_path / "student")
    for language in ("de", "fr"):
        asked = [f">>{language}<< {text}" for text in TEXTS]
        expected = list(translate(str(tmp_path / "student"), asked, 1, longest=20))
        assert list(translate(str(tmp_path / "student"), TEXTS, 1, longest=20, language=language)) == expected
        some = ["", TEXTS[0], "  "]
        said = list(translate(str(tmp_path / "student"), some, 1, longest=20, language=language))
        assert said == ["", expected[0], ""], "to ask for a language is no text"
    (tmp_path / "test.tsv").write_text("en\tde\n" + "".join(f"{text}\t{text}\n" for text in TEXTS))
    data = ["--data", tmp_path / "test.tsv", "--text", "en", "--pair", "de", "--length", "20", "--json"]
    found = []
    for more in (["--language", "de"], ["--language", "fr"], []):
        assert potstill("measure", tmp_path / "student", *data, *more) == 0
        found.append(
            json.loads(capsys.readouterr().out)["models"][str(tmp_path / "student")]["quality"]["task"]["test"]
        )
    assert len({one["perplexity"] for one in found}) == 3
    assert potstill("measure", tmp_path / "student", *data, "--language", "it") == 2
    assert "has no token >>it<<; write one of de, fr" in capsys.readouterr().err
    save_student(trained_marian(), tmp_path / "alone")
    assert potstill("translate", tmp_path / "alone", tmp_path / "test.tsv", "--language", "de") == 2
    assert "omit --language" in capsys.readouterr().err
