"""Student and teacher each in their best form, beside what they may replace: sentences a second, in one run, interleaved.

BiLSTM and bag, a teacher of 12 layers, 384 wide (PyTorch in float32 and bfloat16, ONNX Runtime in float32 and int8; in
threads and in streams, with 512, 1024 and 4096 padded tokens at once), a BERT of 24 layers, 1024 wide, and a network of ELMo's
shape. Weights are random, but for a teacher that is given: they do not matter for time. Tokenising is left out, except for
model2vec, which cannot do without. Every model reads the same lengths in the same way: sorted, and cut into batches, as
`potstill predict` does. Models of which 512 sentences would take minutes read fewer of the same mixture of lengths; theirs
is the time per sentence of these.

    python bench/inference.py --data test.tsv --teacher runs/teacher/student
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
from potstill.models.inference import Forward, bfloat16_forward, onnx_forward, streams_forward, torch_forward
from potstill.models.onnx.exported import open_onnx
from potstill.models.onnx.quantizing import quantize
from potstill.models.onnx.word_vectors import make_graph
from potstill.models.onnx.writing import write_onnx
from potstill.models.student import Student, load_student
from potstill.system import processor
from potstill.tasks.tag import WORDS

VOCABULARY, ROWS, FEW, ALONE = 30522, 512, 32, 24
SIZES = (512, 1024, 4096)  # padded tokens of a batch
FLOAT32, BFLOAT16, ONNX, INT8 = "PyTorch", "PyTorch, bfloat16", "ONNX Runtime", "ONNX Runtime, int8"
LARGE, TEACHER = "BERT, 24 layers of 1024", "teacher"
GOALS = {(LARGE, FLOAT32): 800, (TEACHER, INT8): 30}
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
    """A model in one form, and its best times so far."""

    model: str
    form: str
    run: Callable[[np.ndarray], None]  # reads sentences of these lengths as one batch
    rows: int  # that it reads in a turn
    ends: int = 0  # tokens around a sentence
    streams: bool = False  # each thread reads rows of its own
    sizes: tuple[int, ...] = SIZES
    seconds: dict[int, float] = field(default_factory=dict)  # of a turn, per sentence, by padded tokens at once
    alone: np.ndarray | None = None  # seconds of each sentence alone

    def turn(self, lengths: np.ndarray) -> None:
        mixed = np.sort(lengths)[(np.arange(self.rows) + 0.5).astype(int) * len(lengths) // self.rows] + self.ends
        for tokens in self.sizes:
            batches = split_by_tokens(np.arange(self.rows), mixed, tokens)
            spent = sum(seconds(self.run, mixed[one]) for one in batches) / self.rows
            self.seconds[tokens] = min(self.seconds.get(tokens, np.inf), spent)
        some = mixed[:: max(1, self.rows // ALONE)][:ALONE]
        alone = np.array([seconds(self.run, one[None]) for one in some])
        self.alone = alone if self.alone is None else np.minimum(self.alone, alone)

    @property
    def best(self) -> tuple[float, int]:
        """Seconds per sentence, and with how many padded tokens at once."""
        return min((spent, tokens) for tokens, spent in self.seconds.items())

    @property
    def ms_alone(self) -> float:
        assert self.alone is not None
        return 1000 * float(np.median(self.alone))

    @property
    def ways(self) -> str:
        threads = torch.get_num_threads()
        return f"1 × {threads}" if self.streams else f"{threads} × 1"


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


def forms_of(name: str, model: Any, plain: Path, rows: int, ends: int) -> list[Timed]:
    """A model in every form; `plain` is its ONNX file."""
    int8 = plain.with_name(f"{name}-int8.onnx")
    quantize(plain, int8)
    found = [Timed(name, FLOAT32, reading(torch_forward(model)), rows, ends)]
    if (faster := bfloat16_forward(model)) is not None:
        found.append(Timed(name, BFLOAT16, reading(faster), rows, ends))
    for form, file in ((ONNX, plain), (INT8, int8)):
        sequential, streams = open_onnx(file, 1).sequential, streams_forward(file)
        found.append(Timed(name, form, reading(onnx_forward(file)), rows, ends, sequential))
        if streams is not None:
            found.append(Timed(name, form, reading(streams), rows, ends, True))
    return found


def all_models(folder: Path, hidden: int, teacher: str | None, big: bool) -> tuple[list[Timed], list[str]]:
    shape = {"num_hidden_layers": 12, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    student = load_student(teacher) if teacher else Student(classifier("bert", **shape), made_up_tokenizer())
    found = forms_of(TEACHER, student.model, write_onnx(student, folder / TEACHER), 64, 2)
    for name, fields in {"bilstm": {"hidden_size": hidden}, "bag": {}}.items():
        model = classifier(f"potstill-{name}", **fields)
        onnx.save(make_graph(model), str(folder / f"{name}.onnx"))
        found += forms_of(name, model, folder / f"{name}.onnx", ROWS, 0)
    if big:
        large = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
        model = classifier("bert", **large)
        found.append(Timed(LARGE, FLOAT32, reading(torch_forward(model)), FEW, 2, sizes=(512,)))
        if (faster := bfloat16_forward(model)) is not None:
            found.append(Timed(LARGE, BFLOAT16, reading(faster), FEW, 2, sizes=(512,)))
        found.append(Timed("ELMo's shape", FLOAT32, spelling(Elmo().eval()), FEW, 2, sizes=(512,)))
    static = static_vectors()
    if isinstance(static, str):
        return found, [f"model2vec {static}"]
    return [*found, Timed("model2vec", "with tokenising", static, ROWS)], []


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="without BERT of 24 layers and ELMo")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    lengths = lengths_of(chosen.data, chosen.text)
    with tempfile.TemporaryDirectory() as folder:
        timed, notes = all_models(Path(folder), chosen.hidden, chosen.teacher, not chosen.small)
        for number in range(chosen.rounds):
            for one in timed:
                if number < 2 or one.rows > FEW:  # turns of the big ones are minutes
                    one.turn(lengths)
    print(f"{ROWS} sentences of {lengths.mean():.1f} words, hidden {chosen.hidden}, on")
    print(f"{processor.described(torch.get_num_threads())}\n")
    print_table(timed)
    for note in notes:
        print(note)


def print_table(timed: list[Timed]) -> None:
    forms: dict[tuple[str, str], list[Timed]] = {}
    for one in timed:
        forms.setdefault((one.model, one.form), []).append(one)
    best = {key: min(ways, key=lambda one: one.best) for key, ways in forms.items()}
    fastest = {
        model: min((one for one in best.values() if one.model == model), key=lambda one: one.best) for model, _ in best
    }
    print(
        "| model | form | threads × streams | tokens at once | sentences/s | ms alone | × teacher, float32 | × teacher, best |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for (model, form), one in best.items():
        spent, tokens = one.best
        plain = f"{best[TEACHER, FLOAT32].best[0] / spent:.4g}" if form == FLOAT32 else ""
        with_best = f"{fastest[TEACHER].best[0] / spent:.4g}" if one is fastest[model] else ""
        alone = min(way.ms_alone for way in forms[model, form])
        cells = model, form, one.ways, str(tokens), f"{1 / spent:.4g}", f"{alone:.3g}", plain, with_best
        print(f"| {' | '.join(cells)} |")
    print()
    student = fastest["bilstm"]
    for key, goal in GOALS.items():
        if key in best:
            times = best[key].best[0] / student.best[0]
            told = "reached" if times >= goal else "missed"
            print(f"bilstm, {student.form}: {times:.0f} times {', '.join(key)}; goal {goal}: {told}")


if __name__ == "__main__":
    main()
