"""Predictions of a model for every example of a data set, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.models.generation.decoding import Decoder, decoder, decoder_of
from potstill.models.hooks import listen
from potstill.models.inference import Forward, device_of, without_dropout
from potstill.models.precision import autocast, in_bfloat16
from potstill.models.student import Student
from potstill.signals import Batch, Wants
from potstill.tasks.generate import unpack
from potstill.tasks.metrics.texts import BEAM
from potstill.tasks.task import Task

AT_ONCE = 1024  # padded tokens of a batch: on two cores 1.5 times faster than 8192, since states stay in the cache

Ask = Callable[[Batch], np.ndarray]
"""A batch -> (predictions, classes) logits."""
Generator = Student | Path
"""A generative model, or the folder of one that was exported to CTranslate2."""


@dataclass(frozen=True)
class Predicted:
    """The logits of some predictions, with what is right: one for each row, word or side of an answer."""

    logits: np.ndarray  # (predictions, classes); -inf where a class is impossible
    targets: np.ndarray  # (predictions,) classes or values, or (predictions, classes) of 0 and 1
    labelled: np.ndarray  # (predictions,) bool


def predicted(ask: Ask, source: TokenisedSet[Task]) -> Iterator[Predicted]:
    """Yield the logits of all examples in batches, in no particular order."""
    for _, batch in source.in_order(AT_ONCE):
        yield Predicted(ask(batch), batch.targets.numpy(), batch.labelled.numpy())


def answers(ask: Ask, source: TokenisedSet[Task]) -> np.ndarray:
    """Return the predictions for all examples, (n, …) as the task reads them; shorter ones are padded with -1."""
    predictions: list[np.ndarray] = [np.empty(0)] * len(source.examples)
    for positions, batch in source.in_order(AT_ONCE):
        rows = source.examples.index[positions]
        # where student and teacher truncate differently, the student's reading counts
        read = source.task.read_logits(
            ask(batch), *source.task.redrawn(source.aligned_tokens[0], rows), source.examples
        )
        for position, prediction in zip(positions, read, strict=True):
            predictions[position] = prediction
    return padded(predictions) if predictions else np.empty((0, source.task.classes), np.float32)


def model_answers(
    student: Student, source: TokenisedSet[Task], beam: bool = False, precision: str = "float32"
) -> np.ndarray:
    """Return a model's predictions; where the task decodes, also its texts, with `beam` those of beam search too.

    `precision`: of the products that predictions need; texts are generated in float32.
    """
    predictions = answers(logits_of(student.model, precision), source)
    if not source.task.decodes or not len(predictions):
        return predictions
    return padded(with_texts(predictions, student, source, beam))


def plain_answers(
    predictions: np.ndarray, source: TokenisedSet[Task], answer: Callable[[TokenisedSet[Task]], np.ndarray]
) -> np.ndarray:
    """Return predictions as they are read at a temperature of 1; logits do not depend on it, so that only others are read again."""
    if source.task.temperature == 1 or source.task.ranks_rows:
        return predictions
    return answer(replace(source, task=replace(source.task, temperature=1.0)))


def padded(arrays: list[np.ndarray]) -> np.ndarray:
    """Stack arrays to (n, longest, …), with -1 behind the shorter ones."""
    longest = max(map(len, arrays))
    if all(len(array) == longest for array in arrays):
        return np.stack(arrays)
    stacked = np.full((len(arrays), longest, *arrays[0].shape[1:]), -1, np.float32)
    for position, array in enumerate(arrays):
        stacked[position, : len(array)] = array
    return stacked


def logits_of(model: PreTrainedModel, precision: str = "float32") -> Ask:
    """Return a function from batches to a model's logits. What they do not depend on in the last layer is not computed."""
    asked = in_bfloat16(model) if precision == "bfloat16" else model
    device = device_of(model)

    def ask(batch: Batch) -> np.ndarray:
        with torch.inference_mode(), without_dropout(asked), autocast(asked, device, precision):
            return np.asarray(listen(asked, batch.student.to(device), Wants(logits=True)).logits.float().cpu())

    return ask


def network(run: Forward) -> Ask:
    """Return a function from batches to a network's logits for the student's reading of them."""
    return lambda batch: batch.student.predictions(torch.from_numpy(run(batch.student.inputs))).numpy()


def with_texts(predictions: np.ndarray, model: Generator, source: TokenisedSet[Task], beam: bool) -> list[np.ndarray]:
    """Add the texts that a model generates to predictions, which hold the probabilities of the gold texts.

    With `beam` the text of beam search is added too; its log probability approximates that of the mode.
    """
    texts = [text for text, _ in source.examples.texts()]
    with open_decoder(model, source) as decode:
        greedy = decode(texts, 1, 1)
        best = decode(texts, BEAM, 1) if beam else None
    answers = [unpack(output)._replace(greedy=found[0].text) for output, found in zip(predictions, greedy, strict=True)]
    if best is not None:
        hypotheses = [each[0] for each in best]
        answers = [a._replace(beam=h.text, mode=h.score) for a, h in zip(answers, hypotheses, strict=True)]
    return [answer.pack() for answer in answers]


def open_decoder(model: Generator, source: TokenisedSet[Task]) -> AbstractContextManager[Decoder]:
    """A text may grow to 1.5 times the tokens of the longest sequence of source and target that was read."""
    longest = int(1.5 * source.lengths.max(initial=16)) + 8
    return decoder_of(model, longest) if isinstance(model, Path) else decoder(model, longest=longest)
