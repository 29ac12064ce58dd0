"""Of two classes, which one is meant by F1: that of "normal" says little where "hate" is what is looked for."""

from __future__ import annotations

from dataclasses import replace

from potstill.data.examples import Examples
from potstill.data.label_names import match_spellings
from potstill.errors import InputError
from potstill.tasks.task import Task


def with_positive(task: Task, named: str | None, labelled: Examples) -> Task:
    """The task with the class whose F1 is shown: the named one, by its label or number, or the rarer one of these rows."""
    two = task.outcome == "class" and task.classes == 2 and task.form in ("text", "pixels")
    if named is not None:
        known = {**match_spellings([named], task.numbers), **task.numbers}
        found = known.get(named, int(named) if named in ("0", "1") else None)
        if not two or found is None:
            told = f"write one of {', '.join(task.labels)}" if two else "leave it out: there are not two classes"
            raise InputError(f"positive = '{named}': is no class of this task; {told}")
        return replace(task, positive=found)
    if not two or not len(labelled):
        return task
    ones = float(task.golds(labelled).mean())
    return replace(task, positive=0) if ones > 0.5 else task
