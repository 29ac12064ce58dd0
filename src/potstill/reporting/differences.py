"""Differences between models on the page: under the page's names, sorted by verdict, and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from potstill.measuring.measurements import STUDENT, Comparison, short_name
from potstill.measuring.run_folder import FinishedRun
from potstill.measuring.significance import SHOWN, correct_comparisons
from potstill.reporting import figures
from potstill.reporting.lines import SHARED
from potstill.reporting.numbers import metric_title, points
from potstill.reporting.sentences import correction_note, difference_words, verdict_words
from potstill.reporting.tables import Line

MOST_LINES = 24  # of the figure, and of the sentences at the top


def difference_section(
    runs: Sequence[FinishedRun], lines: Sequence[Line], given: Sequence[Comparison] | None
) -> dict[str, Any]:
    """`given`: comparisons between runs; None: those of each run with its own models."""
    compared = own_differences(runs) if given is None else list(given)
    compared = with_page_names(compared, runs, lines) if len(runs) > 1 else compared
    verdicts: dict[str, list[dict[str, str]]] = {"Shown": [], "Not shown": [], "Not tested": []}
    for comparison in compared:
        verdict = "Not tested" if comparison.p is None else "Shown" if is_shown(comparison) else "Not shown"
        verdicts[verdict].append(_line(comparison))
    return {
        "between": [f"{_pair(each)}: {difference_words(each)}." for each in compared[:MOST_LINES]],
        "differences": {verdict: listed for verdict, listed in verdicts.items() if listed},
        "corrected": correction_note(compared),
        "one_seed": any(comparison.seeds == 1 for comparison in compared),
        "forest": _forest(compared),
    }


def own_differences(runs: Sequence[FinishedRun]) -> list[Comparison]:
    """Return what each run compared; with several runs under the runs' names, and corrected for all of them."""
    if len(runs) == 1:
        return runs[0].measurements.differences
    compared = [
        replace(comparison, model=run.name) if comparison.model == STUDENT else comparison
        for run in runs
        for comparison in run.measurements.differences
    ]
    return correct_comparisons(compared)


def with_page_names(
    compared: Sequence[Comparison], runs: Sequence[FinishedRun], lines: Sequence[Line]
) -> list[Comparison]:
    """Name baselines and teachers as the tables of the page do."""
    names: dict[tuple[str, str], str] = {}
    for run in runs:
        for line in lines:
            model = run.measurements.models.get(line.kind)
            if line.kind in SHARED and model is not None and model.quality == line.model.quality:
                names.setdefault((run.name, line.kind), line.name)
    return [
        replace(each, against=names.get((short_name(each.model), each.against.split(" (")[0]), each.against))
        for each in compared
    ]


def is_shown(comparison: Comparison) -> bool:
    """By the corrected p; old files have only p."""
    p = comparison.p if comparison.p_corrected is None else comparison.p_corrected
    return p is not None and p < SHOWN


def _line(comparison: Comparison) -> dict[str, str]:
    mean, low, high = (points(value, comparison.metric) for value in (comparison.mean, comparison.low, comparison.high))
    interval = f" (95 % interval {low} to {high})" if comparison.p is not None else ""
    return {
        "pair": _pair(comparison),
        "size": f"{mean} points{interval}",
        "words": verdict_words(comparison),
        "exact": ", ".join(f"{p:.2g}" for p in comparison.mcnemar),
    }


def _pair(comparison: Comparison) -> str:
    model, against, data, split = map(
        short_name, (comparison.model, comparison.against, comparison.data, comparison.split)
    )
    where = split if data == "task" else f"{data} {split}"
    return f"{model} against {against}: {metric_title(comparison.metric)} on {where}"


def _forest(compared: Sequence[Comparison]) -> Markup | None:
    ranges = {
        position: (100 * each.mean, 100 * each.low, 100 * each.high, is_shown(each))
        for position, each in enumerate(compared)
        if each.mean is not None and each.low is not None and each.high is not None
    }
    if not ranges:
        return None
    names = [_pair(compared[position]) for position in ranges]
    return Markup(
        figures.forest("forest", "Differences in points", names[:MOST_LINES], list(ranges.values())[:MOST_LINES])
    )
