"""Texts that a teacher generated, on disk: each source is decoded once, whichever run asks.

A folder holds blocks of sources with their hypotheses. Each block is one file with its own checksum, renamed into place when
it is complete, so no manifest is needed. A kill leaves a block missing, and a damaged one counts as missing.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path

import numpy as np
import xxhash

from potstill.models.generation.decoding import Hypothesis
from potstill.system import interrupts, paths, ranks
from potstill.system.files import TEMPORARY, folder_lock, seal, unseal, write_atomically

log = logging.getLogger(__name__)
FORMAT = 2  # of the blocks
NAME = re.compile(r"block-(\d{5,})\.json", re.ASCII)


def stored_texts(identity: list[object]) -> TeacherTexts:
    """Return the texts in the cache that depend on the same as these; `identity` is all that they depend on."""
    digest = xxhash.xxh3_128_hexdigest(json.dumps([FORMAT, *identity]).encode())
    return TeacherTexts(paths.cache() / "outputs" / digest)


class TeacherTexts:
    """The hypotheses of one teacher and beam width, by the key of the source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[int, tuple[int, int]] = {}  # key -> block, row
        self._blocks: set[int] = set()
        self._read = lru_cache(maxsize=8)(self._block)  # neighbouring sources are in one block

    def refresh(self) -> None:
        """Find the blocks that other processes wrote."""
        for file in sorted(self.folder.glob("block-*.json")):
            name = NAME.fullmatch(file.name)
            if name is None or (number := int(name[1])) in self._blocks:
                continue
            try:
                keys = unseal(file.read_bytes())["keys"]
            except (OSError, ValueError, KeyError) as error:
                log.warning("%s is damaged (%s): its sources are decoded again", file, error)
                continue
            self._blocks.add(number)
            for row, key in enumerate(keys):
                self._places.setdefault(int(key), (number, row))

    def clean(self) -> None:
        """Remove drafts that a killed process left. The caller must hold the lock."""
        for file in self.folder.glob(f"{TEMPORARY}*"):
            file.unlink(missing_ok=True)

    def missing(self, keys: np.ndarray) -> np.ndarray:
        """Positions of the keys that have no hypotheses, each key once."""
        _, first = np.unique(keys, return_index=True)
        return np.array([place for place in np.sort(first).tolist() if int(keys[place]) not in self._places], np.int64)

    @contextmanager
    def missing_blocks(self, keys: np.ndarray, size: int) -> Iterator[list[tuple[int, np.ndarray]]]:
        """Yield the blocks that this rank has to write: the number of each, and the positions of its keys.

        The first rank holds the lock until all have written: another run that wants the same texts waits for them.
        """

        @ranks.on_first
        def missing() -> tuple[np.ndarray, list[int]]:
            self.refresh()
            self.clean()
            positions = self.missing(keys)
            return positions, self.free_numbers(-(-len(positions) // size))

        with folder_lock(self.folder) if ranks.is_first() else nullcontext():
            positions, numbers = missing()
            own = range(ranks.number(), len(numbers), ranks.count())
            yield [(numbers[place], positions[place * size : (place + 1) * size]) for place in own]
            ranks.wait()
        self.refresh()

    def free_numbers(self, count: int) -> list[int]:
        """The lowest numbers that no block has, so a resumed run names its blocks as an uninterrupted one."""
        free = (number for number in itertools.count() if number not in self._blocks)
        return list(itertools.islice(free, count))

    def write(self, number: int, keys: np.ndarray, hypotheses: list[list[Hypothesis]]) -> None:
        """Write a block, then end the run if a signal has asked for that."""
        rows = [
            [[text, None if math.isnan(score) else score, finished] for text, score, finished in row]
            for row in hypotheses
        ]
        content = {"keys": [int(key) for key in keys], "hypotheses": rows}
        write_atomically(self.folder / f"block-{number:05}.json", seal(content))
        interrupts.stop_if_asked()

    def read(self, key: int) -> list[Hypothesis]:
        block, row = self._places[key]
        return self._read(block)[row]

    def _block(self, number: int) -> list[list[Hypothesis]]:
        rows = unseal((self.folder / f"block-{number:05}.json").read_bytes())["hypotheses"]
        return [
            [Hypothesis(text, math.nan if score is None else score, finished) for text, score, finished in row]
            for row in rows
        ]
