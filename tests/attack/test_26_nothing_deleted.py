"""26: what the user made is there after every command, byte for byte: only what potstill wrote is ever removed or replaced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.attack.attacks import Server, lost, snapshot, some, summed
from tests.attack.small_home import QUICK, Home

Words = list[str | Path]


class Case(NamedTuple):
    name: str
    words: Callable[[Path], Words]  # of the user's folder
    codes: tuple[int, ...] = (2,)
    before: Callable[[Path], None] | None = None
    inside: bool = False  # typed in the user's folder


def recipe(user: Path) -> str:
    return f"""
teacher = "{user}/models/teacher"
student = "keep_layers:1"
baseline = false
length = 16
timing = "none"
[data]
train = "{user}/train.csv"
dev = "{user}/dev.csv"
[[stage]]
epochs = 1
batch = 8
"""


@pytest.fixture(scope="module")
def pattern(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has: rows, models, a thesis, notes."""
    user = tmp_path_factory.mktemp("pattern") / "user"
    shutil.copytree(home.teacher, user / "models/teacher")
    shutil.copytree(home.encoder, user / "models/encoder")
    for name in ("train", "dev", "test"):
        shutil.copy(home.folder / f"{name}.csv", user)
    (user / "thesis.md").write_text("# three years\n")
    (user / "notes").mkdir()
    (user / "notes/a.txt").write_text("remember\n")
    (user / "notes/.hidden").write_text("hidden\n")
    return user


@pytest.fixture
def user(pattern: Path, tmp_path: Path) -> Path:
    return fresh(pattern, tmp_path / "user")


def fresh(pattern: Path, user: Path) -> Path:
    shutil.rmtree(user, ignore_errors=True)
    shutil.copytree(pattern, user, symlinks=True)
    (user / "recipe.toml").write_text(recipe(user))
    return user


def rows(user: Path) -> Words:
    return ["--train", user / "train.csv", "--dev", user / "dev.csv"]


def distill(user: Path, out: Path | str, *more: str | Path) -> Words:
    shape = ["--student", "keep_layers:1", "--method", "soft_targets", "--no-baseline", "--epochs", "1", "--force"]
    return ["distill", "--teacher", user / "models/teacher", *rows(user), *shape, *QUICK, "--out", out, *more]


def finetune(user: Path, out: Path | str, *more: str | Path) -> Words:
    return ["finetune", user / "models/encoder", *rows(user), "--epochs", "1", *QUICK, "--out", out, *more]


def a_run_s_recipe(user: Path) -> None:
    """Copied from a run, with its first line."""
    (user / "recipe.toml").write_text("# fingerprint 17cf80f12f375c77\n" + recipe(user))
    (user / "measurements.json").write_text("{}")


def a_student_of_their_own(user: Path) -> None:
    shutil.copytree(user / "models/teacher", user / "student")
    a_run_s_recipe(user)


def a_link(user: Path) -> None:
    (user / "link").symlink_to(user / "notes")
    (user / "rows.csv").symlink_to(user / "train.csv")


def their_onnx(user: Path) -> None:
    (user / "model.onnx").write_bytes(b"theirs")
    (user / "notes/model.onnx").write_bytes(b"theirs")


def their_pages(user: Path) -> None:
    for name in ("report.html", "study.md", "study.svg"):
        (user / name).write_text("theirs\n")
    (user / "layers-1").mkdir()
    (user / "layers-1/mine.txt").write_text("theirs\n")


