"""The columns of the table of models. Terminal, page and model card show the same columns in their own form.

A new column is measured in `measuring` and listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from potstill.measuring.measurements import (
    BFLOAT16,
    DEV,
    LOWER_IS_BETTER,
    MeasuredModel,
    Measurements,
    Place,
    short_name,
)
from potstill.reporting.numbers import (
    count,
    interval_text,
    megabytes,
    metric_format,
    metric_title,
    parameters,
    percent,
    ratio,
    score_text,
    short,
)

QUOTED = (
    "accuracy",
    "f1",
    "f1_micro",
    "f1_macro",
    "pearson",
    "rmse",
    "bleu_beam",
    "next_sentence",
    "perplexity",
)  # second metrics that papers quote
ENGINES = {"pytorch": "PyTorch", BFLOAT16: "PyTorch in bfloat16", "onnx": "ONNX Runtime"}
SUMMARY, QUALITY, COST, ALL_SCORES = "summary", "quality", "cost", "all scores"
"""Tables: terminal and model card show the summary, the page the three others."""


def nothing(model: MeasuredModel) -> str:
    return ""


@dataclass(frozen=True)
class Column:
    """A number of each model. `more_is_better`: which end is marked as best; None: neither.

    `text` replaces the formatted number, `interval` stands beside it, `note` below it, on the page only.
    """

    group: str
    title: str
    tables: tuple[str, ...]
    value: Callable[[MeasuredModel], float | None]
    written: Callable[[float | None], str]
    more_is_better: bool | None = True
    text: Callable[[MeasuredModel], str] | None = None
    interval: Callable[[MeasuredModel], str] = nothing
    note: Callable[[MeasuredModel], str] = nothing
    on_dev: bool = False

    @property
    def heading(self) -> str:
        """Return the title where there is no line of groups above it."""
        return f"{self.group} {self.title}" if self.text else self.title


def columns(runs: Sequence[Measurements], models: Iterable[MeasuredModel]) -> list[Column]:
    models = list(models)
    listed = [column for data in _data_sets(runs) for column in _data_columns(runs, models, data)]
    listed += [
        Column(
            "size", "parameters", (SUMMARY, COST), lambda model: model.parameters, parameters, False, note=_embeddings
        ),
        Column("size", "MB", (SUMMARY, COST), lambda model: model.bytes, megabytes, False),
    ]
    if any(model.memory_bytes is not None for model in models):  # `potstill measure`
        listed += [
            Column("size", "MB as float32", (SUMMARY, COST), lambda model: model.dense_bytes, megabytes, False),
            Column("size", "MB in memory", (SUMMARY, COST), lambda model: model.memory_bytes, megabytes, False),
        ]
    listed += [
        Column("", "ms for one", (SUMMARY,), _first_latency, short, False),
    ]
    searches = dict.fromkeys(search for model in models for search in model.searches)
    for engine, group in {**ENGINES, **{search: short_name(search) for search in searches}}.items():
        if engine != BFLOAT16 or any(BFLOAT16 in model.speed for model in models):
            listed += _speed_columns(engine, group)
    listed.append(Column("", "times faster", (SUMMARY, COST), lambda model: model.times_faster, ratio))
    if any(model.times_faster_at_best is not None for model in models):
        best = Column("", "faster at best", (SUMMARY, COST), lambda model: model.times_faster_at_best, ratio)
        listed.append(replace(best, note=lambda model: ENGINES.get(model.fastest or "", "")))
    return listed


def quoted_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the metric of dev and one more that papers quote, that of a second head too; for a likelihood the perplexity, its
    inverse."""
    if metrics[0] == "likelihood":
        return ["perplexity"]
    second = [metric for metric in metrics[1:] if metric in QUOTED or metric.startswith("f1 of ")]
    return [metrics[0], *second[: 2 if "next_sentence" in second else 1]]


def _data_sets(runs: Sequence[Measurements]) -> list[str]:
    return list(dict.fromkeys(data for run in runs for data in run.data_sets))


