"""Sentences per second and milliseconds of the cheapest students beside what they may replace, in one run, interleaved.

BiLSTM and bag (PyTorch, ONNX, int8) against a BERT of 24 layers, 1024 wide, a network of ELMo's shape, and a teacher of 12
layers, 384 wide (PyTorch, int8 ONNX). Weights are random, but for a teacher that is given: they do not matter for time.
Tokenising is left out, except for model2vec, which cannot do without. Every model reads the same lengths in the same way:
sorted, and cut into batches of at most --tokens padded tokens, as `potstill predict` does. Models of which 512 sentences
would take minutes read fewer of the same mixture of lengths; theirs is the time per sentence of these.

    python bench/inference.py --data test.tsv --teacher runs/teacher/student
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from potstill.data.rows import Columns, open_table
from potstill.data.tokens import split_by_tokens
from potstill.models.inference import Forward, bfloat16_forward, onnx_forward, torch_forward
from potstill.models.onnx.quantizing import quantize
from potstill.models.onnx.word_vectors import make_graph
from potstill.models.onnx.writing import write_onnx
from potstill.models.student import Student, load_student
from potstill.tasks.tag import WORDS

VOCABULARY, ROWS, FEW, ALONE = 30522, 512, 32, 24
GOALS = {"BERT, 24 layers of 1024": 800, "teacher, int8": 30}
BEGINNING = 999  # of the ids that are words in BERT's vocabulary


class Elmo(nn.Module):
    """The sizes of the published ELMo: characters, convolutions, highways, two layers of 4096 cells with 512 projections."""

    FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    LETTERS = 50  # of a word

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(262, 16)
        self.filters = nn.ModuleList(nn.Conv1d(16, count, width) for width, count in self.FILTERS)
        size = sum(count for _, count in self.FILTERS)
        self.highways = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(2))
        self.project = nn.Linear(size, 512)
        self.stacks = nn.ModuleList(nn.LSTM(512, 4096, 2, batch_first=True, proj_size=512) for _ in range(2))
        self.out = nn.Linear(1024, 2)

    def forward(self, letters: Tensor) -> Tensor:
        """(batch, words, letters) -> (batch, 2)"""
        batch, words, _ = letters.shape
        seen = self.characters(letters.flatten(0, 1)).transpose(1, 2)
        states = torch.cat([torch.relu(one(seen).amax(-1)) for one in self.filters], -1)
        for highway in self.highways:
            new, gate = highway(states).chunk(2, -1)
            gate = gate.sigmoid()
            states = gate * states + (1 - gate) * new.relu()
        vectors = self.project(states).view(batch, words, -1)
        forward, backward = self.stacks[0](vectors)[0], self.stacks[1](vectors.flip(1))[0].flip(1)
        return self.out(torch.cat([forward, backward], -1).mean(1))


@dataclass
class Timed:
    """A model, and its best times so far."""

    run: Callable[[np.ndarray], None]  # reads sentences of these lengths as one batch
    rows: int  # that it reads in a turn
    ends: int = 0  # tokens around a sentence
    seconds: float = np.inf  # of a turn, per sentence
    alone: np.ndarray | None = None  # seconds of each sentence alone

    def turn(self, lengths: np.ndarray, tokens: int) -> None:
        mixed = np.sort(lengths)[(np.arange(self.rows) + 0.5).astype(int) * len(lengths) // self.rows] + self.ends
        # a few rows are cut as finely as all of them would be, so that they are padded as little
        batches = split_by_tokens(np.arange(self.rows), mixed, max(1, tokens * self.rows // len(lengths)))
        self.seconds = min(self.seconds, sum(seconds(self.run, mixed[one]) for one in batches) / self.rows)
        some = mixed[:: max(1, self.rows // ALONE)][:ALONE]
        spent = np.array([seconds(self.run, one[None]) for one in some])
        self.alone = spent if self.alone is None else np.minimum(self.alone, spent)


def seconds(run: Callable[[np.ndarray], None], lengths: np.ndarray) -> float:
    begun = time.perf_counter()
    run(lengths)
    return time.perf_counter() - begun


def reading(run: Forward) -> Callable[[np.ndarray], None]:
    random = np.random.default_rng(0)

    def read(lengths: np.ndarray) -> None:
        real = torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]
        ids = torch.from_numpy(random.integers(BEGINNING, VOCABULARY, tuple(real.shape))) * real
        run({"input_ids": ids, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(ids)})

    return read


def spelling(model: Elmo) -> Callable[[np.ndarray], None]:
    def read(lengths: np.ndarray) -> None:
        with torch.inference_mode():
            model(torch.randint(0, 262, (len(lengths), int(lengths.max()), Elmo.LETTERS)))

    return read


def classifier(kind: str, **shape: Any) -> Any:
    config = AutoConfig.for_model(kind, vocab_size=VOCABULARY, num_labels=2, **shape)
    return AutoModelForSequenceClassification.from_config(config).eval()


def made_up_tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(VOCABULARY)}
    backend = Tokenizer(models.WordLevel({"[PAD]": 0, **{w: n for w, n in words.items() if n}}, unk_token="w1"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("w3", 3), ("w2", 2))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="w1", model_max_length=512)


def static_vectors() -> Callable[[np.ndarray], None] | str:
    """model2vec with random vectors; or why it is not timed."""
    try:
        from model2vec import StaticModel
    except ImportError as error:
        return f"not timed: {error}"
    backend = made_up_tokenizer().backend_tokenizer
    model = StaticModel(np.random.default_rng(0).normal(size=(VOCABULARY, 256)).astype(np.float32), backend)
    random = np.random.default_rng(0)
    known: dict[int, list[str]] = {
        length: [" ".join(f"w{n}" for n in random.integers(BEGINNING, VOCABULARY, length)) for _ in range(8)]
        for length in range(1, 513)
    }

    def encode(lengths: np.ndarray) -> None:
        model.encode([known[int(length)][place % 8] for place, length in enumerate(lengths)])

    return encode


def all_models(folder: Path, hidden: int, teacher: str | None, big: bool) -> tuple[dict[str, Timed], list[str]]:
    shape = {"num_hidden_layers": 12, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    student = load_student(teacher) if teacher else Student(classifier("bert", **shape), made_up_tokenizer())
    quantize(plain := write_onnx(student, folder / "teacher"), folder / "teacher.onnx")
    found = {
        "teacher, PyTorch": Timed(reading(torch_forward(student.model)), 128, 2),
        **(
            {"teacher, bfloat16": Timed(reading(faster), 128, 2)} if (faster := bfloat16_forward(student.model)) else {}
        ),
        "teacher, ONNX": Timed(reading(onnx_forward(plain)), 128, 2),
        "teacher, int8": Timed(reading(onnx_forward(folder / "teacher.onnx")), 128, 2),
    }
    notes = []
    if big:
        large = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
        found = {
            "BERT, 24 layers of 1024": Timed(reading(torch_forward(classifier("bert", **large))), FEW, 2),
            "ELMo's shape": Timed(spelling(Elmo().eval()), FEW, 2),
            **found,
        }
    for name, fields in {"bilstm": {"hidden_size": hidden}, "bag": {}}.items():
        model = classifier(f"potstill-{name}", **fields)
        onnx.save(make_graph(model), str(folder / f"{name}.onnx"))
        quantize(folder / f"{name}.onnx", folder / f"{name}-int8.onnx")
        runs = {
            "PyTorch": torch_forward(model),
            "ONNX": onnx_forward(folder / f"{name}.onnx"),
            "int8": onnx_forward(folder / f"{name}-int8.onnx"),
        }
        found |= {f"{name}, {engine}": Timed(reading(run), ROWS) for engine, run in runs.items()}
    static = static_vectors()
    if isinstance(static, str):
        notes.append(f"model2vec {static}")
    else:
        found["model2vec, with tokenising"] = Timed(static, ROWS)
    return found, notes


def lengths_of(data: str | None, text: str | None) -> np.ndarray:
    """(512,) words of sentences: of a file's rows, or drawn around 20."""
    if data is None:
        return np.clip(np.random.default_rng(0).gamma(4.0, 5.0, ROWS).astype(int), 2, 60)
    found = [
        len(WORDS.findall(row.text))
        for row, _ in zip(open_table(data, Columns(text)).rows(), range(ROWS), strict=False)
    ]
    return np.resize(np.maximum(found, 1), ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", help="a file whose first 512 rows give the lengths")
    parser.add_argument("--text", help="its column")
    parser.add_argument("--teacher", help="a model's folder instead of random weights")
    parser.add_argument("--hidden", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=4096, help="padded tokens of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="without BERT of 24 layers and ELMo")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    lengths = lengths_of(chosen.data, chosen.text)
    with tempfile.TemporaryDirectory() as folder:
        timed, notes = all_models(Path(folder), chosen.hidden, chosen.teacher, not chosen.small)
        for number in range(chosen.rounds):
            for one in timed.values():
                if number < 3 or one.rows > FEW:  # three turns of the big ones are minutes
                    one.turn(lengths, chosen.tokens)
    print(
        f"{ROWS} sentences of {lengths.mean():.1f} words, {torch.get_num_threads()} threads, hidden {chosen.hidden}\n"
    )
    compared = [name for name in (*GOALS, "ELMo's shape") if name in timed]
    print("| model | sentences read | sentences/s | ms alone | " + " | ".join(f"× {name}" for name in compared) + " |")
    print("|---|---:|---:|---:|" + "---:|" * len(compared))
    for name, one in timed.items():
        assert one.alone is not None
        times = " | ".join(f"{timed[other].seconds / one.seconds:.4g}" for other in compared)
        print(f"| {name} | {one.rows} | {1 / one.seconds:.4g} | {1000 * float(np.median(one.alone)):.3g} | {times} |")
    print()
    fastest = min((name for name in timed if name.startswith("bilstm")), key=lambda name: timed[name].seconds)
    for name, goal in GOALS.items():
        if name in timed:
            times = timed[name].seconds / timed[fastest].seconds
            print(f"{fastest}: {times:.0f} times {name}; goal {goal}: {'reached' if times >= goal else 'missed'}")
    for note in notes:
        print(note)


if __name__ == "__main__":
    main()
