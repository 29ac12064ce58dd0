"""What a process that was killed left behind is taken away by the next; exports are whole, or not there, or made again."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from potstill.data.rows import Columns
from potstill.errors import InputError, TrainingError
from potstill.inference import export as exported
from potstill.inference import onnx_forms
from potstill.inference.export import MARK
from potstill.inference.export_types import Checked, Rows
from potstill.models.student import Student, load_student, save_student
from potstill.system import paths
from potstill.system.files import draft_folder, scratch_folder, seal, unseal
from tests.support.small_models import small_model

KILLED = """
import os, signal, sys
from pathlib import Path
from potstill.system.files import draft_folder, scratch_folder
with draft_folder(Path(sys.argv[1])) if len(sys.argv) > 1 else scratch_folder() as place:
    (place / "model.onnx").write_bytes(b"half of it")
    os.kill(os.getpid(), signal.{signal})
"""


def killed(tmp: Path, *words: str, by: str = "SIGKILL") -> None:
    child = subprocess.run(
        [sys.executable, "-c", KILLED.replace("{signal}", by), *words], env={**os.environ, "TMPDIR": str(tmp)}
    )
    assert child.returncode == -getattr(signal, by)


@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
def test_files_of_the_killed_are_removed_and_those_of_the_living_stay(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "potstill-of-somebody-else").mkdir()
    with scratch_folder() as living:
        killed(tmp_path, by=by)
        left = set(tmp_path.glob("potstill-*")) - {living, tmp_path / "potstill-of-somebody-else"}
        assert len(left) == 1 and (left.pop() / "model.onnx").exists()
        with scratch_folder() as place:
            assert set(tmp_path.iterdir()) == {living, place, tmp_path / "potstill-of-somebody-else"}
    assert {path.name for path in tmp_path.iterdir()} == {"potstill-of-somebody-else"}


def test_a_draft_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed(tmp_path, str(out))
    assert not out.exists() and len(list(tmp_path.iterdir())) == 1
    with draft_folder(out) as draft:
        (draft / "model.onnx").write_bytes(b"all of it")
    assert list(tmp_path.iterdir()) == [out] and (out / "model.onnx").read_bytes() == b"all of it"


# the command


@dataclass
class Form:
    """An export that writes little, and then does what it is told."""

    then: Callable[[], None] = lambda: None
    content: bytes = b"model"

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.json").write_text("{}")
        (out / "model.onnx").write_bytes(self.content)
        self.then()
        return Checked(out / "model.onnx", 0.0, 1.0)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    save_student(small_model("bert", layers=1), folder)
    return folder


def export(student: Path, form: Form, out: Path, overwrite: bool = False) -> str:
    return str(exported.export_student(str(student), form, str(out), None, Columns(), None, overwrite))


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def differs() -> None:
    raise TrainingError("differs")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("fails", [full, differs])
def test_an_export_that_fails_leaves_what_was_there(
    fails: Callable[[], None], there: bool, student: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if there:
        export(student, Form(content=b"before"), out)
    with pytest.raises((OSError, TrainingError)) as caught:
        export(student, Form(fails), out, overwrite=True)
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(out), "a full disk is told with the path"
    assert list(tmp_path.iterdir()) == ([out] if there else [])
    assert not there or (out / "model.onnx").read_bytes() == b"before"
    assert str(out / "model.onnx") in export(student, Form(), out, overwrite=True)
    assert (out / "model.onnx").read_bytes() == b"model"


def test_overwriting_keeps_what_is_no_export(student: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(student, Form(), out)
    (out / "thesis.md").write_text("mine")
    (out / "model.onnx.data").write_text("of an earlier, larger one")
    mark = unseal((out / MARK).read_bytes())
    (out / MARK).write_bytes(seal({**mark, "files": [*mark["files"], "model.onnx.data"]}))
    with pytest.raises(InputError, match="write --overwrite"):
        export(student, Form(), out)
    export(student, Form(content=b"new"), out, overwrite=True)
    assert {path.name for path in out.iterdir()} == {"thesis.md", "config.json", "model.onnx", MARK}


def test_a_model_of_the_user_s_is_never_replaced_by_an_export(student: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.onnx").write_bytes(b"mine")
    with pytest.raises(InputError, match="not empty and not an export of potstill"):
        export(student, Form(), out, overwrite=True)
    (out / "model.onnx").unlink()
    export(student, Form(), out)
    mark = unseal((out / MARK).read_bytes())
    (out / MARK).write_bytes(seal({**mark, "files": ["model.onnx"]}))  # as if config.json were the user's
    with pytest.raises(InputError, match=r"config.json was not written by potstill"):
        export(student, Form(content=b"new"), out, overwrite=True)
    assert (out / "model.onnx").read_bytes() == b"model"


def test_an_export_onto_a_file_is_refused(student: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; give a folder with --out"):
        export(student, Form(), tmp_path / "file")


# the teacher's files in the cache


def test_a_teacher_s_files_are_made_again_where_they_are_damaged_and_for_another_config(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    made: list[Path] = []

    def write(student: Student, folder: Path, advance: Callable[[int], None]) -> tuple[Path, Path]:
        made.append(folder)
        for name in ("model.onnx", "int8.onnx", "config.json"):
            (folder / name).write_bytes(b"whole")
        return folder / "model.onnx", folder / "int8.onnx"

    monkeypatch.setattr(onnx_forms, "_write_files", write)
    teacher = load_student(student)
    for _ in range(2):
        plain, small = onnx_forms.cached_files(teacher)
    assert len(made) == 1 and plain.parent == small.parent == made[0]
    damages: list[Callable[[], object]] = [
        lambda: small.write_bytes(b"wholf"),
        lambda: plain.write_bytes(b"who"),
        plain.unlink,
        lambda: (plain.parent / "manifest.json").write_text("{}"),
        lambda: (plain.parent / "manifest.json").unlink(),
    ]
    for count, damage in enumerate(damages, 2):
        damage()
        onnx_forms.cached_files(teacher)
        assert len(made) == count and plain.read_bytes() == small.read_bytes() == b"whole"
    other = Path(shutil.copytree(student, tmp_path / "other"))
    settings = json.loads((other / "config.json").read_text()) | {"hidden_act": "tanh"}
    (other / "config.json").write_text(json.dumps(settings))
    onnx_forms.cached_files(load_student(other))
    assert len(set(made)) == 2 and len(list((paths.cache() / "exports").iterdir())) == 2
