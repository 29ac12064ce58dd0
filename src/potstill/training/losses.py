"""Losses, each averaged as in its paper. Methods combine them.

The functions of the first half take tensors and return one value per prediction or example. `hard` and `soft` in the second
half take a `Batch` and return a `Term`; with them one method serves classification, multi-label classification and
regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from potstill.errors import InputError
from potstill.signals import NEVER, Batch, DrawnClasses, Outcome, Term, TopClasses

LOG_ZERO = torch.finfo(torch.float32).min  # the log of a probability of 0, where infinities cannot be stored
NEAR = (
    0.25  # for smaller differences of logits the series is exact in float64, and the plain sum loses digits in float32
)


def soft_targets(student: Tensor, teacher: Tensor, temperature: float, never: Sequence[int] = ()) -> Tensor:
    """KL(teacher ‖ student) at a temperature, times T², so that its gradient keeps its size (Hinton et al. 2015).

    (predictions, classes) twice -> (predictions,): summed over classes. Its gradient is that of the soft cross-entropy, which
    differs by the entropy of the teacher. Impossible classes add nothing: the teacher gives all probability to the others.
    """
    teacher = teacher.expand_as(student)
    impossible = _impossible(never, student, teacher)
    teacher_log_p = F.log_softmax(teacher.masked_fill(impossible, -torch.inf) / temperature, dim=-1)
    differences = (student - teacher).masked_fill(impossible, 0.0) / temperature
    divergence = _divergence(teacher_log_p, differences)
    if impossible.any():  # the probability that the student gives to them
        logits = student / temperature
        divergence = divergence + logits.logsumexp(-1) - logits.masked_fill(impossible, -torch.inf).logsumexp(-1)
    return temperature**2 * divergence


def _divergence(log_p: Tensor, differences: Tensor) -> Tensor:
    """KL(p ‖ q) from log p and the differences d of the logits, (predictions, classes) twice -> (predictions,).

    It is log Σ p·exp(d), after subtracting from d its mean under p. At high temperatures d is small, and so is the divergence:
    1e-6 at T = 1000. A sum of p·(log p − log q) would cancel there, since log p is of size 1; exp(d) − 1 − d does not.
    """
    p = log_p.exp()
    d = differences - (p * differences).sum(-1, keepdim=True)
    divergence = (log_p + d).logsumexp(-1)
    near = d.detach().abs().amax(-1) < NEAR  # (predictions,)
    if near.any():
        small, series = d[near], torch.ones_like(d[near])
        for power in range(9, 2, -1):
            series = 1.0 + small / power * series  # exp(d) − 1 − d = d²/2·(1 + d/3·(1 + d/4·…))
        divergence = divergence.index_put((near,), torch.log1p((p[near] * small.square() / 2.0 * series).sum(-1)))
    return divergence


def _impossible(never: Sequence[int], *logits: Tensor) -> Tensor:
    """(predictions, classes) bool: classes that a row does not have, marked by a logit of -inf, and those of `never`, such as
    padding in a translation model. A logit that is merely low makes no class impossible."""
    impossible = torch.stack([side == -torch.inf for side in logits]).any(0)
    impossible[:, list(never)] = True
    return impossible


def soft_top_classes(student: Tensor, teacher: TopClasses, temperature: float, never: Sequence[int] = ()) -> Tensor:
    """`soft_targets` against a teacher of which only the most probable classes are known: (predictions,).

    The same number as if its logits were written out for all classes, but nothing of that width is made for the teacher: the
    other classes, which share the rest evenly, need only the sum of the student's logits over them.
    """
    if teacher.of != student.shape[-1]:
        raise InputError(f"the student has {student.shape[-1]} classes and the teacher {teacher.of}; omit top")
    size = teacher.classes.shape[-1]
    logits = student if temperature == 1.0 else student / temperature
    log_kept, log_rest = teacher.log_probabilities.to(logits.dtype), teacher.rest.to(logits.dtype)
    banned = torch.tensor(never, dtype=torch.long, device=logits.device)
    read = torch.cat([teacher.classes, banned.expand(len(logits), -1)], -1)
    kept, left_out = logits.gather(-1, read).tensor_split([size], -1)
    same = teacher.classes[:, :, None] == banned  # (predictions, top, never)

    # the student: the sum of its logits over the classes that share the rest, and their number, both (predictions,)
    total, others = logits.sum(-1), torch.full_like(log_rest, teacher.of)
    if not total.isfinite().all():
        impossible = logits == -torch.inf
        total, others = logits.masked_fill(impossible, 0.0).sum(-1), others - impossible.sum(-1)
    for some, counts in ((kept, kept > -torch.inf), (left_out, (left_out > -torch.inf) & ~same.any(1))):
        total, others = total - some.masked_fill(~counts, 0.0).sum(-1), others - counts.sum(-1)
    mean = total / others.clamp(min=1)
    log_q = torch.cat([kept, mean[:, None]], -1) - logits.logsumexp(-1, keepdim=True)

    # the teacher: log p of each kept class, and of one other class
    gone = (log_kept <= LOG_ZERO) | (kept == -torch.inf) | same.any(-1)
    log_p = (log_kept / temperature).masked_fill(gone, -torch.inf)
    share = (log_rest - math.log(max(teacher.of - size, 1))) / temperature
    share = share.masked_fill((log_rest <= LOG_ZERO) | (others < 1), -torch.inf)
    scale = torch.cat([log_p, (share + others.clamp(min=1).log())[:, None]], -1).logsumexp(-1)
    log_p = torch.cat([log_p, share[:, None]], -1) - scale[:, None]
    p = torch.cat([log_p[:, :-1].exp(), (others * log_p[:, -1].exp())[:, None]], -1)
    return temperature**2 * (p * (log_p - log_q).masked_fill(p == 0, 0.0)).sum(-1)


def soft_drawn_classes(student: Tensor, teacher: DrawnClasses, never: Sequence[int] = ()) -> Tensor:
    """Cross-entropy with the classes that were drawn from the teacher: (predictions,), the mean over draws.

    In expectation over the draws it is the cross-entropy with the teacher's distribution: KL(teacher ‖ student) and the
    teacher's entropy, which the student cannot change. Draws of impossible classes do not count.
    """
    if teacher.of != student.shape[-1]:
        raise InputError(f"the student has {student.shape[-1]} classes and the teacher {teacher.of}; omit draws")
    drawn = student.gather(-1, teacher.classes)
    impossible = drawn == -torch.inf
    for excluded in never:
        impossible = impossible | (teacher.classes == excluded)
    each = (student.logsumexp(-1, keepdim=True) - drawn).masked_fill(impossible, 0.0)
    return each.sum(-1) / (~impossible).sum(-1).clamp(min=1)


def soft_multilabel(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """`soft_targets` for multi-label classification: Bernoulli KL times T², summed over classes -> (predictions,)."""

    def yes_and_no(logits: Tensor) -> Tensor:
        return torch.stack([logits, torch.zeros_like(logits)], -1).flatten(0, 1)

    divergence = soft_targets(yes_and_no(student), yes_and_no(teacher.expand_as(student)), temperature)
    return divergence.view(student.shape).sum(-1)


def squared_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """‖student − teacher‖² over the last axis: (…, width) twice -> (…)."""
    return (student - teacher).square().sum(-1)


def logit_distance(student: Tensor, teacher: Tensor, never: Sequence[int] = ()) -> Tensor:
    """Squared distance of the logits, without impossible classes: (predictions, classes) twice -> (predictions,)."""
    teacher = teacher.expand_as(student)
    impossible = _impossible(never, student, teacher)
    return squared_distance(student.masked_fill(impossible, 0.0), teacher.masked_fill(impossible, 0.0))


def direction_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared distance of the normalized vectors (Sun et al. 2019): (…, width) twice -> (…), between 0 and 4.

    A zero vector stays zero instead of becoming NaN, since norms are at least 1e-12.
    """
    return squared_distance(F.normalize(student, dim=-1), F.normalize(teacher, dim=-1))


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """1 − cos(student, teacher): half of `direction_distance`, between 0 and 2."""
    return 1.0 - (F.normalize(student, dim=-1) * F.normalize(teacher, dim=-1)).sum(-1)


