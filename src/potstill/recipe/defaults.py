"""The student and the method of a recipe that names none: a table of choices, each with the reason that is said aloud.

A choice depends on facts that the teacher's folder and the recipe tell before anything is loaded. Whatever is chosen is
written into the recipe beside the result, as if the user had written it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from potstill.errors import InputError

AUTO = "auto"  # takes the place of a student's or a method's name until it is chosen
BUILDERS = ("keep_layers", "trim_vocabulary")  # that a chosen student is made of
KEPT_TOKENS = 11_000  # of the vocabulary, besides characters
FEW_CLASSES = 3


@dataclass(frozen=True)
class Facts:
    """What is known of a teacher, and of the rows that it teaches, before either is loaded."""

    teacher: str  # its name in messages
    task: str  # the word that the user types
    classes: int | None  # None: the rows decide
    layers: int | None  # of each of its stacks; 0: it has none; None: its config does not say
    tokens: int  # in its vocabulary
    keeps_tokens: str = ""  # why its vocabulary cannot be trimmed; empty: it can be


class Choice(NamedTuple):
    """The tables of a student, or of a method, in a recipe, and why they were chosen."""

    tables: list[dict[str, Any]]
    words: str
    reason: str

    def said(self, what: str) -> str:
        return f"{what}: {self.words}, chosen because {self.reason}"


class MethodRule(NamedTuple):
    """A line of the table of methods: the first one that fits is taken."""

    fits: Callable[[Facts], bool]
    method: dict[str, Any]
    reason: str


def _soft_targets(temperature: float | str | None) -> dict[str, Any]:
    method: dict[str, Any] = {"name": "soft_targets", "alpha": 0.9}
    return method if temperature is None else {**method, "temperature": temperature}


METHOD_RULES = (
    MethodRule(
        lambda facts: facts.task in ("translate", "write", "mask", "pretrain"),
        _soft_targets(1.0),
        "the teacher predicts tokens, and at a higher temperature many improbable ones outweigh the others",
    ),
    MethodRule(
        lambda facts: facts.task == "regress",
        _soft_targets(None),
        "the teacher predicts a number, which the student learns by its squared error",
    ),
    MethodRule(
        lambda facts: facts.task == "next_sentence",
        _soft_targets(1.0),
        "each answer is a yes or a no, and a higher temperature would only flatten it",
    ),
    MethodRule(
        lambda facts: True,
        _soft_targets(AUTO),
        "the answers of a teacher that is too sure of itself are the labels again, unless they are read at the temperature "
        "that fits dev",
    ),
)
METHODS = tuple(dict.fromkeys(str(rule.method["name"]) for rule in METHOD_RULES))


def default_method(facts: Facts) -> Choice:
    """The first line of the table that fits."""
    rule = next(rule for rule in METHOD_RULES if rule.fits(facts))
    return Choice([rule.method], method_words(rule.method), rule.reason)


def method_words(method: Mapping[str, Any]) -> str:
    """Return a method as "soft_targets at T = 1, α = 0.9"."""
    temperature, alpha = method.get("temperature"), method.get("alpha")
    at = " at the teacher's temperature" if temperature == AUTO else ""
    if isinstance(temperature, int | float):
        at = f" at T = {temperature:g}"
    return f"{method['name']}{at}" + (f", α = {alpha:g}" if alpha is not None else "")


def default_student(facts: Facts) -> Choice:
    """Half of the teacher's layers, the first ones, and its most frequent tokens where the vocabulary can be trimmed."""
    if facts.layers is None:
        instead = "name the student: --student keep_layers:3, or --student bilstm (`potstill list students`)"
        raise InputError(f"config.json of {facts.teacher} does not say how many layers the teacher has; {instead}")
    if not facts.layers:
        instead = "name the student: --student bilstm, --student bag, … (`potstill list students`)"
        raise InputError(f"the teacher {facts.teacher} has no layers of which half could be kept; {instead}")
    half = -(-facts.layers // 2)
    keep = {"build": "keep_layers", "layers": half}
    layers = f"{half} of {facts.layers} layers"
    reason = "half of the layers keep most of what a teacher knows" if half < facts.layers else "it has only one layer"
    why_whole = facts.keeps_tokens
    if facts.tokens <= KEPT_TOKENS:
        why_whole = f"its vocabulary of {facts.tokens:,} tokens is small"
    if why_whole:
        return Choice([keep], f"{layers} and all tokens", f"{reason}, and {why_whole}")
    trim = {"build": "trim_vocabulary", "tokens": KEPT_TOKENS}
    words = f"{layers}, and the {KEPT_TOKENS:,} most frequent of {facts.tokens:,} tokens"
    return Choice([keep, trim], words, f"{reason}, and rare tokens can be spelled out by others")
