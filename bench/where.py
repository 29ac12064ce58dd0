"""Where the time of a training step goes: matrix products, attention, dropout, optimizer and the rest, in each precision.

The world of `bench/distill.py`: 20 steps of Patient KD, 32 sentences each, a student of 3 layers of 384, answers of the
teacher from its memory. An epoch to warm up, two that are timed (the better one counts), and one under `torch.profiler`.
An operation belongs to the innermost of these parts that it was called in, and its backward pass to the part of its
forward pass; the times are those of the thread that calls, which waits for the others. Prints JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import distill
import torch
from distill import CPU, MATCHED, Student, TokenisedSet, bfloat16_gain, processor
from torch.profiler import ProfilerActivity, profile, record_function

from potstill.models import anatomy
from potstill.models.precision import FASTER, TYPES
from potstill.runs.planning.timing import matmul_peak, seconds_of
from potstill.signals import Wants
from potstill.training import loop
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher

PARTS = {  # beginnings of the names of events
    "matrix products": ("aten::addmm", "aten::mm", "aten::linear", "aten::mkldnn_linear"),
    "attention": ("aten::bmm", "aten::baddbmm", "aten::softmax", "aten::scaled_dot_product", "part: attention"),
    "dropout": ("aten::dropout", "aten::native_dropout", "aten::bernoulli", "part: dropout"),
    "activation": ("aten::gelu",),
    "norms": ("aten::layer_norm", "aten::native_layer_norm"),
    "embeddings": ("aten::embedding", "part: embeddings"),
    "casts": ("aten::to", "aten::_to_copy"),
    "optimizer": ("Optimizer.",),
    "clipping": ("part: clipping",),
    "batches and answers": ("part: batches and answers",),
}
BACKWARD = "autograd::engine::evaluate_function"


@contextmanager
def marked(model: Any) -> Iterator[None]:
    """Name the parts that no operation of PyTorch names by itself."""
    patched: list[tuple[Any, str, Any]] = []
    hooks: list[Any] = []

    def within(owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name, None)
        if function is None:  # an older tree
            return

        def named(*arguments: Any, **more: Any) -> Any:
            with record_function(f"part: {part}"):
                return function(*arguments, **more)

        patched.append((owner, name, function))
        setattr(owner, name, named)

    def inside(module: Any, part: str) -> None:
        open_: list[Any] = []

        def enter(*_: Any) -> None:
            open_.append(record_function(f"part: {part}"))
            open_[-1].__enter__()

        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(lambda *_: open_.pop().__exit__(None, None, None)))

    for layer in anatomy.encoder_layers(model):
        inside(layer.attention.self, "attention")
    inside(model.base_model.embeddings, "embeddings")
    kernels = sys.modules.get("potstill.models.kernels")
    within(kernels, "dropout", "dropout")
    within(loop, "clip_norm", "clipping")
    within(loop.StageLoop, "micro_batches", "batches and answers")
    within(Teacher, "signals", "batches and answers")
    try:
        yield
    finally:
        for owner, name, function in patched:
            setattr(owner, name, function)
        for hook in hooks:
            hook.remove()


def part_of(name: str) -> str | None:
    return next((part for part, begins in PARTS.items() if name.startswith(begins)), None)


def parts_of(events: Iterable[Any]) -> dict[str, float]:
    """Microseconds of each part."""
    forward: dict[int, str] = {}  # the number that a forward operation shares with its backward pass -> part
    found: dict[int, str | None] = {}
    spent: dict[str, float] = defaultdict(float)
    for event in sorted(events, key=lambda event: event.time_range.start):
        above = found.get(id(event.cpu_parent)) if event.cpu_parent is not None else None
        if event.name.startswith(BACKWARD):
            part = forward.get(event.sequence_nr)
        else:
            part = part_of(event.name)
            part = above if part is None or (part == "casts" and above not in (None, "matrix products")) else part
            if event.sequence_nr >= 0 and part:  # backward, operations have no number
                forward[event.sequence_nr] = part
        found[id(event)] = part
        spent[part or "other operations"] += event.self_cpu_time_total
    return spent


def profiled(work: Callable[[], object]) -> tuple[float, dict[str, float]]:
    """Seconds of the work, and of its parts."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        whole = seconds_of(work)
    parts = {part: spent / 1e6 for part, spent in parts_of(profiler.events()).items()}
    return whole, {**parts, "Python": whole - sum(parts.values())}


def show(teacher: Student, student: Student, source: TokenisedSet, folder: Path, precision: str) -> None:
    steps_of_epoch = distill.ROWS // distill.BATCH
    wants = Wants(logits=True, cls=tuple(theirs for _, theirs in MATCHED))
    asking = Teacher(teacher.model, Memory(folder / precision), CPU, precision)  # type: ignore[arg-type]
    asking.remember(source, wants)
    model = student.model
    with marked(model):
        steps = distill.potstill(source, asking, model, "patient", 4.0, precision)

        def epoch() -> None:
            for _ in range(steps_of_epoch):
                next(steps)

        epoch()
        seconds = min(seconds_of(epoch) for _ in range(2))
        peak = matmul_peak(CPU, TYPES[precision])
        whole, parts = profiled(epoch)
        steps.close()
    done, _ = distill.floating_point_operations(student.model, source)
    shares = {part: round(100 * spent / whole, 1) for part, spent in sorted(parts.items(), key=lambda each: -each[1])}
    told = {
        "precision": precision,
        "ms_per_step": round(1000 * seconds / steps_of_epoch, 1),
        "tokens_per_second": round(float(source.lengths.sum()) / seconds),
        "share_of_peak": round(done / seconds / peak, 3),
        "peak_gflops": round(peak / 1e9),
        "percent": shares,
    }
    print(json.dumps({"bench": "where", **told}), flush=True)


def main() -> None:
    loop.checkpoints.save = loop.checkpoints.rotate = lambda *_, **__: None  # type: ignore[assignment]  # nobody saves
    with tempfile.TemporaryDirectory() as place:
        os.environ["POTSTILL_CACHE"] = place
        print(json.dumps({"bench": "where", "processor": processor.described(torch.get_num_threads())}), flush=True)
        precisions = ["float32", "bfloat16"] if bfloat16_gain(CPU) >= FASTER else ["float32"]
        for precision in precisions:
            teacher, student = distill.models()
            source = distill.read_rows(Path(place), teacher)
            show(teacher, student, source, Path(place), precision)


if __name__ == "__main__":
    main()
