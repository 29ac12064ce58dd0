"""What remembering the teacher saves: one epoch of Patient KD with a live teacher against one from memory, interleaved.

A random BERT of 12 layers teaches 3 of them on made-up sentences; weights do not matter for time. Prints JSON lines.
"""

from __future__ import annotations

import csv
import json
import os
import random
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from potstill.data.batches import TokenisedSet
from potstill.data.examples import store
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.models.builder import BuildContext
from potstill.models.student import Student
from potstill.recipe import plugins
from potstill.recipe.schema import Stage
from potstill.signals import Wants
from potstill.tasks.label_matching import make_task
from potstill.training.loop import train
from potstill.training.setup import Training
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher

ROWS, WORDS, ROUNDS = 320, 3000, 3


def made_up_teacher() -> Student:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = {word: number for number, word in enumerate([*special, *(f"w{number}" for number in range(WORDS))])}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    shape = {"num_hidden_layers": 12, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    config = AutoConfig.for_model("bert", vocab_size=len(words), num_labels=2, **shape)
    return Student(AutoModelForSequenceClassification.from_config(config).eval(), tokenizer)


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["POTSTILL_CACHE"] = place
        chance = random.Random(0)
        with (folder / "rows.csv").open("w", newline="") as file:
            rows = (
                (" ".join(f"w{chance.randrange(WORDS)}" for _ in range(chance.randint(5, 40))), n % 2)
                for n in range(ROWS)
            )
            csv.writer(file).writerows([("text", "label"), *rows])
        teacher = made_up_teacher()
        task, _ = make_task(None, teacher.model.config, ["0", "1"], None, "rows.csv")
        examples = store(open_table(folder / "rows.csv"), task)
        tokens = tokenise(task, examples, teacher.tokenizer, 64)
        source = TokenisedSet(task, examples, tokens, tokens)
        student = plugins.make("students", "keep_layers", {"layers": 3}).build(
            teacher, BuildContext(teacher, 0, lambda: iter(()))
        )
        method = plugins.make("methods", "patient", {})
        device = torch.device("cpu")
        kinds = {
            "live": Teacher(teacher.model, None, device),
            "remembered": Teacher(teacher.model, Memory(folder / "memory"), device),
        }
        begun = time.perf_counter()
        kinds["remembered"].remember(source, Wants(logits=True, cls=(4, 8)))
        print(json.dumps({"what": "remembering", "seconds": round(time.perf_counter() - begun, 2), "rows": ROWS}))
        best = dict.fromkeys(kinds, float("inf"))
        for turn in range(ROUNDS):
            for name, answering in kinds.items():
                settings = (
                    Stage(epochs=1.0),
                    0,
                    turn,
                    folder / f"{name}{turn}",
                    Accelerator(cpu=True),
                    lambda: {"dev": 0.0},
                )
                training = Training([student.model], [answering], [source], method, *settings)
                best[name] = min(best[name], sum(step.seconds for step in train(training)))
        print(json.dumps({"what": "epoch", **{name: round(seconds, 2) for name, seconds in best.items()}}))
        print(json.dumps({"what": "live over remembered", "ratio": round(best["live"] / best["remembered"], 2)}))


if __name__ == "__main__":
    main()
