"""Scatter plots of models, with their names placed where they cover least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potstill.measuring.measurements import clean
from potstill.reporting.svg import as_svg, empty_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, ...]  # left, bottom, right, top
LONGEST_LABEL = 26
# offsets of a name from its point, in points to the right and up
OFFSETS = [(side * (10 + abs(up) / 3), up) for up in range(-60, 61, 4) for side in (1, -1)]
OFFSETS += [(0.0, up) for up in (13, -13, 26, -26)]
OFFSETS += [(side * far, up) for side in (1, -1) for far in (40, 60, 90) for up in range(-48, 49, 12)]


@dataclass(frozen=True)
class Point:
    """A model. `low`, `high`: the interval of its quality; `other`: cost and quality in another engine or search."""

    name: str
    x: float
    y: float
    low: float | None
    high: float | None
    colour: str
    hollow: bool = False
    other: tuple[float, float] | None = None


@as_svg
def scatter(key: str, title: str, x_label: str, y_label: str, points: Sequence[Point]) -> Figure:
    """Quality against a cost that starts at zero, with the name of each point."""
    figure, axes = empty_plot(title, 380, 300)
    axes.set_xlabel(clean(x_label, 50))
    axes.set_ylabel(clean(y_label, 40))
    for point in points:
        if point.other is not None:
            there, quality = point.other
            axes.plot([there, point.x], [quality, point.y], ":", color=point.colour, linewidth=1.1)
            axes.plot([there], [quality], "o", markersize=7, markerfacecolor="none", color=point.colour)
        if point.low is not None and point.high is not None:
            axes.plot([point.x, point.x], [point.low, point.high], color=point.colour, linewidth=1.4, alpha=0.6)
        face = "none" if point.hollow else point.colour
        axes.plot(
            [point.x], [point.y], "o", markersize=7, color=point.colour, markerfacecolor=face, markeredgewidth=1.6
        )
    axes.set_xlim(0, 1.15 * max(max(point.x, point.other[0] if point.other else 0.0) for point in points) or 1)
    axes.margins(y=0.14)
    _place_names(figure, axes, points)
    return figure


def _place_names(figure: Figure, axes: Axes, points: Sequence[Point]) -> None:
    """Put names beside their points where they cover least; a distant name is joined to its point by a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout must not move what was measured
    inner: Box = tuple(axes.get_window_extent(renderer).extents)

    def pixel(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return float(across), float(up)

    taken: list[Box] = []
    labels: list[Box] = []
    for point in points:
        x, y = pixel(point.x, point.y)
        taken.append((x - 6, y - 6, x + 6, y + 6))
        if point.other is not None:
            there, up = pixel(*point.other)
            taken.append((there - 6, up - 6, there + 6, up + 6))
            wide, high = abs(there - x) / 20, abs(up - y) / 20 + 2  # half of a tenth of the line between both
            along = [(x + k / 10 * (there - x), y + k / 10 * (up - y)) for k in range(11)]
            taken += [(over - wide, at - high, over + wide, at + high) for over, at in along]
        if point.low is not None and point.high is not None:
            taken.append((x - 2, pixel(point.x, point.low)[1], x + 2, pixel(point.x, point.high)[1]))
    for point in sorted(points, key=lambda point: (-point.y, point.x)):
        x, y = pixel(point.x, point.y)
        text = clean(point.name, LONGEST_LABEL)
        wide = 6.3 * sum(2 if ord(char) > 0x2E80 else 1 for char in text)  # an estimate: the page has its own font
        offers = []
        for right, up in OFFSETS:
            left = x + right - (wide if right < 0 else wide / 2 if right == 0 else 0)
            box = (left, y + up - 6, left + wide, y + up + 6)
            covered = 3 * sum(_shared(box, other) for other in taken) + 20 * (12 * wide - _shared(box, inner))
            covered += sum(400 for other in labels if _crosses((x, y), _nearest(box, x, y), other))
            offers.append((covered + abs(right) / 2 + abs(up) + (4 if right < 0 else 0), box))
        box = min(offers)[1]
        taken.append(box)
        labels.append(box)
        near = _nearest(box, x, y)
        if (near[0] - x) ** 2 + (near[1] - y) ** 2 > 15**2:
            ends = axes.transData.inverted().transform([(x, y), near])
            axes.plot(ends[:, 0], ends[:, 1], color=point.colour, linewidth=0.7, alpha=0.7, scalex=False, scaley=False)
        edge, side = (box[2], "right") if box[2] < x else (box[0], "left")
        figure.text(edge / 72, (box[1] + 2.5) / 72, text, ha=side, transform=figure.dpi_scale_trans, fontsize=10)


def _nearest(box: Box, x: float, y: float) -> tuple[float, float]:
    """Return the point of a box that is nearest to (x, y)."""
    return min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])


def _crosses(begin: tuple[float, float], end: tuple[float, float], box: Box) -> bool:
    """Whether a line crosses a box, sampled at eleven points."""
    at = [(begin[0] + k / 10 * (end[0] - begin[0]), begin[1] + k / 10 * (end[1] - begin[1])) for k in range(11)]
    return any(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in at)


def _shared(box: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    wide, high = min(box[2], other[2]) - max(box[0], other[0]), min(box[3], other[3]) - max(box[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0
