"""A cell is claimed by one process, and a refused one leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from potstill.errors import InputError
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from potstill.runs.cells import CLAIM, claim, run_cells
from potstill.runs.study import Answer, Study, StudyRun, run_study
from potstill.system import files
from potstill.system.display import Display
from tests.support.run_folders import measurements


def test_a_cell_is_claimed_once_at_a_time(tmp_path: Path) -> None:
    with claim(tmp_path / "a") as mine, claim(tmp_path / "a") as theirs, claim(tmp_path / "b") as other:
        assert (mine, theirs, other) == (True, False, True)
    with claim(tmp_path / "a") as mine:
        assert mine


def test_the_claim_of_a_removed_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened before another process removed it, and a third one may hold the claim of the new file."""
    taken = files._taken

    def removed_meanwhile(handle: int) -> bool:
        (tmp_path / CLAIM).unlink()
        return taken(handle)

    with monkeypatch.context() as patched:
        patched.setattr(files, "_taken", removed_meanwhile)
        with claim(tmp_path) as mine:
            assert not mine
    with claim(tmp_path) as mine:
        assert mine


def test_a_refused_cell_leaves_no_folder_and_a_begun_one_all_of_its_files(tmp_path: Path) -> None:
    def refuse(name: str) -> str:
        if name == "begun":
            (tmp_path / "out/begun/steps.csv").write_text("work")
        raise InputError("no such teacher")

    for name in ("empty", "begun"):
        with pytest.raises(InputError, match="no such teacher"):
            run_cells({name: tmp_path / "out" / name}, lambda _: None, refuse)
        assert (tmp_path / "out").exists() == (name == "begun")
    assert (tmp_path / "out/begun/steps.csv").read_text() == "work"


def test_results_come_in_the_order_of_the_names_and_nothing_is_done_twice(tmp_path: Path) -> None:
    done: dict[str, str] = {"b": "b before"}

    def work(name: str) -> str:
        assert name not in done
        return done.setdefault(name, f"{name} now")

    names = {name: tmp_path / name for name in ("c", "b", "a")}
    assert run_cells(names, done.get, work) == {"c": "c now", "b": "b before", "a": "a now"}
    assert list(run_cells(names, done.get, work)) == ["c", "b", "a"]


class OneRun(Study):
    """A study of one run, which only says whose folder it was."""

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        return {"a": recipe}

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        return Answer("One run", [f"{name}: {run.folder.name}" for name, run in runs.items()], ["a"], [["b"]], "")


def test_a_finished_run_that_another_process_reads_is_read_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a run is locked while it is read: two workers of a study would refuse each other."""
    free = threading.Event()

    def read(recipe: Recipe, out: Path, *_: Any) -> dict[str, Any]:
        if not free.is_set():
            raise InputError("another process is working in this folder")
        return measurements()

    monkeypatch.setattr("potstill.runs.distill.are_measured", lambda folders: True)
    monkeypatch.setattr("potstill.runs.distill.distill", read)
    monkeypatch.setattr("potstill.runs.cells.POLL", 0.01)
    recipe = resolve(None, None, ["teacher=t", "student=fresh", "method=soft_targets", "data.train=a.csv"]).recipe
    (tmp_path / "out/a").mkdir(parents=True)
    answers: list[Answer | None] = []

    def study() -> None:
        answers.append(run_study(OneRun(), recipe, tmp_path / "out", False, Display(quiet=True), False))

    worker = threading.Thread(target=study)
    with claim(tmp_path / "out/a") as mine:
        assert mine
        worker.start()
        worker.join(0.5)
        assert worker.is_alive() and not answers
        free.set()
    worker.join(20)
    assert answers[0] is not None and answers[0].sentences == ["a: a"]
