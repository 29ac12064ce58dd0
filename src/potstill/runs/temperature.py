"""The temperature of a finished student: fitted on dev, stored in its config.json, read by `predict` and `measure`."""

from __future__ import annotations

from collections.abc import Callable

from potstill.inference.answers import logits_of, predicted
from potstill.measuring.calibration import fit_temperature
from potstill.models.builder import Student
from potstill.models.folders import TEMPERATURE
from potstill.runs.data_set import DataSet
from potstill.runs.stage_setup import Run
from potstill.runs.stages import Trained
from potstill.runs.teacher_knowledge import LEAST_ROWS
from potstill.system import ranks

MOST_ROWS = 5000  # of dev: more take long


@ranks.on_first
def store_temperatures(run: Run, trained: Trained, name: str) -> None:
    """Fit the student of each data set and note the temperature in its config. One of other weights is removed."""
    for data, student in zip(run.data_sets.last, trained.students, strict=True):
        config = student.model.config
        vars(config).pop(TEMPERATURE, None)
        if (found := temperature_on_dev(data, student, name, run.display.say)) is not None:
            setattr(config, TEMPERATURE, found)


def temperature_on_dev(data: DataSet, student: Student, name: str, say: Callable[[str], None]) -> float | None:
    """Return the temperature at which the labels of dev are most probable, to four digits; None where there are no
    probabilities of classes, or too few rows."""
    if data.task.vocabulary or data.task.outcome == "value":
        return None
    of = f"{name} ({data.name})" if data.name != "task" else name
    rows = data.dev.labelled_only
    if len(rows) < LEAST_ROWS:
        few = f"dev has {len(rows)} rows with a label, and {LEAST_ROWS} are needed"
        say(f"{of}: its probabilities are left as they are, since {few} to calibrate them")
        return None
    source = data.for_scoring(rows.sample(MOST_ROWS, seed=0), student.tokenizer)
    parts = list(predicted(logits_of(student.model), source))
    found = round(fit_temperature(parts, data.task.outcome), 4)
    say(
        f"{of}: logits divided by {found:.2f} give calibrated probabilities, fitted on {len(source.examples)} rows of dev"
    )
    return found
