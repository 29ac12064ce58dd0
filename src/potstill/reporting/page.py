"""One page about one or more finished runs: a single HTML file without script and without network.

It is a pure function of the runs' folders: the same folders give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from potstill.errors import InputError
from potstill.measuring.measurements import (
    PLAIN,
    clean,
    data_sets,
    differences,
    inside,
    interval,
    metrics_of,
    named,
    number,
    quoted,
    searches,
    seeds_of,
    signatures,
    within,
)
from potstill.measuring.run_folder import (
    NO_TERMS,
    FinishedRun,
    columns_of,
    finished_runs,
    shared_or_first,
    stage_folders,
)
from potstill.measuring.significance import SHOWN, told_together
from potstill.reporting import figures as plots
from potstill.reporting.numbers import TITLES, percent, points, short, titled
from potstill.reporting.sentences import caveats, headline, how_corrected, no_baseline, points_and_words, verdicts
from potstill.reporting.tables import (
    FIRST,
    Line,
    all_lines,
    all_scores,
    confusions,
    cost_table,
    grid_table,
    per_class,
    quality_table,
    soft_targets,
)
from potstill.system.files import write_atomically
from potstill.system.paths import output_path
from potstill.tasks.metrics.texts import BEAM

MOST_EXAMPLES = 30  # rows that student and teacher disagree about, per data set
MOST_TEXT = 500  # characters of each
MOST_LAYERS = 200
PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]{1,200000}={0,2}")
MARK = b'<meta name="generator" content="potstill">'  # of every page: what has it may be replaced by another
MOST_LINES = 24  # of the figure of differences


def write_report(
    runs: Sequence[Path], out: Path, comparisons: list[dict[str, Any]] | None = None, overwrite: bool = False
) -> Path:
    """The page about `runs`, in the file `out`. `comparisons` has the form of a run's differences, between runs.

    An earlier page is replaced; any other file only with `overwrite`.
    """
    read = finished_runs(runs)
    out = refuse_place(out, overwrite)
    page = rendered(read, comparisons)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode("utf-8", "replace"))
    return out


def refuse_place(out: Path, overwrite: bool) -> Path:
    """Where the page will lie: not in the place of what potstill did not write."""
    out = output_path(out)
    if out.is_dir():
        raise InputError(f"{out} is a folder; write a file, such as --out {out / 'report.html'}")
    if out.exists() and not overwrite and (not out.is_file() or MARK not in out.read_bytes()[:1000]):
        raise InputError(f"{out} is no page of potstill; give another name with --out, or --overwrite to replace it")
    return out


def rendered(runs: Sequence[FinishedRun], comparisons: list[dict[str, Any]] | None) -> str:
    lines = all_lines(runs)
    compared = differences({"differences": comparisons}) if comparisons is not None else own_differences(runs)
    compared = under_shown_names(compared, runs, lines) if len(runs) > 1 else compared
    places = list(dict.fromkeys(place for run in runs for place in quoted(run.found)))
    longest = max((run.parts for run in runs), key=len)
    learned = [(run.name, panels) for number, run in enumerate(runs) if (panels := curves(run, number))]
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(
        title=", ".join(run.name for run in runs),
        several=len(runs) > 1,
        # what runs say of themselves is corrected for fewer comparisons than this page has
        headlines=[
            (
                run.name,
                headline(run.found),
                [*(verdicts(run.found) if len(runs) == 1 else no_baseline(run.found)), *caveats(run.found)],
            )
            for run in runs
        ],
        between=[f"{_compared(one)}: {points_and_words(one)}." for one in compared[:MOST_LINES]],
        has_plain=any(
            metric in PLAIN for run in runs for data in data_sets(run.found) for metric in metrics_of(run.found, data)
        ),
        written=bool(searches({line.name: line.model for line in lines})),
        written_texts=any("translate" in within(run.found, "tasks").values() for run in runs),
        beam=BEAM,
        titles=TITLES,
        signatures=list(dict.fromkeys(one for run in runs for one in signatures(run.found))),
        busy=list(dict.fromkeys(clean(run.found["too_busy"], 200) for run in runs if run.found.get("too_busy"))),
        has_baseline={"fine-tuned", "distilled"} <= {line.kind for line in lines},
        seeds=max(len(seeds_of(run.found)) for run in runs),
        seed_colours=[(name, _seed_colour(place)) for place, (name, _) in enumerate(longest) if len(longest) > 1],
        tables=[quality_table(runs, lines), cost_table(lines)],
        all_scores=all_scores(runs, lines),
        scatters=[one for place in places for one in scatters(lines, place, len(places) > 1)],
        differences=difference_lines(compared),
        corrected=how_corrected(compared),
        one_seed=any(one.get("seeds") == 1 for one in compared),
        forest=forest(compared),
        curves=learned,
        on_train=any("train" in stage["splits"] for _, panels in learned for stage in panels),
        confusions=[one for place in places if (one := confusions(runs, lines, *place))],
        per_class=[one for place in places if (one := per_class(runs, lines, *place))],
        soft_targets=[one for place in places for one in soft_targets(runs, lines, *place)],
        layer_maps=[(run.name, maps) for number, run in enumerate(runs) if (maps := layer_maps(run, number))],
        disagreements=[(run.name, found) for run in runs if (found := disagreements(run))],
        grids=[(run.name, table) for run in runs if (table := grid_table(run))],
        recipes=[(run.name, run.recipe) for run in runs],
        facts=[(run.name, facts(run)) for run in runs],
    )


def own_differences(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """What each run says of its own models; of several runs, under the runs' names, and corrected for all of them."""
    if len(runs) == 1:
        return differences(runs[0].found)
    found = [
        {**one, "model": run.name} if one.get("model") == "distilled" else one
        for run in runs
        for one in differences(run.found)
    ]
    whole = all(number(one.get(key)) is not None for one in found for key in ("mean", "low", "high", "p", "seeds"))
    return told_together(found) if whole else found


