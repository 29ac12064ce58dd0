"""Numbers of measurements.json as people read them; a missing number is a dash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from potstill.measuring.measurements import PLAIN, inside, named, number, within
from potstill.tasks.metrics.texts import BEAM

NOTHING = "–"


UNDEFINED = "undefined"  # such as the correlation of a constant


# of metrics whose keys are no words of papers; files keep the keys
TITLES = {"bleu": "BLEU K=1", "bleu_beam": f"BLEU K={BEAM}", "chrf": "chrF", "mode": "p(ŷ)"}
TITLES |= {"rmse": "RMSE", "rmse_constant": "RMSE of a constant"}


TINY = 0.001  # of a probability


def titled(metric: Any) -> str:
    """What a metric is called where people read it."""
    return TITLES.get(str(metric)) or named(metric)


def percent(value: Any, digits: int = 1) -> str:
    return NOTHING if (known := number(value)) is None else _minus(f"{100 * known:.{digits}f}")


def points(value: Any, metric: str = "") -> str:
    """A difference of scores, with its sign."""
    return NOTHING if (known := number(value)) is None else _minus(f"{100 * known:+.{_digits(metric)}f}")


def short(value: Any) -> str:
    """A quantity with about three digits."""
    known = number(value)
    if known is None:
        return NOTHING
    return f"{known:,.0f}" if abs(known) >= 100 else f"{known:.1f}" if abs(known) >= 10 else f"{known:.2f}"


def count(value: Any) -> str:
    return NOTHING if (known := number(value)) is None else f"{known:,.0f}"


def parameters(value: Any) -> str:
    known = number(value)
    if known is None:
        return NOTHING
    return f"{known / 1e6:,.1f} M" if known >= 1e6 else f"{known / 1e3:,.1f} k" if known >= 1e3 else f"{known:.0f}"


def megabytes(value: Any) -> str:
    known = number(value)
    return NOTHING if known is None else f"{known / 1e6:,.1f}" if known >= 1e6 else f"{known / 1e6:.2g}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def in_its_unit(metric: str) -> Callable[[Any], str]:
    """How values of a metric are written: in percent, but for those that are no shares."""
    return short if metric in PLAIN else partial(_in_percent, metric)


def _in_percent(metric: str, value: Any) -> str:
    """The probability of a whole text may be tiny: two of its digits are shown then, wherever they begin."""
    if metric == "mode" and (known := number(value)) is not None and 0 < abs(known) < TINY:
        return _minus(f"{100 * known:.2g}")
    return percent(value, _digits(metric))


def _digits(metric: str) -> int:
    """A language model gives the true token some percent at most: with one digit behind the point all would be alike."""
    return 2 if metric == "likelihood" else 1


def score(model: Any, data: str, split: str, metric: str) -> str:
    """A score in percent, ± its deviation over seeds where there is one."""
    told = in_its_unit(metric)
    held = within(model, "quality", data, split)
    if metric in held and held[metric] is None:
        return UNDEFINED
    found = number(held.get(metric))
    deviation = number(inside(model, "deviation", data, split, metric))
    if found is None or not deviation:
        return told(found)
    like = told(deviation) if metric in PLAIN or abs(found) < TINY else percent(deviation, _digits(metric))
    return f"{told(found)} ± {like}"
