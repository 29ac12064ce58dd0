"""Examples whose second texts are others than before, in a folder of their own: written once, found by what decides them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from potstill.data.examples import CHUNK, Examples, key_of
from potstill.system import interrupts, paths
from potstill.system.column_files import ColumnFiles, made_once

FORMAT = 1  # of the folders below


def replace_targets(
    examples: Examples, what: list[Any], rows: Callable[[], Iterator[tuple[str, str, int]]], target: list[float]
) -> Examples:
    """Rows of text, pair and the position of the example that each was made of, in the order of the examples.

    Each has a label, `target`, unless its pair is empty: then there is nothing to learn. `what` tells which rows they are.
    """
    index = xxhash.xxh3_128_hexdigest(examples.index.tobytes())
    decides = json.dumps([FORMAT, "rewritten", examples.folder.name, index, target, *what])
    folder = paths.examples() / xxhash.xxh3_128_hexdigest(decides.encode())
    meta = made_once(folder, lambda columns: _write(examples, rows(), target, columns))
    return Examples(examples.source, folder, np.arange(meta["rows"]))


def _write(examples: Examples, rows: Iterator[tuple[str, str, int]], target: list[float], columns: ColumnFiles) -> None:
    width = examples.meta["target_width"]
    columns.add("text_offsets", np.zeros(1, np.int64))
    if not width:
        columns.add("target_offsets", np.zeros(1, np.int64))
    count = labelled = end = targets_end = 0
    while chunk := list(islice(rows, CHUNK)):
        pieces = [piece.encode() for text, pair, _ in chunk for piece in (text, pair)]
        ends = end + np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        told = np.array([bool(pair) for _, pair, _ in chunk])
        columns.add("texts", np.frombuffer(b"".join(pieces), np.uint8))
        columns.add("text_offsets", ends)
        columns.add("keys", np.array([key_of(text, pair) for text, pair, _ in chunk], np.int64))
        columns.add("labelled", told)
        columns.add("origins", np.array([origin for *_, origin in chunk], np.int64))
        given = np.zeros((len(chunk), len(target)), np.float32)
        given[told] = target
        if width:
            columns.add("targets", given)
        else:
            columns.add("targets", given[told])
            sizes = np.where(told, len(target), 0)
            target_ends = targets_end + np.cumsum(sizes, dtype=np.int64)
            columns.add("target_offsets", target_ends)
            targets_end = int(target_ends[-1])
        count, labelled, end = count + len(chunk), labelled + int(told.sum()), int(ends[-1])
        if asked := interrupts.asked():
            raise interrupts.Interrupted(asked)
    about = {"rows": count, "labelled": labelled, "target_width": width, "pairs": True}
    columns.finish({**about, "answers": False})
