"""Pure tensor losses, each with its paper's averaging. Methods put them together.

The functions in the first half return one value per prediction or example and know no batch. `hard` and `soft` in the
second half read a `Batch` and return a `Term`; they are what makes one method serve classes, label sets and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from potstill.errors import InputError
from potstill.signals import Batch, Outcome, Term

NEAR = 0.25  # differences of logits below which a series is exact in float64 and the plain sum loses digits in float32


def soft_targets(student: Tensor, teacher: Tensor, temperature: float, never: Sequence[int] = ()) -> Tensor:
    """KL(teacher ‖ student) at a temperature, times T², so that its gradient keeps its size (Hinton et al. 2015).

    (predictions, classes) twice -> (predictions,): summed over classes. Its gradient is that of the soft cross-entropy,
    which differs by the teacher's entropy. Impossible classes add nothing, and the teacher's mass is on the others.
    """
    teacher = teacher.expand_as(student)
    impossible = _impossible(never, student, teacher)
    theirs = F.log_softmax(teacher.masked_fill(impossible, -torch.inf) / temperature, dim=-1)
    apart = (student - teacher).masked_fill(impossible, 0.0) / temperature
    divergence = _divergence(theirs, apart)
    if impossible.any():  # what the student gives away to them
        ours = student / temperature
        divergence = divergence + ours.logsumexp(-1) - ours.masked_fill(impossible, -torch.inf).logsumexp(-1)
    return temperature**2 * divergence


def _divergence(theirs: Tensor, apart: Tensor) -> Tensor:
    """KL(p ‖ q) from log p and the differences d of the logits, (predictions, classes) twice -> (predictions,).

    It is log Σ p·exp(d), with d less its mean under p. At high temperatures d is small, and so is the divergence: 1e-6 at
    T = 1000. A sum of p·(log p − log q) would cancel there, as log p itself is of size 1; exp(d) − 1 − d does not.
    """
    shares = theirs.exp()
    apart = apart - (shares * apart).sum(-1, keepdim=True)
    divergence = (theirs + apart).logsumexp(-1)
    near = apart.detach().abs().amax(-1) < NEAR  # (predictions,)
    if near.any():
        few, series = apart[near], torch.ones_like(apart[near])
        for power in range(9, 2, -1):
            series = 1.0 + few / power * series  # exp(d) − 1 − d = d²/2·(1 + d/3·(1 + d/4·…))
        divergence = divergence.index_put((near,), torch.log1p((shares[near] * few.square() / 2.0 * series).sum(-1)))
    return divergence


def _impossible(never: Sequence[int], *logits: Tensor) -> Tensor:
    """(predictions, classes) bool: classes that a row lacks, which a task's layout marks with -inf, and those that nobody can
    choose, such as padding in a translator. However low a number is that a network gives, it has no say in it."""
    impossible = torch.stack([one == -torch.inf for one in logits]).any(0)
    impossible[:, list(never)] = True
    return impossible


def soft_label_sets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The same for independent yes/no classes: Bernoulli KL times T², summed over classes -> (predictions,)."""

    def yes_and_no(logits: Tensor) -> Tensor:
        return torch.stack([logits, torch.zeros_like(logits)], -1).flatten(0, 1)

    apart = soft_targets(yes_and_no(student), yes_and_no(teacher.expand_as(student)), temperature)
    return apart.view(student.shape).sum(-1)


def squared_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """‖student − teacher‖² over the last axis: (…, width) twice -> (…)."""
    return (student - teacher).square().sum(-1)


def logit_distance(student: Tensor, teacher: Tensor, never: Sequence[int] = ()) -> Tensor:
    """Squared distance of the logits, without impossible classes: (predictions, classes) twice -> (predictions,)."""
    teacher = teacher.expand_as(student)
    impossible = _impossible(never, student, teacher)
    return squared_distance(student.masked_fill(impossible, 0.0), teacher.masked_fill(impossible, 0.0))


