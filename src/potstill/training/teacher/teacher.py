"""A teacher answers live or from its memory on disk; a method sees no difference.

The outputs of the head at each place where it is read, and the [CLS] states of the wanted layers, are stored once per
example and shared by all recipes. Signals with a state for every token are too large for that and are asked live.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, place_keys
from potstill.errors import InputError
from potstill.models.anatomy import is_spread
from potstill.models.hooks import listen
from potstill.models.inference import Forward
from potstill.models.precision import autocast, in_bfloat16, in_float32
from potstill.signals import Batch, Signals, View, Wants, nothing
from potstill.system import interrupts, ranks
from potstill.training.teacher import drawn_classes as drawn
from potstill.training.teacher import top_classes as top
from potstill.training.teacher.memory import Column, Memory

BLOCK = 2048  # examples that are asked and written together: at most so many answers are lost in a crash
TOKENS_AT_ONCE = 1024  # padded: 1.3 times faster than 4096 on two cores, since the states of a layer stay in the cache


Form = Literal["float32", "bfloat16", "onnx", "int8"]
"""What a teacher computes with: PyTorch in two precisions, or a file that ONNX Runtime runs, in float32 or in eight bits."""
ShardLayout = tuple[Literal["place", "sequence"], list[str]]
"""What a row of a shard is, and the names of its columns."""


class Teacher:
    """A model and its memory; without a model, a memory filled from a file of answers."""

    def __init__(
        self,
        model: PreTrainedModel | None,
        memory: Memory | None,
        device: torch.device,
        form: Form = "float32",
        head: Forward | None = None,
    ) -> None:
        """`head`: gives the outputs of the head in place of the model, which then gives states alone, in float32."""
        self.model, self.form, self.head = model, form, head
        self.precision = "bfloat16" if form == "bfloat16" else "float32"
        if model is not None:
            model.eval().requires_grad_(False)
            if not is_spread(model):
                model.to(device)  # type: ignore[arg-type]
        self.asked = in_bfloat16(model) if model is not None and form == "bfloat16" else model
        self.memory, self.device = memory, device
        self.seconds = 0.0  # spent in the model

    def with_memory(self, memory: Memory | None) -> Teacher:
        """The same teacher with another memory; None: asked live."""
        return Teacher(self.model, memory, self.device, self.form, self.head)

    def signals(self, batch: Batch, wants: Wants, live: bool = False) -> Signals:
        """Return the wanted signals of a batch. `live`: do not read memory, since the rows were changed."""
        if wants == Wants():
            return Signals()
        if not batch.taught.any() and wants == wants.head:  # no row will use them
            return Signals(logits=torch.zeros(len(batch.taught_predictions), 1, device=self.device))
        if wants.few:
            refuse_few(batch)
        if self.memory is None or wants.per_token or live or batch.teacher.also_at.numel():  # memory holds one head
            signals = self._forward(batch.teacher.to(self.device), wants)
            return replace(signals, **few_classes(signals.logits, batch, wants)) if wants.few else signals
        keys, taught = batch.keys.cpu().numpy(), batch.taught.cpu().numpy()
        cls = [self._read(keys, taught, f"cls.{layer}") for layer in wants.cls]
        answer = Signals(cls=torch.from_numpy(np.stack(cls, 1)).to(self.device) if cls else nothing())
        if not wants.logits:
            return answer
        rows = batch.teacher.at[:, 0].cpu().numpy()
        places = place_keys(keys, rows)

        def read(column: str) -> torch.Tensor:
            return torch.from_numpy(self._read(places, taught[rows], column)).to(self.device)

        if not wants.few:
            return replace(answer, logits=batch.teacher.arranged(read("logits")))
        if self.model is None:  # a file of answers has all classes
            return replace(answer, **few_classes(read("logits"), batch, wants))
        if wants.draws:
            return replace(answer, drawn=drawn.from_columns(wants.draws, read))
        return replace(answer, top=top.from_columns(wants.top, read))

    def _read(self, keys: np.ndarray, taught: np.ndarray, column: str) -> np.ndarray:
        """(n, *shape) from memory; zeros for rows that the teacher does not teach."""
        assert self.memory is not None
        if taught.all():
            return self.memory.read(keys, column)
        answers = self.memory.read(keys[taught], column) if taught.any() else None
        filled = np.zeros(
            (len(keys), *(answers.shape[1:] if answers is not None else (1,))), getattr(answers, "dtype", np.float32)
        )
        if answers is not None:
            filled[taught] = answers
        return filled

    def _forward(self, view: View, wants: Wants) -> Signals:
        assert self.asked is not None, "a file of answers is asked for logits only, and those are in memory"
        begun = time.perf_counter()
        if self.head is not None and wants.logits:  # also where the model is asked for states: no answers of two forms
            outputs = view.predictions(torch.from_numpy(self.head(view.inputs)).to(self.device))
            others = replace(wants, logits=False)
            signals = replace(self._listen(self.asked, view, others) if others.layers else Signals(), logits=outputs)
        else:
            signals = self._listen(self.asked, view, wants)
        self.seconds += time.perf_counter() - begun
        return in_float32(signals)

    def _listen(self, model: PreTrainedModel, view: View, wants: Wants) -> Signals:
        # no inference mode: a method may multiply by the answers, and those made in it cannot be saved
        with torch.no_grad(), autocast(model, self.device, self.precision, bool(wants.probabilities)):
            return listen(model, view, wants)

    def remember(
        self, source: TokenisedSet, wants: Wants, progress: Callable[[int], None] | None = None, epochs: float = 1.0
    ) -> int:
        """Ask the model for all answers that memory lacks; return for how many examples. A stopped call can be repeated.

        Examples whose masks come back are asked about as they are in each of these epochs.
        """
        return sum(self._remember(draw, wants, progress) for draw in source.draws(epochs))

    def _remember(self, source: TokenisedSet, wants: Wants, progress: Callable[[int], None] | None) -> int:
        if self.memory is None or self.model is None or source.needs_live_teacher(wants) or wants == Wants():
            return 0
        # one process holds the lock throughout, so that another run waits and finds the answers; ranks lock to write
        with self.memory.lock() if ranks.count() == 1 else nullcontext():
            positions, first_shard = self._missing(source, wants)
            parts = blocks(source, positions)
            for number in range(ranks.number(), len(parts), ranks.count()):
                shards = self._ask_block(parts[number], wants, progress)
                for place, (keys, answers) in enumerate(shards):
                    # the name depends on the block alone, so it does not matter which rank is quicker
                    self.memory.write(keys, answers, first_shard + number * len(shards) + place)
        ranks.wait()
        self.memory.refresh()
        if ranks.count() > 1 and (missing := len(missing_examples(self.memory.missing, source, wants))):
            raise InputError(
                f"{self.memory.folder} lacks {missing} answers that other processes wrote: the processes do not share a "
                "cache; give all of them one folder in POTSTILL_CACHE, or as memory in the recipe"
            )
        return len(positions)

    @ranks.on_first
    def _missing(self, source: TokenisedSet, wants: Wants) -> tuple[np.ndarray, int]:
        """Positions of the examples to ask about, and the number of the first new shard."""
        assert self.memory is not None
        with self.memory.lock():
            return missing_examples(self.memory.missing, source, wants), self.memory.free_number()

    def _ask_block(
        self, source: TokenisedSet, wants: Wants, progress: Callable[[int], None] | None
    ) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Keys and columns of each shard of a block."""
        heads: list[
            tuple[np.ndarray, dict[str, np.ndarray]]
        ] = []  # keys of places, and columns of what the head gave there
        states: list[tuple[np.ndarray, np.ndarray]] = []  # keys of sequences, and [CLS] of each wanted layer
        for positions, batch in source.in_order(TOKENS_AT_ONCE):
            if wants.few:
                refuse_few(batch)
            signals = self._forward(replace(batch.teacher.to(self.device), layout=nothing()), wants)
            if not bool(signals.logits.isfinite().all() and signals.cls.isfinite().all()):
                raise InputError(
                    "the outputs of the teacher are not finite; use a teacher whose training did not diverge"
                )
            keys = batch.keys.numpy()
            outputs = {"logits": signals.logits.cpu().numpy()}
            few = few_classes(signals.logits, batch, wants)
            if wants.draws:
                outputs = drawn.to_columns(wants.draws, few["drawn"])
            elif wants.top:
                outputs = top.to_columns(wants.top, few["top"])
            heads.append((place_keys(keys, batch.teacher.at[:, 0].numpy()), outputs))
            states.append((keys, signals.cls.float().cpu().numpy()))
            if progress:
                progress(len(positions))
            interrupts.stop_if_asked()  # blocks written before are kept
        keys_of_places = np.concatenate([keys for keys, _ in heads])
        keys_of_sequences, cls = (np.concatenate(parts) for parts in zip(*states, strict=True))
        values = {name: np.concatenate([outputs[name] for _, outputs in heads]) for name in head_columns(wants)}
        values |= {f"cls.{layer}": cls[:, number] for number, layer in enumerate(wants.cls)}
        keys_of = {"place": keys_of_places, "sequence": keys_of_sequences}
        layout = shard_layout(wants, np.array_equal(keys_of_places, keys_of_sequences))
        return [(keys_of[rows], {name: values[name] for name in names}) for rows, names in layout]