def under_shown_names(
    compared: Sequence[dict[str, Any]], runs: Sequence[FinishedRun], lines: Sequence[Line]
) -> list[dict[str, Any]]:
    """Comparisons whose baselines and teachers have the names that the page gives to those of the same run."""
    shown: dict[tuple[str, str], str] = {}
    for run in runs:
        for line in lines:
            if line.kind in FIRST and inside(run.found, "models", line.kind, "quality") == line.model.get("quality"):
                shown.setdefault((run.name, line.kind), line.name)
    found = []
    for one in compared:
        kind = str(one.get("against")).split(" (")[0]
        found.append({**one, "against": shown.get((named(one.get("model")), kind), one.get("against"))})
    return found


def difference_lines(compared: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """What is shown, what is not, and what was not tested, a line for each comparison."""
    told: dict[str, list[dict[str, str]]] = {"shown": [], "not": [], "untested": []}
    for one in compared:
        ends = [points(one.get(end), str(one.get("metric"))) for end in ("mean", "low", "high")]
        exact = one.get("mcnemar")
        ps = [f"{known:.2g}" for p in exact if (known := number(p)) is not None] if isinstance(exact, list) else []
        tested = number(one.get("p")) is not None
        told["shown" if is_shown(one) else "not" if tested else "untested"].append(
            {
                "what": _compared(one),
                "size": f"{ends[0]} points" + (f" (95 % interval {ends[1]} to {ends[2]})" if tested else ""),
                "words": clean(one.get("words", "")),
                "exact": ", ".join(ps),
            }
        )
    return told


def is_shown(difference: dict[str, Any]) -> bool:
    """By the corrected p; old folders have only p."""
    p = number(difference.get("p_corrected", difference.get("p")))
    return p is not None and p < SHOWN


def _compared(one: dict[str, Any]) -> str:
    model, against, data, split = (named(one.get(key, "?")) for key in ("model", "against", "data", "split"))
    return f"{model} against {against}: {titled(one.get('metric', '?'))} on {split if data == 'task' else f'{data} {split}'}"


def forest(compared: Sequence[dict[str, Any]]) -> Markup | None:
    names, ranges = [], []
    for one in compared:
        mean, low, high = (number(one.get(end)) for end in ("mean", "low", "high"))
        if mean is not None and low is not None and high is not None:
            names.append(_compared(one))
            ranges.append((100 * mean, 100 * low, 100 * high, is_shown(one)))
    if not names:
        return None
    title = "Differences in points"
    return Markup(plots.forest("forest", title, names[:MOST_LINES], ranges[:MOST_LINES]))


def scatters(lines: Sequence[Line], place: tuple[str, str, str], several: bool) -> list[Markup]:
    """Quality against the time for one example, and against the bytes of the file."""
    data, split, metric = place
    words = f"{titled(metric)} on {f'{named(data)} {named(split)}' if several else named(split)}"
    against_time, against_size = [], []
    for line in lines:
        quality = number(inside(line.model, "quality", *place))
        if quality is None:
            continue
        ends = interval(line.model, *place)
        deviation = number(inside(line.model, "deviation", *place))
        if ends is None and deviation is not None:
            ends = (quality - deviation, quality + deviation)
        low, high = (100 * ends[0], 100 * ends[1]) if ends else (None, None)
        int8 = line.kind.endswith("int8")
        runtimes = searches({line.name: line.model})[:2] or ("pytorch", "onnx")
        times = [number(inside(line.model, "speed", runtime, "latency_ms")) for runtime in runtimes]
        first, second = times if times[0] is not None else (times[1], None)
        if first is not None:
            hollow = times[0] is None
            searched = number(inside(line.model, "quality", data, split, f"{metric}_beam"))  # a beam writes other texts
            there = None if second is None else (second, 100 * (quality if searched is None else searched))
            against_time.append(plots.Point(line.name, first, 100 * quality, low, high, line.colour, hollow, there))
        size = number(line.model.get("bytes"))
        if size is not None:
            against_size.append(plots.Point(line.name, size / 1e6, 100 * quality, low, high, line.colour, int8))
    return [
        Markup(plots.scatter(f"{title} {place}", f"Quality against {title}", label, words, found))
        for title, label, found in (
            ("latency", "milliseconds for one example", against_time),
            ("size", "MB", against_size),
        )
        if len(found) > 1
    ]


def curves(run: FinishedRun, key: int) -> list[dict[str, Any]]:
    """Panels per stage: a loss term each, then quality on train, where it was scored, and on dev."""
    stages = [stage_folders(folder) for _, folder in run.parts]
    metric = next((titled(metrics_of(run.found, data)[0]) for data in data_sets(run.found)), "score")
    found = []
    for stage in range(max(map(len, stages))):
        losses: dict[str, list[plots.Curve]] = {}
        scores: dict[str, list[plots.Curve]] = {}
        for seed, folders in enumerate(stages):
            if stage >= len(folders):
                continue
            colour = _seed_colour(seed)
            for term, (x, y) in columns_of(folders[stage] / "steps.csv", "step").items():
                if term not in NO_TERMS:
                    losses.setdefault(term, []).append(plots.Curve(x, y, colour))
            logged = columns_of(folders[stage] / "epochs.csv", "epoch")
            for split in ("train", "dev"):
                if split in logged:
                    x, y = logged[split]
                    scores.setdefault(split, []).append(plots.Curve(x, [100 * value for value in y], colour))
        values = [value for lines in scores.values() for line in lines for value in line.y]
        bounds = (min(values), max(values)) if values else (0.0, 100.0)
        at = f"{key} {stage}"
        panels = {
            "losses": [
                Markup(plots.loss_panel(f"loss {at} {term}", f"{named(term)} loss", lines))
                for term, lines in losses.items()
            ],
            "scores": [
                Markup(plots.quality_panel(f"score {at} {split}", f"{metric} on {split}", lines, bounds))
                for split, lines in scores.items()
            ],
        }
        if losses or scores:
            title = f"Stage {stage + 1}" if max(map(len, stages)) > 1 else ""
            found.append({"stage": title, "splits": list(scores), **panels})
    return found


def _seed_colour(seed: int) -> str:
    return plots.COLOURS[seed % len(plots.COLOURS)]


def layer_maps(run: FinishedRun, key: int) -> list[dict[str, Any]]:
    """A drawing per stage."""
    found: list[dict[str, Any]] = []
    for one in _list(shared_or_first(run, "layer_map")):
        stage, theirs, ours = (number(inside(one, key)) for key in ("stage", "teacher_layers", "student_layers"))
        pairs = [pair for pair in map(_whole, _list(inside(one, "pairs"))) if len(pair) == 2 and None not in pair]
        kept = _whole(_list(inside(one, "kept")))
        if theirs and ours and 1 <= ours <= MOST_LAYERS and 1 <= theirs <= MOST_LAYERS:
            title = f"Stage {int(stage or 0) + 1}: {named(inside(one, 'method'))}"
            drawn = plots.layer_map(f"map {key} {len(found)}", title, int(theirs), int(ours), pairs, kept)
            found.append({"title": title, "svg": Markup(drawn), "taught": bool(pairs)})
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(values: Any) -> list[Any]:
    """Layers' numbers; None where there is none."""
    return [None if number(value) is None else int(value) for value in _list(values)]


def disagreements(run: FinishedRun) -> list[dict[str, Any]]:
    """Rows that student and teacher answer differently, per data set."""
    by_data = shared_or_first(run, "disagreements")
    found = []
    for data, rows in by_data.items() if isinstance(by_data, dict) else []:
        shown = [
            {
                "texts": [clean(row[key], MOST_TEXT) for key in ("text", "pair") if row.get(key)],
                "picture": picture if PICTURE.fullmatch(picture := str(row.get("picture"))) else None,
                "split": named(row.get("split", "")),
                "label": None if row.get("label") is None else _answer(row["label"]),
                "answers": [
                    (
                        side,
                        _answer(row.get(side)),
                        percent(row.get(f"{side}_probability")),
                        row.get(side) == row.get("label"),
                    )
                    for side in ("teacher", "student")
                ],
            }
            for row in _list(rows)[:MOST_EXAMPLES]
            if isinstance(row, dict)
        ]
        if shown:
            found.append({"data": named(data), "rows": shown})
    return found


def _answer(value: Any) -> str:
    """A class, several classes or a number."""
    if isinstance(value, list):
        return named(", ".join(map(str, value)) or "none")
    return short(value) if isinstance(value, float) else clean(value, MOST_TEXT)


def facts(run: FinishedRun) -> list[tuple[str, str]]:
    """What else decides a result, or tells one from another."""
    told = [("seeds", ", ".join(named(seed) for seed in seeds_of(run.found)))]
    if (device := run.found.get("device")) is not None:
        told.append(("device", named(device)))
    if (seconds := number(run.found.get("teacher_seconds"))) is not None:
        told.append(("seconds of asking the teacher", short(seconds)))
    for key, prefix in (("versions", ""), ("hashes", "hash of ")):
        told += [(f"{prefix}{named(name)}", named(value)) for name, value in within(run.found, key).items()]
    if run.recipe.startswith("# fingerprint "):
        told.append(("fingerprint of the recipe", named(run.recipe.splitlines()[0].removeprefix("# fingerprint "))))
    return [(name, value) for name, value in told if value]
