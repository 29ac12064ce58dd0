"""The forms in which a teacher can be asked, compared on a sample of rows: their speed, and whether they answer the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np
import torch
import xxhash
from torch import Tensor

from potstill.data.batches import TokenisedSet
from potstill.errors import InputError
from potstill.inference.agreement import FASTER, MOST_APART, SAME_CLASS, differences
from potstill.inference.onnx_forms import cached_files
from potstill.models.anatomy import is_spread
from potstill.models.inference import Forward, onnx_forward
from potstill.models.precision import FASTER as PRODUCTS_FASTER
from potstill.models.precision import bfloat16_gain, machine
from potstill.models.student import Student
from potstill.signals import Wants
from potstill.system import processor
from potstill.system.processor import best_seconds
from potstill.system.randomness import mix
from potstill.training.teacher.teacher import TOKENS_AT_ONCE, Form, Teacher

OF_ONNX: tuple[Form, ...] = ("onnx", "int8")  # files: they give the outputs of the head and no states

MANY_ROWS = 1000  # to be asked: a comparison for fewer would cost a good part of what it saves
LONG_ENOUGH = 30.0  # seconds that PyTorch would need for all rows: writing and loading the files takes about ten
SAMPLE, TURNS = 128, 2

Measured = dict[str, float]
"""Of a form, on the sample: "rate" in rows a second, "apart" and "same" as `differences` returns them."""
Comparison = dict[Form, Measured]
"""The forms of a teacher that come into question."""


def head_in(form: Form, loaded: Student, vocabulary: bool) -> Forward | None:
    """What answers in place of the head of a teacher that is asked in this form; None where PyTorch does. The file is
    cached. `vocabulary`: the task's classes are tokens."""
    if form not in OF_ONNX or loaded.new_head:
        return None
    if vocabulary or loaded.model.can_generate() or is_spread(loaded.model):
        kind = "one that is spread over devices" if is_spread(loaded.model) else "one that predicts tokens"
        raise InputError(
            f"teacher_precision = '{form}' is for teachers that classify or give numbers, and not for {kind}; "
            "write teacher_precision = 'float32' or 'bfloat16'"
        )
    return onnx_forward(cached_files(loaded)[OF_ONNX.index(form)], streams=True)


def compared(
    loaded: Student, source: TokenisedSet, rows: int, wants: Wants, device: torch.device, name: str
) -> Comparison:
    """Each form that comes into question for a teacher, the slower and the worse ones too.

    `rows`: how many it would be asked; `wants`: all that any method asks it; `name`: its fingerprint, which finds the
    result of an earlier comparison. ONNX Runtime answers where its outputs are all that is wanted.
    """
    of_torch: list[Form] = ["float32", "bfloat16"] if bfloat16_gain(device) >= PRODUCTS_FASTER else ["float32"]
    states = wants.cls or wants.per_token or source.task.vocabulary or loaded.model.can_generate()
    may_be_file = not states and device.type == "cpu" and _has_onnx()
    if len(of_torch) == 1 and not may_be_file:
        return {}
    found = _measured(loaded, source, of_torch, device, name)
    rate = max((each["rate"] for each in good(found).values()), default=math.inf)
    if may_be_file and rows / rate >= LONG_ENOUGH:
        found |= _measured(loaded, source, ["float32", *OF_ONNX], device, name)
    return found


def good(found: Comparison) -> Comparison:
    """The forms whose answers are the same for the purpose."""
    return {form: each for form, each in found.items() if each["apart"] <= MOST_APART and each["same"] >= SAME_CLASS}


def fastest(found: Sequence[tuple[int, Comparison]]) -> Form:
    """The form in which all teachers are asked. `found`: of each, the rows that it is asked and how its forms compare."""
    seconds: dict[Form, float] = {
        form: sum(rows / of_teacher[form]["rate"] for rows, of_teacher in found)
        for form in get_args(Form)
        if found and all(form in good(of_teacher) for _, of_teacher in found)
    }
    best = min(seconds, key=seconds.__getitem__) if seconds else "float32"
    return best if best != "float32" and seconds["float32"] >= FASTER * seconds[best] else "float32"


