"""Splits: holds out dev rows if no dev file is given, counts rows that occur in two splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from potstill.data.examples import Examples, key_of
from potstill.data.task import DataTask
from potstill.errors import InputError
from potstill.system.randomness import mix

DEV_SHARE = 10  # one row in so many


def split_off_dev(rows: Examples, task: DataTask, documents: bool = False) -> tuple[Examples, Examples]:
    """Return the rows for training, and a tenth of each class as dev. Rows with the same text are on the same side;
    with `documents` those of the same document, and of a single one the end is dev. Where the texts of one document are told
    from those of others, dev has at least two.

    The split does not depend on the seed, so that seeds are compared on the same rows.
    """
    if len(rows) < 2:
        raise InputError(f"{rows.source}: one row cannot be train and dev; add rows, or give a file with --dev")
    keys = np.asarray(rows.documents[rows.index]) if documents else text_keys(rows, task)
    if documents and keys[0] == keys[-1]:
        end = len(rows) - max(1, round(len(rows) / DEV_SHARE))
        return rows.take(np.arange(end)), rows.take(np.arange(end, len(rows)))
    _, first, text = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) < 2:
        raise InputError(f"{rows.source}: all rows have the same text, so none can be dev; give a file with --dev")
    sizes, classes = np.bincount(text), _classes(rows, task)[first]
    order = np.random.default_rng(mix("dev")).permutation(len(first))
    order = order[np.argsort(classes[order], kind="stable")]
    dev: list[int] = []
    wanted, taken = 0.0, 0  # rows over all classes so far, so that one class makes up for another
    for texts in np.split(order, np.flatnonzero(np.diff(classes[order])) + 1):
        wanted += sizes[texts].sum() / DEV_SHARE
        most = max(round(wanted), 1)
        for each in texts:
            if taken >= most or len(dev) == len(first) - 1:
                break
            if taken + sizes[each] <= most:
                dev.append(int(each))
                taken += int(sizes[each])
    if not dev:  # every text occurs many times
        dev.append(int(order[np.argmin(sizes[order])]))
    if documents and task.follows and len(dev) == 1 and len(first) > 3:
        usual = np.argsort(np.abs(sizes - np.median(sizes)), kind="stable")
        dev.append(next(int(each) for each in usual if each != dev[0]))
    is_dev = np.isin(text, dev)
    return rows.take(np.flatnonzero(~is_dev)), rows.take(np.flatnonzero(is_dev))


def text_keys(examples: Examples, task: DataTask) -> np.ndarray:
    """Return (n,) keys that are equal for equal texts, also if labels or target texts differ."""
    if task.generates and examples.meta["pairs"]:
        return np.array([key_of(text or str(pair), "") for text, pair in examples.texts()], np.int64)
    return np.asarray(examples.keys[examples.index])


def _classes(rows: Examples, task: DataTask) -> np.ndarray:
    """Return (n,) the class of each row, -1 without a label; all 0 if rows do not have a single class."""
    if task.outcome != "class" or task.target_width != 1 or task.vocabulary:
        return np.zeros(len(rows), np.int64)
    return np.where(rows.labelled[rows.index], np.asarray(rows.targets[rows.index]).astype(np.int64), -1)


def leaks(train: Examples, others: Mapping[str, Examples], task: DataTask) -> list[dict[str, Any]]:
    """Count the rows of dev and test whose text is also in train, and the rows of test whose text is also in dev."""
    keys = {name: text_keys(examples, task) for name, examples in {"train": train, **others}.items()}
    pairs = [(name, before) for before in ("train", "dev") for name in others if name != before]
    counts = [(name, before, int(np.isin(keys[name], keys[before]).sum())) for name, before in pairs]
    return [{"split": name, "also_in": before, "rows": n, "of": len(keys[name])} for name, before, n in counts if n]
