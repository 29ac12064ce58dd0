"""The teacher answers live or from memory on disk; a method sees no difference.

What a head gives at each place it is read, and [CLS] of wanted layers, is remembered, once per example, ever, and shared
by all recipes. What is as wide as the network at every token is asked live.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, place_keys
from potstill.errors import InputError
from potstill.models.hooks import listen
from potstill.models.student import is_spread
from potstill.signals import Batch, Signals, View, Wants, nothing
from potstill.system import interrupts, ranks
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.top_classes import kept, spread

BLOCK = 2048  # examples per shard of memory: what is lost at most when the machine goes down
ASKED_AT_ONCE = 1024  # padded tokens: 1.3 times faster than 4096 on two cores, since a layer's states stay in the cache


class Teacher:
    """A model and its memory; or, without a model, the answers that a file carries."""

    def __init__(self, model: PreTrainedModel | None, memory: Memory | None, device: torch.device) -> None:
        self.model = model
        if model is not None:
            model.eval().requires_grad_(False)
            if not is_spread(model):
                model.to(device)  # type: ignore[arg-type]
        self.memory, self.device = memory, device
        self.seconds = 0.0  # spent asking the model

    def signals(self, batch: Batch, wants: Wants, live: bool = False) -> Signals:
        """The wanted signals for one batch, rows in its order. `live`: not from memory, since the rows were changed."""
        if wants == Wants():
            return Signals()
        if not batch.taught.any() and wants == Wants(logits=True, top=wants.top):  # nobody listens
            return Signals(logits=torch.zeros(len(batch.taught_predictions), 1, device=self.device))
        if wants.top:
            refuse_top(batch)
        if self.memory is None or wants.per_token or live:
            heard = self._ask(batch.teacher.to(self.device), wants)
            return replace(heard, logits=spread(kept(heard.logits, wants.top))) if wants.top else heard
        keys, known = batch.keys.cpu().numpy(), batch.taught.cpu().numpy()
        logits = nothing()
        if wants.logits:
            rows = batch.teacher.at[:, 0].cpu().numpy()
            column = head_column(wants) if self.model is not None else "logits"  # all that a file of answers has
            places = torch.from_numpy(self._read(place_keys(keys, rows), known[rows], column)).to(self.device)
            if wants.top:
                places = spread(places if self.model is not None else kept(places, wants.top))
            logits = batch.teacher.arranged(places)
        cls = [self._read(keys, known, f"cls.{layer}") for layer in wants.cls]
        return Signals(logits=logits, cls=torch.from_numpy(np.stack(cls, 1)).to(self.device) if cls else nothing())

    def _read(self, keys: np.ndarray, known: np.ndarray, column: str) -> np.ndarray:
        assert self.memory is not None
        if known.all():
            return self.memory.read(keys, column)
        answers = self.memory.read(keys[known], column) if known.any() else None
        filled = np.zeros((len(keys), *(answers.shape[1:] if answers is not None else (1,))), np.float32)
        if answers is not None:
            filled[known] = answers
        return filled

    def _ask(self, view: View, wants: Wants) -> Signals:
        assert self.model is not None, "only logits are asked of a file of answers, and those are remembered"
        begun = time.perf_counter()
        with torch.inference_mode():
            heard = listen(self.model, view, wants)
        self.seconds += time.perf_counter() - begun
        return heard

    def remember(self, source: TokenisedSet, wants: Wants, progress: Callable[[int], None] | None = None) -> int:
        """Ask for what memory lacks of these examples; returns how many were asked. A stopped call goes on where it was."""
        if self.memory is None or self.model is None or source.needs_live_teacher(wants) or wants == Wants():
            return 0
        # alone, the lock is held throughout: another run that wants the same waits and finds it; ranks lock to write
        with self.memory.lock() if ranks.count() == 1 else nullcontext():
            unknown, shards = self._unknown(source, wants)
            parts = blocks(source, unknown)
            for number in range(ranks.number(), len(parts), ranks.count()):
                asked = self._ask_all(parts[number], wants, progress)
                for place, (found, answers) in enumerate(asked):
                    # the name follows from the block, so that it does not matter which rank is the quicker
                    self.memory.write(found, answers, shards + number * len(asked) + place)
        ranks.wait()
        self.memory.refresh()
        if ranks.count() > 1 and (missing := len(lacking(self.memory.missing, source, wants))):
            raise InputError(
                f"{self.memory.folder} lacks {missing} answers that other processes were to write there: the processes do not "
                "share a cache; give all of them one folder in POTSTILL_CACHE, or as memory in the recipe"
            )
        return len(unknown)

    @ranks.on_first
    def _unknown(self, source: TokenisedSet, wants: Wants) -> tuple[np.ndarray, int]:
        """Positions of the examples to be asked; and the number of shards that are there."""
        assert self.memory is not None
        with self.memory.lock():
            return lacking(self.memory.missing, source, wants), self.memory.free_number()

    def _ask_all(
        self, source: TokenisedSet, wants: Wants, progress: Callable[[int], None] | None
    ) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Keys and columns for memory: what heads gave, by place, and [CLS] by sequence."""
        places: list[tuple[np.ndarray, np.ndarray]] = []
        sequences: list[tuple[np.ndarray, np.ndarray]] = []
        for positions, batch in source.in_order(ASKED_AT_ONCE):
            if wants.top:
                refuse_top(batch)
            heard = self._ask(replace(batch.teacher.to(self.device), layout=nothing()), wants)
            if not bool(heard.logits.isfinite().all() and heard.cls.isfinite().all()):
                raise InputError(
                    "the teacher answers with numbers that are not finite; use weights of a training that went well"
                )
            keys = batch.keys.numpy()
            logits = kept(heard.logits, wants.top) if wants.top else heard.logits
            places.append((place_keys(keys, batch.teacher.at[:, 0].numpy()), logits.cpu().numpy()))
            sequences.append((keys, heard.cls.float().cpu().numpy()))
            if progress:
                progress(len(positions))
            if asked := interrupts.asked():
                raise interrupts.Interrupted(asked)  # blocks written before are kept
        by_place, said = (np.concatenate(parts) for parts in zip(*places, strict=True))
        by_sequence, cls = (np.concatenate(parts) for parts in zip(*sequences, strict=True))
        states = {f"cls.{layer}": cls[:, place] for place, layer in enumerate(wants.cls)}
        if wants.logits and np.array_equal(by_place, by_sequence):  # one place each: one shard holds both
            return [(by_place, {head_column(wants): said, **states})]
        return [*([(by_place, {head_column(wants): said})] if wants.logits else []), (by_sequence, states)]


