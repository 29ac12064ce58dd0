"""What one rank does in the tests of several: started by torchrun, or alone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from potstill.data.batches import TokenisedSet
from potstill.data.examples import store
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.models.student import load_student
from potstill.signals import Wants
from potstill.system import ranks
from potstill.tasks.label_matching import make_task
from potstill.training.teacher import teacher
from potstill.training.teacher.memory import Memory


def remember(home: Path, folder: Path, die_at: int) -> None:
    """Ask a small teacher in blocks of eight; the last rank may be killed when it begins its n-th."""
    torch.set_num_threads(1)
    Accelerator(cpu=True)
    teacher.BLOCK = 8
    table, answering = open_table(home / "train.csv"), load_student(home / "teacher/student")
    task, _ = make_task(None, answering.model.config, ["0", "1"], None, "train.csv")
    examples = ranks.first_before_others(store)(table, task)
    tokens = ranks.first_before_others(tokenise)(task, examples, answering.tokenizer, 32)
    really, asked = teacher.Teacher._ask_block, 0

    def ask_all(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == die_at and ranks.number() == ranks.count() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return really(*arguments)

    teacher.Teacher._ask_block = ask_all  # type: ignore[method-assign]
    asking = teacher.Teacher(answering.model, Memory(folder), torch.device("cpu"))
    found = asking.remember(TokenisedSet(task, examples, tokens, tokens), Wants(logits=True, cls=(1, 2)))
    print(f"asked {found}")
    ranks.leave()


if __name__ == "__main__":
    remember(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
