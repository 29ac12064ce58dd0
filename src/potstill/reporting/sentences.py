"""What came out, in sentences: nothing is claimed that was not measured."""

from __future__ import annotations

from collections.abc import Sequence

from potstill.measuring.measurements import (
    BASELINE,
    DEV,
    LOWER_IS_BETTER,
    STUDENT,
    TEACHER,
    Comparison,
    MeasuredModel,
    Measurements,
    Place,
    TriedRate,
    clean,
    short_name,
)
from potstill.measuring.significance import NO_DIFFERENCE
from potstill.reporting.columns import ENGINES
from potstill.reporting.numbers import (
    count,
    metric_format,
    metric_title,
    parameters,
    percent,
    points,
    score_text,
    short,
)
from potstill.tasks.metrics.texts import BEAM, search_name

BY_BEAM = "bleu_beam"
GREEDY, BEAM_SEARCH = search_name(1), search_name(BEAM)


def headline(measurements: Measurements, student: str | None = None) -> list[str]:
    """Return quality, size and speed of a student beside its teacher, as sentences."""
    model, teacher = measurements.models.get(student or measurements.student_name), measurements.models.get(TEACHER)
    if model is None or model == MeasuredModel():
        return []
    places = measurements.quoted()
    sentences = [_quality(model, teacher, place, len(places) > 1) for place in places]
    by_beam = bool(places) and all(place.metric == BY_BEAM for place in places)
    speed = _speed(model, teacher, measurements, BEAM_SEARCH if by_beam else GREEDY)
    if len(sentences) == 1:
        sentences[0] = ", ".join(
            filter(None, [" with ".join(filter(None, [sentences[0], _size(model, teacher)])), speed])
        )
    elif cost := ", ".join(filter(None, [_size(model, teacher), speed])):
        sentences.append(f"The student: {cost}")
    if not by_beam:
        sentences += [_greedy_beside_beam(model, teacher, measurements, place) for place in places[:1]]
    return [f"{sentence}." for sentence in sentences if sentence]


def fastest_forms(measurements: Measurements) -> list[str]:
    """Return in which form each network reads most texts a second, and on which processor."""
    if measurements.too_busy:
        return []
    found = []
    for name, model in measurements.models.items():
        if model.fastest is not None and (rate := model.timing(model.fastest, "best_examples_per_second")) is not None:
            ways = [ENGINES.get(model.fastest, model.fastest)]
            for key, what in (("best_streams", "streams"), ("best_batch", "at once")):
                number = model.timing(model.fastest, key)
                ways += [f"{count(number)} {what}"] if number is not None else []
            found.append(f"{name} by {', '.join(ways)}: {short(rate)} a second")
    return [f"fastest on {measurements.device}: {'; '.join(found)}"] if found else []


def _quality(model: MeasuredModel, teacher: MeasuredModel | None, place: Place, several: bool) -> str:
    if place.metric == "likelihood" and "perplexity" in model.scores(place.data, place.split):
        place = place._replace(metric="perplexity")  # its inverse, which people know
    metric, written = metric_title(place.metric), metric_format(place.metric)
    ours, theirs = model.score(place), teacher.score(place) if teacher else None
    rows = model.score(place._replace(metric="rows"))
    where = f"on {short_name(place.data)} {short_name(place.split)}" if several else f"on {short_name(place.split)}"
    where += f" ({count(rows)} rows)" if rows else ""
    where += ", on which it was selected" if place.split == DEV else ""
    if ours is None:
        return f"No {metric} was measured {where}"
    score = score_text(model, place)
    if theirs is None:
        ends = model.interval(place)
        interval = f" (95 % interval {written(ends[0])} to {written(ends[1])})" if ends else ""
        return f"The model reaches {score} {metric}{interval} {where}"
    if 0 < ours <= theirs and place.metric not in LOWER_IS_BETTER:
        share = percent(ours / theirs)
        return f"The student keeps {share} % of the teacher’s {metric} ({score} of {written(theirs)}) {where}"
    return f"The student scores {score} in {metric}, the teacher {written(theirs)}, {where}"


def _size(model: MeasuredModel, teacher: MeasuredModel | None) -> str:
    if model.parameters is None:
        return ""
    of = f" of {parameters(teacher.parameters)}" if teacher and teacher.parameters else ""
    return f"{parameters(model.parameters)}{of} parameters"


