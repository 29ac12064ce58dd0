"""What pruned and clustered students are, and that builders work together: before, between and after each other."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.errors import InputError
from potstill.models.builder import BuildContext, Builder, Student
from potstill.models.compression.clusters import k_means
from potstill.models.compression.held import HeldWeights
from potstill.models.compression.masks import prunable, share_of_zeros
from potstill.models.student import load_student, save_student
from potstill.plugins.students.clustered import Clustered
from potstill.plugins.students.fake_quantized import FakeQuantized
from potstill.plugins.students.keep_layers import KeepLayers
from potstill.plugins.students.low_rank import LowRank
from potstill.plugins.students.pruned_heads import PrunedHeads
from potstill.plugins.students.pruned_neurons import PrunedNeurons
from potstill.plugins.students.pruned_weights import PrunedWeights
from potstill.plugins.students.trim_vocabulary import TrimVocabulary
from tests.support.small_models import ARCHITECTURES, logits, same_weights, sentences, small_model

TEXTS = [text for text, _ in sentences(12, seed=1)]
BUILDERS: dict[str, Builder] = {
    "keep_layers": KeepLayers([1, 3]),
    "trim_vocabulary": TrimVocabulary(),
    "pruned_neurons": PrunedNeurons(0.5),
    "pruned_weights": PrunedWeights(0.6),
    "clustered": Clustered(8, 16),
    "low_rank": LowRank(0.5),
    "pruned_heads": PrunedHeads(0.5),
    "fake_quantized": FakeQuantized(4),
}
REFUSED = {  # the second after the first
    ("pruned_weights", "low_rank"): r"low_rank: .*; write low_rank first",
    ("clustered", "low_rank"): r"low_rank: .*; write low_rank first",
    ("low_rank", "pruned_neurons"): r"pruned_neurons: .*; write pruned_neurons first",
    ("clustered", "fake_quantized"): r"fake_quantized: .*; write clustered, or fake_quantized",
    ("fake_quantized", "clustered"): r"clustered: .*; write clustered, or fake_quantized",
    ("fake_quantized", "pruned_weights"): r"pruned_weights: .*; write pruned_weights first",
    ("fake_quantized", "low_rank"): r"low_rank: .*; write low_rank first",
    ("low_rank", "pruned_heads"): r"pruned_heads: .*; write pruned_heads first",
}


def context(start: Student) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(TEXTS))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("sparsity", [0.0, 0.37, 1.0])
def test_so_many_weights_are_zero_and_all_others_are_as_before(architecture: str, sparsity: float) -> None:
    start = small_model(architecture)
    before = {name: weight.detach() for name, weight in prunable(start.model).items()}
    for scope in ("global", "layer"):
        built = PrunedWeights(sparsity, scope).build(start, context(start))  # type: ignore[arg-type]
        after = {name: weight.detach() for name, weight in prunable(built.model).items()}
        numbers = sum(weight.numel() for weight in after.values())
        zeros = {name: int((weight == 0).sum()) for name, weight in after.items()}
        if scope == "global":
            assert sum(zeros.values()) == round(sparsity * numbers)
        else:
            assert zeros == {name: round(sparsity * weight.numel()) for name, weight in after.items()}
        for name, weight in built.model.named_parameters():
            kept = weight != 0 if name in after else torch.ones_like(weight, dtype=torch.bool)
            assert torch.equal(weight[kept], start.model.get_parameter(name)[kept])
        if scope == "global" and 0 < sparsity < 1:
            left = min(float(weight[weight != 0].abs().min()) for weight in after.values())
            gone = max(float(before[name][weight == 0].abs().max()) for name, weight in after.items() if zeros[name])
            assert gone <= left


def test_rounds_have_a_share_each_and_zeros_never_come_back() -> None:
    start = small_model("bert", layers=1)
    builder, student = PrunedWeights([0.2, 0.5]), start
    for number, share in ((1, 0.2), (2, 0.5)):
        before = {name: weight == 0 for name, weight in prunable(student.model).items()}
        student = builder.build(student, replace(context(start), round=number))
        assert share_of_zeros(prunable(student.model)) == pytest.approx(share, abs=1e-4)
        assert all(bool((prunable(student.model)[name][was] == 0).all()) for name, was in before.items())
    with pytest.raises(InputError, match=r"write one for each round"):
        builder.build(student, replace(context(start), round=3))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_matrix_has_the_values_of_k_means(architecture: str) -> None:
    start = small_model(architecture, layers=2)
    built = Clustered(8, None).build(start, context(start))
    matrices = prunable(start.model)
    for name, parameter in built.model.named_parameters():
        old = start.model.get_parameter(name)
        if name not in matrices or old.numel() < 16 * 8:
            assert torch.equal(parameter, old), name
            continue
        found = k_means(old.detach().numpy(), 8)
        np.testing.assert_array_equal(parameter.detach().numpy(), found.centroids.astype(np.float32)[found.codes])
        assert len(parameter.unique()) <= 8


def test_zeros_stay_zero_when_the_others_are_clustered() -> None:
    start = small_model("bert", layers=1)
    pruned = PrunedWeights(0.5).build(start, context(start))
    both = Clustered(4).build(pruned, context(start))
    for name, weight in prunable(both.model).items():
        assert torch.equal(weight == 0, prunable(pruned.model)[name] == 0)
        assert len(weight[weight != 0].unique()) <= 4


@pytest.mark.parametrize("names", list(itertools.permutations(BUILDERS, 2)), ids="+".join)
def test_two_builders_after_each_other_are_saved_and_loaded(names: tuple[str, str], tmp_path: Path) -> None:
    start = student = small_model("bert")
    student = BUILDERS[names[0]].build(student, context(start))
    if names in REFUSED:
        with pytest.raises(InputError, match=REFUSED[names]):
            BUILDERS[names[1]].build(student, context(start))
        return
    student = BUILDERS[names[1]].build(student, context(start))
    save_student(student, tmp_path / "student")
    again = load_student(tmp_path / "student")
    assert same_weights(again, student)
    assert torch.equal(logits(again, TEXTS), logits(student, TEXTS))
    written = student.model.config.to_dict() | {"_name_or_path": again.model.config._name_or_path}
    assert again.model.config.to_dict() == written
    # what the first has done is known after the second, and in the loaded model
    matrices = {f"0.{name}" for name in prunable(student.model)}
    held = [HeldWeights([each.model]) for each in (student, again)]
    assert held[0].weights.keys() == held[1].weights.keys()
    assert held[0].quantized.keys() == held[1].quantized.keys()
    assert (matrices <= held[0].quantized.keys()) == ("fake_quantized" in names)
    assert (matrices <= held[0].weights.keys()) == bool({"pruned_weights", "clustered"} & set(names))
