"""Heat maps of differences: cells that are not below zero are dark, the others are lighter the further they are below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from potstill.measuring.measurements import clean
from potstill.reporting.svg import COLOURS, GREY, as_svg, empty_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_LABEL = 20
DARK, LIGHTEST = 0.75, 0.04  # opacity


@as_svg
def difference_map(
    key: str,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    labels: tuple[str, str],
) -> Figure:
    """(rows, columns) differences, each written into its cell; a NaN is an empty cell. `labels`: of the rows and the columns."""
    figure, axes = empty_plot(title, 150 + 62 * len(columns), 110 + 28 * len(rows))
    axes.grid(visible=False)
    known = [value for row in values for value in row if not math.isnan(value)]
    lowest = min([*known, -1e-9])
    for row, of_row in enumerate(values):
        for place, value in enumerate(of_row):
            if math.isnan(value):
                continue
            below = LIGHTEST + 0.35 * (1 - value / lowest)
            colour, opacity = (COLOURS[0], DARK) if value >= 0 else (GREY, below)
            corners = [place, place + 1, place + 1, place], [row, row, row + 1, row + 1]
            axes.fill(*corners, color=colour, alpha=opacity, linewidth=0)
            axes.text(place + 0.5, row + 0.5, f"{value:+.1f}".replace("-", "−"), ha="center", va="center", fontsize=9)
    axes.set_xticks([place + 0.5 for place in range(len(columns))], [clean(name, LONGEST_LABEL) for name in columns])
    axes.set_yticks([row + 0.5 for row in range(len(rows))], [clean(name, LONGEST_LABEL) for name in rows])
    axes.tick_params(axis="x", labelrotation=30)
    axes.invert_yaxis()
    axes.set_ylabel(clean(labels[0], 40))
    axes.set_xlabel(clean(labels[1], 40))
    return figure