def missing_examples(
    missing: Callable[[np.ndarray, list[str]], np.ndarray], source: TokenisedSet, wants: Wants
) -> np.ndarray:
    """Positions of the examples that memory lacks, each text once."""
    keys = source.memory_keys(source.examples.index)
    positions = np.flatnonzero(missing(keys, columns(wants)))
    _, first = np.unique(keys[positions], return_index=True)
    return positions[np.sort(first)]


def blocks(source: TokenisedSet, positions: np.ndarray) -> list[TokenisedSet]:
    """The examples at these positions in blocks, tokenised for the teacher."""
    parts = [source.examples.take(positions[begin : begin + BLOCK]) for begin in range(0, len(positions), BLOCK)]
    asked = TokenisedSet(source.task, source.examples, source.teacher, source.teacher, draw=source.draw)
    return [replace(asked, examples=part) for part in parts]


def shard_layout(wants: Wants, one_place_each: bool) -> list[ShardLayout]:
    """The shards that a block is written to.

    If the head is read at one place of each sequence, as by a classifier, one shard holds all columns.
    """
    head = head_columns(wants)
    states = [f"cls.{layer}" for layer in wants.cls]
    shards: list[ShardLayout] = (
        [("place", head + states)] if one_place_each and head else [("place", head), ("sequence", states)]
    )
    return [(row, names) for row, names in shards if names]


