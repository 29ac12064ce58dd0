"""What a teacher knows, what to expect of it and what would help most: one set of sentences for terminal, page and card."""

from __future__ import annotations

from potstill.measuring.measurements import BASELINE, TEACHER, Measurements, TeacherKnowledge, TeacherRows, short_name
from potstill.measuring.significance import smallest_difference
from potstill.reporting.numbers import MISSING, count, percent, short
from potstill.reporting.tables import Cell, Table

LEAST_RIGHT, LEAST_SURE = 0.95, 0.95  # on train: above both, the answers are the labels again
LEARNED = 0.6  # of the error on dev: a smaller one on train belongs to rows that the teacher was trained on
FEW_DEV = 100  # rows
MUCH_NEW = 2  # times the rows with a label: with fewer rows without one, more of them usually help most
LARGE = 0.02  # a smallest difference above it hides what a method usually gains


def expectations(
    knowledge: TeacherKnowledge, seeds: int, data: str = "", measured: Measurements | None = None
) -> list[str]:
    """Return the sentences about one data set. `data`: its name where there are several; `measured`: after the run."""
    facts = [words for name, rows in knowledge.splits.items() if (words := _known(name, rows))]
    if facts and knowledge.temperature is not None:
        facts.append(f"its probabilities fit the labels of dev at T = {knowledge.temperature:.2g}")
    classes = f"{count(knowledge.classes)} classes" if knowledge.classes else ""
    about = f" ({', '.join(filter(None, [short_name(data), classes]))})" if data or classes else ""
    sentences = [f"What the teacher knows{about}: {'; '.join(facts)}."] if facts else []
    sentences += [words for words in (_expected(knowledge), _shown(knowledge, seeds)) if words]
    if help_ := most_helpful(knowledge, seeds, measured):
        sentences.append(f"What would help most: {help_}.")
    return sentences


def _known(name: str, rows: TeacherRows) -> str:
    where = {"unlabelled": "on rows without a label"}.get(name, f"on {short_name(name)}")
    if rows.error is not None:
        return f"{where} an error (RMSE) of {short(rows.error)}"
    right = "" if rows.right is None else f"{percent(rows.right)} % right and "
    return "" if rows.sure is None else f"{where} {right}{rows.sure:.2f} sure"


def repeats_labels(knowledge: TeacherKnowledge) -> bool:
    """Tell whether its answers to train are hardly more than the labels, as on rows that it was trained on."""
    train, dev = knowledge.splits.get("train"), knowledge.splits.get("dev")
    if train is None:
        return False
    if train.error is not None:
        return dev is not None and dev.error is not None and train.error < LEARNED * dev.error
    return (train.right or 0.0) >= LEAST_RIGHT and (train.sure or 0.0) >= LEAST_SURE


def _expected(knowledge: TeacherKnowledge) -> str:
    """The shares are those of published runs and of this project's own."""
    new = knowledge.splits.get("unlabelled")
    if new is not None:
        return (
            f"What it knows beyond the labels shows on the {count(new.of)} rows without a label: "
            "distilling on such rows usually closes about half of the gap between fine-tuning and the teacher."
        )
    if repeats_labels(knowledge):
        return (
            "On its own rows this teacher repeats the labels: distilling on them alone usually closes little of the gap "
            "between fine-tuning and the teacher."
        )
    if "train" in knowledge.splits:
        return (
            "Its answers to train say more than the labels do: they usually close a part of the gap between fine-tuning "
            "and the teacher."
        )
    return ""


def _shown(knowledge: TeacherKnowledge, seeds: int) -> str:
    if (smallest := _smallest(knowledge, seeds)) is None:
        return ""
    rows, size = f"The test file of {count(knowledge.test_rows)} rows", f"of about {percent(smallest)} points"
    if seeds < 2:
        return f"{rows} and one seed can show a difference {size} between two models, and none between methods."
    return f"{rows} and {seeds} seeds can show a difference {size}."


def _smallest(knowledge: TeacherKnowledge, seeds: int) -> float | None:
    if not knowledge.test_rows or not knowledge.row_variance or knowledge.row_variance < 0:
        return None
    return smallest_difference(knowledge.row_variance, knowledge.test_rows, seeds)


def most_helpful(knowledge: TeacherKnowledge, seeds: int, measured: Measurements | None = None) -> str:
    """Return the one thing that would help most, or nothing."""
    dev, train, new = (knowledge.splits.get(name) for name in ("dev", "train", "unlabelled"))
    if measured is not None and _teacher_is_no_better(measured):
        return "a better teacher, since this one is no better than the student that was fine-tuned on labels"
    if dev is not None and dev.of < FEW_DEV:
        return f"more rows of dev, which choose the epoch and are only {count(dev.of)}"
    if train is not None and (new is None or new.of < MUCH_NEW * train.of):
        more = "more of it" if new is not None else "--unlabelled FILE"
        return f"rows of this kind without labels, on which the teacher has something new to say ({more})"
    if (smallest := _smallest(knowledge, seeds)) is not None and smallest > LARGE:
        return f"a larger test file{', or --seeds 3' if seeds < 3 else ''}, since smaller differences cannot be shown"
    return ""


def _teacher_is_no_better(measured: Measurements) -> bool:
    """Tell whether no test set has a gap that the student could close."""
    teacher, baseline = (measured.models.get(name) for name in (TEACHER, BASELINE))
    if teacher is None or baseline is None:
        return False
    scores = [(teacher.score(place), baseline.score(place)) for place in measured.quoted()]
    return bool(scores) and all(None not in pair and pair[0] <= pair[1] for pair in scores)  # type: ignore[operator]


def knowledge_of_run(measurements: Measurements) -> list[str]:
    several = len(measurements.teacher_knows) > 1
    return [
        sentence
        for data, knowledge in measurements.teacher_knows.items()
        for sentence in expectations(knowledge, len(measurements.seeds), data if several else "", measurements)
    ]


def knowledge_tables(measurements: Measurements) -> list[Table]:
    """A table for each data set: a row for each kind of rows that the teacher was asked."""
    several = len(measurements.teacher_knows) > 1
    return [
        Table(_heads(knowledge), [_line(name, rows) for name, rows in knowledge.splits.items()], data * several)
        for data, knowledge in measurements.teacher_knows.items()
        if knowledge.splits
    ]


def _heads(knowledge: TeacherKnowledge) -> list[str]:
    if any(rows.error is not None for rows in knowledge.splits.values()):
        return ["", "rows asked", "of", "RMSE"]
    return ["", "rows asked", "of", "right", "sure", "below 0.9", "entropy"]


def _line(name: str, rows: TeacherRows) -> list[Cell]:
    first = [short_name(name), count(rows.rows), count(rows.of)]
    if rows.sure is None:
        return [Cell(text) for text in (*first, short(rows.error))]
    entropy = MISSING if rows.entropy is None else f"{rows.entropy:.3f}"
    return [Cell(text) for text in (*first, percent(rows.right), f"{rows.sure:.3f}", percent(rows.unsure), entropy)]
