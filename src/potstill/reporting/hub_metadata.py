"""The front matter of a model card: task, metrics and results in the words that Hugging Face knows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potstill.measuring.measurements import Measurements, Place, clean
from potstill.recipe.task_words import TaskWords, words_of_run
from potstill.reporting.numbers import metric_title

HUB_METRIC = {  # their names of our metrics
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "f1_micro": "f1",
    "f1_macro": "f1",
    "exact": "accuracy",
    "bleu_beam": "bleu",
}
# metrics that have a page there
HUB_METRICS = {"accuracy", "bleu", "chrf", "f1", "matthews_correlation", "pearsonr", "perplexity"}
HUB_METRICS |= {"precision", "recall", "spearmanr"}
TO_A_HUNDRED = ("bleu", "bleu_beam", "chrf")  # metrics from 0 to 100 there
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def front_matter(measurements: Measurements, recipe: Mapping[str, Any], model: str) -> str:
    """Return YAML whose values are all JSON, which is YAML too and cannot be broken out of."""
    metrics = (hub_metric(metric) for names in measurements.metrics.values() for metric in names)
    values: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": task_words(measurements).hub,
        "tags": ["potstill", *(["knowledge-distillation"] if model.startswith("distilled") else [])],
        "base_model": base_model(recipe),
        "metrics": list(dict.fromkeys(metric for metric in metrics if metric in HUB_METRICS)),
    }
    if results := model_index(measurements, model):
        values["model-index"] = [{"name": clean(measurements.name or "student"), "results": results}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value]
    return "\n".join(["---", *lines, "---"])


def task_words(measurements: Measurements) -> TaskWords:
    """Return the words of the task, which all data sets of a run share."""
    return words_of_run(measurements.tasks.values(), measurements.forms.values())


def hub_metric(metric: str) -> str:
    """Return the hub's name of a metric. F1 of one class is named "f1 of defect"."""
    return "f1" if metric.startswith("f1 of ") else HUB_METRIC.get(metric, metric)


def base_model(recipe: Mapping[str, Any]) -> str | None:
    """Return the model that the weights came from, if it is on the hub. A name whose owner is a local folder is a path."""
    name = recipe.get("start") or recipe.get("teacher")
    if not isinstance(name, str) or not HUB_NAME.fullmatch(name) or Path(name).parent.exists():
        return None
    return name


def model_index(measurements: Measurements, model: str) -> list[dict[str, Any]]:
    """Return all scores on the quoted splits as fractions; BLEU and chrF from 0 to 100."""
    results = []
    measured = measurements.models.get(model)
    for data, metrics in measurements.metrics.items() if measured else ():
        for split in measurements.quoted_splits(data):
            values = {metric: measured.score(Place(data, split, metric)) for metric in metrics}  # type: ignore[union-attr]
            scores = [
                {
                    "type": clean(hub_metric(metric)),
                    "name": metric_title(metric),
                    "value": 100 * value if metric in TO_A_HUNDRED else value,
                }
                for metric, value in values.items()
                if value is not None
            ]
            if scores:
                data_set = {"name": clean(data), "type": clean(data), "split": clean(split)}
                results.append({"task": {"type": task_words(measurements).hub}, "dataset": data_set, "metrics": scores})
    return results
