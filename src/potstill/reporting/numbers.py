"""Numbers as people read them; a missing number is a dash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from potstill.measuring.measurements import LOWER_IS_BETTER, MeasuredModel, Place, short_name
from potstill.tasks.metrics.texts import BEAM

MISSING = "–"
UNDEFINED = "undefined"  # such as the correlation of a constant
TITLES = {  # of metrics whose keys are not the words of papers
    "bleu": "BLEU K=1",
    "bleu_beam": f"BLEU K={BEAM}",
    "chrf": "chrF",
    "mode": "p(ŷ)",
    "rmse": "RMSE",
    "rmse_constant": "RMSE of a constant",
    "next_sentence": "next sentence",
}
TINY = 0.001  # of a probability


def metric_title(metric: str) -> str:
    return TITLES.get(metric) or short_name(metric)


def percent(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else _minus(f"{100 * value:.{digits}f}")


def points(value: float | None, metric: str = "") -> str:
    """Return a difference of scores with its sign."""
    return MISSING if value is None else _minus(f"{100 * value:+.{_digits(metric)}f}")


def short(value: float | None) -> str:
    """Return a quantity with about three digits."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio(value: float | None) -> str:
    """Return "4.0×"."""
    return MISSING if value is None else f"{value:,.0f}×" if value >= 100 else f"{value:.1f}×"


def count(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def parameters(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value / 1e6:,.1f} M" if value >= 1e6 else f"{value / 1e3:,.1f} k" if value >= 1e3 else f"{value:.0f}"


def megabytes(value: float | None) -> str:
    return MISSING if value is None else f"{value / 1e6:,.1f}" if value >= 1e6 else f"{value / 1e6:.2g}"


def metric_format(metric: str) -> Callable[[float | None], str]:
    """Return the format of a metric's values: percent, unless the metric is an error."""
    return short if metric in LOWER_IS_BETTER else partial(_percent, metric)


def interval_text(ends: tuple[float, float] | None, metric: str) -> str:
    if ends is None:
        return ""
    low, high = map(metric_format(metric), ends)
    return f"{low}–{high}" if ends[0] >= 0 else f"{low} to {high}"


def score_text(model: MeasuredModel, place: Place) -> str:
    """Return a score, ± its deviation over seeds if there is one."""
    scores, value = model.scores(place.data, place.split), model.score(place)
    if value is None:
        return UNDEFINED if place.metric in scores else MISSING
    written, deviation = metric_format(place.metric), model.score_deviation(place)
    if not deviation:
        return written(value)
    # the deviation of a probability has as many digits as the probability itself
    own = place.metric in LOWER_IS_BETTER or abs(value) < TINY
    return f"{written(value)} ± {written(deviation) if own else percent(deviation, _digits(place.metric))}"


def _percent(metric: str, value: float | None) -> str:
    """The probability of a whole text may be tiny: then its first two digits are shown."""
    if metric == "mode" and value is not None and 0 < abs(value) < TINY:
        return _minus(f"{100 * value:.2g}")
    return percent(value, _digits(metric))


def _digits(metric: str) -> int:
    """Language models give the true token a few percent at most: with one decimal all would look equal."""
    return 2 if metric == "likelihood" else 1


def _minus(text: str) -> str:
    return text.replace("-", "−")
