"""Every example once, in an order that hangs on the seed alone, with little padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potstill.data.batches import epoch_order
from potstill.data.tokens import split_by_tokens
from potstill.system.randomness import mix

LENGTHS = st.lists(st.integers(2, 128), min_size=1, max_size=300).map(np.array)


@given(LENGTHS, st.integers(1, 40), st.integers(0, 9))
def test_an_epoch_has_every_example_once_in_full_steps(lengths: np.ndarray, batch: int, seed: int) -> None:
    steps = epoch_order(lengths, batch, seed, 0, 1, "order")
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(lengths)))
    assert sorted(map(len, steps), reverse=True)[:-1] == [batch] * (len(steps) - 1)
    again = epoch_order(lengths, batch, seed, 0, 1, "order")
    assert all(np.array_equal(a, b) for a, b in zip(steps, again, strict=True))


def test_epochs_stages_and_seeds_have_orders_of_their_own() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 500)
    orders = [
        np.concatenate(epoch_order(lengths, 32, *key)).tolist() for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert mix(1, 23) != mix(12, 3)


@given(LENGTHS, st.integers(1, 2000))
def test_micro_batches_keep_to_their_tokens(lengths: np.ndarray, tokens: int) -> None:
    pieces = split_by_tokens(np.arange(len(lengths)), lengths, tokens)
    assert sorted(np.concatenate(pieces).tolist()) == list(range(len(lengths)))
    assert all(len(piece) == 1 or len(piece) * lengths[piece].max() <= tokens for piece in pieces)


@pytest.mark.parametrize(("rows", "often"), [(300, 0.25), (1000, 0.2), (2000, 0.2), (7000, 0.12)])
def test_rows_of_a_batch_part_in_the_next_epoch(rows: int, often: float) -> None:
    """Sorted all together, two rows of one of 32 batches would meet again in more than half of the cases."""
    lengths = np.clip(np.random.default_rng(0).gamma(4.0, 6.0, rows).astype(int), 3, 60)
    batch_of_row = np.zeros((2, rows), int)
    for epoch in range(2):
        for number, step in enumerate(epoch_order(lengths, 32, 0, 0, epoch, "order")):
            batch_of_row[epoch, step] = number
    first, again = (one[:, None] == one[None] for one in batch_of_row)
    together = np.triu(first, 1)
    assert again[together].mean() < often


def test_padding_is_near_zero() -> None:
    """Sentences as in SST-2: geometric-like lengths around 23 tokens. Unsorted batches of 32 would be half padding."""
    lengths = np.clip(np.random.default_rng(0).gamma(4.0, 6.0, 7000).astype(int), 3, 60)
    steps = epoch_order(lengths, 32, 0)
    padded = sum(len(step) * lengths[step].max() for step in steps)
    assert padded / lengths.sum() < 1.03
    shuffled = np.random.default_rng(0).permutation(7000)[:6976].reshape(-1, 32)
    assert (32 * lengths[shuffled].max(1)).sum() / lengths[shuffled].sum() > 1.5
