"""What models write: decoded for scoring, and timed as it would be used."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np

from potstill.data.batches import TokenisedSet
from potstill.measuring.speed import ALONE, Speed, alone_and_tail, spread, timed_places
from potstill.models.generation.decoding import Decoder, decoder, decoder_of, engine_for
from potstill.models.student import Student
from potstill.reporting.wording import BEAM
from potstill.reporting.wording import search_name as search
from potstill.tasks.generate import unpacked

TURNS = 3

Key = TypeVar("Key", bound=Hashable)
Writer = Student | Path
"""A model, or the folder of an exported one."""


def with_texts(said: np.ndarray, writer: Writer, source: TokenisedSet, beam: bool) -> list[np.ndarray]:
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


def _opened(writer: Writer, source: TokenisedSet) -> AbstractContextManager[Decoder]:
    longest = source_length(source)
    return decoder_of(writer, longest) if isinstance(writer, Path) else decoder(writer, longest=longest)


def source_length(source: TokenisedSet) -> int:
    """The longest target there may be: half as long again as the longest sequence of both texts that was read."""
    return int(1.5 * source.lengths.max(initial=16)) + 8


def writing_speeds(writers: Mapping[Key, tuple[Writer, TokenisedSet]]) -> dict[tuple[Key, str], Speed]:
    """Of each model, greedily and by beam search, taking turns; sentences a second, 128 at once, and one at a time."""
    together: dict[tuple[Key, str], list[float]] = {}
    alone: dict[tuple[Key, str], list[list[float]]] = {}
    with ExitStack() as stack:
        engines: dict[Key, tuple[Decoder, list[str]]] = {}
        for name, (writer, source) in writers.items():
            texts = [text for text, _ in source.examples.take(timed_places(len(source.examples))).texts()]
            engines[name] = stack.enter_context(_opened(writer, source)), texts
        for turn in range(TURNS + 1):
            for name, (decode, texts) in engines.items():
                for beam in (1, BEAM):
                    spent = _seconds(decode, texts, beam)
                    each = [_seconds(decode, [text], beam) for text in texts[: ALONE if turn else 1]]
                    if turn:  # the first warms up
                        together.setdefault((name, search(beam)), []).append(spent)
                        alone.setdefault((name, search(beam)), []).append(each)
    return {
        key: {
            **alone_and_tail(alone[key]),
            "examples_per_second": len(engines[key[0]][1]) / min(turns),
            "best_examples_per_second": len(engines[key[0]][1]) / min(turns),
            "best_batch": len(engines[key[0]][1]),
            "spread": spread(turns),
        }
        for key, turns in together.items()
    }


def engine_of(writer: Writer) -> str:
    """What decodes it."""
    return "ctranslate2" if isinstance(writer, Path) else engine_for(writer)


def _seconds(decode: Decoder, texts: list[str], beam: int) -> float:
    begun = time.perf_counter()
    decode(texts, beam, 1)
    return time.perf_counter() - begun
