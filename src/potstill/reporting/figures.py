"""Figures of pages and studies as inline SVG: curves, heat maps, differences, layer maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potstill.measuring.measurements import clean
from potstill.reporting.svg import COLOURS, GREY, INK, as_svg, empty_figure, empty_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 300  # of a curve: more cannot be seen
LONGEST_LABEL = 26


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str


@as_svg
def loss_panel(key: str, title: str, curves: Sequence[Curve]) -> Figure:
    """A loss over steps (faint) and its running mean."""
    figure, axes = empty_plot(title, 300, 190)
    for curve in curves:
        x, y = thinned(curve.x, curve.y)
        if len(curves) <= 3:
            axes.plot(x, y, color=curve.colour, linewidth=0.7, alpha=0.3)
        axes.plot(*thinned(curve.x, smoothed(curve.y)), color=curve.colour, linewidth=1.6)
    axes.set_xlabel("step")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    return figure


@as_svg
def quality_panel(key: str, title: str, curves: Sequence[Curve], bounds: tuple[float, float]) -> Figure:
    """A score in percent per epoch; panels side by side share their bounds."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = empty_plot(title, 300, 190)
    for curve in curves:
        axes.plot(curve.x, curve.y, color=curve.colour, linewidth=1.6, marker="o", markersize=4)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    room = 0.08 * (bounds[1] - bounds[0]) or 1.0
    axes.set_ylim(bounds[0] - room, bounds[1] + room)
    return figure


@as_svg
def lines(
    key: str, title: str, x_label: str, y_label: str, curves: Sequence[Curve], names: Sequence[str] = ()
) -> Figure:
    """Values over a few positions on a logarithmic axis, such as temperatures."""
    figure, axes = empty_plot(title, 340, 230)
    for place, curve in enumerate(curves):
        name = clean(names[place]) if names else None
        axes.plot(curve.x, curve.y, color=curve.colour, linewidth=1.6, marker="o", markersize=4, label=name)
    axes.set_xscale("log")
    places = sorted({value for curve in curves for value in curve.x})
    axes.set_xticks(places, [f"{value:g}" for value in places])
    axes.minorticks_off()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if names:
        axes.legend(frameon=False)
    return figure


@as_svg
def heat_map(key: str, title: str, names: Sequence[str], rows: Sequence[Sequence[float]], y_label: str) -> Figure:
    """A matrix of shares, with percents in the cells that are not zero."""
    figure, axes = empty_plot(title, 90 + 30 * len(names), 90 + 24 * len(names))
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


@as_svg
def forest(key: str, title: str, names: Sequence[str], ranges: Sequence[tuple[float, float, float, bool]]) -> Figure:
    """Differences in points with their intervals: (mean, low, high, shown). An interval that crosses zero may be chance."""
    figure, axes = empty_plot(title, 380, 64 + 38 * len(names))
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


@as_svg
def layer_map(
    key: str,
    title: str,
    teacher_layers: int,
    student_layers: int,
    pairs: Sequence[tuple[int, int]],
    kept: Sequence[int | None],
) -> Figure:
    """Both stacks, the first layer at the bottom, with an arrow from each teacher layer to the student layer it teaches."""
    first = 0 if any(0 in pair for pair in pairs) else 1  # layer 0: the embeddings
    tall = max(teacher_layers, student_layers) - first + 1
    figure = empty_figure(title, 420, 40 + 24 * tall)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(0, 420)
    axes.set_ylim(0, 40 + 24 * tall)
    taught, teaching = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    apart = max(teacher_layers / student_layers, 1.0)  # the student is stretched to the height of the teacher

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
        words += f", from {origin}" if origin is not None else ""
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
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=4"
    axes.add_patch(
        FancyBboxPatch(
            (left, middle - 9), width, 18, style, facecolor=colour, alpha=0.45 if strong else 0.16, linewidth=0
        )
    )
    axes.text(left + width / 2, middle, words, ha="center", va="center", fontsize=9)


def smoothed(values: Sequence[float], most: int = 50) -> list[float]:
    """Return the running mean over the last tenth of the steps, at most 50; fewer at the start."""
    window = max(1, min(most, len(values) // 10))
    means, total = [], 0.0
    for place, value in enumerate(values):
        total += value - (values[place - window] if place >= window else 0.0)
        means.append(total / min(place + 1, window))
    return means


def thinned(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Average neighbours so that at most 300 points remain: a long run makes no long page."""
    size = -(-len(x) // MOST_POINTS) if len(x) else 1
    groups = range(0, len(x), size)
    mean = [sum(y[i : i + size]) / len(y[i : i + size]) for i in groups]
    return [x[i] for i in groups], mean
