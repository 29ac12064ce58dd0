"""Results of stages on disk, each under a hash of all that decides it: a run that would train the same stage reads it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
import transformers
import xxhash
from torch import Tensor

import potstill
from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.fingerprints import fingerprint
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe, Round
from potstill.runs.build import StudentModels
from potstill.runs.data_set import DataSet
from potstill.runs.input_files import own_plugins
from potstill.signals import Wants
from potstill.system import paths, ranks
from potstill.system.files import LOCK, file_xxh3, folder_lock, try_lock
from potstill.training import checkpoints
from potstill.training.checkpoints import Checkpoint
from potstill.training.setup import Training

FORMAT = 1
DEFAULT_GIGABYTES = 20.0
LOGS = ("steps.csv", "epochs.csv")
# rooms whose code decides no weights; a developer's change in any other file is a new version
AFTER_TRAINING = ("app", "reporting")
# fields of a stage that other parts of the hash cover, or that change no weights
COVERED = {"on", "task", "teacher", "data", "reshape", "method", "repeat"}


@ranks.on_first
def stage_key(
    recipe: Recipe, round_: Round, training: Training, student: StudentModels, data_sets: list[DataSet]
) -> str:
    """A hash of all that decides the stage's result: first weights, examples, task, teacher, method, settings and versions."""
    digest = xxhash.xxh3_128()

    def add(*values: object) -> None:
        digest.update(json.dumps(values, sort_keys=True, default=str).encode())

    add(FORMAT, torch.__version__, transformers.__version__, code_digest())
    # builders have done their work, and the weights show it
    unbuilt = recipe.model_copy(update={"student": [], "stage": [round_.stage.model_copy(update={"reshape": []})]})
    add([(file.name, file_xxh3(file)) for file in own_plugins(unbuilt)])
    add(training.keeps_step)  # a result without these weights serves no stage that rewinds to them
    # the round's number decides the order of the rows, and the repetition what a method does
    add(round_.number, round_.repetition, recipe.seed, recipe.metric, round_.stage.model_dump(exclude=COVERED))
    add(training.accelerator.device.type, recipe.precision, round_.stage.data)
    add(short_forms.complete_method(round_.stage.method))  # with its defaults, written or not
    reader = tokenizer_fingerprint(student.tokenizer)
    for data, model, source in zip(data_sets, student.models, training.sources, strict=True):
        # the weights alone do not show the vocabulary, the activation or the dropout
        add(fingerprint(model, reader, data.length), type(model).__name__)
        add(data.name, data.task.name, data.length, source.target_scale)
        # its labels, which class F1 is about, and what is masked
        add({each.name: getattr(data.task, each.name) for each in fields(data.task) if each.compare})
        for column in (source.class_weights, source.answered):
            add(None if column is None else np.asarray(column).tolist())
        for examples in (source.examples, data.dev):
            digest.update(examples.keys[examples.index].tobytes())
            if not data.task.generates:  # their keys contain the gold text
                digest.update(data.task.golds(examples).tobytes())
    for number, (teacher, data) in enumerate(zip(training.teachers, data_sets, strict=True)):
        asked = teacher.memory is not None and training.wants(number)[1] != Wants()
        add(teacher.memory.folder.name if asked and teacher.memory else None, data.name, training.to_pass)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def code_digest() -> str:
    """A hash of potstill's own code as far as it decides weights."""
    digest, root = xxhash.xxh3_128(), Path(potstill.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] not in AFTER_TRAINING:
            digest.update(file.read_bytes())
    return digest.hexdigest()


class StageCache:
    """All results on this machine. An entry is a folder with a checkpoint and the logs of the stage."""

    def __init__(self) -> None:
        self.root = paths.cache() / "stages"

    @property
    def is_shared(self) -> bool:
        """False if every run trains all of its stages itself: the bound is zero."""
        return bound() > 0

    @contextmanager
    def held(self, key: str, say: Callable[[str], None]) -> Iterator[None]:
        """Let one process at a time train this stage: another one that would train the same waits, and finds the result."""
        waiting = partial(say, "another process trains the same stage; waiting for its result")
        with folder_lock(self.root / key, waiting) if ranks.is_first() else nullcontext():
            yield

    def find(self, key: str) -> Checkpoint | None:
        """The result; None if there is none, or it is damaged. It then counts as used now."""
        return ranks.on_first(self._find)(key)

    def _find(self, key: str) -> Checkpoint | None:
        result = checkpoints.newest(self.root / key)
        if result is not None:
            os.utime(self.root / key)
        return result

    def copy_logs(self, key: str, folder: Path) -> None:
        """Give a run the logs of a stage that it did not train itself."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in LOGS:
            if (self.root / key / name).is_file() and not (folder / name).exists():
                shutil.copyfile(self.root / key / name, folder / name)

    def store(self, key: str, tensors: dict[str, dict[str, Tensor]], state: dict[str, object], logs: Path) -> None:
        """Add a result, and remove the results that were not used for longest if there are too many. The caller holds the key."""
        folder = self.root / key
        for name in LOGS:
            if (logs / name).is_file():
                shutil.copyfile(logs / name, folder / name)
        checkpoints.save(folder, 1, tensors, state)
        self.trim(keep=folder)

    def trim(self, keep: Path) -> None:
        """Keep the results below the bound. Those that a process holds stay, and so does `keep`."""
        entries = [folder for folder in self.root.iterdir() if folder.is_dir() and folder != keep]
        sizes = {folder: size_of(folder) for folder in (keep, *entries)}
        excess = sum(sizes.values()) - bound()
        for folder in sorted(entries, key=lambda entry: entry.stat().st_mtime):
            if excess <= 0:
                return
            with try_lock(folder / LOCK) as mine:
                if mine:
                    for path in folder.iterdir():
                        if path.name != LOCK:  # another process may be waiting for it
                            shutil.rmtree(path) if path.is_dir() else path.unlink()
                    excess -= sizes[folder]


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def bound() -> float:
    """The most bytes that all results together may take. Zero: no run uses the results of another."""
    text = os.environ.get("POTSTILL_STAGES_GB") or str(DEFAULT_GIGABYTES)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1.0
    if not gigabytes >= 0:
        raise InputError(f"POTSTILL_STAGES_GB = {text}: expected a number of gigabytes; write for example 20")
    return 1e9 * gigabytes
