"""Where the bytes and the milliseconds of a network are: embedding tables, attention, feed-forward, head.

Measured by hooks on its modules, in PyTorch and float32 on a processor, on two batches of 16 texts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.errors import InputError
from potstill.measuring.speed import timed_rows
from potstill.models.anatomy import EMBEDDINGS, has_layers, in_head, is_spread, stacks
from potstill.models.inference import torch_forward
from potstill.tasks.task import Task

EMBEDDED, ATTENTION, FEED_FORWARD, HEAD = "embeddings", "attention", "feed-forward", "head"
PARTS = (EMBEDDED, ATTENTION, FEED_FORWARD, HEAD)
ATTENDS = re.compile(r"attention|attn", re.IGNORECASE)  # names of modules in a layer
FLOAT = 4  # bytes
TURNS = 2  # after one to warm up
BATCHES, SIZE = 2, 16  # few, since a teacher may take long; many texts at once, as where speed counts

Breakdown = dict[str, dict[str, float]]
"""By part: "bytes" of its weights in float32, and "ms" for a text: the mean over batches of the best turn of each."""


def breakdown(model: PreTrainedModel, source: TokenisedSet[Task]) -> Breakdown | None:
    """Return where bytes and time are, on some rows of a set. None for networks without attention, such as those over word
    vectors, and on other devices, which do not wait for a module to end."""
    if is_spread(model) or model.device.type != "cpu":
        return None
    rows = timed_rows(len(source.examples))[: BATCHES * SIZE]
    rows = rows[np.argsort(source.lengths[rows], kind="stable")]
    parts = [rows[start : start + SIZE] for start in range(0, len(rows), SIZE)]
    return part_breakdown(model, [source.batch(part, source.count(part)).student.inputs for part in parts])


def part_breakdown(model: PreTrainedModel, batches: Sequence[dict[str, Tensor]]) -> Breakdown | None:
    """The same on given inputs. What the layers share, such as a position bias, counts as attention, and all time that is in
    no other part as head."""
    if not batches or not has_layers(model):
        return None
    try:
        layers = [layer for path in stacks(model) for layer in model.get_submodule(path).children()]
    except InputError:  # no list of layers is found: there is nothing to time apart
        return None
    attention = [module for layer in layers for module in _outermost(layer, ATTENDS.search)]
    if not attention:
        return None
    tables = [table for table in _outermost(model, EMBEDDINGS.search, whole=True) if table not in attention]
    modules = {EMBEDDED: tables, ATTENTION: attention, "layers": layers}
    best = [dict.fromkeys((*modules, "all"), float("inf")) for _ in batches]
    run = torch_forward(model)
    with ExitStack() as stack:
        spent = dict.fromkeys(modules, 0.0)
        for part, owners in modules.items():
            for module in owners:
                for hook in _timed(module, partial(_add, spent, part)):
                    stack.callback(hook.remove)
        for turn in range(TURNS + 1):
            for place, inputs in enumerate(batches[: None if turn else 1]):
                spent.update(dict.fromkeys(modules, 0.0))
                begun = time.perf_counter()
                run(inputs)
                now = {**spent, "all": time.perf_counter() - begun}
                if turn and now["all"] < best[place]["all"]:
                    best[place] = now
    texts = sum(len(next(iter(inputs.values()))) for inputs in batches)
    mean = {part: 1000 * sum(turn[part] for turn in best) / texts for part in best[0]}
    times = {EMBEDDED: mean[EMBEDDED], ATTENTION: mean[ATTENTION], FEED_FORWARD: mean["layers"] - mean[ATTENTION]}
    times[HEAD] = max(mean["all"] - sum(times.values()), 0.0)
    sizes = _bytes(model, attention)
    return {part: {"bytes": sizes[part], "ms": times[part]} for part in PARTS}


def _bytes(model: PreTrainedModel, attention: Sequence[nn.Module]) -> dict[str, float]:
    """Of every parameter once, as `anatomy.parameters` counts them."""
    attends = {id(parameter) for module in attention for parameter in module.parameters()}
    inside = {id(p) for path in stacks(model) for p in model.get_submodule(path).parameters()}
    sizes = dict.fromkeys(PARTS, 0.0)
    for name, parameter in model.named_parameters():
        if name in (model._keys_to_ignore_on_save or ()):
            continue
        if id(parameter) in attends:
            part = ATTENTION
        elif id(parameter) in inside:
            part = FEED_FORWARD
        else:
            part = HEAD if in_head(model, name) else EMBEDDED if EMBEDDINGS.search(name) else ATTENTION
        sizes[part] += FLOAT * parameter.numel()
    return sizes


def _outermost(root: nn.Module, wanted: Callable[[str], Any], whole: bool = False) -> Iterator[nn.Module]:
    """The modules in `root` with a wanted name that lie in no other such module. `whole`: their path is the name."""

    def search(module: nn.Module, path: str) -> Iterator[nn.Module]:
        for name, child in module.named_children():
            inner = f"{path}{name}."
            if wanted(inner if whole else name):
                yield child
            else:
                yield from search(child, inner)

    return search(root, "")


def _timed(module: nn.Module, add: Callable[[float], None]) -> tuple[Any, Any]:
    begun: list[float] = []
    before = module.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter()))
    return before, module.register_forward_hook(lambda *_: add(time.perf_counter() - begun.pop()))


def _add(spent: dict[str, float], part: str, seconds: float) -> None:
    spent[part] += seconds
