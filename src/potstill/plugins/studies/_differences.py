"""Differences between runs of a study: tests on the same rows, corrected for their number, in words and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potstill.measuring.comparisons import Predictions
from potstill.measuring.measurements import DEV
from potstill.measuring.significance import Difference, contrast, correct_differences
from potstill.reporting.figures import forest
from potstill.reporting.numbers import points


def mean_difference(ours: Sequence[Predictions | None], theirs: Sequence[Predictions | None]) -> Difference | None:
    """Return the mean of some runs minus the mean of others, on the same rows; None if a side has no predictions.

    Runs of different conditions are not seeds of each other: the effect of seeds is estimated within each condition.
    """
    left, right = ([run for run in side if run is not None] for side in (ours, theirs))
    if not left or not right:
        return None
    return weighted_difference([*((1 / len(left), run) for run in left), *((-1 / len(right), run) for run in right)])


def weighted_difference(sides: Sequence[tuple[float, Predictions | None]]) -> Difference | None:
    """Return the sum of weight × a run's mean over seeds, on the same rows.

    None if a run has no predictions, and on dev, which was used for selection.
    """
    runs = [(weight, run) for weight, run in sides if run is not None and run.split != DEV]
    if len(runs) < len(sides):
        return None
    return contrast([(weight, run.scores()) for weight, run in runs], len(runs[0][1].targets))


def corrected(differences: Mapping[str, Difference | None]) -> dict[str, Difference]:
    """Return the differences that were tested, with p corrected for their number."""
    tested = {question: difference for question, difference in differences.items() if difference is not None}
    return dict(zip(tested, correct_differences(list(tested.values())), strict=True))


def correction_notes(differences: Mapping[str, Difference]) -> list[str]:
    """Return the sentences below the differences of an answer."""
    if not differences:
        return ["Nothing was tested: dev was used for selection, and no two runs answered the same rows of a test set."]
    if len(differences) == 1:
        return []
    return [f"Each p is corrected for {len(differences)} comparisons (Holm); intervals are not corrected."]


def differences_text(differences: Mapping[str, Difference], unit: str = "points") -> list[str]:
    """Return a sentence for each difference, such as "A: +1.0 points, −0.1 to +2.0; no difference shown", and notes."""
    sentences = [
        f"{question}: {points(each.mean)} {unit}, {points(each.low)} to {points(each.high)}; {each.words}."
        for question, each in differences.items()
    ]
    return [*sentences, *correction_notes(differences)]


def forest_figure(key: str, title: str, differences: Mapping[str, Difference]) -> str:
    """Return an SVG of all differences in points, with their intervals."""
    ranges = [(100 * each.mean, 100 * each.low, 100 * each.high, each.is_shown) for each in differences.values()]
    return forest(key, f"{title}, with 95 % intervals", list(differences), ranges)