def confusing_spans(teacher: Tensor, gold: Tensor, longest: int = 30) -> Tensor:
    """The best answers of the teacher that share no token with the gold answers (Hu et al. 2018).

    (2 · windows, tokens) logits of start, end, start, end … and (windows, 2) gold tokens -> (windows, 2) first and last
    token; -1 if there is no such answer. The first token, which means "no answer", is not considered.
    """
    starts, ends = teacher.view(-1, 2, teacher.shape[-1]).unbind(1)
    place = torch.arange(teacher.shape[-1], device=teacher.device)
    first, last = place[:, None], place[None, :]
    fits = (first <= last) & (last < first + longest) & (first > 0)
    disjoint = (last < gold[:, :1, None]) | (first > gold[:, 1:, None])
    scores = (starts[:, :, None] + ends[:, None, :]).masked_fill(~(fits & disjoint), -torch.inf)
    best, number = scores.flatten(1).max(1)
    spans = torch.stack([number // len(place), number % len(place)], 1)
    return torch.where(best[:, None] > -torch.inf, spans, -1)


def span_log_probability(logits: Tensor, spans: Tensor) -> Tensor:
    """log p(start) + log p(end): (2 · windows, tokens) logits and (windows, 2) tokens -> (windows,); 0 for tokens of -1."""
    each = F.log_softmax(logits, dim=-1).gather(1, spans.clamp(min=0).view(-1, 1)).view(-1, 2)
    return each.masked_fill(spans < 0, 0.0).sum(1)


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, never: Sequence[int] = ()
) -> Tensor:
    """Cross-entropy with label smoothing: a share ε of the target is spread evenly over all classes (Szegedy et al. 2016).

    (predictions, classes) and (predictions,) -> (predictions,): (1−ε)·CE + ε·mean of −log p, each class with its weight, as
    `label_smoothing` of torch. Impossible classes, with a logit of -inf or in `never`, get no share.
    """
    if not smoothing:
        return F.cross_entropy(logits, targets, weight=weights, reduction="none")
    impossible = _impossible(never, logits)
    log_p = F.log_softmax(logits, dim=-1)
    each = F.nll_loss(log_p, targets, weight=weights, reduction="none")
    possible = log_p.masked_fill(impossible, 0.0)
    spread = possible.sum(-1) if weights is None else possible @ weights
    return (1 - smoothing) * each - smoothing * spread / (logits.shape[-1] - impossible.sum(-1))


def hard(logits: Tensor, batch: Batch, smoothing: float = 0.0, beside_teacher: float = 1.0) -> Term:
    """Loss against the labels: cross-entropy, binary cross-entropy summed over classes, or squared error.

    This is the one meaning of a label's weight, for every method: `beside_teacher` if the teacher teaches the row as well, and
    1 if it has no answer or was dropped. The sum over labelled predictions is divided by all predictions of the step, as the
    terms of the teacher are, so a label counts the same however many rows have none. Class weights multiply each prediction
    by the weight of its class; they average to 1 over the training rows. `smoothing` is for single-label classification.
    """
    if smoothing and batch.outcome in ("classes", "value"):
        raise InputError("smoothing is only for single-label classification; omit it, or write smoothing = 0.0")
    weights = batch.class_weights if batch.class_weights.numel() else None
    if batch.outcome in ("class", "span"):
        each = smoothed_cross_entropy(logits, batch.targets.long(), weights, smoothing, batch.never)
    elif batch.outcome == "classes":
        each = F.binary_cross_entropy_with_logits(logits, batch.targets, weight=weights, reduction="none").sum(-1)
    else:
        each = (logits.squeeze(-1) - batch.targets).square()
    each = torch.where(batch.taught_predictions, beside_teacher * each, each)
    return Term(_weighted(each, batch)[batch.labelled].sum(), "predictions")


def weight_of_labels(weight: float | None, batch: Batch) -> float:
    """The weight that a recipe gives to the labels. None: 1, or 0 where they are the tokens of the text themselves."""
    return weight if weight is not None else float(not batch.vocabulary)


def soft(student: Tensor, teacher: Tensor | TopClasses | DrawnClasses, batch: Batch, temperature: float | None) -> Term:
    """Loss against the teacher: `soft_targets`, its multi-label form, or squared error; averaged over predictions.

    The default temperature is 5; for a vocabulary and for a few of its classes it is 1, since at a higher one many small
    probabilities would sum up to most of the mass. Drawn classes are those of T = 1.
    """
    sparse = isinstance(teacher, TopClasses | DrawnClasses)
    if temperature is None:
        temperature = 1.0 if batch.vocabulary or sparse else 5.0
    if isinstance(teacher, DrawnClasses):
        each = soft_drawn_classes(student, teacher, batch.never)
    elif isinstance(teacher, TopClasses):
        each = soft_top_classes(student, teacher, temperature, batch.never)
    elif batch.outcome in ("class", "span"):
        each = soft_targets(student, teacher, temperature, batch.never)
    elif batch.outcome == "classes":
        each = soft_multilabel(student, teacher, temperature)
    else:
        each = squared_distance(student, teacher)
    return taught(each, batch)


def teacher_label_loss(student: Tensor, teacher: Tensor, outcome: Outcome) -> Tensor:
    """Loss against the prediction of the teacher: its most probable class, its yes or no for each class, or its value.

    (predictions, classes) twice -> (predictions,): cross-entropy, binary cross-entropy summed over classes, or squared error.
    """
    if outcome in ("class", "span"):
        return F.cross_entropy(student, teacher.argmax(-1), reduction="none")
    if outcome == "classes":
        return F.binary_cross_entropy_with_logits(student, (teacher > 0).to(student.dtype), reduction="none").sum(-1)
    return squared_distance(student, teacher)


def taught(each: Tensor, batch: Batch) -> Term:
    """Average (predictions,) values over predictions, those of a second head over its own; rows without a teacher count as 0."""
    return Term(_weighted(each, batch)[batch.taught_predictions].sum(), "predictions")


def _weighted(each: Tensor, batch: Batch) -> Tensor:
    return each * batch.weights if batch.weights.numel() else each


def per_example(each: Tensor, batch: Batch) -> Term:
    """Average (batch,) values over examples; rows without a teacher count as 0."""
    return Term(each[batch.taught].sum(), "examples")


def per_token(each: Tensor, batch: Batch) -> Term:
    """Average (batch, tokens) values over tokens without padding; rows without a teacher count as 0."""
    return Term(each[batch.student.real & batch.taught[:, None]].sum(), "tokens")


def score_distance(student: Tensor, teacher: Tensor, batch: Batch) -> Term:
    """Squared distance of the attention scores, which need no softmax (TinyBERT: Jiao et al. 2020).

    (batch, layers, heads, tokens, tokens) twice. The mean over heads and over the keys of a query, summed over layers and
    averaged over queries. Padding counts neither as a key nor as a query; rows without a teacher count as 0.
    """
    _refuse_other_heads(student, teacher)
    real = batch.student.real
    padding = ~real[:, None, None, None, :]  # filled before squaring: scores of padding may be any number
    gaps = (student - teacher).masked_fill(padding, 0.0).square().mean(2).sum((1, 3))  # (batch, queries)
    return per_token(gaps / real.sum(1, keepdim=True), batch)


def head_divergence(student: Tensor, teacher: Tensor, batch: Batch) -> Term:
    """KL(teacher ‖ student) of the attention probabilities of each head (MobileBERT: Sun et al. 2020).

    (batch, layers, heads, tokens, tokens) twice. Summed over keys and layers, averaged over heads and queries. Padding has
    a probability of 0 as a key and does not count as a query; rows without a teacher count as 0.
    """
    _refuse_other_heads(student, teacher)
    smallest = torch.finfo(student.dtype).tiny  # where both are 0, the term is 0
    each = torch.xlogy(teacher, teacher) - teacher * student.clamp(min=smallest).log()
    return per_token(each.sum(-1).mean(2).sum(1), batch)


def relation_divergence(student: Tensor, teacher: Tensor, heads: int, batch: Batch) -> Term:
    """KL(teacher ‖ student) of the relations between tokens (MiniLMv2: Wang et al. 2021).

    (batch, tokens, width) of queries, keys or values, where the widths may differ. Each side is cut into so many equal slices;
    in each, a token's relations are the softmax over all tokens of the products with their vectors, scaled. Averaged over
    slices and tokens. Padding takes no part; rows without a teacher count as 0.
    """
    ours, theirs = (_relations(side, heads, batch) for side in (student, teacher))
    each = theirs.exp() * (theirs - ours)  # (batch, heads, tokens, tokens); 0 for padding, whose logarithms are finite
    return per_token(each.sum(-1).mean(1), batch)


def _relations(vectors: Tensor, heads: int, batch: Batch) -> Tensor:
    """(batch, heads, tokens, tokens) log probabilities."""
    if vectors.shape[-1] % heads:
        raise InputError(
            f"vectors of {vectors.shape[-1]} numbers cannot be cut into {heads} relation heads; "
            "write heads = a number that divides those of student and teacher, or omit it"
        )
    sliced = vectors.unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, heads, tokens, width of a slice)
    products = sliced @ sliced.mT / sliced.shape[-1] ** 0.5
    return F.log_softmax(products.masked_fill(~batch.student.real[:, None, None, :], NEVER), dim=-1)


