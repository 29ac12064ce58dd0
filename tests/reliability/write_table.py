"""Write the table of docs/reliability.md from the figures that the tests recorded: `make reliability`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

BEGIN, END = "<!-- written by make reliability -->", "<!-- until here -->"


class Promise(NamedTuple):
    number: int
    words: str
    test: str  # how it is tested
    others: str = ""  # what is known of other systems
    waits: str = ""  # for what, where there is no test yet


PROMISES = [
    Promise(
        1,
        "A killed run resumes",
        "20 SIGKILLs at random moments of `potstill distill` while it saves every step; cost of saving: steps"
        " with and after a checkpoint compared with all other steps of one training of 3 layers of width 384",
        "Lightning 20, HF Trainer 8",
    ),
    Promise(
        2,
        "A run resumed in mid-epoch ends with the same weights",
        "stopped at 4 points, with dropout and gradient accumulation; all weights and losses compared",
        "Composer exact, HF Trainer 4 of 4, Lightning off by 1.9e-3",
    ),
    Promise(
        3,
        "The same holds with random rows and masks",
        "the same with randomly drawn rows, masks drawn in every micro-batch, and augmented copies, which are"
        " made again",
        "HF Trainer 0 of 4",
    ),
    Promise(
        4,
        "No example is skipped or repeated after a resume, on any number of processes",
        "rows of every micro-batch recorded; stopped on one process and resumed on two, and the reverse",
        "HF Trainer: 10 examples",
    ),
    Promise(
        5,
        "SIGTERM and Ctrl-C leave a checkpoint of the current step, with exit codes 143 and 130 within 10 s",
        "signals sent during training, and while waiting for another run; a second Ctrl-C",
        "Lightning 143",
    ),
    Promise(
        6,
        "A non-finite loss or weight ends the run within a step and reaches no file",
        "learning rates that overflow; every file of the run searched",
        "HF Trainer finishes with 73 of 73 tensors NaN",
    ),
    Promise(
        7,
        "A full disk or a read-only folder gives a clear message, and the run resumes later",
        "a tmpfs of 40 MB with less and less room, for the run and for the cache; remounted read-only",
        "none",
    ),
    Promise(
        8,
        "A flipped bit is detected",
        "100 bits, one at a time, over weights, optimizer, state, manifest and memory",
        "0 anywhere by default",
    ),
    Promise(
        9,
        "A truncated checkpoint is detected, and the previous one is used",
        "50 truncations over all files of a checkpoint",
        "partly torchtitan",
    ),
    Promise(10, "The newest checkpoints and the best one are kept", "rotation with keep = 1 to 4", "Composer"),
    Promise(
        11,
        "Loading and saving onto the same path changes no bit",
        "checkpoints, and students of every architecture",
        "safetensors",
    ),
    Promise(
        12,
        "Two processes train the same student as one, and a dead process ends all within 30 s",
        "torchrun and accelerate launch with 2 processes against 1, with dropout, 12 steps; one process "
        "killed, one asked to stop",
        "Composer",
    ),
    Promise(
        13,
        "The memory never answers for another teacher, tokenizer, text or layer; processes can share it",
        "each changed by one bit or character; processes that write and read at the same time",
        "datasets",
    ),
    Promise(
        14,
        "A killed run continues asking the teacher where it stopped",
        "10 SIGKILLs while it asks the teacher; all bytes compared",
        "datasets restarts",
    ),
    Promise(
        15,
        "Training from memory equals training with the live teacher",
        "loss and gradient norm of every method and task in float32, relative",
        "none",
    ),
    Promise(
        16,
        "Pickles are never executed",
        "in model folders, checkpoints and optimizers, also under names and indexes of safetensors",
        "Composer 4 of 5",
    ),
    Promise(
        17,
        "Models with custom code are refused without a prompt",
        "auto_map in either config, kernels from a hub; someone answers yes to everything",
        "HF prompts on standard input",
    ),
    Promise(
        18,
        "Paths that leave the folder are refused",
        "`../`, absolute and odd names and links in checkpoints, memory and model folders",
    ),
    Promise(
        19,
        "Decompression bombs and lying headers are refused with less than 50 MB of memory",
        "240 MB out of 0.3 MB, false headers and tensors, networks larger than their weights; peak of the process",
    ),
    Promise(
        20,
        "No script in a label, text or name runs in the report",
        "a whole run made of them, opened in Chromium, also without the page's own policy",
        "TensorBoard",
    ),
    Promise(
        21,
        "Malformed rows are read correctly or refused with file:line and what to do",
        "CSV, TSV, JSON lines and Parquet, by the command",
        "datasets: of 15, 2 right, 7 errors, 6 silently wrong",
    ),
    Promise(
        22,
        "No text stops training or prediction",
        "empty, NUL, lone surrogates, emoji, right to left, 100,000 characters, wherever a task has a text",
        "HF pipeline dies at 2,000 words",
    ),
    Promise(
        23,
        "100 concurrent requests are answered correctly; too large, malformed and too many requests are refused",
        "a server under load",
        "LitServe 100 in under 8 s",
        "waits for the server",
    ),
    Promise(
        24,
        "An export predicts what the student predicts",
        "ONNX of every architecture and task, int8 of a student trained on real rows, folders in transformers"
        " 5 and 4.57",
        "onnxruntime 1e-2",
    ),
    Promise(
        25,
        "The wheel works where it is installed",
        "the pinned list in a fresh environment, `pip check`, the default tests without the source, warnings as errors",
    ),
    Promise(
        26,
        "The user's own files are never deleted",
        "every command that writes, with OUT at, above, around or inside the user's files, with and without "
        "`--overwrite`; notes in a run's folder; all bytes compared",
    ),
    Promise(
        27,
        "No command runs untrusted code or prompts for permission",
        "hostile model folders and recipes, each with every command that takes one, while someone answers yes"
        " to everything",
    ),
    Promise(
        28,
        "Changed inputs are detected when a run resumes or is requested again",
        "rows of each split, labels, weights, configs and vocabularies of teacher and initial model, seeds "
        "and settings: each changed by one bit or character, and named by the message",
    ),
    Promise(
        29,
        "No file is silently misread",
        "fuzzed files of all formats, about half of them changed by a few bytes, compared with Python's csv "
        "and json, pyarrow, numpy and small independent readers; labels as texts up to their class",
    ),
    Promise(
        30,
        "No traceback, with bounded memory and time",
        "absurd command lines, and damaged caches, models, exports, checkpoints and measurements: accepted, "
        "repaired, or refused with what to do",
    ),
]


def reached(promise: Promise, notes: list[dict[str, Any]]) -> str:
    """The figures that the tests of a promise recorded, or why there are none."""
    mine = [note for note in notes if note["number"] == promise.number]
    if failed := [note["failed"] for note in mine if "failed" in note]:
        return f"**fails**: {', '.join(dict.fromkeys(failed))}"
    most: dict[str, float | None] = {}
    for note in (note for note in mine if "figure" in note):
        text, value = note["figure"], note.get("most")
        most[text] = value if value is None else max(value, most.get(text) or value)
    figures = [text if value is None else text.format(value) for text, value in most.items()]
    skipped = [f"skipped: {note['skipped']}" for note in mine if "skipped" in note]
    return "; ".join(dict.fromkeys([*figures, *skipped])) or promise.waits or "not run"


def table(notes: list[dict[str, Any]]) -> str:
    lines = ["| | promise | how it is tested | reached | others |", "|---|---|---|---|---|"]
    for promise in PROMISES:
        cells = [str(promise.number), promise.words, promise.test, reached(promise, notes), promise.others or "–"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def written_into(page: str, notes: list[dict[str, Any]], only: range | None = None) -> str:
    """Return the page with a new table; with `only`, rows of other promises stay as they are."""
    before, begin, rest = page.partition(BEGIN)
    standing, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page needs the lines {BEGIN} and {END}")
    rows = table(notes).splitlines()
    if only is not None:
        there = {_number(line): line for line in standing.splitlines()}
        rows = [line if (number := _number(line)) in (0, *only) else there.get(number, line) for line in rows]
    return f"{before}{BEGIN}\n{chr(10).join(rows)}\n{END}{after}"


def _number(line: str) -> int:
    """The number of a row's promise; 0 for other lines."""
    found = re.match(r"\| (\d+) \|", line)
    return int(found[1]) if found else 0


def main(figures: Path, page: Path, only: range | None = None) -> None:
    notes = [json.loads(line) for line in figures.read_text(encoding="utf-8").splitlines()]
    page.write_text(written_into(page.read_text(encoding="utf-8"), notes, only), encoding="utf-8")


if __name__ == "__main__":
    first, _, last = (sys.argv[3] if len(sys.argv) > 3 else "").partition("-")
    main(Path(sys.argv[1]), Path(sys.argv[2]), range(int(first), int(last) + 1) if first else None)