AGAIN = "--overwrite"
OUTS: list[Case] = [
    Case("a recipe, out here", lambda user: ["distill", "recipe.toml", "--out", ".", "--quiet"], inside=True),
    Case("a recipe, out there", lambda user: ["distill", user / "recipe.toml", "--out", user, "--quiet"]),
    Case("finetune out there", lambda user: finetune(user, user)),
    Case("a recipe, overwrite", lambda user: ["distill", user / "recipe.toml", "--out", user, "--quiet", AGAIN]),
    Case("finetune overwrite", lambda user: finetune(user, user, AGAIN)),
    Case("a run's recipe", lambda user: distill(user, user), before=a_run_s_recipe),
    Case("a run's recipe, overwrite", lambda user: distill(user, user, AGAIN), before=a_run_s_recipe),
    Case("a student of their own", lambda user: distill(user, user, AGAIN), before=a_student_of_their_own),
    Case("above", lambda user: distill(user, user.parent)),
    Case("above, overwrite", lambda user: distill(user, user.parent, AGAIN)),
    Case("above by dots", lambda user: distill(user, "..", AGAIN), inside=True),
    Case("notes", lambda user: distill(user, user / "notes")),
    Case("notes, overwrite", lambda user: distill(user, user / "notes", AGAIN)),
    Case("the teacher", lambda user: distill(user, user / "models/teacher", AGAIN)),
    Case("around the teacher", lambda user: distill(user, user / "models", AGAIN)),
    Case("the encoder", lambda user: finetune(user, user / "models/encoder", AGAIN)),
    Case("within the teacher", lambda user: distill(user, user / "models/teacher/run"), (0, 2)),
    Case("a new folder inside", lambda user: distill(user, user / "runs/one"), (0,)),
    Case("a file", lambda user: distill(user, user / "train.csv", AGAIN)),
    Case("below a file", lambda user: distill(user, user / "thesis.md/run", AGAIN)),
    Case("a link", lambda user: distill(user, user / "link", AGAIN), before=a_link),
    Case("seeds", lambda user: distill(user, user, "--seeds", "2", AGAIN), before=a_run_s_recipe),
    Case("a grid", lambda user: distill(user, user, "--set", "grid.seed=[0, 1]", AGAIN), before=a_run_s_recipe),
    Case("train", lambda user: ["train", "--shape", "bag", *rows(user), *QUICK, "--out", user, AGAIN]),
    Case("never resumed", lambda user: distill(user, user, "--resume", "never"), before=a_run_s_recipe),
    Case("resumed from notes", lambda user: distill(user, user / "new", "--resume", user / "notes")),
    Case("plan", lambda user: ["plan", *distill(user, user)[1:]], (0, 2)),
    Case("memory", lambda user: distill(user, user / "new", "--set", f"memory={user}/notes"), (0, 2)),
    Case("export out there", lambda user: ["export", user / "models/teacher", "--to", "onnx", "--out", user]),
    Case(
        "export, overwrite",
        lambda user: ["export", user / "models/teacher", "--to", "onnx", "--out", user / "notes", AGAIN],
    ),
    Case(
        "export over their own",
        lambda user: ["export", user / "models/teacher", "--to", "onnx", "--out", user / "notes", AGAIN],
        before=their_onnx,
    ),
    Case(
        "export around",
        lambda user: ["export", user / "models/teacher", "--to", "onnx", "--out", user, AGAIN],
        before=their_onnx,
    ),
    Case(
        "export onto itself",
        lambda user: ["export", user / "models/teacher", "--to", "onnx", "--out", user / "models/teacher", AGAIN],
    ),
    Case(
        "export onto a file",
        lambda user: ["export", user / "models/teacher", "--to", "onnx", "--out", user / "thesis.md", AGAIN],
    ),
    Case(
        "augment onto itself",
        lambda user: ["augment", user / "train.csv", "--out", user / "train.csv", "--copies", "1"],
    ),
    Case(
        "augment onto itself, overwrite",
        lambda user: ["augment", user / "train.csv", "--out", user / "train.csv", AGAIN],
    ),
    Case(
        "augment onto itself by dots",
        lambda user: ["augment", "train.csv", "--out", "notes/../train.csv", AGAIN],
        inside=True,
    ),
    Case(
        "augment onto a link",
        lambda user: ["augment", user / "train.csv", "--out", user / "rows.csv", AGAIN],
        before=a_link,
    ),
    Case(
        "augment from a link",
        lambda user: ["augment", user / "rows.csv", "--out", user / "train.csv", AGAIN],
        before=a_link,
    ),
    Case("augment onto others", lambda user: ["augment", user / "train.csv", "--out", user / "dev.csv"]),
    Case("augment onto a folder", lambda user: ["augment", user / "train.csv", "--out", user / "notes", AGAIN]),
    Case("report onto the thesis", lambda user: ["report", "RUN", "--out", user / "thesis.md"]),
    Case("report onto rows", lambda user: ["report", "RUN", "--out", user / "train.csv"]),
    Case("report onto a page", lambda user: ["report", "RUN", "--out", user / "report.html"], before=their_pages),
    Case("reports here", lambda user: ["report", "RUN", "RUN"], before=their_pages, inside=True),
    Case("report onto a folder", lambda user: ["report", "RUN", "--out", user / "notes"]),
    Case("report onto a new page", lambda user: ["report", "RUN", "--out", user / "new.html"], (0,)),
    Case(
        "a study",
        lambda user: [
            "study",
            "size-curve",
            "--teacher",
            user / "models/teacher",
            *rows(user),
            "--out",
            user,
            *STUDY,
            AGAIN,
        ],
        before=their_pages,
    ),
]
STUDY = [
    "--with",
    "layers=[1, 2]",
    "--with",
    "tiny=none",
    "--set",
    "timing=none",
    "--set",
    "epochs=1",
    "--set",
    "length=16",
    "--quiet",
]


