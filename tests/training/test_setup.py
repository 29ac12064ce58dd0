"""Methods that compare attention: what is trained for them, and what every method promises, for signals that none has yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from potstill.models.anatomy import KEY_BIAS, set_dropout
from potstill.signals import Batch, Signals, Term, Wants
from potstill.training import losses
from potstill.training.loop import train
from potstill.training.method import Method
from potstill.training.setup import trained_network
from tests.support.training_world import loss_and_norm, make_world, stopped_and_resumed


@dataclass(frozen=True)
class Transfer(Method):
    """Embeddings and hidden states, scores, heads and values of the last layer, as in TinyBERT and MobileBERT"""

    scores: bool = True

    def wants(self, student_layers: int, teacher_layers: int) -> tuple[Wants, Wants]:
        ours, theirs = (student_layers,), (teacher_layers,)
        return tuple(  # type: ignore[return-value]
            Wants(hidden=(0, *last), scores=last if self.scores else (), heads=last, values=last if self.scores else ())
            for last in (ours, theirs)
        )

    def losses(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Term]:
        gap = losses.squared_distance(student.hidden, teacher.hidden).sum(1) / teacher.hidden.shape[-1]
        terms = {
            "states": 1.0 * losses.per_token(gap, batch),
            "heads": 1.0 * losses.head_divergence(student.heads, teacher.heads, batch),
        }
        if self.scores:
            norms = [side.values[:, 0].square().sum(-1) for side in (student, teacher)]
            terms["scores"] = 1.0 * losses.score_distance(student.scores, teacher.scores, batch)
            terms["values"] = 1.0 * losses.per_token((norms[0] - norms[1]).square(), batch)
        return terms


@pytest.mark.parametrize("width", [None, 16])
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_attention_is_compared_however_a_step_is_cut_and_padded(task: str, width: int | None, tmp_path: Path) -> None:
    """Also between widths: embeddings and hidden states are projected, attention needs as many heads on both sides."""
    world = make_world(tmp_path, task=task, width=width)
    set_dropout(world.student.model, 0.0)
    lengths = world.source().lengths[np.arange(8)]
    assert len(set(lengths.tolist())) > 2
    whole, halves, ones = (
        loss_and_norm(world.training(Transfer(), world.live(), tokens=tokens), np.arange(8), precise=True)
        for tokens in (10_000, int(4 * lengths.max()), 1)
    )
    assert whole[1] > 0
    assert halves == pytest.approx(whole, rel=1e-9)
    assert ones == pytest.approx(whole, rel=1e-9)


def test_key_biases_are_trained_where_scores_are_compared(tmp_path: Path) -> None:
    """They cancel in a softmax, so other stages freeze them; a stage before does not leave them frozen."""
    world = make_world(tmp_path)
    biases = [one for name, one in world.student.model.named_parameters() if KEY_BIAS.search(name)]
    for method, trained in ((Transfer(scores=False), False), (Transfer(), True), ("patient", False)):
        with trained_network(world.training(method, world.live())):  # type: ignore[arg-type]
            assert [one.requires_grad for one in biases] == [trained] * 2
    steps = list(train(world.training(Transfer(), world.live(), epochs=6.0, optimizer={"rate": 2e-3})))
    assert steps[-1].loss < steps[0].loss
    assert biases[-1].grad is None or biases[-1].abs().sum() > 0


def test_a_stopped_run_that_compares_attention_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    difference, changed = stopped_and_resumed(lambda folder: make_world(folder, width=16), tmp_path, Transfer())
    assert difference == 0 and changed