def described(chosen: Form, found: Comparison) -> str:
    """How the forms of a teacher compare: "the teacher is asked in int8: 310 rows a second instead of 80; …"."""
    plain, taken = found["float32"], found[chosen]
    parts = [f"{taken['rate']:.0f} rows a second" + ("" if chosen == "float32" else f" instead of {plain['rate']:.0f}")]
    if chosen != "float32":
        parts.append(_apart(taken))
    parts += [f"in {form} its {_apart(each)}" for form, each in found.items() if form not in good(found)]
    return f"the teacher is asked in {chosen}: {'; '.join(parts)}; on a sample of {plain['rows']:.0f} rows"


def _apart(each: Measured) -> str:
    return f"probabilities differ by {each['apart']:.1g} at most, {100 * each['same']:.1f} % same class"


def _has_onnx() -> bool:
    return all(map(find_spec, ("onnx", "onnxscript", "onnxruntime")))


def _measured(
    loaded: Student, source: TokenisedSet, forms: Sequence[Form], device: torch.device, name: str
) -> Comparison:
    """These forms, of which the first one is float32 in PyTorch. A form that the network does not have is left out."""
    rows = np.sort(np.random.default_rng(mix("teacher precision")).permutation(len(source.examples))[:SAMPLE])
    sample = TokenisedSet(source.task, source.examples.take(rows), source.teacher, source.teacher)
    keys = np.asarray(sample.examples.keys[sample.examples.index])
    what = {"what": "teacher", "teacher": name, "rows": xxhash.xxh3_64_hexdigest(keys.tobytes()), "forms": list(forms)}
    what |= machine(device) | ({"onnxruntime": version("onnxruntime")} if "onnx" in forms else {})
    if (known := processor.recall(what)) is not None:
        return known  # type: ignore[return-value]
    logits, seconds = _asked(loaded, sample, forms, device)
    measured: Comparison = {}
    for form, answers in logits.items():
        apart, same = differences(source.task.outcome, logits["float32"], answers)
        measured[form] = {"rate": len(rows) / seconds[form], "apart": apart, "same": same, "rows": len(rows)}
    processor.note(what, measured)  # type: ignore[arg-type]
    return measured


def _asked(
    loaded: Student, sample: TokenisedSet, forms: Sequence[Form], device: torch.device
) -> tuple[dict[Form, list[Tensor]], dict[Form, float]]:
    """The logits of every batch of the sample, and the seconds of all batches, by form."""
    batches = [batch.to(device) for _, batch in sample.in_order(TOKENS_AT_ONCE)]
    teachers: dict[Form, Teacher] = {}
    for form in forms:
        try:
            teacher = Teacher(loaded.model, None, device, form, head_in(form, loaded, vocabulary=False))
            teacher.signals(batches[0], Wants(logits=True))
            teachers[form] = teacher
        except Exception:  # exporters fail in as many ways as there are architectures, and not all compute in bfloat16
            if form == "float32":
                raise
    logits: dict[Form, list[Tensor]] = {form: [] for form in teachers}
    seconds = dict.fromkeys(teachers, 0.0)
    for batch in batches:  # one by one: a short turn finds a quiet moment on a busy machine
        said: dict[Form, Tensor] = {}

        def ask(form: Form, batch: Any = batch, said: dict[Form, Tensor] = said) -> None:
            said[form] = teachers[form].signals(batch, Wants(logits=True)).logits.cpu()

        best = best_seconds({form: partial(ask, form) for form in teachers}, TURNS)
        for form, answer in said.items():
            logits[form].append(answer)
            seconds[form] += best[form]
    return logits, seconds
