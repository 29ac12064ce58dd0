"""What four epochs of Patient KD cost: potstill, TextBrewer, and the loop that people write by hand, in turns in one run.

640 sentences of film reviews, batches of 32; a teacher of 12 layers and 384 units, a student of its first 3; layers 4
and 8 are matched; as many threads for all. All train by AdamW with clipping on the same three losses (TextBrewer's has no
T²), in float32 and, where the processor multiplies faster in it, also in bfloat16:

- potstill: the teacher is asked once, into a fresh memory, and that time counts in full; then four epochs, all run.
- textbrewer: as its examples do it, with a live teacher and every text padded to 128 tokens.
- textbrewer, dynamic: the same, padded to the longest text of the batch.
- by hand: a plain loop in PyTorch with a live teacher, random batches, padded to the longest.
- by hand, grouped: the same, with batches of like length in potstill's own order.
- …, bfloat16: the same under PyTorch's autocast; potstill with both precisions in bfloat16.

An epoch of the others costs what the next one costs: one is run per round and counted four times. Of all rounds the best
counts, for each competitor. Nobody tokenises, scores dev or saves while the clock runs, and the product that `auto` measures
once on a machine is printed by itself. Prints JSON lines; the exit code is 1 where a target is missed. Weights do not matter for time:
those of the teacher are random. Its tokenizer and the sentences come from packages, which `make bench` installs.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _packages import encoder_folder, write_sentences
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, normalize, pad
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, logging

from potstill.data.batches import TokenisedSet, epoch_order, view
from potstill.data.examples import store
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.models.anatomy import encoder_layers, parameters, width
from potstill.models.builder import BuildContext
from potstill.models.precision import FASTER, TYPES, bfloat16_gain
from potstill.models.student import Student
from potstill.recipe import plugins
from potstill.recipe.schema import Optimizer, Stage
from potstill.runs.planning.timing import matmul_peak
from potstill.signals import Wants
from potstill.system import processor
from potstill.tasks.label_matching import make_task
from potstill.training import loop
from potstill.training.loop import Step, train
from potstill.training.setup import Training
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher

ROWS, BATCH, EPOCHS, LENGTH, ROUNDS = 640, 32, 4, 128, 2
TEMPERATURE, ALPHA, BETA, RATE = 5.0, 0.5, 0.1, 5e-5
MATCHED = ((1, 4), (2, 8))  # student's and teacher's layers
TARGETS = {
    "textbrewer": 7.0,
    "textbrewer, dynamic": 2.5,
    "by hand": 2.5,
    "by hand, grouped": 1.4,
}  # each in its precision
GAIN = 1.8  # of potstill by bfloat16, where there is any
CPU = torch.device("cpu")

Batches = Iterable[dict[str, Tensor]]
Epoch = Callable[[], None]


def read_rows(folder: Path, teacher: Student) -> TokenisedSet:
    write_sentences(folder / "rows.csv", ROWS)
    task, _ = make_task(None, teacher.model.config, ["0", "1"], None, "rows.csv")
    examples = store(open_table(folder / "rows.csv"), task)
    tokens = tokenise(task, examples, teacher.tokenizer, LENGTH)
    return TokenisedSet(task, examples, tokens, tokens)


def padded(source: TokenisedSet, rows: Iterable[int], length: int | None = None) -> dict[str, Tensor]:
    """A batch as a collator makes it: to `length`, or to the longest text."""
    made = view(source.task, source.student, rows := np.array(rows)).inputs
    room = (0, (length or 0) - made["input_ids"].shape[1])
    made = {name: pad(tensor, room) for name, tensor in made.items()} if length else dict(made)  # padding's id is 0
    return made | {"labels": torch.from_numpy(source.examples.targets[rows]).long()}


def shuffled(source: TokenisedSet, length: int | None = None) -> DataLoader[Any]:
    rows: Any = range(ROWS)
    return DataLoader(rows, BATCH, shuffle=True, collate_fn=lambda some: padded(source, some, length))


def textbrewer_epoch(teacher: PreTrainedModel, student: PreTrainedModel, batches: DataLoader[Any], out: str) -> Epoch:
    """TextBrewer's own loop, losses and settings; it has the losses of Patient KD: 'ce' on logits, 'pkd' on [CLS]."""
    from textbrewer import DistillationConfig, GeneralDistiller, TrainingConfig

    match = {"feature": "hidden", "loss": "pkd", "weight": BETA}
    matches = [{"layer_T": theirs, "layer_S": ours, **match} for ours, theirs in MATCHED]
    weights = {"kd_loss_weight": ALPHA, "hard_label_weight": 1 - ALPHA}
    distillation = DistillationConfig(
        temperature=TEMPERATURE, kd_loss_type="ce", intermediate_matches=matches, **weights
    )

    def adaptor(batch: dict[str, Tensor], said: Any) -> dict[str, Any]:
        parts = {"logits": said.logits, "losses": said.loss, "hidden": said.hidden_states}
        return parts | {"inputs_mask": batch["attention_mask"]}

    settings = TrainingConfig(device="cpu", log_dir=None, output_dir=out)
    distiller = GeneralDistiller(settings, distillation, teacher, student, adaptor, adaptor)
    distiller.save_and_callback = lambda *_: None  # nobody saves
    optimizer = torch.optim.AdamW(student.parameters(), lr=RATE)

    def epoch() -> None:
        with distiller:
            distiller.train(optimizer, batches, num_epochs=1, max_grad_norm=1.0, output_hidden_states=True)

    return epoch


