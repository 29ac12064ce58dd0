from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.data.batches import TokenisedSet, all_lengths, step_batches
from potstill.data.examples import Examples, store
from potstill.data.making import DataMaker, MakeContext
from potstill.data.rows import open_table
from potstill.plugins.data.augmented import Augmented
from potstill.plugins.data.jitter import Jitter
from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.plugins.students.mlp import Mlp
from potstill.signals import Batch, Signals, Term, Wants
from potstill.system.randomness import mix
from potstill.tasks.label_matching import labels_of, make_task
from potstill.training.method import Method
from tests.reliability.processes import run_to_the_end, same_student, started, steps_told, wait_until
from tests.support.commands import patient
from tests.support.small_models import write_digits
from tests.support.training_world import World, make_world, stopped_and_resumed

STOPS = (2, 5, 7, 10)


@dataclass(frozen=True)
class Redrawn(DataMaker):
    """A data maker: as many rows as there are, drawn with repetition."""

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        random = np.random.default_rng(mix(context.seed, "redrawn"))
        return examples.take(random.integers(0, len(examples), len(examples)))


@dataclass(frozen=True)
class Masked(Method):
    """A method that covers other answers in each micro-batch, and shakes the teacher's."""

    plain: SoftTargets

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        return self.plain.wants(student_layers, teacher_layers)

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        covered = torch.rand(len(student.logits), 1) < 0.3
        shaken = replace(teacher, logits=teacher.logits + 0.1 * torch.randn_like(teacher.logits))
        return self.plain.losses(replace(student, logits=student.logits.masked_fill(covered, 0.0)), shaken, batch)


def test_03_random_rows_and_dynamic_masks_are_the_same_after_a_resume(
    tmp_path: Path, figure: Callable[..., None]
) -> None:
    def drawn(world: World) -> TokenisedSet:
        return world.source(Redrawn().make(world.examples, MakeContext(0)))

    difference, changed = stopped_and_resumed(make_world, tmp_path, Masked(SoftTargets()), STOPS, drawn)
    assert difference == 0 and changed
    figure(3, f"difference {difference:g}, {len(STOPS)} of {len(STOPS)}")


@pytest.mark.slow
def test_03_augmented_copies_are_the_same_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    """Also where the copies are lost with the cache and made again."""
    monkeypatch.setenv("POTSTILL_COMMANDS", "allowed")
    caches = iter(range(99))

    def drawn(world: World) -> TokenisedSet:
        monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / f"cache{next(caches)}"))
        maker = Augmented(copies=2, tagger="tests.support.taggers:by_length")
        made = maker.make(world.examples, MakeContext(0, world.task))
        assert len(made) > 2 * len(world.examples)
        return world.source(made)

    difference, changed = stopped_and_resumed(
        make_world, tmp_path, Masked(SoftTargets()), STOPS, drawn, epochs=1.0, batch=12
    )
    assert difference == 0 and changed
    figure(3, f"difference {difference:g}, {len(STOPS)} of {len(STOPS)}")


@pytest.mark.slow
def test_03_a_killed_run_on_augmented_copies_ends_in_the_same_bits(
    home: Path, tmp_path: Path, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while copies are made, while the student learns from them, and with the cache lost."""
    words = [*patient(home), "--epochs", "1", "--set", "save_every=5", "--set", "batch=32", "--length", "32"]
    words += ["--set", "stage.data=augmented:8", "--set", "timing=none", "--out"]
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "whole-cache"))
    run_to_the_end(*words, tmp_path / "whole")
    cache, run = tmp_path / "cache", tmp_path / "run"
    monkeypatch.setenv("POTSTILL_CACHE", str(cache))
    stops = [
        lambda: any(cache.rglob(".tmp-*/made/pieces.bin")),
        lambda: steps_told(run) >= 10,
        lambda: steps_told(run) >= 25,
    ]
    for stop in stops:
        with started(*words, run) as running:
            wait_until(stop, running)
            running.send_signal(signal.SIGKILL)
            running.communicate()
    assert steps_told(run) < steps_told(tmp_path / "whole")
    shutil.rmtree(cache)
    run_to_the_end(*words, run)
    assert same_student(run, tmp_path / "whole")
    figure(3, "difference 0, 4 of 4")


def digits_world(folder: Path) -> World:
    """Real digits, a network of images and its teacher."""
    table = open_table(write_digits(folder / "train.npz", 48))
    task, _ = make_task(None, None, labels_of(table), None, "train", table.form, shape=table.shape)
    teacher, student = (Mlp(hidden=hidden, dropout=0.5).begin(task, 0) for hidden in ([32, 32], [16]))
    return World(teacher, student, task, store(table, task), folder)


def jittered(world: World, seed: int = 0) -> TokenisedSet:
    jitter = Jitter(2)
    source = world.source(jitter.make(world.examples, MakeContext(seed, world.task)))
    return replace(source, changes=(jitter.change,), seed=(seed, 0))


def test_03_jittered_images_are_the_same_after_a_resume(tmp_path: Path, figure: Callable[..., None]) -> None:
    """48 rows in steps of 8 and micro-batches of 3 for two epochs; the teacher, asked live, sees what the student sees."""
    difference, changed = stopped_and_resumed(
        digits_world, tmp_path, SoftTargets(temperature=5.0), STOPS, jittered, tokens=3
    )
    assert difference == 0 and changed
    figure(3, f"difference {difference:g} with jitter, {len(STOPS)} of {len(STOPS)}")


def test_03_what_is_drawn_follows_from_seed_epoch_and_example_alone(tmp_path: Path) -> None:
    """Whatever stands beside an example, on whatever rank; and it is another image in another epoch or with another seed."""
    world = digits_world(tmp_path)
    source, other = jittered(world), jittered(world, seed=1)

    def seen(source: TokenisedSet, positions: list[int], epoch: int | None) -> torch.Tensor:
        batch = source.batch(np.array(positions), source.count(np.array(positions)), epoch)
        assert torch.equal(batch.teacher.inputs["pixel_values"], batch.student.inputs["pixel_values"])
        return batch.student.inputs["pixel_values"]

    whole = seen(source, list(range(48)), 3)
    assert torch.equal(seen(source, [40, 2], 3), whole[[40, 2]])
    assert not torch.equal(seen(source, list(range(48)), 4), whole)
    assert not torch.equal(seen(other, list(range(48)), 3), whole)
    assert not torch.equal(seen(source, list(range(48)), None), whole)
    lengths, starts = all_lengths([source])
    parts = [step_batches([source], np.arange(48), lengths, starts, 5, rank, 2, epoch=3) for rank in (0, 1)]
    found = {micro.place: micro.batch for part in parts for micro in part}
    together = torch.cat([found[place].student.inputs["pixel_values"] for place in sorted(found)])
    keys = torch.cat([found[place].keys for place in sorted(found)])
    assert torch.equal(keys, torch.from_numpy(np.array(world.examples.keys)))
    assert torch.equal(together, whole)
