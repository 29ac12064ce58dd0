"""Tables and lists on standard output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from potstill.errors import InputError
from potstill.wording import (
    NOTHING,
    count,
    in_its_unit,
    in_words,
    interval,
    megabytes,
    parameters,
    percent,
    points,
    score,
    short,
    signatures,
    sized,
    titled,
)

USUAL = ("accuracy", "f1", "f1_micro", "f1_macro", "pearson", "rmse", "bleu_beam")  # metrics that papers quote


def print_table(found: dict[str, Any]) -> None:
    header, rows = table(found)
    print_rows(header, rows)
    for signature in signatures(found):
        print(signature)
    for told in (*beginnings(found), *constants(found)):
        print(told)


def beginnings(found: Mapping[str, Any]) -> list[str]:
    """What the baseline was before its first step, which a reader must know to judge it."""
    models = found["models"].items()
    return [f"{name}: on labels alone, begun from {one['begun_from']}" for name, one in models if "begun_from" in one]


def constants(found: Mapping[str, Any]) -> list[str]:
    """Of numbers that are predicted, what always saying their mean would be worth."""
    lines: list[Mapping[str, Any]] = list(found["models"].values())
    first: Mapping[str, Any] = lines[0].get("quality", {}) if lines else {}
    return [
        f"{split}: always saying the mean has an RMSE of {short(scores['rmse_constant'])}"
        for splits in first.values()
        for split, scores in splits.items()
        if "rmse_constant" in scores
    ]


def print_differences(found: dict[str, Any]) -> None:
    """One sentence for each comparison, on what is quoted: tests, or dev where there are none."""
    for one in found.get("differences", []):
        where = f"{one['split']} {titled(one['metric'])}"
        told = points(one["mean"], one["metric"])
        print(f"{one['model']} against {one['against']}, {where}: {told}, {one['words']}")


def table(measurements: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the one table that every run ends in."""
    models: Mapping[str, Any] = measurements["models"]
    places = list(
        dict.fromkeys((data, split) for one in models.values() for data, by in one["quality"].items() for split in by)
    )
    several = len({data for data, _ in places}) > 1
    shown = {place: _shown(measurements["metrics"][place[0]]) for place in places}
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
        last = list(model["quality"].values())[-1]
        agreed = list(last.values())[-1].get("agreement") if last else None
        latency = next((speed["latency_ms"] for speed in model.get("speed", {}).values()), None)
        faster = model.get("times_faster")
        rows.append(
            [
                name,
                *(_score(model, place, metric) for place, metric in names),
                percent(agreed),
                parameters(model["parameters"]),
                megabytes(model["bytes"]),
                NOTHING if latency is None else f"{latency:.1f}",
                f"{faster:.1f}×" if faster else NOTHING,
            ]
        )
    return header, rows


def _score(model: Mapping[str, Any], place: tuple[str, str], metric: str) -> str:
    """A score with its deviation over seeds, or with its interval on what is not dev."""
    told, ends = score(model, *place, metric), interval(model, *place, metric)
    if "±" in told or ends is None or place[1] == "dev":
        return told
    low, high = map(in_its_unit(metric), ends)
    return f"{told} ({low}–{high})"


def _shown(metrics: Sequence[str]) -> list[str]:
    """What was chosen by, and one more that is usually quoted; for a likelihood the perplexity, its inverse."""
    if metrics[0] == "likelihood":
        return ["perplexity"]
    return [metrics[0], *[metric for metric in metrics[1:] if metric in USUAL or metric.startswith("f1 of ")][:1]]


def print_grid(cells: list[dict[str, Any]]) -> None:
    if cells:
        print_rows(
            list(cells[0]), [[f"{100 * v:.2f}" if k == "dev" else str(v) for k, v in cell.items()] for cell in cells]
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
            in_words(line["seconds"]),
        ]
        for line in found["lines"]
    ]
    total = ["in all", *[NOTHING] * 6, short(found["operations"] / 1e12), in_words(found["seconds"])]
    print_rows(header, [*rows, total])
    device, machine = found["device_memory"], found["machine"]
    parts = ", ".join(f"{name} {sized(device[name])}" for name in device if name not in ("peak", "limit"))
    print(f"memory of a device: {sized(device['peak'])} of {sized(device['limit'])} ({parts})")
    for one in found["disks"]:
        passing = f", and {sized(one['passing'])} while training" if one["passing"] else ""
        print(f"{one['what']}: {sized(one['kept'])}{passing}, in {one['folder']}, where {sized(one['free'])} are free")
    many = f", {machine['devices']} devices" if machine["devices"] > 1 else ""
    told = f"{machine['peak_gflops']:,.0f} GFLOPS at best{many}, of which training reaches"
    print(f"time is for {told} {percent(machine['share_of_peak'], 0)} %")
    print(f"will not fit: {found['will_not_fit']}" if found["will_not_fit"] else "everything fits")


def print_rows(header: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(header):
        drawn.add_column(
            name.replace(" ", "\n"), justify="right" if number else "left", vertical="bottom", no_wrap=True
        )
    for row in rows:
        drawn.add_row(*row)
    wide = Console()
    Console(width=max(wide.width, 112)).print(drawn)


def print_list(kind: str | None) -> None:
    """What can be named of one kind, or of all, with its fields."""
    from potstill import plugins
    from potstill.recipe import RECIPES, shipped

    kinds = ("methods", "students", "data", "exports", "studies", "recipes")
    if kind is not None and kind not in kinds:
        raise InputError(f"there is no list of '{kind}'; write one of {', '.join(kinds)}")
    for one in [kind] if kind else kinds:
        if kind is None:
            print(f"{one}:")
        indent = "  " if kind is None else ""
        if one == "recipes":
            wide = max(map(len, shipped()))
            for name in shipped():
                first = (RECIPES / f"{name}.toml").read_text().splitlines()[0].lstrip("# ")
                print(f"{indent}{name:<{wide}} {first}")
        else:
            if not plugins.names(one):  # type: ignore[arg-type]
                print(f"{indent}(none yet)")
            for name in plugins.names(one):  # type: ignore[arg-type]
                words, fields = plugins.describe(one, name)  # type: ignore[arg-type]
                print(f"{indent}{name:<18} {words}")
                for field, kind_of, default in fields:
                    print(f"{indent}{'':<18}   {field} = {default}  ({kind_of})")