def plain_epoch(teacher: PreTrainedModel, student: PreTrainedModel, batches: Callable[[], Batches]) -> Epoch:
    """The loop that most people write."""
    optimizer = torch.optim.AdamW(student.parameters(), lr=RATE)

    def epoch() -> None:
        student.train()
        for batch in batches():
            labels = batch.pop("labels")
            with torch.no_grad():
                theirs = teacher(**batch, output_hidden_states=True)
            ours = student(**batch, output_hidden_states=True)
            pair = (ours.logits / TEMPERATURE).log_softmax(-1), (theirs.logits / TEMPERATURE).softmax(-1)
            soft = kl_div(*pair, reduction="batchmean")
            loss = (1 - ALPHA) * cross_entropy(ours.logits, labels) + ALPHA * TEMPERATURE**2 * soft
            for mine, other in MATCHED:
                apart = normalize(ours.hidden_states[mine][:, 0]) - normalize(theirs.hidden_states[other][:, 0])
                loss = loss + BETA * apart.square().sum(-1).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

    return epoch


def in_bfloat16(epoch: Epoch) -> Epoch:
    def cast() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            epoch()

    return cast


def competitors(source: TokenisedSet, teacher: Student, student: Student, out: str, fast: bool) -> dict[str, Epoch]:
    """One epoch of each, with a student of its own."""

    def mine() -> PreTrainedModel:
        return copy.deepcopy(student.model)

    def grouped() -> Batches:
        return (padded(source, rows) for rows in epoch_order(source.lengths, BATCH, 0))

    found: dict[str, Epoch] = {}
    for end, cast in (("", lambda epoch: epoch), *([(", bfloat16", in_bfloat16)] if fast else [])):
        try:
            for name, length in (("textbrewer", LENGTH), ("textbrewer, dynamic", None)):
                found[name + end] = cast(textbrewer_epoch(teacher.model, mine(), shuffled(source, length), out))
        except ImportError:
            tell(skipped="textbrewer is not installed: pip install --no-deps textbrewer")
        found["by hand" + end] = cast(plain_epoch(teacher.model, mine(), lambda: shuffled(source)))
        found["by hand, grouped" + end] = cast(plain_epoch(teacher.model, mine(), grouped))
    return found


def potstill(
    source: TokenisedSet, teacher: Teacher, student: PreTrainedModel, method: str, epochs: float, precision: str
) -> Iterator[Step]:
    """The steps of the real loop."""
    fields = {"temperature": TEMPERATURE, "alpha": ALPHA} | ({"beta": BETA} if method == "patient" else {})
    stage = Stage(epochs=epochs, batch=BATCH, keep="last", optimizer=Optimizer(rate=RATE))
    rest = (0, 0, Path(), Accelerator(cpu=True), lambda: {"dev": 0.0})
    made = plugins.make("methods", method, fields)
    return train(Training([student], [teacher], [source], made, stage, *rest, precision=precision))


def seconds_of(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def floating_point_operations(model: PreTrainedModel, source: TokenisedSet) -> tuple[float, float]:
    """Of one epoch, forward and backward, on real tokens: what is done, and what a full pass would take.

    Six per weight and token (a product and a sum; forward, by the input and by the weight), and for attention 12 × width
    × length² per layer and text. After the last layer's attention potstill goes on with [CLS] alone, so that the weights
    from there on count once per text. Embeddings, norms and dropout count nothing.
    """
    last = encoder_layers(model)[-1]
    after = [*last.attention.output.parameters(), *last.intermediate.parameters(), *last.output.parameters()]
    once = parameters(model)["head"] + sum(weight.numel() for weight in after)
    full = parameters(model)["layers"] + parameters(model)["head"]
    lengths = source.lengths.astype(float)
    attention = 12 * width(model) * len(encoder_layers(model)) * float((lengths**2).sum())
    tokens = float(lengths.sum())
    return 6 * ((full - once) * tokens + once * len(lengths)) + attention, 6 * full * tokens + attention


def tell(**what: Any) -> None:
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in what.items()}
    print(json.dumps({"bench": "distill", **rounded}), flush=True)


@dataclass
class Mine:
    """potstill in one precision: the best seconds of asking and four epochs together, and of one epoch."""

    precision: str
    seconds: float = math.inf
    epoch: float = math.inf


