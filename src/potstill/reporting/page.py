"""The report of one or more finished runs: a single HTML file without script and without network.

It is a pure function of the runs' folders: the same folders give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from potstill.errors import InputError
from potstill.measuring.measurements import (
    BASELINE,
    LOWER_IS_BETTER,
    STUDENT,
    Comparison,
    Disagreement,
    Place,
    as_number,
    clean,
    short_name,
)
from potstill.measuring.run_folder import FinishedRun, finished_runs
from potstill.recipe.task_words import words_of_run
from potstill.reporting.breakdown import breakdown_table
from potstill.reporting.classes import confusions, per_class, soft_targets
from potstill.reporting.columns import ALL_SCORES, COST, QUALITY, columns
from potstill.reporting.deployed import deployed_sentence
from potstill.reporting.differences import difference_section
from potstill.reporting.knowledge import knowledge_of_run, knowledge_tables
from potstill.reporting.lines import page_lines
from potstill.reporting.numbers import TITLES, percent, short
from potstill.reporting.page_figures import layer_maps, learning_curves, scatters
from potstill.reporting.sentences import (
    caveats,
    gap_sentences,
    headline,
    no_baseline,
    rate_sentences,
    signatures,
    verdicts,
)
from potstill.reporting.svg import series_colour
from potstill.reporting.tables import Line, grid_table, page_table
from potstill.system.files import write_atomically
from potstill.system.paths import output_path
from potstill.tasks.metrics.texts import BEAM

MOST_EXAMPLES = 30  # disagreements per data set
MOST_TEXT = 500  # characters of each
PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]{1,200000}={0,2}")
MARK = b'<meta name="generator" content="potstill">'  # of every page: a file that has it may be replaced


def write_report(
    runs: Sequence[Path], out: Path, comparisons: Sequence[Comparison] | None = None, overwrite: bool = False
) -> Path:
    """Write the page about `runs` to the file `out`. `comparisons`: between runs, from `measuring.comparisons`.

    An earlier page is replaced; any other file only with `overwrite`.
    """
    read = finished_runs(runs)
    out = refuse_place(out, overwrite)
    page = render(read, comparisons)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode("utf-8", "replace"))
    return out


def refuse_place(out: Path, overwrite: bool) -> Path:
    """Return the path of the page; InputError where it would replace a file that potstill did not write."""
    out = output_path(out)
    if out.is_dir():
        raise InputError(f"{out} is a folder; write a file, such as --out {out / 'report.html'}")
    if out.exists() and not overwrite and (not out.is_file() or MARK not in out.read_bytes()[:1000]):
        raise InputError(f"{out} is not a page of potstill; give another name with --out, or --overwrite to replace it")
    return out


@cache
def page_template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def render(runs: Sequence[FinishedRun], comparisons: Sequence[Comparison] | None) -> str:
    lines = page_lines(runs)
    places = list(dict.fromkeys(place for run in runs for place in run.measurements.quoted()))
    return page_template().render(
        title=", ".join(run.name for run in runs),
        several=len(runs) > 1,
        seeds=max(len(run.measurements.seeds) for run in runs),
        **summary_section(runs),
        **table_section(runs, lines),
        scatters=[figure for place in places for figure in scatters(lines, place, len(places) > 1)],
        **difference_section(runs, lines, comparisons),
        **learning_section(runs),
        **class_section(runs, lines, places),
        knowledge=[
            (run.name, tables, knowledge_of_run(run.measurements))
            for run in runs
            if (tables := knowledge_tables(run.measurements))
        ],
        layer_maps=[(run.name, maps) for key, run in enumerate(runs) if (maps := layer_maps(run, key))],
        disagreements=[(run.name, listed) for run in runs if (listed := disagreements(run))],
        grids=[(run.name, table) for run in runs if (table := grid_table(run))],
        recipes=[(run.name, run.recipe) for run in runs],
        facts=[(run.name, facts(run)) for run in runs],
    )


def summary_section(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Sentences per run. With several runs, verdicts are those of the page, corrected for all of its comparisons."""
    said = [verdicts] if len(runs) == 1 else [gap_sentences, no_baseline]
    said.append(caveats)
    return {
        "summaries": [
            (
                run.name,
                [*headline(run.measurements), *deployed(run)],
                [words for say in said for words in say(run.measurements)],
            )
            for run in runs
        ]
    }