def centred_scores(scores: Tensor, batch: Batch) -> Tensor:
    """Attention scores less their mean over the keys of each query, which the softmax does not see.

    (batch, layers, heads, tokens, tokens). Padding takes no part in the mean.
    """
    real = batch.student.real[:, None, None, None, :]
    mean = scores.masked_fill(~real, 0.0).sum(-1, keepdim=True) / real.sum(-1, keepdim=True)
    return scores - mean


def as_many_heads(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Average the scores of the side with more heads in equal groups of neighbours, so that both have as many.

    (batch, layers, heads, tokens, tokens) twice. Scores are sums over the width of a head, so that a mean of them is a score.
    """
    ours, theirs = student.shape[2], teacher.shape[2]
    fewer = min(ours, theirs)
    if ours % fewer or theirs % fewer:
        raise InputError(
            f"the {max(ours, theirs)} heads of one side cannot be averaged to the {fewer} of the other; "
            f"build the student with heads = {theirs}, or with a divisor of it"
        )
    return student.unflatten(2, (fewer, -1)).mean(3), teacher.unflatten(2, (fewer, -1)).mean(3)


def _refuse_other_heads(student: Tensor, teacher: Tensor) -> None:
    ours, theirs = student.shape[2], teacher.shape[2]
    if ours != theirs:
        raise InputError(
            f"attention is compared head by head, and the student has {ours} heads where the teacher has {theirs}; "
            f"build the student with heads = {theirs}"
        )
