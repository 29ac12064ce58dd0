"""How sure a model is, how often it is right, and the temperature at which the two agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from potstill.inference.answers import Predicted

if TYPE_CHECKING:
    from potstill.signals import Outcome

COLDEST, HOTTEST = 0.05, 20.0  # temperatures that are tried
SMALLEST = 1e-9  # probability that a student is taken to give a class
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
    predicted = part.logits > 0 if outcome == "classes" else part.logits.argmax(-1)
    right = predicted == part.targets
    return {
        "sure": highest,
        "unsure": (highest < SURE).astype(float),
        "entropy": -(probabilities * logs).sum(-1),
        "right": right[part.labelled].astype(float),
    }


def distributions(logits: np.ndarray, outcome: Outcome) -> np.ndarray:
    """Return (predictions, classes) probabilities in float64; of any number of classes (predictions · classes, 2) of no and yes."""
    logits = exclusive(logits, outcome)
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def exclusive(logits: np.ndarray, outcome: Outcome) -> np.ndarray:
    """Return logits in float64 of classes that exclude each other: of any number of classes those of no and yes for each."""
    if outcome == "classes":
        logits = np.stack([np.zeros(logits.size), logits.ravel()], -1)
    return np.asarray(logits, float)


def divergences(taught: np.ndarray, logits: np.ndarray, outcome: Outcome) -> np.ndarray:
    """Return (predictions,) KL(taught ‖ student) in nats, summed over classes; of any number of classes over every yes and no;
    of values their squared error."""
    if outcome == "value":
        return np.asarray(np.square(taught[:, 0].astype(float) - logits[:, 0]))
    p, q = distributions(taught, outcome), distributions(logits, outcome)
    logs = np.log(np.where(p > 0, p, 1.0)) - np.log(np.maximum(q, SMALLEST))
    return np.asarray((p * logs).sum(-1))


def calibrated_loss(parts: Iterable[Predicted], outcome: Outcome) -> float:
    """Return the mean of −log of the labels' probabilities at the temperature where it is lowest; of values the squared error."""
    if outcome == "value":
        return float(np.concatenate([_errors(part)["error"] for part in parts]).mean())
    every = list(parts)
    temperature = fit_temperature(every, outcome)
    return mean_loss((replace(part, logits=part.logits / temperature) for part in every), outcome)


def mean_loss(parts: Iterable[Predicted], outcome: Outcome) -> float:
    """Return the mean of −log of the labels' probabilities, over predictions with a label."""
    losses = [_label_losses(part, outcome) for part in parts]
    return float(np.concatenate(losses).mean())


def _label_losses(part: Predicted, outcome: Outcome) -> np.ndarray:
    targets = part.targets[part.labelled].astype(int).ravel()
    return _losses(exclusive(part.logits[part.labelled], outcome), targets)


def fit_temperature(parts: Sequence[Predicted], outcome: Outcome) -> float:
    """Return the temperature at which the labels are most probable (Guo et al., 2017, arXiv:1706.04599).

    One prediction is added in which every class is right alike: where all are right, the best temperature would be 0.
    """
    from scipy.optimize import minimize_scalar

    every = [(exclusive(part.logits[part.labelled], outcome), part.targets[part.labelled]) for part in parts]
    known = [(logits, targets.astype(int).ravel()) for logits, targets in every if len(logits)]
    count = sum(map(len, (targets for _, targets in known)))

    def loss(log_temperature: float) -> float:
        scaled = [(logits / np.exp(log_temperature), targets) for logits, targets in known]
        return sum(_losses(*each).sum() + _losses_of_all(each[0]).sum() / count for each in scaled)

    bounds = (np.log(COLDEST), np.log(HOTTEST))
    # in the inverse of the temperature the loss is convex: there is one minimum
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return float(np.exp(found.x))


def _losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(n,) −log of the probability of the target."""
    return _log_sums(logits) - logits[np.arange(len(logits)), targets]


def _losses_of_all(logits: np.ndarray) -> np.ndarray:
    """(n,) the mean over the possible classes."""
    possible = np.isfinite(logits)
    return _log_sums(logits) - np.where(possible, logits, 0.0).sum(-1) / possible.sum(-1)


def _log_sums(logits: np.ndarray) -> np.ndarray:
    highest = logits.max(-1)
    return np.asarray(highest + np.log(np.exp(logits - highest[:, None]).sum(-1)))