def _speed(model: MeasuredModel, teacher: MeasuredModel | None, measurements: Measurements, search: str) -> str:
    """Return how much faster the student is; for generative models by the search whose quality is quoted."""
    if teacher is None:
        return ""
    times = _times_faster(model, teacher, search, search) if model.searches else model.times_faster
    if times is None:
        return ""
    if measurements.too_busy:
        return "its speed is not stated because the machine was too busy"
    if not model.searches:
        return _faster(times)
    searched = "greedy search" if search == GREEDY else "beam search"
    return f"{_faster(times)}, both with {searched}{_engines(model, teacher)}"


def _greedy_beside_beam(
    model: MeasuredModel, teacher: MeasuredModel | None, measurements: Measurements, place: Place
) -> str:
    """Compare a student with greedy search and a teacher with beam search, as they would be used."""
    if teacher is None or measurements.too_busy:
        return ""
    ours, theirs = model.score(place._replace(metric="bleu")), teacher.score(place._replace(metric=BY_BEAM))
    times = _times_faster(model, teacher, GREEDY, BEAM_SEARCH)
    if not ours or not theirs or times is None:
        return ""
    return (
        f"With greedy search it keeps {percent(ours / theirs)} % of the BLEU of the teacher with a beam of {BEAM} "
        f"({percent(ours)} of {percent(theirs)}) and is {_faster(times)}{_engines(model, teacher)}"
    )


def _times_faster(model: MeasuredModel, teacher: MeasuredModel, ours: str, theirs: str) -> float | None:
    """Return texts per second of the student by one search, divided by those of the teacher by another."""
    rate, other = model.timing(ours, "examples_per_second"), teacher.timing(theirs, "examples_per_second")
    return rate / other if rate and other else None


def _faster(times: float) -> str:
    if times >= 1.05:
        return f"{times:.1f} times faster"
    return "as fast as the teacher" if times > 0.95 else f"slower than the teacher ({times:.2f} times its speed)"


def _engines(model: MeasuredModel, teacher: MeasuredModel) -> str:
    """Name the engines where they differ, since they are compared too."""
    if model.engine == teacher.engine:
        return ""
    return f" (the student by {short_name(model.engine)}, the teacher by {short_name(teacher.engine)})"


def verdicts(measurements: Measurements) -> list[str]:
    """Say whether the student differs from its baseline and its teacher by more than chance."""
    if STUDENT not in measurements.models:
        return []
    opponents = {
        BASELINE: "Against fine-tuning the same student on labels alone",
        TEACHER: "Against the teacher",
    }
    places = measurements.quoted()
    sentences = []
    for opponent, words in opponents.items():
        for place in places:
            where = f" on {short_name(place.data)}" if len(places) > 1 else ""
            sentences += [
                f"{words}{where}: {difference_words(comparison)}."
                for comparison in measurements.differences
                if (comparison.model, comparison.against, comparison.place) == (STUDENT, opponent, place)
            ]
    if sentences and (note := correction_note(measurements.differences)):
        sentences.append(f"{note}.")
    if not sentences and BASELINE in measurements.models and places:
        reached = score_text(measurements.models[BASELINE], places[0])
        sentences.append(
            f"The same student, fine-tuned on labels alone, reaches {reached}; whether they differ was not tested."
        )
    return sentences + gap_sentences(measurements) + no_baseline(measurements)


def gap_sentences(measurements: Measurements) -> list[str]:
    """Say how much of the gap between fine-tuning and the teacher the student closes, or that there is none to close."""
    places = measurements.quoted()
    sentences = []
    for place in places if STUDENT in measurements.models else ():
        if (gap := measurements.models[STUDENT].gap(place)) is None or gap.gap is None:
            continue
        where = f" on {short_name(place.data)}" if len(places) > 1 else ""
        if gap.share is None:
            size = f"{points(gap.gap, place.metric)} points"
            reason = f"the teacher is not shown to be better than fine-tuning ({size})"
            sentences.append(f"The share of the gap closed{where} is not defined: {reason}.")
        else:
            interval = f" (95 % interval {percent(gap.low, 0)} to {percent(gap.high, 0)} %)"
            between = f"the gap between fine-tuning and the teacher{where}"
            sentences.append(
                f"It closes {percent(gap.share, 0)} % of {between}{interval if None not in (gap.low, gap.high) else ''}."
            )
    return sentences


