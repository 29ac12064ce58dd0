"""Figures as inline SVG: the same bytes for the same values, no fonts, no network, readable on light and dark pages.

Text stays text, in the page's own font and colour. Figures are small, so that they are as readable on a phone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from potstill.measuring.measurements import clean

Box = tuple[float, ...]  # left, bottom, right, top
INK = "#010203"  # stands for the page's text colour, and is put in its place at the end
GREY = "#8b919b"
COLOURS = ("#3f83c6", "#3a9d6b", "#b3599c", "#2b9c9c", "#8c7ad0", "#9a8a2e", "#c2605a", "#6b8f3a")
BASELINE = "#d1812f"
MOST_POINTS = 300  # of a curve: more cannot be seen
LONGEST_LABEL = 26
# where a name may stand: points to the right of and above what it names
PLACES = [(side * (10 + abs(up) / 3), up) for up in range(-60, 61, 4) for side in (1, -1)]
PLACES += [(0.0, up) for up in (13, -13, 26, -26)]
PLACES += [(side * far, up) for side in (1, -1) for far in (40, 60, 90) for up in range(-48, 49, 12)]
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label may hold a dollar
    "axes.formatter.use_mathtext": False,
    "axes.formatter.useoffset": False,
    "path.simplify": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that widths are the same everywhere
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
}


@dataclass(frozen=True)
class Point:
    """A model in a scatter plot. low and high are the interval of its quality; elsewhere are cost and quality
    in another runtime or by another search."""

    name: str
    x: float
    y: float
    low: float | None
    high: float | None
    colour: str
    hollow: bool = False
    elsewhere: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str


def _drawn(draw: Callable[..., Figure]) -> Callable[..., str]:
    """A function that draws, as one that returns SVG. `key` keeps the ids of the figures of a page apart."""

    @wraps(draw)
    def drawn(key: str, *values: Any, **named: Any) -> str:
        settings: Any = SETTINGS | {"svg.hashsalt": key}
        with matplotlib.rc_context(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks: the browser draws it
            figure = draw(key, *values, **named)
            file = io.StringIO()
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        return _inline(file.getvalue(), str(figure.get_label()))

    return drawn


def _inline(svg: str, title: str) -> str:
    """The picture alone: without prologue, metadata, the style that would reach the whole page, and ids nobody asks for."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, count=0, flags=re.DOTALL)
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, count=1, flags=re.DOTALL)
    body = svg[svg.index(">") + 1 :]
    used = set(re.findall(r"url\(#([^)]+)\)|xlink:href=\"#([^\"]+)\"", body))
    asked = {one for pair in used for one in pair if one}
    body = re.sub(r"<(g|path|clipPath) id=\"([^\"]+)\"", lambda m: m[0] if m[2] in asked else f"<{m[1]}", body)
    found = re.search(r"viewBox=\"([\d. ]+)\"", svg)
    box = found[1] if found else "0 0 1 1"
    width = float(box.split()[2])
    head = f'<svg role="img" aria-label="{escape(title)}" viewBox="{box}" style="max-width:{1.35 * width:.0f}px">'
    return re.sub(r"\n\s*", "\n", head + body.replace(INK, "currentColor"))


