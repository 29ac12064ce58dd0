"""Tables and lists on standard output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from potstill.measuring.measurements import inside, interval, metrics_of, number, signatures, within
from potstill.reporting.numbers import (
    NOTHING,
    count,
    in_its_unit,
    megabytes,
    parameters,
    percent,
    points,
    score,
    short,
    titled,
)
from potstill.reporting.sentences import caveats, how_corrected
from potstill.system.terminal import as_printed, print_line
from potstill.system.units import byte_size, duration

USUAL = ("accuracy", "f1", "f1_micro", "f1_macro", "pearson", "rmse", "bleu_beam")  # metrics that papers quote


def print_table(found: dict[str, Any]) -> None:
    header, rows = table(found)
    print_rows(header, rows)
    if found.get("too_busy"):
        print_line(f"speeds are not to be trusted: {found['too_busy']}")
    engines = {model.get("engine") for model in found["models"].values()} - {None}
    if len(engines) > 1:
        told = ", ".join(f"{name} by {model['engine']}" for name, model in found["models"].items() if "engine" in model)
        print_line(f"times are of different engines: {told}")
    for signature in signatures(found):
        print_line(signature)
    for told in (*beginnings(found), *constants(found), *caveats(found)):
        print_line(told)


def beginnings(found: Mapping[str, Any]) -> list[str]:
    """What the baseline was before its first step, which a reader must know to judge it."""
    models = found["models"].items()
    return [f"{name}: on labels alone, begun from {one['begun_from']}" for name, one in models if "begun_from" in one]


def constants(found: Mapping[str, Any]) -> list[str]:
    """Of numbers that are predicted, what always saying their mean would be worth."""
    models: list[Mapping[str, Any]] = [*found["models"].values(), {}]
    return [
        f"{split}: always saying the mean has an RMSE of {short(scores['rmse_constant'])}"
        for splits in models[0].get("quality", {}).values()
        for split, scores in splits.items()
        if "rmse_constant" in scores
    ]


def print_differences(found: dict[str, Any]) -> None:
    """One sentence for each comparison, on what is quoted: tests, or dev where there are none, which is not tested."""
    compared = found.get("differences", [])
    for one in compared:
        where = f"{one['split']} {titled(one['metric'])}"
        told = points(one["mean"], one["metric"])
        print_line(f"{one['model']} against {one['against']}, {where}: {told}, {one['words']}")
    if note := how_corrected(compared):
        print_line(note)


def table(measurements: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the one table that every run ends in. What was not measured of a model is a dash."""
    models = within(measurements, "models")
    places = list(
        dict.fromkeys(
            (data, split)
            for one in models.values()
            for data in within(one, "quality")
            for split in within(one, "quality", data)
        )
    )
    several = len({data for data, _ in places}) > 1
    shown = {place: _shown(metrics_of(measurements, place[0])) for place in places}
    names = [(place, metric) for place in places for metric in shown[place][: 1 if place[1] == "dev" else 2]]
    header = [
        "",
        *(f"{f'{data} ' if several else ''}{split} {titled(metric)}" for (data, split), metric in names),
        "same as teacher",
        "parameters",
        "MB",
        "ms",
        "faster",
    ]
    rows = []
    for name, model in models.items():
        latency = number(next((inside(speed, "latency_ms") for speed in within(model, "speed").values()), None))
        faster = number(inside(model, "times_faster"))
        rows.append(
            [
                name,
                *(_score(model, place, metric) for place, metric in names),
                percent(last_agreement(model)),
                parameters(inside(model, "parameters")),
                megabytes(inside(model, "bytes")),
                NOTHING if latency is None else f"{latency:.1f}",
                f"{faster:.1f}×" if faster else NOTHING,
            ]
        )
    return header, rows


def last_agreement(model: Mapping[str, Any]) -> Any:
    """With the teacher, on the last split of the last data set; None of a model that was not scored, as a file of answers."""
    scored = [by for data in within(model, "quality") for by in within(model, "quality", data).values()]
    return inside(scored[-1], "agreement") if scored else None


def _score(model: Mapping[str, Any], place: tuple[str, str], metric: str) -> str:
    """A score with its deviation over seeds, or with its interval on what is not dev."""
    told, ends = score(model, *place, metric), interval(model, *place, metric)
    if "±" in told or ends is None or place[1] == "dev":
        return told
    low, high = map(in_its_unit(metric), ends)
    return f"{told} ({low}–{high})"


def _shown(metrics: Sequence[str]) -> list[str]:
    """What was chosen by, and one more that is usually quoted; for a likelihood the perplexity, its inverse."""
    if not metrics:
        return []
    if metrics[0] == "likelihood":
        return ["perplexity"]
    return [metrics[0], *[metric for metric in metrics[1:] if metric in USUAL or metric.startswith("f1 of ")][:1]]


def print_grid(cells: list[dict[str, Any]]) -> None:
    if cells:
        print_rows(
            list(cells[0]), [[percent(v, 2) if k == "dev" else str(v) for k, v in cell.items()] for cell in cells]
        )


def print_plan(found: dict[str, Any]) -> None:
    """Lines of work, what they need, and whether it fits."""
    header = ["", "runs", "rows an epoch", "tokens an epoch", "steps", "rows in all", "tokens in all", "TFLOP", "time"]
    counts = ("runs", "rows_per_epoch", "tokens_per_epoch", "steps", "rows", "tokens")
    rows = [
        [
            line["what"],
            *(count(line[name]) if line[name] else NOTHING for name in counts),
            short(line["operations"] / 1e12) if line["operations"] else NOTHING,
            duration(line["seconds"]),
        ]
        for line in found["lines"]
    ]
    total = ["in all", *[NOTHING] * 6, short(found["operations"] / 1e12), duration(found["seconds"])]
    print_rows(header, [*rows, total])
    device, machine = found["device_memory"], found["machine"]
    parts = ", ".join(f"{name} {byte_size(device[name])}" for name in device if name not in ("peak", "limit"))
    print_line(f"memory of a device: {byte_size(device['peak'])} of {byte_size(device['limit'])} ({parts})")
    for one in found["disks"]:
        passing = f", and {byte_size(one['passing'])} while training" if one["passing"] else ""
        print_line(
            f"{one['what']}: {byte_size(one['kept'])}{passing}, in {one['folder']}, where {byte_size(one['free'])} are free"
        )
    many = f", {machine['devices']} devices" if machine["devices"] > 1 else ""
    told = f"{machine['peak_gflops']:,.0f} GFLOPS at best{many}, of which training reaches"
    print_line(f"time is for {told} {percent(machine['share_of_peak'], 0)} %")
    print_line(f"will not fit: {found['will_not_fit']}" if found["will_not_fit"] else "everything fits")


def print_rows(header: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD)
    for place, name in enumerate(header):
        drawn.add_column(
            Text(as_printed(name).replace(" ", "\n")),
            justify="right" if place else "left",
            vertical="bottom",
            no_wrap=True,
        )
    for row in rows:
        drawn.add_row(*(Text(as_printed(cell)) for cell in row))  # Text: a bracket in a name is no markup
    wide = Console()
    Console(width=max(wide.width, 112)).print(drawn)
