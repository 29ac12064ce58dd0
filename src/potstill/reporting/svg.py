"""Drawing with matplotlib into inline SVG: the same bytes for the same values, for light and dark pages.

Text stays text, in the page's own font and colour; nothing is loaded. Figures are small, to be read on a phone too.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any

from potstill.measuring.measurements import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"  # stands for the page's text colour and is replaced by it at the end
GREY = "#8b919b"
BASELINE = "#d1812f"
COLOURS = ("#3f83c6", "#3a9d6b", "#b3599c", "#2b9c9c", "#8c7ad0", "#9a8a2e", "#c2605a", "#6b8f3a")
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label may contain a dollar
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


def series_colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def as_svg(draw: Callable[..., Figure]) -> Callable[..., str]:
    """Turn a function that draws a figure into one that returns SVG. `key` keeps the ids of figures of a page distinct."""

    @wraps(draw)
    def drawn(key: str, *values: Any, **options: Any) -> str:
        import matplotlib  # here, so that `potstill list` shows studies without it

        settings: Any = SETTINGS | {"svg.hashsalt": key}
        with matplotlib.rc_context(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # glyphs that matplotlib's font lacks: the browser draws them
            figure = draw(key, *values, **options)
            file = io.StringIO()
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        return _inline(file.getvalue(), str(figure.get_label()))

    return drawn


def _inline(svg: str, title: str) -> str:
    """Remove the prologue, metadata, the style that would apply to the whole page, and unused ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, count=0, flags=re.DOTALL)
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, count=1, flags=re.DOTALL)
    body = svg[svg.index(">") + 1 :]
    used = {name for pair in re.findall(r"url\(#([^)]+)\)|xlink:href=\"#([^\"]+)\"", body) for name in pair if name}
    body = re.sub(r"<(g|path|clipPath) id=\"([^\"]+)\"", lambda m: m[0] if m[2] in used else f"<{m[1]}", body)
    view = re.search(r"viewBox=\"([\d. ]+)\"", svg)
    box = view[1] if view else "0 0 1 1"
    width = float(box.split()[2])
    head = f'<svg role="img" aria-label="{escape(title)}" viewBox="{box}" style="max-width:{1.35 * width:.0f}px">'
    return re.sub(r"\n\s*", "\n", head + body.replace(INK, "currentColor"))


def empty_figure(title: str, width: float, height: float) -> Figure:
    """Make a figure of a size in points. It is unknown to pyplot, so it is freed after use."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
    figure.set_label(clean(title))
    return figure


def empty_plot(title: str, width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.ticker import MaxNLocator

    figure = empty_figure(title, width, height)
    axes = figure.add_subplot()
    axes.set_title(clean(title, 44))
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return figure, axes