def lacking(missing: Callable[[np.ndarray, list[str]], np.ndarray], source: TokenisedSet, wants: Wants) -> np.ndarray:
    """Positions of the examples that memory misses, each text once."""
    keys = np.asarray(source.examples.keys[source.examples.index])
    unknown = np.flatnonzero(missing(keys, columns(wants)))
    _, first = np.unique(keys[unknown], return_index=True)
    return unknown[np.sort(first)]


def blocks(source: TokenisedSet, positions: np.ndarray) -> list[TokenisedSet]:
    """As many examples each as are written together, as the teacher reads them."""
    parts = [source.examples.take(positions[begin : begin + BLOCK]) for begin in range(0, len(positions), BLOCK)]
    return [TokenisedSet(source.task, part, source.teacher, source.teacher) for part in parts]


def columns(wants: Wants) -> list[str]:
    """The names under which memory keeps what was wanted."""
    return [*([head_column(wants)] if wants.logits else []), *(f"cls.{layer}" for layer in wants.cls)]


def head_column(wants: Wants) -> str:
    """What the head gave: all of it, or the most probable classes."""
    return f"top.{wants.top}" if wants.top else "logits"


def refuse_top(batch: Batch) -> None:
    """An error where what the head gives at one place is no distribution over classes."""
    if batch.outcome != "class" or batch.teacher.layout.numel():
        raise InputError("'top' is for tasks with one class of several at every place, such as tags; leave it out")
