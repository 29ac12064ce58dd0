from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification

from potstill.data.batches import TokenisedSet
from potstill.data.examples import store
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.plugins.methods.hard_labels import HardLabels
from potstill.recipe.schema import Stage
from potstill.tasks.label_matching import labels_of, make_task
from potstill.training import checkpoints
from potstill.training.loop import train
from potstill.training.setup import Training
from potstill.training.teacher.teacher import Teacher
from tests.support.small_models import NEGATIVE, NEUTRAL, POSITIVE, small_tokenizer, write_csv
from tests.support.training_world import CPU

STEPS, EVERY, AFTER = 240, 20, 6  # steps in all, from checkpoint to checkpoint, and those that may suffer from one


@pytest.mark.slow
def test_01_checkpoints_every_hundred_steps_cost_little(tmp_path: Path, figure: Callable[..., None]) -> None:
    """Texts of one length, so that all steps are alike: of 28 words, in batches of 32."""
    torch.set_num_threads(os.cpu_count() or 1)  # as the command does
    words = [*NEUTRAL, *POSITIVE, *NEGATIVE]
    rows = [
        (" ".join(words[(7 * n + 3 * k * (n % 5 + 1)) % len(words)] for k in range(28)), n % 2)
        for n in range(32 * (STEPS + 100))
    ]
    write_csv(tmp_path / "train.csv", rows)
    shape = {"num_hidden_layers": 3, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    model = BertForSequenceClassification(BertConfig(vocab_size=30522, num_labels=2, **shape))
    table = open_table(tmp_path / "train.csv")
    task, _ = make_task(None, model.config, labels_of(table), ["0", "1"], "train", table.form)
    examples = store(table, task)
    tokens = tokenise(task, examples, small_tokenizer("bert"), 64)
    training = Training(
        [model],
        [Teacher(None, None, CPU)],
        [TokenisedSet(task, examples, tokens, tokens)],
        HardLabels(),
        Stage(batch=32, epochs=1.0),
        0,
        0,
        tmp_path / "stage",
        Accelerator(cpu=True),
        lambda: {"dev": 0.0},
        10**9,
    )
    running = train(training)
    for _ in range(10):  # the first steps warm up
        next(running)
    seconds, saving = [], []
    for place in range(STEPS):
        begun = time.perf_counter()
        step = next(running)
        seconds.append(time.perf_counter() - begun)
        # the loop saves when it goes on from a step: what comes next is the saving and a step
        last = place % EVERY == EVERY - AFTER
        object.__setattr__(training, "save_every", step.step if last else 10**9)
        saving += [place + 1] if last else []
    running.close()
    torch.set_num_threads(1)
    # what the disk does later is in it too: the steps after a checkpoint are compared with all others
    typical = statistics.median(one for place, one in enumerate(seconds) if place % EVERY <= EVERY - AFTER)
    extra = [sum(seconds[place : place + AFTER - 1]) - (AFTER - 1) * typical for place in saving]
    saved = checkpoints.newest(tmp_path / "stage/checkpoints")
    assert saved is not None
    size = sum(path.stat().st_size for path in saved.folder.iterdir()) / 1e6
    cost, most = (100 * of(extra) / (100 * typical) for of in (statistics.median, max))
    assert cost <= 3, (cost, typical, extra)
    figure(1, f"checkpoints every 100 steps cost {cost:.1f} % (the slowest {most:.1f} %), {size:.0f} MB each")
