"""Tables and sentences on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potstill.measuring.measurements import Comparison, Measurements, as_number
from potstill.reporting.numbers import MISSING, count, metric_title, percent, points, short
from potstill.reporting.sentences import (
    caveats,
    correction_note,
    fastest_forms,
    gap_sentences,
    signatures,
    verdict_words,
)
from potstill.reporting.tables import Cell, Table, summary
from potstill.system.terminal import as_printed, byte_size, duration, print_line

LEAST_WIDTH, MOST_WIDTH = 112, 1000  # columns of a table, also in a narrow terminal


def print_measurements(measurements: Measurements) -> None:
    """Print the table of a run, and what a reader must know about it."""
    print_table(summary(measurements))
    if measurements.too_busy:
        print_line(f"speeds cannot be trusted: {measurements.too_busy}")
    engines = {name: model.engine for name, model in measurements.models.items() if model.engine is not None}
    if len(set(engines.values())) > 1:
        print_line(
            f"models were timed in different engines: {', '.join(f'{name} in {engines[name]}' for name in engines)}"
        )
    notes = (
        *fastest_forms(measurements),
        *signatures(measurements),
        *baseline_starts(measurements),
        *constants(measurements),
        *gap_sentences(measurements),
        *caveats(measurements),
    )
    for note in notes:
        print_line(note)


def baseline_starts(measurements: Measurements) -> list[str]:
    """Say what the weights of the baseline were before training, which a reader must know to judge it."""
    return [
        f"{name}: trained on labels alone, started from {model.begun_from}"
        for name, model in measurements.models.items()
        if model.begun_from is not None
    ]


def constants(measurements: Measurements) -> list[str]:
    """Say what predicting the mean would be worth, where numbers are predicted."""
    first = next(iter(measurements.models.values()), None)
    return [
        f"{split}: predicting the mean has an RMSE of {short(scores['rmse_constant'])}"
        for splits in (first.quality.values() if first else ())
        for split, scores in splits.items()
        if "rmse_constant" in scores
    ]


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print one sentence per comparison."""
    for comparison in comparisons:
        where = f"{comparison.split} {metric_title(comparison.metric)}"
        size = points(comparison.mean, comparison.metric)
        print_line(f"{comparison.model} against {comparison.against}, {where}: {size}, {verdict_words(comparison)}")
    if note := correction_note(comparisons):
        print_line(note)


def print_grid(cells: Sequence[dict[str, Any]]) -> None:
    if cells:
        rows = [
            [percent(as_number(value), 2) if name == "dev" else str(value) for name, value in cell.items()]
            for cell in cells
        ]
        print_rows(list(cells[0]), rows)


def print_plan(plan: dict[str, Any]) -> None:
    """Print the steps of a run, what they need, and whether it fits."""
    for sentence in plan["chosen"]:
        print_line(sentence)
    header = ["", "runs", "rows an epoch", "tokens an epoch", "steps", "rows in all", "tokens in all", "TFLOP", "time"]
    counts = ("runs", "rows_per_epoch", "tokens_per_epoch", "steps", "rows", "tokens")
    rows = [
        [
            line["what"],
            *(count(line[name]) if line[name] else MISSING for name in counts),
            short(line["operations"] / 1e12) if line["operations"] else MISSING,
            duration(line["seconds"]),
        ]
        for line in plan["lines"]
    ]
    total = ["in all", *[MISSING] * 6, short(plan["operations"] / 1e12), duration(plan["seconds"])]
    print_rows(header, [*rows, total])
    device, machine = plan["device_memory"], plan["machine"]
    parts = ", ".join(f"{name} {byte_size(device[name])}" for name in device if name not in ("peak", "limit"))
    print_line(f"memory of a device: {byte_size(device['peak'])} of {byte_size(device['limit'])} ({parts})")
    for disk in plan["disks"]:
        passing = f", and {byte_size(disk['passing'])} while training" if disk["passing"] else ""
        print_line(
            f"{disk['what']}: {byte_size(disk['kept'])}{passing}, in {disk['folder']} ({byte_size(disk['free'])} free)"
        )
    devices = f", {machine['devices']} devices" if machine["devices"] > 1 else ""
    peak, share = f"{machine['peak_gflops']:,.0f} GFLOPS at best{devices}", percent(machine["share_of_peak"], 0)
    faster = f"{machine['bfloat16_gain']:.1f} times as fast in bfloat16 as in float32"
    print_line(f"{machine['processor']}: it multiplies {faster}")
    teacher = f", the teacher is asked in {machine['teacher_precision']}" if machine["teacher_precision"] else ""
    print_line(f"the student is trained in {machine['precision']}{teacher}")
    print_line(f"time is for {peak}, of which training reaches {share} %")
    print_line(f"will not fit: {plan['will_not_fit']}" if plan["will_not_fit"] else "everything fits")


def print_table(table: Table) -> None:
    """Print a table; the interval stands beside its score unless there is a deviation."""
    print_rows(table.head, [[_text(cell) for cell in row] for row in table.rows])


def _text(cell: Cell) -> str:
    return cell.text if "±" in cell.text or not cell.interval else f"{cell.text} ({cell.interval})"


def print_rows(header: list[str], rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=SIMPLE_HEAD)
    for place, name in enumerate(header):
        justify = "right" if place else "left"
        title = Text(as_printed(name).replace(" ", "\n"))
        table.add_column(title, justify=justify, vertical="bottom", no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(as_printed(cell)) for cell in row))  # Text: brackets in a name are not markup
    wide = Console(width=MOST_WIDTH)  # a line that a narrow terminal breaks is better than a number without its end
    Console(width=max(Console().width, LEAST_WIDTH, wide.measure(table).maximum)).print(table)
