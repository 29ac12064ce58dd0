"""Which models a page shows, under which names and in which colours."""

from __future__ import annotations

from collections.abc import Sequence

from potstill.measuring.measurements import BASELINE, TEACHER, short_name
from potstill.measuring.run_folder import FinishedRun
from potstill.reporting import svg
from potstill.reporting.svg import GREY, series_colour
from potstill.reporting.tables import Line

SHARED = [TEACHER, f"{TEACHER} int8", BASELINE, f"{BASELINE} int8"]  # models that runs may share, shown first


def page_lines(runs: Sequence[FinishedRun]) -> list[Line]:
    """All models of the page. With several runs, students have their run's name, and equal teachers and baselines are one."""
    lines: list[Line] = []
    kinds = list(dict.fromkeys([*SHARED, *(kind for run in runs for kind in run.measurements.models)]))
    for kind in kinds:
        owners: list[list[FinishedRun]] = []  # runs with the same quality of this model
        for run in runs:
            model = run.measurements.models.get(kind)
            if model is None or (len(runs) > 1 and kind.startswith(run.measurements.student_name)):
                continue
            same = [group for group in owners if group[0].measurements.models[kind].quality == model.quality]
            if same:
                same[0].append(run)
            else:
                owners.append([run])
        for place, group in enumerate(owners):
            owner = f"{group[0].name} and {len(group) - 1} more" if len(group) > 1 else group[0].name
            name = short_name(kind) if len(owners) == 1 else f"{short_name(kind)} ({owner})"
            lines.append(Line(name, kind, group[0].measurements.models[kind], _colour(kind, place)))
    for place, run in enumerate(runs if len(runs) > 1 else ()):
        student = run.measurements.student_name
        for kind, model in run.measurements.models.items():
            if kind.startswith(student):
                name = f"{run.name}{short_name(kind.removeprefix(student))}"
                lines.append(Line(name, kind, model, series_colour(place)))
    return lines


def _colour(kind: str, place: int) -> str:
    if kind.startswith(TEACHER):
        return GREY
    return svg.BASELINE if kind.startswith(BASELINE) else series_colour(place)
