"""Measurements in words and numbers for people, shared by the report and the model card.

A run's folder may be old, cut short or from a stranger: what is missing or no number reads as a dash and never fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from potstill.measuring.measurements import (
    PLAIN,
    Found,
    clean,
    differences,
    inside,
    interval,
    main_student,
    named,
    number,
    per_second,
    quoted,
    searches,
    within,
)
from potstill.measuring.significance import DEV
from potstill.reporting.numbers import (
    count,
    in_its_unit,
    parameters,
    percent,
    points,
    score,
    titled,
)
from potstill.tasks.metrics.texts import BEAM, search_name

BY_BEAM = "bleu_beam"
SEARCHED = {"greedy": "without a beam"}


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


def caveats(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each: inputs that changed, rows in two splits, students at chance."""
    told = []
    changed = found.get("changed_inputs")
    if isinstance(changed, list) and changed:
        told.append(f"Inputs changed while the run went on: {clean(', '.join(map(str, changed)), 300)}.")
    for data, leaks in within(found, "leaks").items():
        of = f" of {named(data)}" if len(within(found, "tasks")) > 1 else ""
        for leak in leaks if isinstance(leaks, list) else ():
            rows, split, other = (inside(leak, key) for key in ("rows", "split", "also_in"))
            told.append(
                f"{clean(rows)} of {clean(inside(leak, 'of'))} rows of {named(split)}{of} are in {named(other)} too."
            )
    for name, model in within(found, "models").items():
        if inside(model, "learned") is False:
            told.append(f"{named(name)} did not learn: on dev it is no better than chance.")
    return told
