"""Figures of the page, drawn from measurements and logs: quality against cost, learning curves, layer maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from potstill.measuring.measurements import Place, short_name
from potstill.measuring.run_folder import NOT_LOSSES, FinishedRun, read_log, stage_folders
from potstill.reporting import figures, scatter
from potstill.reporting.numbers import metric_title
from potstill.reporting.scatter import Point
from potstill.reporting.svg import series_colour
from potstill.reporting.tables import Line

MOST_LAYERS = 200


def scatters(lines: Sequence[Line], place: Place, several: bool) -> list[Markup]:
    """Quality against the latency of one example, and against the size of the weights."""
    where = f"{short_name(place.data)} {short_name(place.split)}" if several else short_name(place.split)
    drawn = []
    for title, label, points in (
        ("latency", "milliseconds for one example", [_latency_point(line, place) for line in lines]),
        ("size", "MB", [_size_point(line, place) for line in lines]),
    ):
        if len(shown := [point for point in points if point is not None]) > 1:
            key, y_label = f"{title} {tuple(place)}", f"{metric_title(place.metric)} on {where}"
            drawn.append(Markup(scatter.scatter(key, f"Quality against {title}", label, y_label, shown)))
    return drawn


def _point(
    line: Line, place: Place, x: float | None, hollow: bool, other: tuple[float, float] | None = None
) -> Point | None:
    quality = line.model.score(place)
    if quality is None or x is None:
        return None
    ends, deviation = line.model.interval(place), line.model.score_deviation(place)
    if ends is None and deviation is not None:
        ends = (quality - deviation, quality + deviation)
    low, high = (100 * ends[0], 100 * ends[1]) if ends else (None, None)
    return Point(line.name, x, 100 * quality, low, high, line.colour, hollow, other)


def _size_point(line: Line, place: Place) -> Point | None:
    size = line.model.bytes
    return _point(line, place, None if size is None else size / 1e6, line.kind.endswith("int8"))


def _latency_point(line: Line, place: Place) -> Point | None:
    """Filled: in PyTorch or with greedy search. The other end: in ONNX Runtime, or with beam search and its quality."""
    engines = line.model.searches[:2] or ["pytorch", "onnx"]
    first, *others = (line.model.timing(engine, "latency_ms") for engine in engines)
    second = others[0] if others else None
    if first is None:
        return _point(line, place, second, hollow=True)
    by_beam = line.model.score(place._replace(metric=f"{place.metric}_beam"))
    quality = line.model.score(place) if by_beam is None else by_beam
    other = None if second is None or quality is None else (second, 100 * quality)
    return _point(line, place, first, hollow=False, other=other)


def learning_curves(run: FinishedRun, key: int) -> list[dict[str, Any]]:
    """Panels per stage: one for each loss term, then the score on train, where it was measured, and on dev."""
    stages = [stage_folders(folder) for _, folder in run.seeds]
    metric = next((metric_title(metrics[0]) for metrics in run.measurements.metrics.values()), "score")
    drawn = []
    for stage in range(max(map(len, stages))):
        losses: dict[str, list[figures.Curve]] = {}
        scores: dict[str, list[figures.Curve]] = {}
        for seed, folders in enumerate(stages):
            if stage >= len(folders):
                continue
            colour = series_colour(seed)
            for term, (x, y) in read_log(folders[stage] / "steps.csv", "step").items():
                if term not in NOT_LOSSES:
                    losses.setdefault(term, []).append(figures.Curve(x, y, colour))
            log = read_log(folders[stage] / "epochs.csv", "epoch")
            for split in ("train", "dev"):
                if split in log:
                    x, y = log[split]
                    scores.setdefault(split, []).append(figures.Curve(x, [100 * value for value in y], colour))
        if losses or scores:
            title = f"Stage {stage + 1}" if max(map(len, stages)) > 1 else ""
            drawn.append({"title": title, **_panels(losses, scores, metric, f"{key} {stage}")})
    return drawn


def _panels(
    losses: dict[str, list[figures.Curve]], scores: dict[str, list[figures.Curve]], metric: str, key: str
) -> dict[str, Any]:
    values = [value for curves in scores.values() for curve in curves for value in curve.y]
    bounds = (min(values), max(values)) if values else (0.0, 100.0)
    return {
        "splits": list(scores),
        "losses": [
            Markup(figures.loss_panel(f"loss {key} {term}", f"{short_name(term)} loss", curves))
            for term, curves in losses.items()
        ],
        "scores": [
            Markup(figures.quality_panel(f"score {key} {split}", f"{metric} on {split}", curves, bounds))
            for split, curves in scores.items()
        ],
    }


def layer_maps(run: FinishedRun, key: int) -> list[dict[str, Any]]:
    """A drawing per stage."""
    drawn: list[dict[str, Any]] = []
    for layers in run.measurements.layer_map:
        ours, theirs = layers.student_layers, layers.teacher_layers
        if 1 <= ours <= MOST_LAYERS and 1 <= theirs <= MOST_LAYERS:
            title = f"Stage {(layers.stage or 0) + 1}: {short_name(layers.method)}"
            svg = figures.layer_map(f"map {key} {len(drawn)}", title, theirs, ours, layers.pairs, layers.kept or ())
            drawn.append({"title": title, "svg": Markup(svg), "taught": bool(layers.pairs)})
    return drawn
