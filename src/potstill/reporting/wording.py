"""Measurements in words and numbers for people, shared by the report and the model card.

A run's folder may be old, cut short or from a stranger: what is missing or no number reads as a dash and never fails.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from potstill.measuring.significance import DEV

Found = Mapping[str, Any]
NOTHING = "–"
UNDEFINED = "undefined"  # such as the correlation of a constant
BEAM = 5  # of the search that is measured, as in the papers on translation
# of metrics whose keys are no words of papers; files keep the keys
TITLES = {"bleu": "BLEU K=1", "bleu_beam": f"BLEU K={BEAM}", "chrf": "chrF", "mode": "p(ŷ)"}
TITLES |= {"rmse": "RMSE", "rmse_constant": "RMSE of a constant"}
BY_BEAM = "bleu_beam"
SEARCHED = {"greedy": "without a beam"}
TINY = 0.001  # of a probability
PLAIN = (
    "perplexity",
    "rmse",
    "rmse_constant",
)  # metrics that are no shares of a hundred, and better the lower they are
LONGEST_NAME = 60  # characters of a name that are shown


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


def titled(metric: Any) -> str:
    """What a metric is called where people read it."""
    return TITLES.get(str(metric)) or named(metric)


def percent(value: Any, digits: int = 1) -> str:
    return NOTHING if (known := number(value)) is None else _minus(f"{100 * known:.{digits}f}")


def points(value: Any, metric: str = "") -> str:
    """A difference of scores, with its sign."""
    return NOTHING if (known := number(value)) is None else _minus(f"{100 * known:+.{_digits(metric)}f}")


def short(value: Any) -> str:
    """A quantity with about three digits."""
    known = number(value)
    if known is None:
        return NOTHING
    return f"{known:,.0f}" if abs(known) >= 100 else f"{known:.1f}" if abs(known) >= 10 else f"{known:.2f}"


def count(value: Any) -> str:
    return NOTHING if (known := number(value)) is None else f"{known:,.0f}"


def parameters(value: Any) -> str:
    known = number(value)
    if known is None:
        return NOTHING
    return f"{known / 1e6:,.1f} M" if known >= 1e6 else f"{known / 1e3:,.1f} k" if known >= 1e3 else f"{known:.0f}"


def megabytes(value: Any) -> str:
    known = number(value)
    return NOTHING if known is None else f"{known / 1e6:,.1f}" if known >= 1e6 else f"{known / 1e6:.2g}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


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


def in_its_unit(metric: str) -> Callable[[Any], str]:
    """How values of a metric are written: in percent, but for those that are no shares."""
    return short if metric in PLAIN else partial(_in_percent, metric)


def _in_percent(metric: str, value: Any) -> str:
    """The probability of a whole text may be tiny: two of its digits are shown then, wherever they begin."""
    if metric == "mode" and (known := number(value)) is not None and 0 < abs(known) < TINY:
        return _minus(f"{100 * known:.2g}")
    return percent(value, _digits(metric))


def _digits(metric: str) -> int:
    """A language model gives the true token some percent at most: with one digit behind the point all would be alike."""
    return 2 if metric == "likelihood" else 1


def score(model: Any, data: str, split: str, metric: str) -> str:
    """A score in percent, ± its deviation over seeds where there is one."""
    told = in_its_unit(metric)
    held = within(model, "quality", data, split)
    if metric in held and held[metric] is None:
        return UNDEFINED
    found = number(held.get(metric))
    deviation = number(inside(model, "deviation", data, split, metric))
    if found is None or not deviation:
        return told(found)
    like = told(deviation) if metric in PLAIN or abs(found) < TINY else percent(deviation, _digits(metric))
    return f"{told(found)} ± {like}"


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


def search_name(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam {beam}"


def main_student(found: Found) -> str:
    """The model that the run was made for: in a fine-tuning run it is the fine-tuned one itself."""
    return "distilled" if "distilled" in within(found, "models") else "fine-tuned"


def headline(found: Found, student: str | None = None) -> list[str]:
    """What came out, in sentences: nothing is claimed that was not measured."""
    student = student or main_student(found)
    model, teacher = inside(found, "models", student), inside(found, "models", "teacher")
    if not model:
        return []
    places = quoted(found)
    several = len(places) > 1
    sentences = [_quality(model, teacher, place, several) for place in places]
    by_beam = bool(places) and all(metric == BY_BEAM for _, _, metric in places)
    if cost := _cost(model, teacher, found, search_name(BEAM if by_beam else 1)):
        if len(sentences) == 1:
            sentences[0] += f" {cost}"
        else:
            sentences.append(f"The student comes {cost}")
    if not by_beam:
        sentences += [_beside_a_beam(model, teacher, found, place) for place in places[:1]]
    return [f"{sentence}." for sentence in sentences if sentence]


def _quality(model: Any, teacher: Any, place: tuple[str, str, str], several: bool) -> str:
    data, split, metric = place
    if metric == "likelihood" and "perplexity" in within(model, "quality", data, split):
        metric = "perplexity"  # its inverse, which people know
    ours, theirs = (number(inside(one, "quality", data, split, metric)) for one in (model, teacher))
    rows = number(inside(model, "quality", data, split, "rows"))
    where = f"on {named(data)} {named(split)}" if several else f"on {named(split)}"
    where += f" ({count(rows)} rows)" if rows else ""
    where += ", by which it was chosen" if split == DEV else ""
    if ours is None:
        return f"No {titled(metric)} was measured {where}"
    mine, told = score(model, data, split, metric), in_its_unit(metric)
    if theirs is None:
        ends = interval(model, data, split, metric)
        likely = f" (95 % interval {told(ends[0])} to {told(ends[1])})" if ends else ""
        return f"The model reaches {mine} {titled(metric)}{likely} {where}"
    if 0 < ours <= theirs and metric not in PLAIN:
        share = f"keeps {percent(ours / theirs)} % of the teacher’s {titled(metric)}"
        return f"The student {share} ({mine} of {told(theirs)}) {where}"
    return f"The student scores {mine} in {titled(metric)}, the teacher {told(theirs)}, {where}"


def _cost(model: Any, teacher: Any, found: Found, searched: str) -> str:
    """Size and speed, as far as they are known; the speed is that of the search whose quality was told."""
    ours, theirs = (number(inside(one, "parameters")) for one in (model, teacher))
    words = []
    if ours is not None:
        words.append(f"with {parameters(ours)}" + (f" of {parameters(theirs)}" if theirs else "") + " parameters")
    written = searches({"model": model})
    faster = _ratio(model, teacher, searched, searched) if written else number(inside(model, "times_faster"))
    if teacher and faster is not None and found.get("too_busy"):
        words.append("its speed not told, since the machine was too busy")
    elif teacher and faster is not None:
        alike = f", both {SEARCHED.get(searched, 'with a beam')}{_engines(model, teacher)}" if written else ""
        words.append(_faster(faster) + alike)
    return ", ".join(words)


def _beside_a_beam(model: Any, teacher: Any, found: Found, place: tuple[str, str, str]) -> str:
    """A student that needs no beam beside the teacher with its own, as it would be used: quality and time of the same texts."""
    ours, theirs = (
        number(inside(one, "quality", *place[:2], key)) for one, key in ((model, "bleu"), (teacher, BY_BEAM))
    )
    faster = _ratio(model, teacher, search_name(1), search_name(BEAM))
    if not ours or not theirs or faster is None or found.get("too_busy"):
        return ""
    return (
        f"Without a beam it has {percent(ours / theirs)} % of the BLEU of the teacher with a beam of {BEAM} "
        f"({percent(ours)} of {percent(theirs)}) and is {_faster(faster)}{_engines(model, teacher)}"
    )


def _ratio(model: Any, teacher: Any, ours: str, theirs: str) -> float | None:
    """Texts a second of one model by those of another, each by its search."""
    mine, other = number(per_second(model, ours)), number(per_second(teacher, theirs))
    return mine / other if mine and other else None


def _faster(times: float) -> str:
    if times >= 1.05:
        return f"{times:.1f} times faster"
    return "as fast as the teacher" if times > 0.95 else f"slower than the teacher ({times:.2f} times its speed)"


def _engines(model: Any, teacher: Any) -> str:
    """Said where two engines decode, since it is then also they that are compared."""
    ours, theirs = (inside(one, "engine") for one in (model, teacher))
    return f" (the student by {named(ours)}, the teacher by {named(theirs)})" if ours != theirs else ""


def verdicts(found: Found) -> list[str]:
    """Whether what the student has over or under its baseline and its teacher is more than chance."""
    models = within(found, "models")
    if "distilled" not in models:
        return []
    against = {
        "fine-tuned": "Against fine-tuning the same student on labels alone",
        "teacher": "Against the teacher",
    }
    places = quoted(found)
    said = []
    for other, words in against.items():
        for place in places:
            for one in differences(found):
                compared = (one.get("model"), one.get("against"), one.get("data"), one.get("split"), one.get("metric"))
                if compared == ("distilled", other, *place):
                    where = f" on {named(place[0])}" if len(places) > 1 else ""
                    said.append(f"{words}{where}: {points_and_words(one)}.")
    said += [f"{note}." for note in [how_corrected(differences(found))] if note and said]
    if not said and "fine-tuned" in models and places:
        reached = score(models["fine-tuned"], *places[0])
        said.append(
            f"The same student, fine-tuned on labels alone, reaches {reached}; whether they differ was not tested."
        )
    return said + no_baseline(found)


def no_baseline(found: Found) -> list[str]:
    models = within(found, "models")
    if "distilled" not in models or "fine-tuned" in models:
        return []
    return ["No baseline was trained, so nothing here says what the teacher added."]


def points_and_words(one: Mapping[str, Any]) -> str:
    """ "+1.6 points, better, p = 0.02" """
    return f"{points(one.get('mean'), str(one.get('metric')))} points, {clean(one.get('words', ''))}"


def how_corrected(compared: Sequence[Mapping[str, Any]]) -> str:
    """That p values of several comparisons are larger than each would be alone."""
    several = max((int(number(one.get("comparisons")) or 0) for one in compared), default=0)
    return f"Each p is corrected for {several} comparisons (Holm)" if several > 1 else ""


def differences(found: Found) -> list[dict[str, Any]]:
    listed = found.get("differences")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def nearest_classes(probabilities: Sequence[Sequence[Any]], labels: Sequence[Any], most: int = 3) -> str:
    """Which classes the teacher holds for most alike, by what it gives to one where the other is right."""
    mutual = []
    for i in range(len(labels)):
        for j in range(i):
            there, back = number(probabilities[i][j]), number(probabilities[j][i])
            if there is not None and back is not None:
                mutual.append(((there + back) / 2, j, i))
    mutual.sort(key=lambda one: (-one[0], one[1:]))
    pairs = [
        f"{named(labels[first])} and {named(labels[second])} ({percent(mean)} %)"
        for mean, first, second in mutual[:most]
        if mean >= 0.0005
    ]
    if not pairs:
        return ""
    if len(labels) == 2:
        return f"It gives {percent(mutual[0][0])} % to the other class, on average."
    return f"Nearest each other: {'; '.join(pairs)}. In brackets: what it gives to one where the other is right."