def direction_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared distance of the unit vectors (Sun et al. 2019): (…, width) twice -> (…), between 0 and 4.

    A zero vector stays zero instead of becoming NaN (norms are bounded below by 1e-12).
    """
    return squared_distance(F.normalize(student, dim=-1), F.normalize(teacher, dim=-1))


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """1 − cos(student, teacher): half of `direction_distance`, between 0 and 2."""
    return 1.0 - (F.normalize(student, dim=-1) * F.normalize(teacher, dim=-1)).sum(-1)


def confusing_spans(teacher: Tensor, gold: Tensor, longest: int = 30) -> Tensor:
    """The teacher's best answers that share no token with the gold ones (Hu et al. 2018).

    (2 · windows, tokens) logits of start, end, start, end … and (windows, 2) gold tokens -> (windows, 2) first and last
    token; -1 where there is no other answer. The first token, which stands for no answer, is none.
    """
    starts, ends = teacher.view(-1, 2, teacher.shape[-1]).unbind(1)
    place = torch.arange(teacher.shape[-1], device=teacher.device)
    first, last = place[:, None], place[None, :]
    fits = (first <= last) & (last < first + longest) & (first > 0)
    apart = (last < gold[:, :1, None]) | (first > gold[:, 1:, None])
    scores = (starts[:, :, None] + ends[:, None, :]).masked_fill(~(fits & apart), -torch.inf)
    best, number = scores.flatten(1).max(1)
    found = torch.stack([number // len(place), number % len(place)], 1)
    return torch.where(best[:, None] > -torch.inf, found, -1)


def span_log_probability(logits: Tensor, spans: Tensor) -> Tensor:
    """log p(start) + log p(end): (2 · windows, tokens) logits and (windows, 2) tokens -> (windows,); 0 for tokens of -1."""
    each = F.log_softmax(logits, dim=-1).gather(1, spans.clamp(min=0).view(-1, 1)).view(-1, 2)
    return each.masked_fill(spans < 0, 0.0).sum(1)


def smoothed(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, never: Sequence[int] = ()
) -> Tensor:
    """Cross-entropy whose target gives away a share, spread evenly over all classes (Szegedy et al. 2016).

    (predictions, classes) and (predictions,) -> (predictions,): (1−ε)·CE + ε·mean of −log p, as torch's `label_smoothing`;
    each class counts as it weighs. Impossible classes, with a logit of -inf or named in `never`, get none of it.
    """
    if not smoothing:
        return F.cross_entropy(logits, targets, weight=weights, reduction="none")
    impossible = _impossible(never, logits)
    sure = F.log_softmax(logits, dim=-1)
    each = F.nll_loss(sure, targets, weight=weights, reduction="none")
    possible = sure.masked_fill(impossible, 0.0)
    spread = possible.sum(-1) if weights is None else possible @ weights
    return (1 - smoothing) * each - smoothing * spread / (logits.shape[-1] - impossible.sum(-1))


def hard(logits: Tensor, batch: Batch, smoothing: float = 0.0, beside_teacher: float = 1.0) -> Term:
    """Loss against the labels: cross-entropy, its yes/no form summed over classes, or squared error.

    One meaning for every method: where the teacher teaches as well, a label weighs `beside_teacher`; where it has no answer,
    or fell silent, the label is all there is and weighs 1. The sum over labelled predictions is divided by all predictions of
    the step, as the teacher's terms are: a label weighs the same beside many rows without one as beside few.
    With class weights each prediction counts as its class weighs; weights average to one over the training rows, so
    that the loss keeps its size. `smoothing` is for one class of several.
    """
    if smoothing and batch.outcome in ("classes", "value"):
        raise InputError("smoothing is for tasks of one class of several; leave it out, or write smoothing = 0.0")
    weights = batch.class_weights if batch.class_weights.numel() else None
    if batch.outcome in ("class", "span"):
        each = smoothed(logits, batch.targets.long(), weights, smoothing, batch.never)
    elif batch.outcome == "classes":
        each = F.binary_cross_entropy_with_logits(logits, batch.targets, weight=weights, reduction="none").sum(-1)
    else:
        each = (logits.squeeze(-1) - batch.targets).square()
    each = torch.where(batch.taught_predictions, beside_teacher * each, each)
    return Term(each[batch.labelled].sum(), "predictions")


def soft(student: Tensor, teacher: Tensor, batch: Batch, temperature: float | None) -> Term:
    """Loss against the teacher's answer, averaged over predictions: `soft_targets`, its yes/no form, or squared error to the teacher's value.

    Without a temperature it is 5, and 1 where the classes are a vocabulary: its many small probabilities would be most of
    the mass at a higher one.
    """
    if temperature is None:
        temperature = 1.0 if batch.vocabulary else 5.0
    if batch.outcome in ("class", "span"):
        each = soft_targets(student, teacher, temperature, batch.never)
    elif batch.outcome == "classes":
        each = soft_label_sets(student, teacher, temperature)
    else:
        each = squared_distance(student, teacher)
    return taught(each, batch)


def chosen_by_the_teacher(student: Tensor, teacher: Tensor, outcome: Outcome) -> Tensor:
    """Loss against what the teacher would say: its most probable class, its yes or no for each, or its value.

    (predictions, classes) twice -> (predictions,): cross-entropy, its yes/no form summed over classes, or squared error.
    """
    if outcome in ("class", "span"):
        return F.cross_entropy(student, teacher.argmax(-1), reduction="none")
    if outcome == "classes":
        return F.binary_cross_entropy_with_logits(student, (teacher > 0).to(student.dtype), reduction="none").sum(-1)
    return squared_distance(student, teacher)


def taught(each: Tensor, batch: Batch) -> Term:
    """The sum of (predictions,) values over the rows that the teacher teaches, averaged over predictions."""
    return Term(each[batch.taught_predictions].sum(), "predictions")


def per_example(each: Tensor, batch: Batch) -> Term:
    """The sum of (batch,) values over the rows that the teacher teaches, averaged over examples."""
    return Term(each[batch.taught].sum(), "examples")


def per_token(each: Tensor, batch: Batch) -> Term:
    """The sum of (batch, tokens) values over real tokens of taught rows, averaged over tokens: padding never counts."""
    return Term(each[batch.student.real & batch.taught[:, None]].sum(), "tokens")
