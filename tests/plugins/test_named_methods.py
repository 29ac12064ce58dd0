"""The methods that papers name: which layers and signals they ask for, and what is 0 when there is nothing left to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from potstill.errors import InputError
from potstill.models.anatomy import set_dropout
from potstill.plugins.methods.distilbert import DistilBert
from potstill.plugins.methods.feature_transfer import FeatureTransfer
from potstill.plugins.methods.relations import Relations
from potstill.plugins.methods.tinybert import TinyBert
from potstill.signals import Wants
from potstill.training import layer_maps
from potstill.training.method import Method
from tests.support.training_world import loss_and_norm, make_world


@pytest.mark.parametrize(
    ("name", "whole", "theirs"),
    [
        ("first", False, (1, 2)),
        ("first", True, (1, 2, 3)),
        ("last", True, (10, 11, 12)),
        ("uniform", False, (4, 8, 12)),
        ("uniform", True, (4, 8, 12)),
        ("skip", False, (4, 8)),
    ],
)
def test_maps_with_and_without_the_last_layer(name: layer_maps.LayerMap, whole: bool, theirs: tuple[int, ...]) -> None:
    ours, found = layer_maps.pairs(name, 3, 12, whole=whole)
    assert (ours, found) == (tuple(range(1, len(theirs) + 1)), theirs)


def test_the_stages_of_tinybert_ask_for_what_they_compare() -> None:
    general, both = TinyBert(prediction=0.0).wants(4, 12), TinyBert().wants(4, 12)
    assert general[1] == Wants(hidden=(0, 3, 6, 9, 12), scores=(3, 6, 9, 12))
    assert both[1] == general[1] | Wants(logits=True)
    assert TinyBert(layers=0.0).wants(4, 12) == (Wants(logits=True), Wants(logits=True))
    with pytest.raises(InputError, match=r"both 0; write layers = 1\.0"):
        TinyBert(layers=0.0, prediction=0.0)


def test_the_head_is_not_asked_where_it_is_not_trained() -> None:
    assert DistilBert(alpha_cos=0.0).wants(3, 6)[1] == Wants(logits=True)
    for method in (Relations(labels=0.0), FeatureTransfer(labels=0.0)):
        assert not any(side.logits for side in method.wants(6, 12))
    assert Relations().wants(6, 12)[0].logits


def test_a_round_transfers_its_layer() -> None:
    ours, theirs = FeatureTransfer(labels=0.0).in_round(2).wants(6, 12)
    assert (ours, theirs) == (Wants(hidden=(2,), heads=(2,)), Wants(hidden=(4,), heads=(4,)))
    whole, _ = FeatureTransfer(layers="all", labels=0.0).in_round(2).wants(6, 12)
    assert whole.hidden == (1, 2, 3, 4, 5, 6)
    with pytest.raises(InputError, match=r"no layer 7 .* repeat = 6"):
        FeatureTransfer().in_round(7).wants(6, 12)


def test_relations_are_those_of_the_chosen_layers() -> None:
    ours, theirs = Relations(teacher_layer=21, labels=0.0).wants(6, 24)
    assert (ours.queries, theirs.values) == ((6,), (21,))
    with pytest.raises(InputError, match=r"the teacher has 12 layers; write teacher_layer = 12, or less"):
        Relations(teacher_layer=21).wants(6, 12)


@pytest.mark.parametrize(
    "method",
    [TinyBert(), TinyBert(centred=True), Relations(labels=0.0), FeatureTransfer(labels=0.0), DistilBert(alpha_mlm=0.0)],
    ids=str,
)
def test_a_copy_of_the_teacher_has_nothing_to_learn(method: Method, tmp_path: Path) -> None:
    world = make_world(tmp_path, layers=4)
    set_dropout(world.student.model, 0.0)
    world.student.model.load_state_dict(world.teacher.model.state_dict())
    loss, norm = loss_and_norm(world.training(method, world.live()), precise=True)
    assert loss == pytest.approx(0, abs=1e-9) and norm == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("method", [TinyBert(), Relations()], ids=str)
def test_other_numbers_of_heads(method: Method, tmp_path: Path) -> None:
    """Two of the student beside four of the teacher, and another width."""
    world = make_world(tmp_path, over_words={"build": "fresh", "layers": 2, "width": 24, "heads": 2})
    loss, norm = loss_and_norm(world.training(method, world.live()), precise=True)
    assert loss > 0 and norm > 0


def test_padding_takes_no_part_in_centred_scores(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    set_dropout(world.student.model, 0.0)
    lengths = world.source().lengths
    pair = np.array([int(lengths.argmin()), int(lengths.argmax())])
    padded, alone = (
        loss_and_norm(world.training(TinyBert(centred=True), world.live(), tokens=tokens), pair, precise=True)
        for tokens in (10_000, 1)
    )
    assert padded == pytest.approx(alone, rel=1e-9)
