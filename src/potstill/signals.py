"""The types that tasks, teachers, students and methods share: what a model is asked and what it answers.

Axes are always in the order batch, layers, heads, tokens, width, classes. The rows of a batch are sequences of tokens:
texts, windows of a long text, or candidates. A *prediction* is one row of logits: classification makes one per text,
tagging one per word, extractive question answering two per window (over its tokens), multiple choice one per question.
A network with two heads, as for masked tokens and the next sentence, makes a group of predictions with each.

This module does not import torch until a tensor is needed, so that recipes are checked without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# the logit of an impossible class where -inf is not allowed: a probability of 0 in every float type, also in float16
NEVER = -1e4
Over = Literal["examples", "predictions", "tokens"]
Outcome = Literal["class", "classes", "value", "span"]
"""How a row of logits is read: as one class of several, as any number of classes, as a number, or (in pairs of rows) as
the first and the last token of an answer."""


def nothing() -> Tensor:
    """Return an empty tensor, the value of a signal that was not asked for: a method that forgets to ask fails at once."""
    import torch

    return torch.empty(0)


@dataclass(frozen=True)
class Wants:
    """Which signals a method asks for, each of some layers; `Signals` says what they are.

    Layers are counted as in `hidden_states`: n is the n-th layer, and 0 the embeddings, the input of the first layer,
    which have `cls` and `hidden` but no attention.
    """

    logits: bool = False
    cls: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    scores: tuple[int, ...] = ()
    queries: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    top: int = 0  # keep only so many of the teacher's most probable classes, and the mass of the rest; 0: all classes
    draws: int = 0  # draw so many classes from the teacher's distribution; 0: all classes

    def __post_init__(self) -> None:
        if 0 in self.probabilities | self.projections:
            raise ValueError("layer 0 is the embeddings, which have no attention; count layers from 1")

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of all signals, one signal after the other."""
        return tuple(layer for layers in vars(self).values() if isinstance(layers, tuple) for layer in layers)

    @property
    def probabilities(self) -> frozenset[int]:
        """Layers whose attention probabilities are needed."""
        return frozenset((*self.attention, *self.heads))

    @property
    def projections(self) -> frozenset[int]:
        """Layers whose queries, keys or values are needed."""
        return frozenset((*self.scores, *self.queries, *self.keys, *self.values))

    @property
    def per_token(self) -> bool:
        """True if an answer grows with the text: too large for the memory on disk, and tied to one tokenizer."""
        return len(self.layers) > len(self.cls)

    @property
    def head(self) -> Wants:
        """What is wanted of the head: the logits, or the few classes in their place."""
        return Wants(logits=True, top=self.top, draws=self.draws)

    @property
    def few(self) -> bool:
        """Whether a few classes take the place of the logits of all of them."""
        return self.top > 0 or self.draws > 0

    def __or__(self, other: Wants) -> Wants:
        layers = {
            name: tuple(sorted({*ours, *getattr(other, name)}))
            for name, ours in vars(self).items()
            if isinstance(ours, tuple)
        }
        all_classes = any(side.logits and not side.few for side in (self, other))
        top, draws = max(self.top, other.top), max(self.draws, other.draws)
        if all_classes or (top and draws):
            top, draws = 0, 0
        return Wants(self.logits or other.logits, **layers, top=top, draws=draws)


@dataclass(frozen=True)
class TopClasses:
    """A distribution over many classes, such as a vocabulary: the most probable classes, and all others, which share the
    rest evenly."""

    classes: Tensor  # (predictions, top) int64: the most probable
    log_probabilities: Tensor  # (predictions, top) of each; the lowest finite number for a probability of 0
    rest: Tensor  # (predictions,) log probability of all others together
    of: int  # the number of all classes


@dataclass(frozen=True)
class DrawnClasses:
    """Classes that were drawn from a distribution over many: the share of the draws that a class has is its probability in
    expectation."""

    classes: Tensor  # (predictions, draws) int64; a class may be drawn several times
    of: int  # the number of all classes


@dataclass(frozen=True)
class Signals:
    """A model's answer to `Wants`, with the layers in the order in which they were asked for.

    Scores are q·kᵀ, scaled, of all pairs of tokens: a loss leaves out those with padding. Queries and keys are those of
    the scores: rotated in models with rotary positions.
    """

    logits: Tensor = field(default_factory=nothing)  # (predictions, classes); impossible classes are -inf
    top: TopClasses | None = None  # in place of logits, if `top` was asked for and any row is taught
    drawn: DrawnClasses | None = None  # the same for `draws`
    cls: Tensor = field(default_factory=nothing)  # (batch, layers, width)
    hidden: Tensor = field(default_factory=nothing)  # (batch, layers, tokens, width)
    attention: Tensor = field(default_factory=nothing)  # (batch, layers, tokens, tokens) probabilities, mean over heads
    heads: Tensor = field(default_factory=nothing)  # (batch, layers, heads, tokens, tokens) probabilities of each head
    scores: Tensor = field(default_factory=nothing)  # (batch, layers, heads, tokens, tokens) before mask and softmax
    queries: Tensor = field(default_factory=nothing)  # (batch, layers, tokens, width), heads side by side
    keys: Tensor = field(default_factory=nothing)  # (batch, layers, tokens, width), narrower where heads share them
    values: Tensor = field(default_factory=nothing)  # (batch, layers, tokens, width), as keys


