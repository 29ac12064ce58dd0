"""The training examples of a stage: what its data makers make of the rows in train."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from potstill.data.examples import Examples
from potstill.data.making import Change, DataMaker, EpochDataMaker, MakeContext, TeacherDataMaker
from potstill.errors import InputError
from potstill.recipe import short_forms
from potstill.recipe.schema import Stage
from potstill.runs.data_set import DataSet
from potstill.system import ranks
from potstill.system.display import Display
from potstill.system.randomness import mix

MakeWithTeacher = Callable[[TeacherDataMaker, Examples, MakeContext], Examples]
"""Runs a data maker that asks the teacher; `plan` replaces it."""


def run_maker(maker: DataMaker, examples: Examples, context: MakeContext) -> Examples:
    return maker.make(examples, context)


def data_makers(stage: Stage) -> list[DataMaker]:
    return [short_forms.make_plugin("data", fields) for fields in stage.data]


def epoch_changes(stage: Stage) -> tuple[Change, ...]:
    """The functions that change the examples in every epoch."""
    return tuple(maker.change for maker in data_makers(stage) if isinstance(maker, EpochDataMaker))


def stage_examples(
    stage: Stage,
    data: DataSet,
    asks_teacher: bool,
    seed: int,
    display: Display | None = None,
    make: MakeWithTeacher = run_maker,
) -> Examples:
    """Run the stage's data makers on train. A method that does not ask the teacher learns from labelled rows only."""
    examples = data.train
    for maker in data_makers(stage):
        context = MakeContext(seed, data.task, display, data.loaded_teacher, data.length)
        # the ranks share the work of the teacher; other makers run on each rank
        run = partial(make, maker) if isinstance(maker, TeacherDataMaker) else ranks.first_before_others(maker.make)
        examples = run(examples, context)
    if not asks_teacher:
        every, examples = len(examples), examples.labelled_only
        if display and stage.data and len(examples) < every:
            display.say(f"{every - len(examples)} of {every} examples have no label and are left out")
    if stage.reads != 1:
        examples = repeated(examples, stage.reads)
    if not len(examples):
        raise InputError(
            f"{data.train.source}: no row is left to learn from; give labelled rows, "
            "or a teacher and a method that asks it, such as 'soft_targets'"
        )
    return examples


def repeated(examples: Examples, times: float) -> Examples:
    """Repeat the examples; for the fraction of `times`, add a seeded sample."""
    rows = round(times * len(examples))
    whole, rest = divmod(rows, max(len(examples), 1))
    more = np.random.default_rng(mix("repeated")).permutation(len(examples))[:rest]
    return examples.take(np.concatenate([np.tile(np.arange(len(examples)), whole), np.sort(more)]))
