"""What models write: decoded for scoring, and timed as it would be used."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np

from potstill.batches import Source
from potstill.decoding import Decoder, decoder, decoder_of
from potstill.students import Student
from potstill.tasks.generating import unpacked
from potstill.timing import ALONE, ROWS, Speed
from potstill.wording import BEAM

TURNS = 3

Key = TypeVar("Key", bound=Hashable)
Writer = Student | Path
"""A model, or the folder of an exported one."""


def with_texts(said: np.ndarray, writer: Writer, source: Source, beam: bool) -> list[np.ndarray]:
    """Answers that hold how probable the gold texts are -> the same with what the model writes; with `beam` also by
    beam search, whose best text gives the probability of the mode."""
    texts = [text for text, _ in source.examples.texts()]
    with _opened(writer, source) as decode:
        greedy = [one[0].text for one in decode(texts, 1, 1)]
        found = [one[0] for one in decode(texts, BEAM, 1)] if beam else [None] * len(texts)
    made = []
    for answer, short, best in zip(said, greedy, found, strict=True):
        one = unpacked(answer)._replace(greedy=short)
        made.append((one if best is None else one._replace(beam=best.text, mode=best.score)).packed())
    return made


def _opened(writer: Writer, source: Source) -> AbstractContextManager[Decoder]:
    longest = source_length(source)
    return decoder_of(writer, longest) if isinstance(writer, Path) else decoder(writer, longest=longest)


def source_length(source: Source) -> int:
    """The longest target there may be: half as long again as the longest sequence of both texts that was read."""
    return int(1.5 * source.lengths.max(initial=16)) + 8


def writing_speeds(writers: Mapping[Key, tuple[Writer, Source]]) -> dict[tuple[Key, str], Speed]:
    """Of each model, greedily and by beam search, taking turns; sentences a second, 128 at once, and one at a time."""
    best: dict[tuple[Key, str], tuple[float, np.ndarray]] = {}
    with ExitStack() as stack:
        engines: dict[Key, tuple[Decoder, list[str]]] = {}
        for name, (writer, source) in writers.items():
            texts = [text for text, _ in source.examples.take(np.arange(min(ROWS, len(source.examples)))).texts()]
            engines[name] = stack.enter_context(_opened(writer, source)), texts
        for turn in range(TURNS + 1):
            for name, (decode, texts) in engines.items():
                for beam in (1, BEAM):
                    together = _seconds(decode, texts, beam)
                    alone = np.array([_seconds(decode, [text], beam) for text in texts[: ALONE if turn else 1]])
                    if turn == 1:
                        best[name, search(beam)] = together, alone
                    elif turn:
                        before = best[name, search(beam)]
                        best[name, search(beam)] = min(together, before[0]), np.minimum(alone, before[1])
    return {
        key: {
            "latency_ms": 1000 * float(np.median(alone)),
            "latency_p95_ms": 1000 * float(np.quantile(alone, 0.95)),
            "examples_per_second": len(engines[key[0]][1]) / together,
            "best_examples_per_second": len(engines[key[0]][1]) / together,
            "best_batch": len(engines[key[0]][1]),
        }
        for key, (together, alone) in best.items()
    }


def search(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam {beam}"


def _seconds(decode: Decoder, texts: list[str], beam: int) -> float:
    begun = time.perf_counter()
    decode(texts, beam, 1)
    return time.perf_counter() - begun
