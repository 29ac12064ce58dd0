"""Figures of lottery tickets show what they are given."""

from __future__ import annotations

import re

from potstill.reporting.svg import COLOURS
from potstill.reporting.trials import TrialCurve, trial_curves


def test_trials_have_a_curve_a_bar_for_each_step_and_a_name() -> None:
    curves = [
        TrialCurve("100.0 %", [1, 2, 3], [90, 92, 93], [89, 91, 92], [91, 93, 94], COLOURS[0]),
        TrialCurve("21.1 %, random structure", [1, 2, 3], [80, 91, 92], [79, 90, 91], [81, 93, 93], COLOURS[1], ":"),
    ]
    svg = trial_curves("key", "Dev by step", "dev, percent", curves)
    assert all(curve.name in svg and curve.colour in svg for curve in curves)
    assert "Dev by step" in svg and "dev, percent" in svg
    assert "stroke-dasharray" in svg  # of the dotted curve
    one = trial_curves("key", "Dev by step", "dev, percent", curves[:1])
    assert len(re.findall("<path", svg)) > len(re.findall("<path", one)) and "stroke-dasharray" not in one
    assert svg == trial_curves("key", "Dev by step", "dev, percent", curves)
