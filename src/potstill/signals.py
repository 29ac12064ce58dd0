"""What models are asked and what they answer: the types that tasks, teachers, students and methods share.

Axes always stand in the order batch, layers, heads, tokens, width, classes; the rows of a batch are sequences of tokens:
texts, windows of a long text, or candidates. A *prediction* is one row of logits: a classifier makes one per text, a
tagger one per word, a reader of questions two per window, over its tokens, and a chooser one over several candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from torch import Tensor

NEVER = -1e4
"""The logit of a class that cannot be, where a number is needed and -inf is none: its probability is 0 in every float type, and
float16 can hold it."""
Over = Literal["examples", "predictions", "tokens"]
Outcome = Literal["class", "classes", "value", "span"]
"""How a row of logits is read: one class of several, any number of classes, a number, or, two and two, the first and the
last token of an answer."""


def nothing() -> Tensor:
    """What was not asked for: an empty tensor, so that a method that forgets to ask fails at once."""
    return torch.empty(0)


@dataclass(frozen=True)
class Wants:
    """Which signals are asked for. Layers are counted as in `hidden_states`: 0 is the embedding, n the n-th layer's output.

    With `top` only the so many most probable classes of a teacher's logits are kept and remembered, and the mass of the rest.
    """

    logits: bool = False
    cls: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()
    top: int = 0  # 0: logits of all classes

    @property
    def per_token(self) -> bool:
        """True where an answer grows with the text, too large to be remembered and bound to one way of splitting it."""
        return bool(self.hidden or self.attention)

    def __or__(self, other: Wants) -> Wants:
        def both(ours: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted({*ours, *theirs}))

        return Wants(
            self.logits or other.logits,
            both(self.cls, other.cls),
            both(self.hidden, other.hidden),
            both(self.attention, other.attention),
            0 if any(one.logits and not one.top for one in (self, other)) else max(self.top, other.top),
        )


@dataclass(frozen=True)
class Signals:
    """A model's answer to `Wants`, with the layers in the order they were asked for."""

    logits: Tensor = field(default_factory=nothing)  # (predictions, classes); impossible classes are -inf
    cls: Tensor = field(default_factory=nothing)  # (batch, layers, width)
    hidden: Tensor = field(default_factory=nothing)  # (batch, layers, tokens, width)
    attention: Tensor = field(
        default_factory=nothing
    )  # (batch, layers, tokens, tokens): probabilities, mean over heads


@dataclass(frozen=True)
class View:
    """One model's reading of a batch. Teacher and student share it where their tokenizers agree."""

    inputs: dict[str, Tensor]  # arguments of forward
    real: Tensor  # (batch, tokens) bool: not padding
    at: Tensor  # (places, 2) row and position where the head is read
    layout: Tensor = field(default_factory=nothing)  # (predictions, classes); empty: a place is a prediction

    def to(self, device: torch.device) -> View:
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return View(inputs, self.real.to(device), self.at.to(device), self.layout.to(device))

    def predictions(self, heads: Tensor) -> Tensor:
        """A head's (batch, outputs), or (batch, tokens, outputs), as (predictions, classes)."""
        rows = heads if heads.dim() == 3 else heads[:, None]  # a head that reads the whole row reads it at one place
        return self.arranged(rows[self.at[:, 0], self.at[:, 1]])

    def arranged(self, places: Tensor) -> Tensor:
        """(places, outputs) as (predictions, classes): `layout` counts all outputs through; -1 is an impossible class."""
        if not self.layout.numel():
            return places
        return torch.cat([places.reshape(-1), places.new_full((1,), -torch.inf)])[self.layout]


@dataclass(frozen=True)
class Batch:
    keys: Tensor  # (batch,) int64 hash of the example's text(s) and window: memory is asked by it
    student: View
    teacher: View
    targets: Tensor  # (predictions,) class or value; (predictions, classes) of 0 and 1 where any number may hold
    labelled: Tensor  # (predictions,) bool
    taught: Tensor  # (batch,) bool: False = learn from targets alone, the teacher has no answer
    taught_predictions: Tensor  # (predictions,) the same for each
    counts: dict[Over, int]  # of the WHOLE optimiser step, over its micro-batches; an example is a row here
    outcome: Outcome
    class_weights: Tensor = field(default_factory=nothing)  # (classes,), empty where all weigh the same
    never: tuple[int, ...] = ()  # classes that can never be chosen, such as padding in a translator
    vocabulary: bool = False  # whether the classes are the pieces of a vocabulary

    def to(self, device: torch.device) -> Batch:
        moved = {one.name: getattr(self, one.name) for one in fields(self)}
        return Batch(**{name: value.to(device) if hasattr(value, "to") else value for name, value in moved.items()})


@dataclass(frozen=True)
class Term:
    """What a loss returns: a sum, and what it is averaged over.

    The loop divides by the count of the whole optimiser step *before* `backward`, so that eight micro-batches of one
    and two of four give the same gradient, also where lengths differ.
    """

    total: Tensor  # ()
    over: Over

    def __rmul__(self, weight: float) -> Term:
        return Term(weight * self.total, self.over)

    def mean(self, counts: dict[Over, int]) -> Tensor:
        return self.total / max(counts[self.over], 1)
