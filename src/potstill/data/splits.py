"""Which rows are dev where no file is given, and which rows stand in two splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from potstill.data.examples import Examples, key_of
from potstill.data.task import DataTask
from potstill.errors import InputError
from potstill.system.randomness import mix

HELD_OUT = 10  # one row in so many


def split_off_dev(rows: Examples, task: DataTask) -> tuple[Examples, Examples]:
    """The rows to learn from, and a tenth of each class as dev; rows of the same text are on the same side.

    The same rows whatever the seed, so that seeds are compared on the same ones.
    """
    if len(rows) < 2:
        raise InputError(
            f"{rows.source} has {len(rows)} row(s); at least two are needed to hold one out as dev, or give a file with --dev"
        )
    _, first, text = np.unique(text_keys(rows, task), return_index=True, return_inverse=True)
    if len(first) < 2:
        raise InputError(
            f"{rows.source}: all rows have the same text, so none can be held out as dev; give a file with --dev"
        )
    sizes, kinds = np.bincount(text), _classes(rows, task)[first]
    order = np.random.default_rng(mix("dev")).permutation(len(first))
    order = order[np.argsort(kinds[order], kind="stable")]
    held: list[int] = []
    wanted, taken = 0.0, 0  # rows of the classes so far: what a class does not give, the next one does
    for alike in np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1):
        wanted += sizes[alike].sum() / HELD_OUT
        most = max(round(wanted), 1)
        for one in alike:
            if taken >= most or len(held) == len(first) - 1:
                break
            if taken + sizes[one] <= most:
                held.append(int(one))
                taken += int(sizes[one])
    if not held:  # every text stands there many times
        held.append(int(order[np.argmin(sizes[order])]))
    of_dev = np.isin(text, held)
    return rows.take(np.flatnonzero(~of_dev)), rows.take(np.flatnonzero(of_dev))


def text_keys(examples: Examples, task: DataTask) -> np.ndarray:
    """(n,) the same for the same text, however it is labelled; the text to be written or translated to is a label too."""
    if task.generates and examples.meta["pairs"]:
        return np.array([key_of(text or str(pair), "") for text, pair in examples.texts()], np.int64)
    return np.asarray(examples.keys[examples.index])


def _classes(rows: Examples, task: DataTask) -> np.ndarray:
    """(n,) the class of each row, -1 without a label; all 0 where a row has no single class."""
    if task.outcome != "class" or task.target_width != 1 or task.generates:
        return np.zeros(len(rows), np.int64)
    return np.where(rows.labelled[rows.index], np.asarray(rows.targets[rows.index]).astype(np.int64), -1)


def leaks(train: Examples, others: Mapping[str, Examples], task: DataTask) -> list[dict[str, Any]]:
    """Rows of dev and tests whose text stands in train too, and rows of tests whose text stands in dev."""
    keys = {name: text_keys(one, task) for name, one in {"train": train, **others}.items()}
    found = []
    for before in ("train", "dev"):
        for name in others:
            rows = int(np.isin(keys[name], keys[before]).sum()) if name != before else 0
            if rows:
                found.append({"split": name, "also_in": before, "rows": rows, "of": len(keys[name])})
    return found
