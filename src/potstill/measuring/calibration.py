"""How sure a model is, and how often it is right, over its predictions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from potstill.inference.answers import Predicted

if TYPE_CHECKING:
    from potstill.signals import Outcome

SURE = 0.9  # a prediction with a lower probability counts as unsure


def how_sure(parts: Iterable[Predicted], outcome: Outcome) -> dict[str, float]:
    """Return the fields of `TeacherRows`: means over the predictions; of labels that exclude no other, over every yes and no.

    `right` and `error` are over predictions with a label, and absent if there is none.
    """
    found: dict[str, list[np.ndarray]] = {}
    for part in parts:
        each = _errors(part) if outcome == "value" else _certainties(part, outcome)
        for name, values in each.items():
            found.setdefault(name, []).append(values.ravel())
    means = {name: float(np.concatenate(values).mean()) for name, values in found.items() if any(map(len, values))}
    if "error" in means:  # the squares were averaged
        means["error"] = means["error"] ** 0.5
    return means


def _errors(part: Predicted) -> dict[str, np.ndarray]:
    return {"error": np.square(part.logits[part.labelled, 0].astype(float) - part.targets[part.labelled])}


def _certainties(part: Predicted, outcome: Outcome) -> dict[str, np.ndarray]:
    probabilities = distributions(part.logits, outcome)
    highest = probabilities.max(-1)
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))  # 0 · log 0 is 0
    right = (part.logits > 0 if outcome == "classes" else part.logits.argmax(-1)) == part.targets
    return {
        "sure": highest,
        "unsure": (highest < SURE).astype(float),
        "entropy": -(probabilities * logs).sum(-1),
        "right": right[part.labelled].astype(float),
    }


def distributions(logits: np.ndarray, outcome: Outcome) -> np.ndarray:
    """Return (predictions, classes) probabilities in float64; of any number of classes (predictions, classes, 2) of no and yes."""
    if outcome == "classes":
        logits = np.stack([np.zeros_like(logits), logits], -1)
    shifted = np.exp(np.asarray(logits, float) - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))