def _read(head: Tensor, at: Tensor) -> Tensor:
    """(places, outputs) of a head's (batch, outputs) or (batch, tokens, outputs)."""
    rows = head if head.dim() == 3 else head[:, None]  # a head that reads the whole row reads it at one place
    return rows[at[:, 0], at[:, 1]]


@dataclass(frozen=True)
class View:
    """One model's reading of a batch. Teacher and student share it if their tokenizers agree."""

    inputs: dict[str, Tensor]  # arguments of forward
    real: Tensor  # (batch, tokens) bool: not padding
    at: Tensor  # (places, 2) row and position where the head is read
    layout: Tensor = field(default_factory=nothing)  # (predictions, classes); empty: a place is a prediction
    also_at: Tensor = field(default_factory=nothing)  # (places, 2) of a second head, with as many classes or fewer

    def to(self, device: torch.device) -> View:
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        others = (self.real, self.at, self.layout, self.also_at)
        return View(inputs, *(tensor.to(device) for tensor in others))

    def predictions(self, head: Tensor, second: Tensor | None = None) -> Tensor:
        """Return a head's (batch, outputs) or (batch, tokens, outputs) as (predictions, classes).

        The predictions of a second head follow those of the first; classes that it does not have are impossible.
        """
        import torch

        first = self.arranged(_read(head, self.at))
        if not self.also_at.numel():
            return first
        assert second is not None, "a second head is read, and the model has one"
        others = _read(second, self.also_at)
        impossible = others.new_full((len(others), first.shape[1] - others.shape[1]), -torch.inf)
        return torch.cat([first, torch.cat([others, impossible], 1)])

    def arranged(self, places: Tensor) -> Tensor:
        """Return (places, outputs) as (predictions, classes). `layout` numbers all outputs; -1 is an impossible class."""
        import torch

        if not self.layout.numel():
            return places
        return torch.cat([places.reshape(-1), places.new_full((1,), -torch.inf)])[self.layout]


@dataclass(frozen=True)
class Batch:
    """Examples of one micro-batch as both models read them, with their targets."""

    keys: Tensor  # (batch,) int64 hash of the example's text(s) and window: the key of the teacher's memory
    student: View
    teacher: View
    targets: Tensor  # (predictions,) class or value; (predictions, classes) of 0 and 1 for any number of classes
    labelled: Tensor  # (predictions,) bool
    taught: Tensor  # (batch,) bool. False: the teacher has no answer, learn from the targets alone
    taught_predictions: Tensor  # (predictions,) the same for each prediction
    counts: dict[Over, int]  # of the WHOLE optimiser step, over its micro-batches; an example is a row here
    outcome: Outcome
    class_weights: Tensor = field(default_factory=nothing)  # (classes,); empty: all classes weigh the same
    weights: Tensor = field(default_factory=nothing)  # (predictions,), see `group_weights`; empty: all weigh the same
    never: tuple[int, ...] = ()  # classes that can never be chosen, such as the padding token of a translator
    vocabulary: bool = False  # True if the classes are the tokens of a vocabulary

    def __post_init__(self) -> None:
        if self.never and self.student.also_at.numel():
            raise ValueError("`never` names classes of one head, and two are read; mark them by a logit of -inf")

    def to(self, device: torch.device) -> Batch:
        import torch

        parts = [(name, value) for name, value in vars(self).items() if isinstance(value, View | torch.Tensor)]
        moved: dict[str, Any] = {name: value.to(device) for name, value in parts}
        return replace(self, **moved)


def group_weights(sizes: Sequence[int], of_step: Sequence[int]) -> Tensor:
    """(predictions,) weights by which several groups of predictions are each averaged over their own, though the loop
    divides by all predictions of the step.

    `sizes`: predictions of each group in the batch, in their order; `of_step`: in the whole optimiser step.
    """
    import torch

    each = [sum(of_step) / max(count, 1) for count in of_step]
    return torch.tensor(each).repeat_interleave(torch.tensor(sizes))


@dataclass(frozen=True)
class Term:
    """What a loss returns: a sum, and what it is averaged over.

    The loop divides by the count of the whole optimiser step *before* `backward`, so that eight micro-batches of one
    example and two of four give the same gradient, even if the lengths differ.
    """

    total: Tensor  # ()
    over: Over

    def __rmul__(self, weight: float) -> Term:
        return Term(weight * self.total, self.over)

    def mean(self, counts: dict[Over, int]) -> Tensor:
        return self.total / max(counts[self.over], 1)