def _figure(title: str, width: float, height: float) -> Figure:
    """An empty figure, in points; it does not know pyplot, so nothing of it stays."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
    figure.set_label(clean(title))
    return figure


def _plot(title: str, width: float, height: float) -> tuple[Figure, Axes]:
    figure = _figure(title, width, height)
    axes = figure.add_subplot()
    axes.set_title(clean(title, 44))
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return figure, axes


@_drawn
def scatter(key: str, title: str, x_label: str, y_label: str, places: Sequence[Point]) -> Figure:
    """Quality against a cost, from zero cost on; each point carries its name."""
    figure, axes = _plot(title, 380, 300)
    axes.set_xlabel(clean(x_label, 50))
    axes.set_ylabel(clean(y_label, 40))
    for one in places:
        if one.elsewhere is not None:
            there, quality = one.elsewhere
            axes.plot([there, one.x], [quality, one.y], ":", color=one.colour, linewidth=1.1)
            axes.plot([there], [quality], "o", markersize=7, markerfacecolor="none", color=one.colour)
        if one.low is not None and one.high is not None:
            axes.plot([one.x, one.x], [one.low, one.high], color=one.colour, linewidth=1.4, alpha=0.6)
        face = "none" if one.hollow else one.colour
        axes.plot([one.x], [one.y], "o", markersize=7, color=one.colour, markerfacecolor=face, markeredgewidth=1.6)
    axes.set_xlim(0, 1.15 * max(max(one.x, one.elsewhere[0] if one.elsewhere else 0.0) for one in places) or 1)
    axes.margins(y=0.14)
    _label(figure, axes, places)
    return figure


def _label(figure: Figure, axes: Axes, places: Sequence[Point]) -> None:
    """Names beside their points, each where it covers least; a far one is joined to its point by a line."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what was measured stays where it is
    inner: Box = tuple(axes.get_window_extent(renderer).extents)

    def pixel(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return float(across), float(up)

    taken: list[Box] = []
    labels: list[Box] = []
    for one in places:
        x, y = pixel(one.x, one.y)
        taken.append((x - 6, y - 6, x + 6, y + 6))
        if one.elsewhere is not None:
            there, up = pixel(*one.elsewhere)
            taken.append((there - 6, up - 6, there + 6, up + 6))
            wide, high = abs(there - x) / 20, abs(up - y) / 20 + 2  # of a tenth of the line between the two, halved
            along = [(x + k / 10 * (there - x), y + k / 10 * (up - y)) for k in range(11)]
            taken += [(over - wide, at - high, over + wide, at + high) for over, at in along]
        if one.low is not None and one.high is not None:
            taken.append((x - 2, pixel(one.x, one.low)[1], x + 2, pixel(one.x, one.high)[1]))
    for one in sorted(places, key=lambda one: (-one.y, one.x)):
        x, y = pixel(one.x, one.y)
        text = clean(one.name, LONGEST_LABEL)
        wide = 6.3 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in text)  # the page's font is not known here
        offers = []
        for right, up in PLACES:
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
            axes.plot(ends[:, 0], ends[:, 1], color=one.colour, linewidth=0.7, alpha=0.7, scalex=False, scaley=False)
        edge, side = (box[2], "right") if box[2] < x else (box[0], "left")
        figure.text(edge / 72, (box[1] + 2.5) / 72, text, ha=side, transform=figure.dpi_scale_trans, fontsize=10)


def _nearest(box: Box, x: float, y: float) -> tuple[float, float]:
    """The point of a box that is nearest to another."""
    return min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])


def _crosses(begin: tuple[float, float], end: tuple[float, float], box: Box) -> bool:
    """Whether a line runs through a box, looked at in ten places."""
    at = [(begin[0] + k / 10 * (end[0] - begin[0]), begin[1] + k / 10 * (end[1] - begin[1])) for k in range(11)]
    return any(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in at)


def _shared(one: Box, other: Box) -> float:
    """Area that two boxes share."""
    wide, high = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


@_drawn
def loss_panel(key: str, title: str, curves: Sequence[Curve]) -> Figure:
    """A loss over steps: faint as it was, and its running mean."""
    figure, axes = _plot(title, 300, 190)
    for one in curves:
        x, y = thinned(one.x, one.y)
        if len(curves) <= 3:
            axes.plot(x, y, color=one.colour, linewidth=0.7, alpha=0.3)
        axes.plot(*thinned(one.x, smoothed(one.y)), color=one.colour, linewidth=1.6)
    axes.set_xlabel("step")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    return figure


@_drawn
def quality_panel(key: str, title: str, curves: Sequence[Curve], bounds: tuple[float, float]) -> Figure:
    """A score in percent per epoch; panels that stand side by side share their bounds."""
    figure, axes = _plot(title, 300, 190)
    for one in curves:
        axes.plot(one.x, one.y, color=one.colour, linewidth=1.6, marker="o", markersize=4)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    room = 0.08 * (bounds[1] - bounds[0]) or 1.0
    axes.set_ylim(bounds[0] - room, bounds[1] + room)
    return figure


@_drawn
def lines(
    key: str, title: str, x_label: str, y_label: str, curves: Sequence[Curve], names: Sequence[str] = ()
) -> Figure:
    """Values at a few places, such as temperatures, that lie apart by factors."""
    figure, axes = _plot(title, 340, 230)
    for place, one in enumerate(curves):
        name = clean(names[place]) if names else None
        axes.plot(one.x, one.y, color=one.colour, linewidth=1.6, marker="o", markersize=4, label=name)
    axes.set_xscale("log")
    places = sorted({value for one in curves for value in one.x})
    axes.set_xticks(places, [f"{value:g}" for value in places])
    axes.minorticks_off()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if names:
        axes.legend(frameon=False)
    return figure


