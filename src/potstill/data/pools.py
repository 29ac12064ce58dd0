"""Unlabelled texts beside train, from files, folders, packages and data sets: as sentences, without rows of dev and test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import xxhash

from potstill.data.derived import AddedRows, add_rows
from potstill.data.examples import Examples, folder_of, store
from potstill.data.formats.reading import Records
from potstill.data.near_duplicates import NearDuplicates, row_keys
from potstill.data.packages import describe_part, is_part
from potstill.data.row_forms import FORMS
from potstill.data.rows import Columns, Table, open_table
from potstill.data.sentences import cut_documents
from potstill.data.sources import file_formats, files_below, is_saved_data_set
from potstill.data.task import DataTask
from potstill.errors import InputError
from potstill.system import interrupts
from potstill.system.column_files import ColumnFiles, column, write_once

FORMAT = 1  # of the stored choices; raise it to have texts compared again
MUCH = 0.1  # of a split: a pool that holds so much of it is probably where it comes from

Say = Callable[[str], None]


class Pool(NamedTuple):
    """How texts without labels are read, beside the rows of train."""

    sources: Sequence[str]
    like: Table  # whose columns and form they have
    sentences: Literal["auto"] | bool = "auto"


class Found(NamedTuple):
    """What of some texts is new."""

    texts: Examples
    # split -> how many of its rows are equal to one of the texts, and how many are nearly
    held: dict[str, tuple[int, int]]
    omitted: int  # texts that are, or nearly are, rows of these splits
    repeated: int  # texts that are in train, or came before


def with_unlabelled(
    train: Examples, pool: Pool, task: DataTask, held_out: Mapping[str, Examples], say: Say
) -> Examples:
    """Return the rows of train, then the texts of the pool, without labels and each once.

    What is also in train or nearly in `held_out` is left out.
    """
    rows = train if len(train) else next(iter(held_out.values()))
    added: list[Examples] = []
    for source in pool.sources:
        if is_part(source):
            say(describe_part(source))
        for table in open_pool(source, pool.like, say):
            texts = store(table, task)
            if cuts(pool, task, table):
                texts = cut_documents(texts, rows, pool.sentences, say)
            found = new_texts(texts, [train, *added], held_out, task)
            report(found, held_out, len(texts), say)
            added.append(found.texts)
    if not any(map(len, added)):
        problem = "all rows are also in dev or test, or in train"
        raise InputError(f"{', '.join(pool.sources)}: {problem}; give other texts")

    def more() -> Iterator[AddedRows]:
        for texts in added:
            for part in texts.parts():
                yield AddedRows(list(part.texts()), np.full(len(part), -1))

    return add_rows(train, ["unlabelled", *([texts.folder.name, texts.index_hash] for texts in added)], more)


def cuts(pool: Pool, task: DataTask, table: Table) -> bool:
    """Whether long texts of the pool may be cut into sentences: the task reads one text and gives it a label."""
    fits = table.form == "text" and table.columns.pair is None and not task.generates
    if pool.sentences is True and not fits:
        problem = f"sentences = true is for tasks that read one text, not for the rows of {pool.like.source}"
        raise InputError(f"{problem}; omit it")
    return fits and pool.sentences is not False


def new_texts(texts: Examples, before: Sequence[Examples], held_out: Mapping[str, Examples], task: DataTask) -> Found:
    """Leave out near-duplicates of held-out rows, and what is equal to an earlier text. Compared once, then read from the cache."""
    splits, examples = list(held_out), list(held_out.values())
    # targets that are texts, which the new texts do not have, do not count
    pairs = bool(texts.meta["pairs"]) and not task.generates

    def write(columns: ColumnFiles) -> None:
        own = NearDuplicates([], task, pairs)
        seen = [keys_of(each, own) for each in before if len(each)]
        earlier = np.unique(np.concatenate(seen)) if seen else np.empty(0, np.int64)
        rows = NearDuplicates(examples, task, pairs)
        firsts = np.cumsum([0, *map(len, examples)])
        equal, near = (np.zeros(firsts[-1], np.bool_) for _ in range(2))
        omitted = np.zeros(len(texts), np.bool_)
        keys = np.empty(len(texts), np.int64)
        for places in texts.chunks():
            sequences = rows.sequences([texts.text(place) for place in places])
            keys[places.start : places.stop] = row_keys(sequences)
            matches = rows.find(sequences)
            omitted[places.start + matches.texts] = True
            near[matches.rows] = True
            equal[matches.rows[matches.equal]] = True
            interrupts.stop_if_asked()
        repeated = np.isin(keys, earlier)
        others = np.flatnonzero(~omitted & ~repeated)
        kept = others[np.sort(np.unique(keys[others], return_index=True)[1])]
        columns.add("kept", kept)
        counts = [[int(flags[a:b].sum()) for flags in (equal, near)] for a, b in pairwise(firsts)]
        columns.finish({"held": counts, "omitted": int(omitted.sum())})

    identity = [[each.folder.name, each.index_hash] for each in (*examples, *before)]
    folder = folder_of("new texts", FORMAT, texts.folder.name, len(examples), identity)
    meta = write_once(folder, write)
    kept = np.array(column(folder, "kept", np.int64))
    held = {split: (equal, near - equal) for split, (equal, near) in zip(splits, meta["held"], strict=True)}
    return Found(texts.take(kept), held, meta["omitted"], len(texts) - meta["omitted"] - len(kept))


def keys_of(examples: Examples, duplicates: NearDuplicates) -> np.ndarray:
    """(n,) equal for rows whose texts are equal after normalisation."""
    return np.concatenate([row_keys(duplicates.sequences(list(part.texts()))) for part in examples.parts()])


def report(found: Found, held_out: Mapping[str, Examples], rows: int, say: Say) -> None:
    """Say which rows of dev and test the texts hold, and how many texts are left out."""
    source = found.texts.source
    if found.omitted:
        counts = []
        for split, (equal, near) in found.held.items():
            if equal or near:
                nearly = f" (and nearly {near} more)" if near else ""
                counts.append(f"{equal:,}{nearly} of the {len(held_out[split]):,} rows of {split}")
        left_out = f"{source}: {found.omitted} of {rows} rows are also in dev or test and are left out"
        say(f"{left_out}; it holds {' and '.join(counts)}")
        if any(sum(held) >= MUCH * len(held_out[split]) for split, held in found.held.items()):
            say(
                f"warning: dev or test probably come from {source}; make sure that the teacher was not trained on it, "
                "or it knows the rows on which it is measured"
            )
    if found.repeated:
        say(f"{source}: {found.repeated} rows are in train already, or occur twice, and are left out")


def open_pool(source: str, like: Table, say: Say) -> list[Table]:
    """Open a source of texts: one table, or those of all files in a folder, with files of the same columns as one."""
    folder = Path(os.path.expanduser(source))
    if not folder.is_dir() or is_saved_data_set(folder) or like.form == "choices":  # a folder of RACE is one table
        return [open_unlabelled(source, like)]
    alike: dict[tuple[object, ...], list[Table]] = {}
    for file in files_to_read(source, folder, say):
        table = open_unlabelled(str(file), like)
        alike.setdefault((table.kind, table.columns, table.choices, table.shape), []).append(table)
    return [joined(source, tables) for tables in alike.values()]


def files_to_read(source: str, folder: Path, say: Say) -> list[Path]:
    """The files of texts below a folder, of which there is at least one. Say which others there are."""
    files, others = files_below(folder)
    if not files:
        endings = ", ".join(sorted({ending for each in file_formats() for ending in each.endings[:2]}))
        raise InputError(f"{source}: there is no file of texts in the folder; give one that ends in one of {endings}")
    if others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        say(f"{source}: not read, since the ending is of no known format: {others[0].name}{more}")
    return files


def joined(source: str, tables: Sequence[Table]) -> Table:
    """One table of the rows of several. An error names the file."""

    def records() -> Records:
        for table in tables:
            for record in table.records():
                yield record._replace(place=record.where(table.source))

    def digest() -> str:
        return xxhash.xxh3_128_hexdigest("".join(table.digest() for table in tables).encode())

    before = xxhash.xxh3_128_hexdigest("".join(table.fingerprint for table in tables).encode())
    return replace(tables[0], source=source, fingerprint=before, digest=digest, records=records)


def open_unlabelled(source: str, like: Table) -> Table:
    """Open a table of texts without reading its labels or translations.

    Columns have the names of train's columns, or usual names of their own. What precedes every text of train precedes
    these texts too.
    """
    usual = Columns(before=like.columns.before)
    separate = FORMS[like.form].separate_target
    pair = None if separate else like.columns.pair
    named = replace(usual, text=like.columns.text, pair=pair, choices=like.columns.choices)
    try:
        table = open_table(source, named, form=like.form)
    except InputError:
        table = open_table(source, usual, form=like.form)
    if separate:
        return replace(table, columns=replace(usual, text=table.columns.text))
    if (table.columns.pair is None) != (like.columns.pair is None) or table.choices != like.choices:
        reason = "do not have the same parts (one text or two, or the number of candidates)"
        raise InputError(f"{source} and {like.source} {reason}; use the same column names in both")
    if table.shape != like.shape:
        raise InputError(f"{source} and {like.source} have images of different sizes; give images of one size")
    return replace(table, columns=replace(table.columns, label=None), answers=None)
