"""A plan of a run whose teacher writes the rows: it writes a few, and all others are counted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from potstill.models.generation import decoding
from potstill.models.student import save_student
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from potstill.runs.distill import distill
from potstill.runs.planning import timing
from potstill.runs.planning.plan import plan
from tests.runs.planning.test_plan import QUICK, lines_of, logged
from tests.support.generative_models import trained_marian
from tests.support.small_models import translations, write_task

ROWS = 24
FEW = 8
SOURCES = {row["source"] for row in translations(ROWS, 1)}
LINE = "the teacher writes"


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.DECODED_TEXTS <= 64
    monkeypatch.setattr(timing, "DECODED_TEXTS", FEW)
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POTSTILL_COMMANDS", "allowed")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that the data maker has written, by any beam."""
    found: list[str] = []
    real = decoding.decoder

    @contextmanager
    def listening(*given: Any) -> Any:
        with real(*given) as decode:

            def told(texts: Sequence[str], beam: int, best: int) -> Any:
                found.extend(texts)
                return decode(texts, beam, best)

            yield told

    monkeypatch.setattr("potstill.models.generation.decoding.decoder", listening)
    return found


def recipe_of(home: Path, *sets: str) -> Recipe:
    for split, rows, seed in (("train", ROWS, 1), ("dev", 12, 2)):
        file = write_task(home / split, "translate", rows, seed)
    save_student(trained_marian(), home / "teacher")
    data = [f"data.{split}={home / split}{file.suffix}" for split in ("train", "dev")]
    more = ["student=keep_layers:1", "force=true", "baseline=false", "length=16", *QUICK, *sets]
    return resolve(None, None, [f"teacher={home}/teacher", *data, *more]).recipe


def blocks(home: Path) -> list[Path]:
    return list((home / "cache").rglob("block-*.json"))


def test_a_few_texts_are_written_and_all_are_counted(tmp_path: Path, asked: list[str]) -> None:
    """Once, though two stages and two seeds learn from them; and what is known already is not counted."""
    assert len(SOURCES) > FEW
    first = "{data='teacher_outputs',method='hard_labels',epochs=1}"
    second = "{data=[{make='teacher_outputs',closest=true}],method='hard_labels',epochs=1}"
    recipe = recipe_of(tmp_path, f"stage=[{first},{second}]", "seeds=2")
    found = plan(recipe, tmp_path / "run")
    assert 0 < len(asked) <= FEW and not blocks(tmp_path)
    line = lines_of(found)[LINE]
    assert line["rows"] == len(SOURCES) and line["seconds"] > 0 and line["operations"] > 0 and line["runs"] == 1
    asked.clear()
    single = recipe.model_copy(update={"seeds": 1, "stage": recipe.stage[:1]})
    distill(single, tmp_path / "run")
    assert set(asked) == SOURCES
    real, planned = logged(tmp_path / "run/stages/0"), lines_of(found)["train distilled, stage 0"]
    assert (planned["rows"], planned["steps"]) == (2 * ROWS, 2 * real["steps"])
    assert real["examples"] == ROWS - 1, "one source has no text that ends, which only the teacher can tell"
    asked.clear()
    again = plan(single, tmp_path / "run")
    assert LINE not in lines_of(again) and not asked
    assert lines_of(again)["train distilled"]["tokens"] == real["tokens"]  # of what was written, exactly


def test_several_hypotheses_of_a_program_are_so_many_rows(tmp_path: Path) -> None:
    """Its operations are not known; it is asked for a few texts as well."""
    seen = tmp_path / "seen.txt"
    program = f"import sys; t = sys.stdin.read(); open({str(seen)!r}, 'a').write(t); sys.stdout.write(t)"
    (tmp_path / "program.py").write_text(program)
    command = f"{sys.executable} {tmp_path}/program.py"
    stage = f"stage=[{{data=[{{make='teacher_outputs',command='{command}'}}],method='hard_labels',epochs=1}}]"
    line = lines_of(plan(recipe_of(tmp_path, stage), tmp_path / "run"))[LINE]
    assert line["rows"] == len(SOURCES) and line["operations"] == 0 and line["seconds"] > 0
    assert 0 < len(seen.read_text().splitlines()) <= FEW
    stage = "stage=[{data=[{make='teacher_outputs',beam=3,best=3}],method='hard_labels',epochs=1}]"
    assert lines_of(plan(recipe_of(tmp_path, stage), tmp_path / "run"))["train distilled"]["rows_per_epoch"] == 3 * ROWS
