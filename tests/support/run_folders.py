"""Run folders that no training made, in the form that a run leaves behind."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potstill.measuring.measurements import Comparison
from potstill.measuring.significance import correct_comparisons

RECIPE = """# fingerprint 17cf80f12f375c77
name = "{name}"
teacher = "models/teacher"

[[stage]]
epochs = 4.0

[stage.method]
name = "patient"
beta = 100.0
"""
SIZES = {"teacher": 33_360_770, "fine-tuned": 17_390_594, "distilled": 17_390_594}


def model(
    kind: str, scores: dict[str, float], labels: Sequence[str], seeds: int = 1, rows: int = 1821, data: str = "task"
) -> dict[str, Any]:
    """What is measured of one model: `scores` on test, and a bit less on dev."""
    int8 = kind.endswith("int8")
    base = kind.removesuffix(" int8")
    agreed = {} if kind == "teacher" else {"agreement": 0.874, "calibration_error": 0.041}
    metric, value = next(iter(scores.items()))
    slow = 38.1 if base == "teacher" else 9.6
    speed = {
        "latency_ms": slow,
        "latency_p95_ms": slow * 1.4,
        "examples_per_second": 3500 / slow,
        "best_examples_per_second": 4000 / slow,
        "best_batch": 16,
    }
    quick = {name: given / 2.5 if "ms" in name else given * 2.5 for name, given in speed.items()} | {"best_batch": 8}
    found: dict[str, Any] = {
        "quality": {
            data: {
                "dev": {"rows": 872, **{name: given - 0.01 for name, given in scores.items()}, **agreed},
                "test": {"rows": rows, **scores, **agreed},
            }
        },
        "intervals": {data: {"test": {metric: [value - 0.016, value + 0.014]}}},
        "parameters": None if int8 else SIZES[base],
        "parts": {"embeddings": 11_900_000, "layers": SIZES[base] - 12_000_000, "head": 770},
        "bytes": SIZES[base] * (1 if int8 else 4),
        "speed": {"onnx": quick} if int8 else {"pytorch": speed, "onnx": quick},
        "times_faster": 38.1 / slow * (2.5 if int8 else 1),
    }
    if seeds > 1 and base != "teacher":
        found["deviation"] = {data: {"test": {metric: 0.0081}}}
    if labels:
        found |= per_label(labels, value, rows, data, seeds)
    return found


def per_label(labels: Sequence[str], right: float, rows: int, data: str, seeds: int) -> dict[str, Any]:
    """Each class errs towards its neighbours."""
    each, last = rows // len(labels), len(labels) - 1
    confusion = [[0.0] * len(labels) for _ in labels]
    for i in range(len(labels)):
        confusion[i][i] += each * right
        confusion[i][min(i + 1, last)] += each * (1 - right) / 2
        confusion[i][max(i - 1, 0)] += each * (1 - right) / 2
    shown = [[value if seeds > 1 else round(value) for value in row] for row in confusion]
    return {
        "per_class": {
            data: {
                "test": {
                    label: {"precision": right - 0.01, "recall": right + 0.01, "f1": right, "rows": each}
                    for label in labels
                }
            }
        },
        "confusion": {data: {"test": shown}},
        "mean_probabilities": {data: {"test": [[value / each for value in row] for row in confusion]}},
    }


def difference(
    ours: str, theirs: str, mean: float, p: float, words: str = "", metric: str = "accuracy", seeds: int = 3
) -> dict[str, Any]:
    """A tested difference; `corrected` gives it its words."""
    return {
        "model": ours,
        "against": theirs,
        "data": "task",
        "split": "test",
        "metric": metric,
        "mean": mean,
        "low": mean - 0.009,
        "high": mean + 0.009,
        "p": p,
        "seeds": seeds,
        "words": words,
        "mcnemar": [0.5, 0.61, 0.9],
    }


def corrected(differences: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as `measurements.json` holds them: with words, and p corrected for their number."""
    read = [Comparison(**difference) for difference in differences]
    return [comparison.to_json() for comparison in correct_comparisons(read)]


