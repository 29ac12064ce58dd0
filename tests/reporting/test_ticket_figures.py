"""Figures of lottery tickets show what they are given."""

from __future__ import annotations

import math
import re

from potstill.reporting.heat_maps import difference_map
from potstill.reporting.svg import COLOURS, GREY
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


def test_cells_of_a_map_are_dark_from_zero_on_and_lighter_below() -> None:
    rows, columns = ["mood", "words", "first-weights"], ["mood", "rte"]
    values = [[0.0, -4.0], [1.5, -0.5], [-2.0, math.nan]]
    svg = difference_map("key", "Transfer", rows, columns, values, ("found on", "trained on"))
    for text in (*rows, *columns, "+0.0", "−4.0", "+1.5", "−0.5", "−2.0", "found on", "trained on"):
        assert f">{text}<" in svg, text
    cells = re.findall(rf"fill: ({COLOURS[0]}|{GREY}); opacity: ([\d.]+)", svg)
    assert [colour for colour, _ in cells] == [COLOURS[0], GREY, COLOURS[0], GREY, GREY]
    least, near, middle = (float(cells[place][1]) for place in (1, 3, 4))
    assert least < middle < near < float(cells[0][1])