def compare(folder: Path, teacher: Student, student: Student, source: TokenisedSet) -> list[str]:
    """Run and print everything; returns the targets that were missed."""
    begun = time.perf_counter()
    fast = bfloat16_gain(CPU) >= FASTER
    tell(processor=processor.described(torch.get_num_threads()), bfloat16_gain=bfloat16_gain(CPU))
    tell(measuring_products=time.perf_counter() - begun)
    others = list(competitors(source, teacher, student, str(folder), fast).items())
    wants = Wants(logits=True, cls=tuple(theirs for _, theirs in MATCHED))
    mine = {"potstill": Mine("float32"), **({"potstill, bfloat16": Mine("bfloat16")} if fast else {})}
    best, peak = dict.fromkeys(dict(others), math.inf), dict.fromkeys(TYPES, 0.0)
    for turn in range(ROUNDS):
        running: dict[str, tuple[Iterator[Step], list[float]]] = {}
        for name, ours in mine.items():
            asking = Teacher(teacher.model, Memory(folder / f"{name}-{turn}"), CPU, ours.precision)  # type: ignore[arg-type]
            spent = [seconds_of(lambda asking=asking: asking.remember(source, wants))]
            made = copy.deepcopy(student.model)
            running[name] = potstill(source, asking, made, "patient", EPOCHS, ours.precision), spent
        for number in range(EPOCHS):  # an epoch of ours in each precision, then one of somebody else's
            for steps, spent in running.values():
                spent.append(seconds_of(lambda steps=steps: [next(steps) for _ in range(ROWS // BATCH)]))
            for name, epoch in others[number::EPOCHS]:
                best[name] = min(best[name], EPOCHS * seconds_of(epoch))
            for ours in mine.values():
                peak[ours.precision] = max(peak[ours.precision], matmul_peak(CPU, TYPES[ours.precision]))
        for name, (steps, spent) in running.items():
            list(steps)  # a training that is not ended would be torn down with the interpreter
            mine[name].seconds = min(mine[name].seconds, sum(spent))
            mine[name].epoch = min(mine[name].epoch, *spent[1:])
            epochs = [round(seconds, 2) for seconds in spent[1:]]
            tell(round=turn + 1, competitor=name, remembering=spent[0], epochs=epochs)

    missed = []
    for name, ours in mine.items():
        tell(competitor=name, seconds_for_four_epochs=ours.seconds)
        end = "" if ours.precision == "float32" else ", bfloat16"
        for other, target in TARGETS.items():
            if other + end in best:
                ratio = best[other + end] / ours.seconds
                tell(competitor=other + end, seconds_for_four_epochs=best[other + end], times_potstill=ratio)
                if ratio < target:
                    missed.append(f"{other + end} costs {ratio:.2f} times {name}; the target is {target}")
        done, full = (work / ours.epoch for work in floating_point_operations(student.model, source))
        speed = {"tokens_per_second": round(float(source.lengths.sum()) / ours.epoch), "gflops": done / 1e9}
        share = {"matmul_peak": peak[ours.precision] / 1e9, "share_of_peak": done / peak[ours.precision]}
        tell(competitor=name, **speed, **share, share_if_nothing_was_skipped=full / peak[ours.precision])
    if fast:
        gain = mine["potstill"].seconds / mine["potstill, bfloat16"].seconds
        tell(potstill_faster_by_bfloat16=gain)
        missed += [f"bfloat16 makes potstill {gain:.2f} times faster; the target is {GAIN}"] if gain < GAIN else []
    again = Teacher(teacher.model, Memory(folder / "potstill-0"), CPU)
    asked = again.remember(source, Wants(logits=True))
    seconds = seconds_of(lambda: list(potstill(source, again, student.model, "soft_targets", 1.0, "float32")))
    tell(recipe="soft_targets after patient", asked=asked, teacher_seconds=again.seconds, seconds_per_epoch=seconds)
    return [*missed, *(["a second recipe asked the teacher again"] if asked or again.seconds else [])]


def models() -> tuple[Student, Student]:
    """The teacher, with random weights, and the student."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(encoder_folder(), num_hidden_layers=12, num_labels=2)
    model = AutoModelForSequenceClassification.from_config(config)
    teacher = Student(model.eval(), AutoTokenizer.from_pretrained(encoder_folder()))
    three = plugins.make("students", "keep_layers", {"layers": 3})
    return teacher, three.build(teacher, BuildContext(teacher, 0, lambda: iter(())))


def main() -> int:
    logging.disable_progress_bar()
    loop.checkpoints.save = loop.checkpoints.rotate = lambda *_, **__: None  # type: ignore[assignment]  # nobody saves
    with tempfile.TemporaryDirectory() as place:
        os.environ["POTSTILL_CACHE"] = place
        teacher, student = models()
        missed = compare(Path(place), teacher, student, read_rows(Path(place), teacher))
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
