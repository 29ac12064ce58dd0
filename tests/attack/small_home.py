"""A user's folder: rows, an encoder, a teacher made of it, and a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potstill.models.student import save_student
from tests.attack.attacks import Ended, Server
from tests.support.small_models import sentences, small_model, write_csv

QUICK = ["--length", "16", "--set", "batch=8", "--set", "optimizer.rate=0.01", "--set", "dropout=0"]
QUICK += ["--set", "timing=none", "--quiet"]


@dataclass(frozen=True)
class Home:
    folder: Path

    @property
    def teacher(self) -> Path:
        return self.folder / "teacher/student"

    @property
    def encoder(self) -> Path:
        return self.folder / "encoder"

    def rows(self, *names: str) -> list[str]:
        return [
            word for name in names or ("train", "dev", "test") for word in (f"--{name}", f"{self.folder}/{name}.csv")
        ]

    def distill(self, *more: str | Path) -> list[str | Path]:
        """One layer by soft targets, in a second or two."""
        words = [
            "distill",
            "--teacher",
            self.teacher,
            *self.rows(),
            "--student",
            "keep_layers:1",
            "--method",
            "soft_targets",
        ]
        return [*words, "--no-baseline", "--epochs", "1", *QUICK, *more]


def make_home(folder: Path, server: Server) -> Home:
    for name, rows, seed in (("train", 96, 1), ("dev", 40, 2), ("test", 40, 3)):
        write_csv(
            folder / f"{name}.csv", [(text, ("negative", "positive")[label]) for text, label in sentences(rows, seed)]
        )
    save_student(small_model("bert", layers=2, width=16), folder / "encoder")
    home = Home(folder)
    made = finetuned(home, server, folder / "teacher")
    assert made.code == 0, made.err
    return home


def finetuned(home: Home, server: Server, out: Path) -> Ended:
    return server.run("finetune", home.encoder, *home.rows(), "--epochs", "6", "--out", out, *QUICK)
