"""What measurements.json holds, and tolerant access to it."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from potstill.measuring.significance import DEV

Found = Mapping[str, Any]


def inside(found: Any, *keys: str) -> Any:
    """What lies under the keys, or None where any of them is missing."""
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def within(found: Any, *keys: str) -> Mapping[str, Any]:
    """The named things under the keys, or none."""
    held = inside(found, *keys)
    return held if isinstance(held, Mapping) else {}


def number(value: Any) -> float | None:
    """A finite number, or None: JSON of Python may hold null and NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None


LONGEST_NAME = 60  # characters of a name that are shown


PLAIN = (
    "perplexity",
    "rmse",
    "rmse_constant",
)  # metrics that are no shares of a hundred, and better the lower they are


def clean(text: Any, longest: int | None = None) -> str:
    """One line without control characters and half characters, which neither XML nor YAML takes."""
    kept = "".join(
        " "
        if one.isspace()
        else "\ufffd"
        if unicodedata.category(one) in ("Cc", "Cs") or ord(one) & 0xFFFE == 0xFFFE
        else one
        for one in str(text)
    )
    return kept if longest is None or len(kept) <= longest else kept[: longest - 1] + "…"


def named(text: Any) -> str:
    """A name as it is shown: huge ones are cut."""
    return clean(text, LONGEST_NAME)


def data_sets(found: Found) -> list[str]:
    """Names of the data sets, in the order of the recipe."""
    metrics = inside(found, "metrics")
    return [str(data) for data in metrics] if isinstance(metrics, Mapping) else []


def metrics_of(found: Found, data: str) -> list[str]:
    names = inside(found, "metrics", data)
    return [str(name) for name in names] if isinstance(names, Sequence) and not isinstance(names, str) else []


def quoted_splits(found: Found, data: str) -> list[str]:
    """The test sets, or dev where there are none."""
    models = within(found, "models")
    splits = list(dict.fromkeys(str(split) for model in models.values() for split in within(model, "quality", data)))
    return [split for split in splits if split != DEV] or splits


def quoted(found: Found) -> list[tuple[str, str, str]]:
    """Data set, split and metric that stand for each data set: its first test set, and what dev was chosen by."""
    return [
        (data, splits[0], metrics[0])
        for data in data_sets(found)
        if (splits := quoted_splits(found, data)) and (metrics := metrics_of(found, data))
    ]


def interval(model: Any, data: str, split: str, metric: str) -> tuple[float, float] | None:
    """The 95 % interval, where it was measured. That of the perplexity is that of its inverse, which is resampled."""
    if metric == "perplexity" and (ends := interval(model, data, split, "likelihood")) and ends[0] > 0:
        return 1 / ends[1], 1 / ends[0]
    ends = inside(model, "intervals", data, split, metric)
    if not isinstance(ends, Sequence) or isinstance(ends, str) or len(ends) != 2:
        return None
    low, high = number(ends[0]), number(ends[1])
    return None if low is None or high is None else (low, high)


def signatures(found: Found) -> list[str]:
    """How texts were scored, in sacrebleu's own words: "BLEU|nrefs:1|…"."""
    return [clean(f"{name}|{words}", 200) for name, words in within(found, "signatures").items()]


def seeds_of(found: Found) -> list[Any]:
    seeds = found.get("seeds", [found["seed"]] if "seed" in found else [])
    return list(seeds) if isinstance(seeds, list) else [seeds]


def per_second(model: Any, runtime: str = "pytorch") -> Any:
    """Examples a second at batch 32. Old folders have it beside the model's size."""
    speed = inside(model, "speed", runtime, "examples_per_second")
    return inside(model, "examples_per_second") if speed is None and runtime == "pytorch" else speed


def searches(models: Mapping[str, Any]) -> list[str]:
    """How models that write were timed: "greedy", "beam 5"."""
    found = dict.fromkeys(str(one) for model in models.values() for one in within(model, "speed"))
    return [one for one in found if one not in ("pytorch", "onnx")]


def main_student(found: Found) -> str:
    """The model that the run was made for: in a fine-tuning run it is the fine-tuned one itself."""
    return "distilled" if "distilled" in within(found, "models") else "fine-tuned"


def differences(found: Found) -> list[dict[str, Any]]:
    listed = found.get("differences")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


GOLD = "targets"


AVERAGED = ("quality", "per_class", "confusion", "mean_probabilities")


STUDENT = "distilled"


BASELINE = "fine-tuned"


TEACHER = "teacher"
