"""The texts of a large pool that are nearest to some rows, by the cosine of their vectors. The search is exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from potstill.data.examples import Examples, folder_of
from potstill.data.near_duplicates import NearDuplicates
from potstill.data.task import DataTask
from potstill.system import interrupts
from potstill.system.column_files import ColumnFiles, column, write_once

FORMAT = 1  # of the stored choices: a new number discards them
LIST = "texts.tsv"  # the chosen texts, for people
QUERIES = 1024  # rows that are compared with a block of texts at once


class Neighbours(NamedTuple):
    """Texts near some rows, the nearest of every row first."""

    positions: np.ndarray  # (n,) of the texts
    rows: np.ndarray  # (n,) the row to which each is near
    cosines: np.ndarray  # (n,)


def choose(
    examples: Examples, blocks: Sequence[np.ndarray], task: DataTask, k: int, most: int, advance: Callable[[int], None]
) -> tuple[Neighbours, Path]:
    """The k unlabelled texts nearest to each labelled row, at most so many, and a list of them. Chosen once, then read back.

    `blocks`: the vectors of all examples. Positions and rows are places among the examples.
    """

    def write(columns: ColumnFiles) -> None:
        has_label = np.asarray(examples.labelled[examples.index])
        rows = np.flatnonzero(has_label)
        every = union(*nearest(blocks, rows, ~has_label, k, advance))
        found = Neighbours(*(each[:most] for each in without_near_duplicates(examples, rows, every, task)))
        found = found._replace(rows=rows[found.rows])
        for name, values in found._asdict().items():
            columns.add(name, values)
        with (columns.folder / LIST).open("w", encoding="utf-8") as file:
            file.write("cosine\ttext\trow\n")
            for position, row, cosine in zip(*found, strict=True):
                of_both = (" ".join(filter(None, examples.text(examples.index[place]))) for place in (position, row))
                file.write("\t".join([f"{cosine:.3f}", *(" ".join(text.split()) for text in of_both)]) + "\n")
        columns.finish({})

    digest = xxhash.xxh3_128()
    for block in blocks:
        digest.update(block.tobytes())
    folder = folder_of("nearest", FORMAT, examples.folder.name, examples.index_hash, k, most, digest.hexdigest())
    write_once(folder, write)
    kinds = {"positions": np.int64, "rows": np.int64, "cosines": np.float32}
    return Neighbours(*(np.array(column(folder, name, kind)) for name, kind in kinds.items())), folder / LIST


def gathered(blocks: Sequence[np.ndarray], positions: np.ndarray) -> np.ndarray:
    """(positions, width) float32 of vectors that lie in blocks of one size."""
    owners, places = np.divmod(positions, len(blocks[0]))
    found = np.empty((len(positions), blocks[0].shape[1]), np.float32)
    for number in np.unique(owners):
        here = owners == number
        found[here] = blocks[number][places[here]]
    return found


def nearest(
    blocks: Sequence[np.ndarray], rows: np.ndarray, is_candidate: np.ndarray, k: int, advance: Callable[[int], None]
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, k) positions of the candidates of highest cosine with each row, the highest first, and the cosines.

    `blocks`: vectors of length one. Of equal cosines the earlier text comes first. Where there are too few candidates the
    position is -1 and the cosine is -inf.
    """
    positions, cosines = np.full((len(rows), k), -1, np.int64), np.full((len(rows), k), -np.inf, np.float32)
    for first in range(0, len(rows), QUERIES):
        of = slice(first, min(first + QUERIES, len(rows)))
        queries, begin = gathered(blocks, rows[of]), 0
        best, where = cosines[of], positions[of]  # views
        for block in blocks:
            candidates = np.flatnonzero(is_candidate[begin : begin + len(block)])
            products = queries @ block[candidates].astype(np.float32).T
            better = np.flatnonzero((products > best[:, -1:]).any(1))
            every = np.concatenate([best[better], products[better]], 1)
            places = np.concatenate([where[better], np.tile(candidates + begin, (len(better), 1))], 1)
            kept = np.argsort(-every, axis=1, kind="stable")[:, :k] if every.shape[1] <= 4 * k else _highest(every, k)
            best[better], where[better] = (np.take_along_axis(each, kept, 1) for each in (every, places))
            begin += len(block)
            interrupts.stop_if_asked()
        advance(len(queries))
    return positions, cosines


def _highest(numbers: np.ndarray, k: int) -> np.ndarray:
    """(n, k) columns of the highest numbers of each row, the highest first; of equal ones the first."""
    least = np.partition(numbers, numbers.shape[1] - k, axis=1)[:, -k][:, None]
    rows, columns = np.nonzero(numbers >= least)
    order = np.lexsort((columns, -numbers[rows, columns], rows))
    rows, columns = rows[order], columns[order]
    firsts = np.searchsorted(rows, np.arange(len(numbers)))
    return columns[firsts[:, None] + np.arange(k)]


def union(positions: np.ndarray, cosines: np.ndarray) -> Neighbours:
    """Every text once: the first neighbours of all rows, then the second ones; within these by cosine."""
    rows, ranks = np.divmod(np.arange(positions.size), positions.shape[1])
    flat, values = positions.ravel(), cosines.ravel()
    order = np.lexsort((flat, -values, ranks))
    order = order[flat[order] >= 0]
    _, first = np.unique(flat[order], return_index=True)
    order = order[np.sort(first)]
    return Neighbours(flat[order], rows[order], values[order])


def without_near_duplicates(examples: Examples, rows: np.ndarray, found: Neighbours, task: DataTask) -> Neighbours:
    """Leave out near-duplicates of the rows, and of texts that come before them."""
    pairs = bool(examples.meta["pairs"])
    chosen = examples.take(found.positions)
    of_rows = NearDuplicates([examples.take(rows)], task, pairs)
    of_chosen = NearDuplicates([chosen], task, pairs)
    kept = np.ones(len(chosen), np.bool_)
    earlier: list[np.ndarray] = []
    begin = 0
    for part in chosen.parts():
        sequences = of_rows.sequences(list(part.texts()))
        kept[begin + of_rows.find(sequences).texts] = False
        matches = of_chosen.find(sequences)
        of_part = np.stack([begin + matches.texts, matches.rows], 1)
        earlier.append(of_part[of_part[:, 1] < of_part[:, 0]])
        begin += len(part)
    for later, before in np.concatenate([np.empty((0, 2), np.int64), *earlier]).tolist():  # ascending
        kept[later] &= not kept[before]
    return Neighbours(*(each[kept] for each in found))