def measurements(
    name: str = "kd",
    seeds: int = 1,
    labels: Sequence[str] = ("negative", "positive"),
    distilled: float = 0.86,
    metrics: Sequence[str] = ("accuracy", "f1"),
) -> dict[str, Any]:
    """A whole measurements.json of a distillation."""
    quality = {"teacher": 0.912, "teacher int8": 0.909, "fine-tuned": 0.862}
    quality |= {"distilled": distilled, "distilled int8": distilled - 0.003}
    return {
        "name": name,
        "seeds": list(range(seeds)),
        "metrics": {"task": list(metrics)},
        "labels": {"task": list(labels)},
        "tasks": {"task": "classify"},
        "models": {
            kind: model(kind, {one: value + 0.003 * at for at, one in enumerate(metrics)}, labels, seeds)
            for kind, value in quality.items()
        },
        "differences": corrected(
            [
                difference("distilled", "fine-tuned", distilled - 0.862, 0.7, metric=metrics[0], seeds=seeds),
                difference("distilled", "teacher", distilled - 0.912, 0.0005, metric=metrics[0], seeds=seeds),
            ]
        ),
        "disagreements": {
            "task": [
                {
                    "split": "test",
                    "text": text,
                    "pair": None,
                    "label": labels[0] if labels else 1.5,
                    "teacher": labels[-1] if labels else 1.25,
                    "student": labels[0] if labels else 4.0,
                    "teacher_probability": 0.99,
                    "student_probability": 0.803,
                }
                for text in ("a stirring , funny film", "فيلم رائع ومؤثر", "这部电影很好看 🎬", "no plot , no wit") * 3
            ]
        },
        "layer_map": [
            {
                "stage": 0,
                "method": "patient",
                "student_layers": 3,
                "teacher_layers": 12,
                "pairs": [[1, 4], [2, 8]],
                "kept": [1, 2, 3],
            }
        ],
        "grid": [{"optimizer.rate": 5e-5, "dev": 0.853}, {"optimizer.rate": 2e-5, "dev": 0.841}],
        "teacher_seconds": 40.1,
        "versions": {"potstill": "0.1.0", "torch": "2.13.0", "transformers": "5.22.0", "python": "3.11.7"},
        "hashes": {"student": "9f2c1d", "teacher": "77ab03"},
        "device": "cpu, 2 threads",
    }


def write_run(folder: Path, found: dict[str, Any], recipe: str | None = None, logs: bool = True) -> Path:
    """A finished run of these measurements, with logs: a folder per seed where there are several."""
    folder.mkdir(parents=True)
    name = json.dumps(str(found["name"]))[1:-1]
    (folder / "recipe.toml").write_text(recipe or RECIPE.format(name=name), encoding="utf-8")
    (folder / "measurements.json").write_text(json.dumps(found), encoding="utf-8")
    seeds = found.get("seeds", [0])
    for seed in seeds if logs else []:
        part = folder / f"seed-{seed}" if len(seeds) > 1 else folder
        write_logs(part / "stages" / "0", seed)
        (part / "measurements.json").write_text(json.dumps(found), encoding="utf-8")
    return folder


def write_logs(folder: Path, seed: int, terms: Sequence[str] = ("hard", "soft", "patient")) -> None:
    """steps.csv and epochs.csv of four epochs."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    lines = [",".join(["step", "epoch", "loss", *terms, "gradient_norm", "rate", "examples", "tokens", "seconds"])]
    for step in range(1, 401):
        losses = [0.6 / (1 + step / 80) / (place + 1) * draw.uniform(0.7, 1.3) for place in range(len(terms))]
        lines.append(",".join(map(str, [step, 1 + step // 101, sum(losses), *losses, 1.0, 1e-4, 32, 500, 0.3])))
    (folder / "steps.csv").write_text("\n".join(lines) + "\n")
    scores = [
        (epoch, 100 * epoch, 0.8 + 0.015 * epoch + draw.uniform(0, 0.01), 0.82 + 0.04 * epoch) for epoch in range(1, 5)
    ]
    rows = [",".join(map(str, row)) for row in scores]
    (folder / "epochs.csv").write_text("\n".join(["epoch,step,dev,train", *rows]) + "\n")