def columns(wants: Wants) -> list[str]:
    """The columns of memory that hold the wanted signals."""
    return [name for _, names in shard_layout(wants, one_place_each=False) for name in names]


def head_columns(wants: Wants) -> list[str]:
    """The columns of the head's outputs: of all classes, of the most probable or of drawn ones."""
    if not wants.logits:
        return []
    if wants.draws:
        return drawn.column_names(wants.draws)
    return top.column_names(wants.top) if wants.top else ["logits"]


def row_columns(wants: Wants, classes: int, width: int) -> dict[str, Column]:
    """What a row of each column is, for a head with so many classes and states of this width."""
    head = {"logits": Column((classes,))}
    if wants.few:
        head = drawn.columns_of(wants.draws) if wants.draws else top.columns_of(wants.top, classes)
    return {name: head.get(name, Column((width,))) for name in columns(wants)}


def few_classes(logits: torch.Tensor, batch: Batch, wants: Wants) -> dict[str, Any]:
    """The signals that take the place of logits, if a few classes are wanted."""
    if wants.draws:
        keys = drawn.prediction_keys(batch.keys.cpu().numpy(), batch.teacher)
        return {"logits": nothing(), "drawn": drawn.drawn_classes(logits, wants.draws, keys)}
    return {"logits": nothing(), "top": top.top_classes(logits, wants.top)} if wants.top else {}


def refuse_few(batch: Batch) -> None:
    """Refuse `top` and `draws` unless the head gives a distribution over classes at every place."""
    if batch.outcome != "class" or batch.teacher.layout.numel():
        raise InputError(
            "'top' and 'draws' are only for tasks that predict one of several classes, such as tagging; omit it"
        )