@_drawn
def heat_map(key: str, title: str, names: Sequence[str], rows: Sequence[Sequence[float]], y_label: str) -> Figure:
    """A square of shares, with the percent in each cell that has any."""
    figure, axes = _plot(title, 90 + 30 * len(names), 90 + 24 * len(names))
    axes.grid(visible=False)
    most = max(value for row in rows for value in row)
    for row, values in enumerate(rows):
        for place, value in enumerate(values):
            axes.fill(
                [place, place + 1, place + 1, place], [row, row, row + 1, row + 1], COLOURS[0], alpha=value / most
            )
            axes.text(place + 0.5, row + 0.5, f"{100 * value:.0f}" if value >= 0.005 else "", ha="center", va="center")
    middles = [place + 0.5 for place in range(len(names))]
    shown = [clean(name, LONGEST_LABEL) for name in names]
    axes.set_xticks(middles, shown)
    axes.set_yticks(middles, shown)
    axes.invert_yaxis()
    axes.set_ylabel(y_label)
    return figure


@_drawn
def forest(key: str, title: str, names: Sequence[str], ranges: Sequence[tuple[float, float, float, bool]]) -> Figure:
    """Differences in points with their intervals: (mean, low, high, shown). What crosses zero may be chance."""
    figure, axes = _plot(title, 380, 64 + 38 * len(names))
    axes.grid(axis="y", visible=False)
    for row, (name, (mean, low, high, shown)) in enumerate(zip(names, ranges, strict=True)):
        colour = COLOURS[0] if shown else GREY
        axes.plot([0, 0], [-row - 0.2, -row + 0.2], color=INK, linewidth=1)
        axes.plot([low, high], [-row, -row], color=colour, linewidth=2)
        axes.plot([mean], [-row], "o", color=colour, markersize=6)
        axes.annotate(
            clean(name, 54), (0, -row), xycoords=("axes fraction", "data"), xytext=(0, 10), textcoords="offset points"
        )
    axes.set_ylim(-len(names) + 0.6, 0.8)
    axes.margins(x=0.08)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("points, with the 95 % interval")
    return figure


@_drawn
def layer_map(
    key: str,
    title: str,
    teacher_layers: int,
    student_layers: int,
    pairs: Sequence[tuple[int, int]],
    kept: Sequence[int | None],
) -> Figure:
    """Both stacks, the first layer at the bottom, and an arrow from each layer that teaches to the one it teaches."""
    first = 0 if any(0 in pair for pair in pairs) else 1  # layer 0: the embeddings
    tall = max(teacher_layers, student_layers) - first + 1
    figure = _figure(title, 420, 40 + 24 * tall)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(0, 420)
    axes.set_ylim(0, 40 + 24 * tall)
    taught, teaching = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    apart = max(teacher_layers / student_layers, 1.0)  # the student is stretched, so that depth compares to depth

    def height(layer: int, student: bool) -> float:
        return 16 + 24 * (layer * (apart if student else 1.0) - first)

    axes.text(90, 40 + 24 * tall - 14, "teacher", ha="center", fontsize=10.5)
    axes.text(325, 40 + 24 * tall - 14, "student", ha="center", fontsize=10.5)
    for layer in range(first, teacher_layers + 1):
        words = f"layer {layer}" if layer else "embeddings"
        _box(axes, 40, height(layer, False), 100, words, GREY, layer in teaching)
    for layer in range(first, student_layers + 1):
        origin = kept[layer - 1] if 0 < layer <= len(kept) else None
        words = f"layer {layer}" if layer else "embeddings"
        words += f", began as {origin}" if origin is not None else ""
        _box(axes, 250, height(layer, True), 150, words, COLOURS[0], layer in taught)
    for ours, theirs in pairs:
        axes.annotate(
            "",
            (248, height(ours, True)),
            (142, height(theirs, False)),
            arrowprops={"arrowstyle": "-|>", "color": COLOURS[0], "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0},
        )
    return figure


def _box(axes: Axes, left: float, middle: float, width: float, words: str, colour: str, strong: bool) -> None:
    style = "round,pad=0,rounding_size=4"
    axes.add_patch(
        FancyBboxPatch(
            (left, middle - 9), width, 18, style, facecolor=colour, alpha=0.45 if strong else 0.16, linewidth=0
        )
    )
    axes.text(left + width / 2, middle, words, ha="center", va="center", fontsize=9)


def smoothed(values: Sequence[float], most: int = 50) -> list[float]:
    """Running mean over a tenth of the steps, at most 50; shorter where the curve begins, and never looking ahead."""
    window = max(1, min(most, len(values) // 10))
    means, total = [], 0.0
    for place, value in enumerate(values):
        total += value - (values[place - window] if place >= window else 0.0)
        means.append(total / min(place + 1, window))
    return means


def thinned(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most 300 points: means of neighbours, so that a long run makes no long page."""
    several = -(-len(x) // MOST_POINTS) if len(x) else 1
    groups = range(0, len(x), several)
    mean = [sum(y[i : i + several]) / len(y[i : i + several]) for i in groups]
    return [x[i] for i in groups], mean