@pytest.fixture(scope="module")
def run(home: Home, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    made = server.run(*home.distill("--out", out))
    assert made.code == 0, made.err
    return out


def test_26_whatever_is_named_as_out_nothing_of_the_user_s_is_gone(
    pattern: Path, run: Path, tmp_path: Path, server: Server, figure: Callable[..., None]
) -> None:
    cases, wrong = some(OUTS, 9, first=5), []
    for case in cases:
        user = fresh(pattern, tmp_path / "a" / "user")
        if case.before:
            case.before(user)
        there = snapshot(user)
        words = [run if word == "RUN" else word for word in case.words(user)]
        ended = server.run(*words, cwd=user if case.inside else tmp_path, seconds=120)
        if gone := lost(there):
            wrong.append(
                f"{case.name}: {len(gone)} of {len(there)} are gone or changed, {gone[:3]}; {ended.err[-200:]}"
            )
        elif fault := ended.fault(case.codes):
            wrong.append(f"{case.name}: {fault}")
    assert not wrong, summed(wrong, len(cases))
    figure(26, f"{len(cases)} of {len(cases)} commands with OUT at, above, around or inside what the user has")


PLACES = (
    "notes.txt",
    "student/notes.txt",
    "student/mine/a.txt",
    "stages/notes.txt",
    "stages/0/notes.txt",
    "mine.safetensors",
)


def add_notes(out: Path, places: tuple[str, ...] = PLACES) -> dict[str, bytes | None]:
    for place in places:
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_text("theirs\n")
    return {str(out / place): b"theirs\n" for place in places}


def without_measurements(out: Path) -> None:
    (out / "measurements.json").unlink()


WITHIN: list[tuple[str, list[str], Callable[[Path], None] | None]] = [
    ("the same again", [AGAIN], None),
    ("another recipe", ["--epochs", "2", AGAIN], None),
    ("measured again", [], without_measurements),
    ("several seeds", ["--seeds", "2", AGAIN], None),
]


def test_26_notes_within_a_run_s_folder_survive_its_replacement(
    home: Home, run: Path, tmp_path: Path, server: Server, figure: Callable[..., None]
) -> None:
    cases, wrong = some(WITHIN, 2, first=2), []
    for name, more, before in cases:
        out = tmp_path / name.replace(" ", "-")
        words = home.distill("--out", out)
        if more[:1] == ["--seeds"]:  # notes in the folder of a seed as well
            assert server.run(*words, *more[:2]).code == 0
            there = add_notes(out, (*PLACES, "seed-0/notes.txt", "seed-0/student/notes.txt"))
        else:
            shutil.copytree(run, out)
            there = add_notes(out)
        if before:
            before(out)
        ended = server.run(*words, *more)
        if gone := lost(there):
            wrong.append(f"{name}: {gone}")
        elif fault := ended.fault((0, 2)):
            wrong.append(f"{name}: {fault}")
        elif ended.code == 0 and more[:1] == ["--epochs"]:
            assert "epochs = 2" in (out / "recipe.toml").read_text(), "the run was replaced"
    assert not wrong, summed(wrong, len(cases))
    figure(26, f"notes in a run's folder survive {len(cases)} of {len(cases)} times")


@pytest.mark.slow
def test_26_notes_within_an_export_survive_its_replacement(home: Home, tmp_path: Path, server: Server) -> None:
    words = ["export", home.teacher, "--to", "onnx", "--out", tmp_path / "onnx"]
    assert server.run(*words).code == 0
    there = add_notes(tmp_path / "onnx", ("notes.txt", "mine/a.txt"))
    ended = server.run(*words, AGAIN)
    assert not lost(there) and ended.fault((0, 2)) is None, (lost(there), ended.err)


def test_26_a_cache_in_the_user_s_folder_leaves_what_is_there(user: Path, server: Server) -> None:
    there = snapshot(user)
    ended = server.run(*distill(user, user.parent / "run"), env={"POTSTILL_CACHE": str(user / "notes")})
    assert ended.fault((0,)) is None, ended.err
    assert not lost(there)


def test_26_a_run_can_be_replaced_at_all(home: Home, run: Path, tmp_path: Path, server: Server) -> None:
    """Else all of the above could hold by refusing everything."""
    out = Path(shutil.copytree(run, tmp_path / "run"))
    before = (out / "student/model.safetensors").read_bytes()
    ended = server.run(*home.distill("--seed", "7", "--out", out, AGAIN))
    assert ended.fault((0,)) is None, ended.err
    assert (out / "student/model.safetensors").read_bytes() != before
