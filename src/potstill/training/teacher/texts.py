"""What a teacher wrote, on disk: each source is decoded once, whichever run asks.

A folder holds blocks of sources with their hypotheses. Each is one file that carries its checksum and takes its name when it is
whole, so that no manifest is needed: what a kill leaves is a missing block, and a damaged one counts as missing.
"""

from __future__ import annotations

import logging
import math
import re
from functools import lru_cache
from pathlib import Path

import numpy as np

from potstill.models.generation.decoding import Hypothesis
from potstill.system.files import TEMPORARY, sealed, unsealed, write_atomically

log = logging.getLogger(__name__)
NAME = re.compile(r"block-(\d{5,})\.json", re.ASCII)


class Outputs:
    """Hypotheses of one teacher and beam, by the key of the source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[int, tuple[int, int]] = {}  # key -> block, row
        self._blocks: set[int] = set()
        self._read = lru_cache(maxsize=8)(self._block)  # neighbours lie in one block

    def refresh(self) -> None:
        """See what others wrote; what a dead process left half written is taken away by whoever holds the lock."""
        for file in sorted(self.folder.glob("block-*.json")):
            found = NAME.fullmatch(file.name)
            if found is None or int(found[1]) in self._blocks:
                continue
            try:
                keys = unsealed(file.read_bytes())["keys"]
            except (OSError, ValueError, KeyError) as error:
                log.warning("%s is damaged (%s): its sources are decoded again", file, error)
                continue
            self._blocks.add(int(found[1]))
            for row, key in enumerate(keys):
                self._places.setdefault(int(key), (int(found[1]), row))

    def clean(self) -> None:
        for file in self.folder.glob(f"{TEMPORARY}*"):
            file.unlink(missing_ok=True)

    def missing(self, keys: np.ndarray) -> np.ndarray:
        """Positions of the keys that are not known, each key once."""
        _, first = np.unique(keys, return_index=True)
        return np.array([place for place in np.sort(first).tolist() if int(keys[place]) not in self._places], np.int64)

    def free_numbers(self, count: int) -> list[int]:
        """The lowest that no block has, so that a continued run names its blocks as one that was never stopped."""
        found: list[int] = []
        number = 0
        while len(found) < count:
            if number not in self._blocks:
                found.append(number)
            number += 1
        return found

    def write(self, number: int, keys: np.ndarray, hypotheses: list[list[Hypothesis]]) -> None:
        rows = [
            [[one.text, None if math.isnan(one.score) else one.score, one.finished] for one in row]
            for row in hypotheses
        ]
        content = {"keys": [int(key) for key in keys], "hypotheses": rows}
        write_atomically(self.folder / f"block-{number:05}.json", sealed(content))

    def read(self, key: int) -> list[Hypothesis]:
        block, row = self._places[key]
        return self._read(block)[row]

    def _block(self, number: int) -> list[list[Hypothesis]]:
        rows = unsealed((self.folder / f"block-{number:05}.json").read_bytes())["hypotheses"]
        return [
            [Hypothesis(text, math.nan if score is None else score, finished) for text, score, finished in row]
            for row in rows
        ]
