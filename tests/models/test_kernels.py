"""Dropout and attention in training: the same functions as PyTorch's, up to which numbers are dropped."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from potstill.models.kernels import TrainingKernels, attention_probabilities, dropout

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 7), st.sampled_from([4, 8]))


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


@given(st.floats(0.01, 0.99), st.integers(0, 2**63 - 1))
@settings(max_examples=20, deadline=None)
def test_dropout_keeps_the_mean_and_drops_the_wanted_share(p: float, seed: int) -> None:
    states = dropout(torch.ones(40_001), p, np.random.SFC64(seed))
    assert abs(float((states == 0).float().mean()) - p) < 5 * np.sqrt(p * (1 - p) / 40_001) + 2**-16
    assert abs(float(states.mean()) - 1) < 5 * np.sqrt(p / (1 - p) / 40_001) + 1e-3
    assert len(states.unique()) == 2


def test_masks_follow_from_the_seed_and_differ_between_calls() -> None:
    def masks(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        with TrainingKernels(seed):
            return functional.dropout(torch.ones(5, 67), 0.3), torch.dropout(torch.ones(5, 67), 0.3, True)

    first, second = masks(7)
    assert not torch.equal(first, second)
    assert all(torch.equal(*pair) for pair in zip(masks(7), (first, second), strict=True))
    assert not torch.equal(masks(8)[0], first)


def test_the_gradient_passes_where_a_number_was_kept() -> None:
    states = torch.ones(1000, requires_grad=True)
    with TrainingKernels(0):
        dropped = functional.dropout(states, 0.25)
    dropped.sum().backward()
    assert torch.equal(states.grad, dropped.detach())


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_mode_without_randomness_is_pytorch_s(p: float) -> None:
    with TrainingKernels(0):
        assert torch.equal(functional.dropout(torch.ones(9), p), torch.full((9,), 1.0 - p))
        assert torch.equal(functional.dropout(torch.ones(9), 0.5, training=False), torch.ones(9))


@given(SHAPES, st.sampled_from(["none", "bool", "float", "causal"]), st.sampled_from([None, 0.3]))
@settings(max_examples=30, deadline=None)
def test_attention_and_its_gradients_are_those_of_pytorch(
    shape: tuple[int, ...], mask: str, scale: float | None
) -> None:
    """Without dropout; the mode itself leaves that to PyTorch in float32, so its function is asked here."""
    length = shape[2]
    seen = torch.rand(shape[0], 1, length, length) > 0.4
    seen[..., 0] = True
    masks = {"bool": seen, "float": torch.randn(shape[0], 1, length, length, dtype=torch.float64)}
    named = {"attn_mask": masks.get(mask), "is_causal": mask == "causal", "scale": scale}
    theirs, ours = inputs(shape), inputs(shape)
    expected = functional.scaled_dot_product_attention(*theirs, **named)
    visible = torch.ones(length, length).tril().bool() if mask == "causal" else named["attn_mask"]
    query, key, value = ours
    got = attention_probabilities(query * (scale or shape[-1] ** -0.5), key, visible) @ value
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    for output in (expected, got):
        output.square().sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_attention_in_bfloat16_is_that_of_float32(causal: bool) -> None:
    query, key, value = (torch.randn(2, heads, 6, 8) for heads in (4, 2, 2))
    named = {"is_causal": causal, "enable_gqa": True}
    expected = functional.scaled_dot_product_attention(query, key, value, **named)
    with TrainingKernels(0):
        got = functional.scaled_dot_product_attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), **named)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), expected, rtol=0.03, atol=0.03)


def test_dropout_in_attention_is_right_on_average() -> None:
    query, key, value = (part.detach() for part in inputs((1, 2, 5, 8)))
    expected = functional.scaled_dot_product_attention(query, key, value)
    with TrainingKernels(3):
        draws = [functional.scaled_dot_product_attention(query, key, value, dropout_p=0.2) for _ in range(4000)]
    assert not torch.equal(draws[0], draws[1])
    torch.testing.assert_close(torch.stack(draws).mean(0), expected, rtol=0, atol=0.05)


def test_a_token_that_may_see_nothing_stays_finite() -> None:
    query, key, value = inputs((1, 1, 3, 4), torch.float32)
    blind = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])[None, None]
    for mask in (blind, torch.zeros(1, 1, 3, 3).masked_fill(~blind, -torch.inf)):
        with TrainingKernels(0):
            output = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.1)
        output.sum().backward()
        assert output.isfinite().all()
        assert query.grad is not None and query.grad.isfinite().all()
