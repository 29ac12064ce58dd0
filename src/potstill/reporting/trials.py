"""Curves over training steps, each the mean of several trials with bars from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potstill.measuring.measurements import clean
from potstill.reporting.svg import as_svg, empty_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_LABEL = 34


@dataclass(frozen=True)
class TrialCurve:
    """All sequences have one value for each step."""

    name: str
    steps: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str
    style: str = "-"  # of the line, as matplotlib writes it


@as_svg
def trial_curves(key: str, title: str, y_label: str, curves: Sequence[TrialCurve], x_label: str = "step") -> Figure:
    """Scores in percent over steps, or over another quantity. The axis begins where most of the curves are, so that their ends can be told apart."""
    figure, axes = empty_plot(title, 520, 340)
    for curve in curves:
        below = [mean - low for mean, low in zip(curve.mean, curve.low, strict=True)]
        above = [high - mean for mean, high in zip(curve.mean, curve.high, strict=True)]
        axes.errorbar(
            curve.steps,
            curve.mean,
            yerr=[below, above],
            color=curve.colour,
            linestyle=curve.style,
            linewidth=1.5,
            elinewidth=0.8,
            capsize=2,
            label=clean(curve.name, LONGEST_LABEL),
        )
    middles = [sorted(curve.mean)[len(curve.mean) // 2] for curve in curves]
    best = max(max(curve.high) for curve in curves)
    lowest = min(*middles, best - 1)
    axes.set_ylim(lowest - 0.6 * (best - lowest), best + 0.08 * (best - lowest))
    axes.set_xlabel(x_label)
    axes.set_ylabel(clean(y_label, 40))
    axes.legend(frameon=False, fontsize=8, loc="lower right", ncols=2)
    return figure
