"""Who may name code that is run: the user, on the command line, by a plug-in folder or by the environment; no recipe alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from potstill.data.augment.tagging import load_tagger
from potstill.errors import InputError
from potstill.models.student import save_student
from potstill.recipe import user_functions
from potstill.recipe.resolve import resolve
from potstill.training.teacher.black_boxes import function_decoder
from tests.support.commands import potstill
from tests.support.small_models import small_model, write_csv

RUNS = "torch.utils.collect_env:run"  # of an installed module, and it starts what it is given


@pytest.fixture(autouse=True)
def nobody_said_yes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("POTSTILL_COMMANDS", raising=False)
    monkeypatch.delenv("POTSTILL_PLUGINS", raising=False)
    monkeypatch.setattr(user_functions, "_COMMAND_LINE", set())
    yield
    for name in ("of_a_user", "of_a_stranger"):
        sys.modules.pop(name, None)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module beside the recipe, on Python's path as the current folder is, that leaves a mark when it is imported."""
    mark = tmp_path / "it-ran"
    text = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef f(words): return list(words)\n"
    (tmp_path / "of_a_stranger.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return mark


def test_a_recipe_s_file_alone_runs_nothing(
    tmp_path: Path, stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_student(small_model("bert", layers=1), tmp_path / "teacher")
    texts = [
        ("touch it-ran", "positive"),
        *((f"good film {n}", "positive") for n in range(4)),
        ("bad film", "negative"),
    ]
    write_csv(tmp_path / "train.csv", texts)
    head = 'teacher = "teacher"\nforce = true\nbaseline = false\ntiming = "none"\n[data]\ntrain = "train.csv"\ndev = "train.csv"\n'
    grid = '[[stage]]\nepochs = 1\ndata = ["augmented"]\n[grid]\n"stage.0.data.0.tagger" = ["textblob", "of_a_stranger:f"]\n'
    made = '[[stage]]\ndata = [{ make = "augmented", tagger = "NAME" }]\n'
    for text in (made.replace("NAME", RUNS), made.replace("NAME", "of_a_stranger:f"), grid):
        (tmp_path / "recipe.toml").write_text(head + text)
        for command in ("plan", "distill"):
            assert potstill(command, "recipe.toml", "--out", tmp_path / "out", "--quiet") == 2, (command, text)
            assert "on the command line (--set), or set POTSTILL_COMMANDS=allowed" in capsys.readouterr().err
            assert not stranger.exists()


@pytest.mark.parametrize("ask", [load_tagger, function_decoder])
def test_the_user_names_it_on_the_command_line(ask, tmp_path: Path, stranger: Path) -> None:  # type: ignore[no-untyped-def]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[data]\ntrain = "x"\n[[stage]]\ndata = [{ make = "augmented", tagger = "of_a_stranger:f" }]\n')
    resolve(recipe, {"teacher": ("--teacher", "x")}, ["epochs=2"])
    with pytest.raises(InputError, match="wants to run"):
        ask("of_a_stranger:f")
    assert not stranger.exists()
    resolve(recipe, None, ["stage.data.tagger=of_a_stranger:f"])
    assert ask("of_a_stranger:f") and stranger.exists()
    with pytest.raises(InputError, match="wants to run"):
        ask(RUNS)


def test_the_environment_allows_all_but_the_standard_library(monkeypatch: pytest.MonkeyPatch, stranger: Path) -> None:
    monkeypatch.setenv("POTSTILL_COMMANDS", "allowed")
    assert load_tagger("of_a_stranger:f")(["a"]) == ["a"]
    with pytest.raises(InputError, match="there is no tagger"):
        load_tagger("subprocess:call")


def test_functions_of_a_plug_in_folder_need_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the user's already; what a plug-in has imported is not."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "of_a_user.py").write_text("from subprocess import run\ndef f(words): return list(words)\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("POTSTILL_PLUGINS", str(folder))
    assert load_tagger("of_a_user:f")(["a"]) == ["a"]
    with pytest.raises(InputError, match="wants to run"):
        load_tagger("of_a_user:run")
    with pytest.raises(InputError, match="wants to run"):
        load_tagger(RUNS)
