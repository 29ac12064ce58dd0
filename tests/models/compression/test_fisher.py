"""The diagonal of the Fisher information against second derivatives, and pruning by it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from potstill.errors import InputError
from potstill.models.builder import BuildContext, Student
from potstill.models.compression.fisher import diagonal_fisher
from potstill.models.compression.masks import prunable, share_of_zeros
from potstill.plugins.students.pruned_weights import PrunedWeights
from tests.support.small_models import ARCHITECTURES, logits, sentences, small_model, small_writer

TEXTS = [text for text, _ in sentences(12, seed=1)]
INNER, OUTER = (f"bert.encoder.layer.0.{part}.dense.weight" for part in ("intermediate", "output"))


def context(start: Student, texts: list[str] = TEXTS) -> BuildContext:
    return BuildContext(start, 0, lambda: iter(texts))


def divergence(outputs: Tensor, others: Tensor, problem: str) -> Tensor:
    """KL of the answers of one network from those of another, the mean over texts."""
    if problem == "regression":
        return (outputs - others).square().sum(1).mean() / 2
    if problem == "multi_label_classification":
        outputs, others = (torch.stack([torch.zeros_like(each), each], -1) for each in (outputs, others))
    ours, theirs = outputs.log_softmax(-1), others.log_softmax(-1)
    return (ours.exp() * (ours - theirs)).flatten(1).sum(1).mean()


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_it_is_the_second_derivative_of_the_divergence(problem: str) -> None:
    labels = ("value",) if problem == "regression" else ("a", "b", "c")
    student = small_model("bert", layers=1, labels=labels)
    student.model.config.problem_type = problem
    student.model.double()
    draws = [diagonal_fisher(student, [OUTER], TEXTS[:3], 64, seed)[OUTER] for seed in range(300)]
    found = torch.stack(draws).double().mean(0)
    before = logits(student, TEXTS[:3])
    weight, step = student.model.get_parameter(OUTER).data, 1e-3
    for place in [(0, 0), (3, 17), (20, 40), (31, 63)]:
        original = weight[place].item()
        changes = []
        for direction in (step, -step):
            weight[place] = original + direction
            changes.append(float(divergence(before, logits(student, TEXTS[:3]), problem)))
        weight[place] = original
        assert float(found[place]) == pytest.approx(sum(changes) / step**2, rel=0.15), place


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "llama"])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_so_many_weights_are_zero_and_all_others_are_as_before(architecture: str, scope: str) -> None:
    start = small_writer("llama") if architecture == "llama" else small_model(architecture, layers=2)
    half = PrunedWeights(0.3, scope, "saliency").build(start, context(start))  # type: ignore[arg-type]
    more = PrunedWeights(0.5, scope, "saliency").build(half, context(half))  # type: ignore[arg-type]
    for built, share in ((half, 0.3), (more, 0.5)):
        after = prunable(built.model)
        assert share_of_zeros(after) == pytest.approx(share, abs=2e-4)
        for name, weight in after.items():
            assert torch.equal(weight[weight != 0], start.model.get_parameter(name)[weight != 0])
    assert all(
        bool((prunable(more.model)[name][weight == 0] == 0).all()) for name, weight in prunable(half.model).items()
    )


@pytest.mark.parametrize("head", ["TokenClassification", "MaskedLM"])
def test_answers_for_every_token_count(head: str) -> None:
    start = small_model("bert", layers=1, head=head)
    found = diagonal_fisher(start, [INNER, OUTER], TEXTS[:4], 64, 0)
    assert all(bool((each > 0).any()) and bool(torch.isfinite(each).all()) for each in found.values())
    built = PrunedWeights(0.3, "global", "saliency").build(start, context(start))
    assert share_of_zeros(prunable(built.model)) == pytest.approx(0.3, abs=2e-4)


def test_large_weights_without_effect_go_before_small_ones_that_matter() -> None:
    start = small_model("bert", layers=1)
    with torch.no_grad():
        start.model.get_parameter(INNER)[:32] *= 10  # the largest of all
        start.model.get_parameter(OUTER)[:, :32] = 0  # but nobody reads these neurons
    saliency, magnitude = (
        PrunedWeights(0.3, "global", criterion).build(start, context(start))  # type: ignore[arg-type]
        for criterion in ("saliency", "magnitude")
    )
    assert bool((saliency.model.get_parameter(INNER)[:32] == 0).all())
    assert float((magnitude.model.get_parameter(INNER)[:32] == 0).float().mean()) < 0.1
    apart = [divergence(logits(start, TEXTS), logits(each, TEXTS), "") for each in (saliency, magnitude)]
    assert apart[0] < 0.5 * apart[1]


def test_what_it_cannot_be_computed_for_is_refused() -> None:
    start = small_model("bert", layers=1)
    builder = PrunedWeights(criterion="saliency")
    with pytest.raises(InputError, match="no text"):
        builder.build(start, context(start, []))
    for other in (small_writer("marian"), small_model("bert", head="QuestionAnswering")):
        with pytest.raises(InputError, match=r"pruned_weights: the saliency .*; write criterion = 'magnitude'"):
            builder.build(other, context(other))