def no_baseline(measurements: Measurements) -> list[str]:
    if STUDENT not in measurements.models or BASELINE in measurements.models:
        return []
    return ["No baseline was trained, so nothing here says what the teacher added."]


def difference_words(comparison: Comparison) -> str:
    """Return "+1.6 points, better, p = 0.02"."""
    return f"{points(comparison.mean, comparison.metric)} points, {verdict_words(comparison)}"


def verdict_words(comparison: Comparison) -> str:
    """Return the verdict; where no difference is shown, with the size that these rows and seeds would show."""
    words = clean(comparison.words)
    if not comparison.smallest or not words.startswith(NO_DIFFERENCE):
        return words
    return f"{words}; a difference of about {percent(comparison.smallest)} points would be shown"


def correction_note(comparisons: Sequence[Comparison]) -> str:
    """Say that the p of several comparisons are larger than each would be alone."""
    number = max((int(comparison.comparisons or 0) for comparison in comparisons), default=0)
    return f"Each p is corrected for {number} comparisons (Holm)" if number > 1 else ""


def caveats(measurements: Measurements) -> list[str]:
    """Return what a reader must know before believing the figures; said in the terminal, on the page and on the card."""
    sentences = []
    if measurements.changed_inputs:
        sentences.append(f"Inputs changed during the run: {clean(', '.join(measurements.changed_inputs), 300)}.")
    for data, leaks in measurements.leaks.items():
        of = f" of {short_name(data)}" if len(measurements.tasks) > 1 else ""
        sentences += [
            f"{count(leak.rows)} of {count(leak.of)} rows of {short_name(leak.split)}{of} "
            f"are also in {short_name(leak.also_in)}."
            for leak in leaks
        ]
    for name, model in measurements.models.items():
        if model.learned is False:
            sentences.append(f"{short_name(name)} did not learn: on dev it is no better than chance.")
    return sentences


def signatures(measurements: Measurements) -> list[str]:
    """Return how texts were scored, in sacrebleu's own words: "BLEU|nrefs:1|…"."""
    return [clean(f"{name}|{words}", 200) for name, words in measurements.signatures.items()]


def nearest_classes(probabilities: Sequence[Sequence[float | None]], names: Sequence[str], most: int = 3) -> str:
    """Name the classes that a teacher confuses most, by its mean probability of one on the rows of the other."""
    mutual = []
    for i in range(len(names)):
        for j in range(i):
            there, back = probabilities[i][j], probabilities[j][i]
            if there is not None and back is not None:
                mutual.append(((there + back) / 2, j, i))
    mutual.sort(key=lambda pair: (-pair[0], pair[1:]))
    pairs = [
        f"{names[first]} and {names[second]} ({percent(mean)} %)"
        for mean, first, second in mutual[:most]
        if mean >= 0.0005
    ]
    if not pairs:
        return ""
    if len(names) == 2:
        return f"It gives the other class {percent(mutual[0][0])} % on average."
    return f"Most alike to it: {'; '.join(pairs)}. In brackets: the mean probability of one on the rows of the other."


def rate_sentences(measurements: Measurements) -> list[str]:
    """Return for each model, stage and seed which learning rates were tried, with their losses on dev, and which was taken."""
    said = []
    for name, model in measurements.models.items():
        trainings = sorted({(trial.stage or 0, trial.seed or 0) for trial in model.rates})
        stages, seeds = ({training[place] for training in trainings} for place in (0, 1))
        for stage, seed in trainings:
            trials = [trial for trial in model.rates if (trial.stage or 0, trial.seed or 0) == (stage, seed)]
            most = max(trial.steps for trial in trials)
            last = [trial for trial in trials if trial.steps == most and trial.loss is not None]
            if not last:
                continue
            best = min(last, key=lambda trial: trial.loss or 0.0)
            where = [f"stage {stage + 1}"] if len(stages) > 1 else []
            where += [f"seed {seed}"] if len(seeds) > 1 else []
            title = ", ".join([short_name(name), *where])
            losses = ", ".join(f"{trial.rate:g} for {trial.steps} steps: {_loss(trial)}" for trial in trials)
            said.append(f"{title}: {best.rate:g} was taken. Losses on dev: {losses}.")
    return said


def _loss(trial: TriedRate) -> str:
    return "diverged" if trial.loss is None else f"{trial.loss:.4f}"
