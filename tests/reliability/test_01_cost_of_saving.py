from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from small import NEGATIVE, NEUTRAL, POSITIVE, small_tokenizer, write_csv
from transformers import BertConfig, BertForSequenceClassification
from world import CPU

from potstill import checkpoints
from potstill.batches import Source
from potstill.examples import store
from potstill.methods.hard_labels import HardLabels
from potstill.prepare import labels_of
from potstill.recipe import Stage
from potstill.rows import open_table
from potstill.tasks import make_task
from potstill.teacher import Teacher
from potstill.tokens import tokenise
from potstill.training import Training, train

EACH, TURNS = 100, 8  # steps of a turn; every other one ends in a checkpoint


@pytest.mark.slow
def test_01_checkpoints_every_hundred_steps_cost_little(tmp_path: Path, figure: Callable[..., None]) -> None:
    """Texts of one length, so that all steps are alike: of 28 words, in batches of 32."""
    torch.set_num_threads(os.cpu_count() or 1)  # as the command does
    words = [*NEUTRAL, *POSITIVE, *NEGATIVE]
    rows = [
        (" ".join(words[(7 * n + 3 * k * (n % 5 + 1)) % len(words)] for k in range(28)), n % 2)
        for n in range(32 * (EACH * TURNS + 100))
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
        [Source(task, examples, tokens, tokens)],
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
    spent: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TURNS):
        saving = turn % 2 == 0
        begun = time.perf_counter()
        for place in range(EACH):
            # the loop saves when it goes on from the step: once, in the middle of a turn that saves
            step = next(running)
            object.__setattr__(training, "save_every", step.step if saving and place == EACH // 2 else 10**9)
        spent[saving].append(time.perf_counter() - begun)
    running.close()
    torch.set_num_threads(1)
    saved = checkpoints.newest(tmp_path / "stage/checkpoints")
    assert saved is not None
    size = sum(path.stat().st_size for path in saved.folder.iterdir()) / 1e6
    cost = 100 * (min(spent[True]) / min(spent[False]) - 1)
    typical = 100 * (statistics.median(spent[True]) / statistics.median(spent[False]) - 1)
    assert cost <= 3, (cost, typical, spent)
    figure(1, f"checkpoints every 100 steps cost {max(cost, 0):.1f} % (medians {typical:.1f} %), {size:.0f} MB each")
