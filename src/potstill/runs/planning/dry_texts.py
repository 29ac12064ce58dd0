"""What a data maker would have the teacher write, found while it writes a few texts: other rows stand for those to come."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.data.making import MakeContext, TeacherDataMaker
from potstill.data.tokens import tokenise
from potstill.inference.answers import at_once
from potstill.runs.planning.batch_sizes import read_pieces, shapes_of
from potstill.runs.planning.flops import forward
from potstill.runs.planning.stage_cost import Work, tokens_of

FEW = 64  # texts that are written at most to know how long all take


class ImaginedOutputs:
    """Over all stages, cells and seeds of a plan: each text is counted once, as it will be written once."""

    def __init__(self) -> None:
        self.known: dict[Path, np.ndarray] = {}  # folder of outputs -> keys that were imagined to be there
        self.works: list[tuple[Work, float]] = []  # and the seconds of the largest block, which is not shared out

    def make(self, maker: TeacherDataMaker, examples: Examples, context: MakeContext) -> Examples:
        """What the maker makes, where all of it is known or it cannot imagine; else what stands for it."""
        folder, keys, unknown = maker.missing(examples, context)
        if not len(unknown):
            return maker.make(examples, context)
        known = self.known.get(folder, np.empty(0, np.int64))
        waiting = unknown[~np.isin(keys[unknown], known)]
        if len(waiting):
            self.known[folder] = np.union1d(known, keys[waiting])
            work = written(maker, examples.take(waiting), context)
            self.works.append((work, work.seconds * min(1.0, maker.block / len(waiting))))
        return maker.stand_in(examples, context)


def written(maker: TeacherDataMaker, examples: Examples, context: MakeContext) -> Work:
    """Of all these rows, from a few of them; of a teacher that is no model of ours the operations are not known."""
    few = examples.take(np.linspace(0, len(examples) - 1, min(FEW, len(examples))).astype(np.int64))
    texts = [text for text, _ in few.texts()]
    begun = time.perf_counter()
    with maker.decoder(context) as decode:
        ready = time.perf_counter()
        decode(texts, maker.beam, maker.beam)
        done = time.perf_counter()
    seconds = ready - begun + (done - ready) * len(examples) / len(few)
    if maker.black_box or context.teacher is None or context.task is None:
        return Work(rows=len(examples), seconds=seconds)
    tokens = tokenise(context.task, examples, context.teacher.tokenizer, context.longest)
    source = TokenisedSet(context.task, examples, tokens, tokens)
    shapes = shapes_of(read_pieces([source], at_once(context.task)), [source])
    operations = maker.beam * float(forward(context.teacher.model, shapes).sum())
    return Work(len(examples), tokens_of(source), operations, seconds)