def deployed(run: FinishedRun) -> list[str]:
    """The sentence about the form of the student that is kept to be used."""
    sentence = deployed_sentence(run.measurements)
    return [f"Deployed, in the folder deployed: {sentence}."] if sentence else []


def table_section(runs: Sequence[FinishedRun], lines: Sequence[Line]) -> dict[str, Any]:
    measured = [run.measurements for run in runs]
    listed = columns(measured, [line.model for line in lines])
    metrics = {metric for run in measured for names in run.metrics.values() for metric in names}
    return {
        "quality": page_table(lines, listed, QUALITY),
        "cost": page_table(lines, listed, COST),
        "breakdown": breakdown_table(lines),
        "all_scores": page_table(lines, listed, ALL_SCORES),
        "has_errors": bool(metrics & set(LOWER_IS_BETTER)),
        "has_baseline": {BASELINE, STUDENT} <= {line.kind for line in lines},
        "searched": any(line.model.searches for line in lines),
        "beam": BEAM,
        "titles": TITLES,
        "signatures": list(dict.fromkeys(words for run in measured for words in signatures(run))),
        "busy": list(dict.fromkeys(clean(run.too_busy, 200) for run in measured if run.too_busy)),
        "differ": words_of_run(
            {task for run in measured for task in run.tasks.values()},
            {form for run in measured for form in run.forms.values()},
        ).differ,
    }


def learning_section(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    curves = [(run.name, stages) for key, run in enumerate(runs) if (stages := learning_curves(run, key))]
    seeds = max((run.seeds for run in runs), key=len)
    return {
        "curves": curves,
        "rates": [(run.name, said) for run in runs if (said := rate_sentences(run.measurements))],
        "on_train": any("train" in stage["splits"] for _, stages in curves for stage in stages),
        "seed_colours": [(name, series_colour(place)) for place, (name, _) in enumerate(seeds) if len(seeds) > 1],
    }


def class_section(runs: Sequence[FinishedRun], lines: Sequence[Line], places: Sequence[Place]) -> dict[str, Any]:
    return {
        "confusions": [tables for place in places if (tables := confusions(runs, lines, place))],
        "per_class": [tables for place in places if (tables := per_class(lines, place))],
        "soft_targets": [tables for place in places for tables in soft_targets(runs, lines, place)],
    }


def disagreements(run: FinishedRun) -> list[dict[str, Any]]:
    """Rows that student and teacher answer differently, per data set."""
    return [
        {"data": short_name(data), "rows": [_example(row) for row in rows[:MOST_EXAMPLES]]}
        for data, rows in run.measurements.disagreements.items()
        if rows
    ]


def _example(row: Disagreement) -> dict[str, Any]:
    sides = {"teacher": (row.teacher, row.teacher_probability), "student": (row.student, row.student_probability)}
    return {
        "texts": [clean(text, MOST_TEXT) for text in (row.text, row.pair) if text],
        "picture": row.picture if PICTURE.fullmatch(row.picture or "") else None,
        "split": short_name(row.split or ""),
        "label": None if row.label is None else _answer(row.label),
        "answers": [
            (side, _answer(answer), percent(probability), answer == row.label)
            for side, (answer, probability) in sides.items()
        ],
    }


def _answer(value: Any) -> str:
    """A class, a list of classes, a text or a number."""
    if isinstance(value, list):
        return short_name(", ".join(map(str, value)) or "none")
    return short(as_number(value)) if isinstance(value, float) else clean(value, MOST_TEXT)


def facts(run: FinishedRun) -> list[tuple[str, str]]:
    """What else decides a result, or identifies it."""
    measured = run.measurements
    listed = [
        ("seeds", ", ".join(map(short_name, measured.seeds))),
        ("device", short_name(measured.device or "")),
        ("seconds of asking the teacher", "" if measured.teacher_seconds is None else short(measured.teacher_seconds)),
        *((short_name(name), short_name(version)) for name, version in measured.versions.items()),
        *((f"hash of {short_name(name)}", short_name(digest)) for name, digest in measured.hashes.items()),
    ]
    if run.recipe.startswith("# fingerprint "):
        fingerprint = run.recipe.splitlines()[0].removeprefix("# fingerprint ")
        listed.append(("fingerprint of the recipe", short_name(fingerprint)))
    return [(name, value) for name, value in listed if value]