def _data_columns(runs: Sequence[Measurements], models: Sequence[MeasuredModel], data: str) -> list[Column]:
    """Return the scores of a data set on each split; agreement with the teacher is summarised on its first test set."""
    first = next(run for run in runs if data in run.metrics)
    metrics = list(dict.fromkeys(metric for run in runs for metric in run.metrics.get(data, ())))
    quoted = quoted_metrics(first.metrics[data])
    tests = list(dict.fromkeys(split for run in runs for split in run.quoted_splits(data)))
    several = len(_data_sets(runs)) > 1
    listed = []
    for split in dict.fromkeys(split for model in models for split in model.quality.get(data, {})):
        group = f"{short_name(data)} {short_name(split)}" if several else short_name(split)
        for metric in dict.fromkeys([*quoted, *metrics]):
            tables = [ALL_SCORES] if metric in metrics else []
            tables += [QUALITY] if metric in quoted and split in tests else []
            tables += [SUMMARY] if metric in (quoted[:1] if split == DEV and split not in tests else quoted) else []
            listed.append(_score_column(group, Place(data, split, metric), tuple(tables)))
        listed.append(_number_column(group, "rows", (ALL_SCORES,), Place(data, split, "rows"), count, None))
        if split in tests:
            tables = [QUALITY, SUMMARY] if split == tests[0] and data == _data_sets(runs)[0] else [QUALITY]
            agreement = Place(data, split, "agreement")
            listed.append(_number_column(group, "same as teacher", tuple(tables), agreement, percent, True))
            listed.append(_calibration_column(group, Place(data, split, "calibration_error")))
            listed.append(_gap_column(group, Place(data, split, quoted[0])))
    return listed


def _score_column(group: str, place: Place, tables: tuple[str, ...]) -> Column:
    return Column(
        group,
        metric_title(place.metric),
        tables,
        lambda model: model.score(place),
        metric_format(place.metric),
        place.metric not in LOWER_IS_BETTER,
        text=lambda model: score_text(model, place),
        interval=lambda model: interval_text(model.interval(place), place.metric),
        on_dev=place.split == DEV,
    )


def _number_column(
    group: str,
    title: str,
    tables: tuple[str, ...],
    place: Place,
    written: Callable[[float | None], str],
    more_is_better: bool | None,
) -> Column:
    return Column(group, title, tables, lambda model: model.score(place), written, more_is_better)


def _calibration_column(group: str, place: Place) -> Column:
    def before(model: MeasuredModel) -> str:
        error = model.score(place._replace(metric="calibration_error_before"))
        return "" if error is None else f"before {percent(error)}"

    return replace(_number_column(group, "calibration error", (QUALITY,), place, percent, False), note=before)


def _gap_column(group: str, place: Place) -> Column:
    def share(model: MeasuredModel) -> float | None:
        return gap.share if (gap := model.gap(place)) else None

    def interval(model: MeasuredModel) -> str:
        gap = model.gap(place)
        return f"{percent(gap.low, 0)} to {percent(gap.high, 0)}" if gap and gap.share is not None else ""

    return Column(group, "of the gap", (QUALITY,), share, partial(percent, digits=0), interval=interval)


def _speed_columns(engine: str, group: str) -> list[Column]:
    def timing(name: str) -> Callable[[MeasuredModel], float | None]:
        return lambda model: model.timing(engine, name)

    def slowest(model: MeasuredModel) -> str:
        value = model.timing(engine, "latency_p95_ms")
        return "" if value is None else f"95 % in {short(value)}"

    def batch(model: MeasuredModel) -> str:
        value, streams = model.timing(engine, "best_batch"), model.timing(engine, "best_streams")
        ending = "" if streams is None else f", {count(streams)} streams"
        return "" if value is None else f"batch {count(value)}{ending}"

    return [
        Column(group, "ms for one", (COST,), timing("latency_ms"), short, False, note=slowest),
        Column(group, "a second", (COST,), timing("examples_per_second"), short),
        Column(group, "at best", (COST,), timing("best_examples_per_second"), short, note=batch),
    ]


def _first_latency(model: MeasuredModel) -> float | None:
    """Return the latency in the first engine that a model was timed in: PyTorch, or ONNX Runtime for int8."""
    return next((speed["latency_ms"] for speed in model.speed.values() if "latency_ms" in speed), None)


def _embeddings(model: MeasuredModel) -> str:
    """Return the parameters of the embeddings, which fewer layers do not reduce."""
    held = model.parts.get("embeddings")
    return f"embeddings {parameters(held)}" if held and model.parameters else ""
