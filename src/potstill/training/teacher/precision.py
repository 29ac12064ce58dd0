"""A teacher asked in bfloat16, if its answers are the same for the purpose: compared on a sample of rows first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from potstill.data.batches import TokenisedSet
from potstill.models.anatomy import is_spread
from potstill.models.precision import best_seconds, machine
from potstill.signals import Batch, Wants
from potstill.system import processor, ranks
from potstill.system.randomness import mix
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import TOKENS_AT_ONCE, Teacher

MANY_ROWS = 1000  # of train: a comparison on fewer would cost a good part of what it saves
SAMPLE, TURNS = 128, 2
MOST_APART = 0.02  # the largest difference of a probability; of values, in standard deviations
SAME_CLASS = 0.99  # share of predictions
FASTER = 1.1


def in_faster_form(teacher: Teacher, source: TokenisedSet, name: str, say: Callable[[str], None]) -> Teacher:
    """The teacher as it will be asked. `name`: its fingerprint, which finds the result of an earlier comparison."""
    assert teacher.model is not None and teacher.memory is not None
    if len(source.examples) <= MANY_ROWS or is_spread(teacher.model):
        return teacher
    fast = Teacher(
        teacher.model, Memory(teacher.memory.folder.with_name(f"{name}-bfloat16")), teacher.device, "bfloat16"
    )
    found = ranks.on_first(_comparison)(teacher, fast, source, name)
    rates = f"{found['bfloat16']:.0f} rows a second instead of {found['float32']:.0f}"
    apart = f"probabilities differ by {found['apart']:.1g} at most, {100 * found['same']:.1f} % same class"
    if found["bfloat16"] < FASTER * found["float32"]:
        return teacher
    if found["apart"] > MOST_APART or found["same"] < SAME_CLASS:
        say(f"the teacher is asked in float32: in bfloat16 its {apart}, on {found['rows']} rows")
        return teacher
    say(f"the teacher is asked in bfloat16: {rates}; {apart}, on {found['rows']} rows")
    return fast


def _comparison(teacher: Teacher, fast: Teacher, source: TokenisedSet, name: str) -> dict[str, Any]:
    rows = np.random.default_rng(mix("teacher precision")).permutation(len(source.examples))[:SAMPLE]
    sample = TokenisedSet(source.task, source.examples.take(np.sort(rows)), source.teacher, source.teacher)
    keys = np.asarray(sample.examples.keys[sample.examples.index])
    what = {"what": "teacher", "teacher": name, "rows": xxhash.xxh3_64_hexdigest(keys.tobytes())}
    what |= machine(teacher.device)
    if (known := processor.recall(what)) is not None:
        return known
    batches = [batch.to(teacher.device) for _, batch in sample.in_order(TOKENS_AT_ONCE)]
    logits: dict[str, list[Tensor]] = {"float32": [], "bfloat16": []}
    seconds = dict.fromkeys(logits, 0.0)
    for batch in batches:  # one by one: a short turn finds a quiet moment on a busy machine
        said: dict[str, Tensor] = {}

        def ask(form: str, asked: Teacher, batch: Batch = batch, said: dict[str, Tensor] = said) -> None:
            said[form] = asked.signals(batch, Wants(logits=True), live=True).logits.cpu()

        works = {"float32": partial(ask, "float32", teacher), "bfloat16": partial(ask, "bfloat16", fast)}
        try:
            best = best_seconds(works, TURNS)
        except RuntimeError:  # not every architecture can compute in bfloat16
            return {"float32": 1.0, "bfloat16": 0.0, "apart": 1.0, "same": 0.0, "rows": 0}
        for form, answer in said.items():
            logits[form].append(answer)
            seconds[form] += best[form]
    apart, same = differences(source.task.outcome, logits["float32"], logits["bfloat16"])
    measured = {form: len(rows) / spent for form, spent in seconds.items()}
    measured |= {"apart": apart, "same": same, "rows": len(rows)}
    processor.note(what, measured)
    return measured


def differences(outcome: str, plain: list[Tensor], fast: list[Tensor]) -> tuple[float, float]:
    """The largest difference of a probability, and the share of predictions of the same class."""
    if outcome == "value":
        values, others = torch.cat(plain).double(), torch.cat(fast).double()
        return float((values - others).abs().max() / values.std().clamp_min(1e-6)), 1.0
    apart, same, count = 0.0, 0, 0
    for before, after in zip(plain, fast, strict=True):
        p, q = (
            each.double().sigmoid() if outcome == "classes" else each.double().softmax(-1) for each in (before, after)
        )
        apart = max(apart, float((p - q).nan_to_num(nan=1.0).abs().max()))
        agree = (p > 0.5) == (q > 0.5) if outcome == "classes" else p.argmax(-1) == q.argmax(-1)
        same, count = same + int(agree.sum()), count + agree.numel()
    return apart, same / max(count, 1)
