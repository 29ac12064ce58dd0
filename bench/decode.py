"""Sources a second by beam search: potstill's decoder beside transformers' generate, in turns in one run.

    python bench/decode.py [FOLDER [SOURCES]]

FOLDER holds a translator (Marian, BART, T5), SOURCES one text per line. Without a folder the model is one of 4 + 4 layers of
256 with 8,000 pieces and random weights: it ends nowhere, so every output is as long as it may be (32 tokens), which no trained
model does; and its equal outputs say little, since all are about as probable.

- potstill: `decoder(student)`: CTranslate2 in float32, conversion not counted; `int8` the same with rounded weights.
- generate: `model.generate` with the same beam and the same stopping, in batches of 32 as the texts come.
- generate, sorted: the same in batches of texts of like length, which is what a careful user would write.

Of all rounds the best counts, for each competitor. Prints JSON lines; the exit code is 1 where a target is missed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from potstill.models.generation.ctranslate2 import special_tokens
from potstill.models.generation.decoding import batches_by_length, decoder
from potstill.models.loading import quiet_transformers
from potstill.models.student import Student, load_student
from potstill.system.randomness import seeded

BEAM, ROUNDS, SOURCES, LONGEST = 5, 3, 128, 256
TARGETS = {"ctranslate2": 4.0}  # times generate


def random_translator() -> Student:
    words = [f"w{number}" for number in range(7997)]
    backend = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(["</s>", "<unk>", *words, "<pad>"])}, "<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **names
    )
    sides = {"layers": 4, "attention_heads": 4, "ffn_dim": 1024}
    shape = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    ids = {"pad_token_id": 7999, "decoder_start_token_id": 7999, "eos_token_id": 0, "forced_eos_token_id": None}
    config = MarianConfig(
        vocab_size=8000, d_model=256, max_position_embeddings=256, scale_embedding=True, **shape, **ids
    )
    with seeded(0):
        return Student(MarianMTModel(config).eval(), tokenizer)


def generate(student: Student, texts: list[str], longest: int, by_length: bool) -> list[str]:
    known = special_tokens(student.model, student.tokenizer)
    sources = student.tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
    said = [""] * len(texts)
    as_they_come = [list(range(at, min(at + 32, len(texts)))) for at in range(0, len(texts), 32)]
    for places in batches_by_length(range(len(texts)), [len(ids) for ids in sources]) if by_length else as_they_come:
        batch = student.tokenizer.pad({"input_ids": [sources[place] for place in places]}, return_tensors="pt")
        with torch.inference_mode(), quiet_transformers():
            made = student.model.generate(
                **batch, num_beams=BEAM, early_stopping=True, max_new_tokens=longest, forced_bos_token_id=known.forced
            )
        for place, text in zip(places, student.tokenizer.batch_decode(made, skip_special_tokens=True), strict=True):
            said[place] = text
    return said


def main() -> int:
    given = sys.argv[1:]
    student = load_student(given[0]) if given else random_translator()
    longest = LONGEST if given else 32
    if len(given) > 1:
        texts = Path(given[1]).read_text(encoding="utf-8").splitlines()[: 8 * SOURCES]
    else:
        random = np.random.default_rng(0)
        texts = [" ".join(f"w{n}" for n in random.integers(0, 7997, size)) for size in random.integers(4, 40, SOURCES)]
    with ExitStack() as open_ones:
        ours = {
            name: open_ones.enter_context(decoder(student, "ctranslate2", longest, weights))
            for name, weights in (("ctranslate2", "float32"), ("ctranslate2, int8", "int8"))  # type: ignore[arg-type]
        }
        runs: dict[str, Callable[[], list[str]]] = {
            "generate": lambda: generate(student, texts, longest, by_length=False),
            "generate, sorted": lambda: generate(student, texts, longest, by_length=True),
        }
        for name, decode in ours.items():
            runs[name] = lambda decode=decode: [one[0].text for one in decode(texts, BEAM, 1)]  # type: ignore[misc]
        seconds = {name: float("inf") for name in runs}
        said: dict[str, list[str]] = {}
        for _ in range(ROUNDS):
            for name, run in runs.items():
                begun = time.perf_counter()
                said[name] = run()
                seconds[name] = min(seconds[name], time.perf_counter() - begun)
    about = {
        "model": given[0] if given else "random 4+4 x 256",
        "sources": len(texts),
        "threads": torch.get_num_threads(),
    }
    missed = False
    for name in runs:
        times = seconds["generate"] / seconds[name]
        same = float(np.mean([a == b for a, b in zip(said[name], said["generate"], strict=True)]))
        found = {"decoder": name, "sources_per_second": len(texts) / seconds[name], "times_generate": times}
        print(json.dumps({**about, **found, "same_outputs": same, "target": TARGETS.get(name)}))
        missed |= times < TARGETS.get(name, 0)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
