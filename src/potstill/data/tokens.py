"""Texts as token ids: made once per tokenizer and length, memory-mapped afterwards. Rows as padded NumPy arrays.

It needs no torch: `predict` on ONNX works with these arrays alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from potstill.data.examples import Examples
from potstill.data.pixel_reader import PixelReader
from potstill.data.task import DataTask, Texts, Tokenizer
from potstill.errors import InputError
from potstill.system import interrupts
from potstill.system.column_files import ColumnFiles, column, write_once
from potstill.system.randomness import draw_uniform

ARRAYS: dict[str, tuple[Any, int]] = {  # type and width
    "ids": (np.int32, 1),
    "segments": (np.uint8, 1),
    "offsets": (np.int64, 1),
    "firsts": (np.int64, 1),
    "places": (np.int32, 1),
    "place_offsets": (np.int64, 1),
    "characters": (np.int32, 2),
    "pixels": (np.uint8, 1),
}
OFFSETS = ("offsets", "firsts", "place_offsets")  # begin with 0
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
MASK = "[MASK]"  # a masked word in a text, for every tokenizer


@dataclass(frozen=True)
class Encoded:
    """The token sequences that a task makes of some rows: one or several for each row."""

    ids: list[list[int]]  # of each sequence
    segments: list[list[int]]  # token types
    shortened: int  # rows that were cut off
    counts: list[int] | None = None  # sequences of each row; None: one
    places: list[np.ndarray] | None = None  # tokens of each sequence that have a prediction; None: the first
    characters: list[np.ndarray] | None = None  # (tokens, 2) begin and end in the second text, -1 elsewhere
    pixels: np.ndarray | None = None  # (sequences, channels, height, width) uint8; an image is a sequence of one token


@dataclass(frozen=True)
class Vocabulary:
    """What tasks that replace tokens need of a tokenizer."""

    mask: int  # id of the mask token; -1 if there is none
    ordinary: np.ndarray  # ids of the tokens that are not special
    is_ordinary: np.ndarray  # (ids,) bool
    hashes: np.ndarray  # (ids,) float32: of each token's text, equal in all tokenizers that have the token
    continues: np.ndarray | None = None  # (ids,) bool: part of the word before it; None: the tokenizer does not show it

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        ids = tokenizer.get_vocab()
        special = set(tokenizer.all_special_ids)
        is_ordinary, hashes = np.zeros(max(ids.values()) + 1, np.bool_), np.zeros(max(ids.values()) + 1, np.float32)
        for token, number in ids.items():
            is_ordinary[number] = number not in special
            hashes[number] = (
                xxhash.xxh32_intdigest(token.encode()) % 2**24
            )  # whole numbers that a float32 holds exactly
        mask = -1 if tokenizer.mask_token is None else ids[tokenizer.mask_token]
        return cls(mask, np.flatnonzero(is_ordinary), is_ordinary, hashes, _continues(ids))


WORD_BEGINS = ("\u0120", "\u2581")  # Ġ of byte-level tokenizers, ▁ of SentencePiece
SHARE_OF_WORDS = 0.1  # of a vocabulary that marks the beginnings of words


def _continues(ids: dict[str, int]) -> np.ndarray | None:
    """(ids,) bool, see `Vocabulary`. WordPiece marks what continues a word, other tokenizers what begins one."""
    continues = np.zeros(max(ids.values()) + 1, np.bool_)
    begins = [number for token, number in ids.items() if token.startswith(WORD_BEGINS)]
    if len(begins) >= SHARE_OF_WORDS * len(ids):
        continues[:] = True
        continues[begins] = False
        return continues
    # asked last: other tokenizers have tokens such as "####" too
    parts = [number for token, number in ids.items() if token.startswith("##") and token != "##"]
    continues[parts] = True
    return continues if parts else None


@dataclass(frozen=True)
class Tokens:
    """All rows of an examples folder by one tokenizer. A row has one sequence, or several: windows or candidates."""

    ids: np.ndarray  # flat int32
    segments: np.ndarray  # flat uint8: token type
    offsets: np.ndarray  # (sequences + 1,)
    shortened: int  # rows that were longer than the model's input
    names: tuple[str, ...]  # arguments of forward that the tokenizer makes
    padding: int
    firsts: np.ndarray | None = None  # (rows + 1,) first sequence of each row; None: one sequence per row
    places: np.ndarray | None = None  # flat int32
    place_offsets: np.ndarray | None = None  # (sequences + 1,)
    characters: np.ndarray | None = None  # flat (tokens, 2) int32
    pixels: np.ndarray | None = None  # (sequences, channels, height, width) uint8
    vocabulary: Vocabulary | None = None  # of tasks that draw
    keys: np.ndarray | None = None  # (rows,) int64, see `key_of`; None: rows that are only asked about, with no targets
    # (rows,) ascending; of tasks whose rows are pairs of texts that follow each other
    documents: np.ndarray | None = None
    seed: tuple[int, ...] = ()  # of what is drawn; () outside of training, where the keys alone decide

    def drawn(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Return (n, count) numbers from 0 to below 1, the same for the same row and seed."""
        assert self.keys is not None
        return draw_uniform(np.asarray(self.keys[rows]), self.seed, count)

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """Return (n,) the number of sequences of each row."""
        return np.ones(len(rows), np.int64) if self.firsts is None else self.firsts[rows + 1] - self.firsts[rows]

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """Return the sequences of the rows, in order."""
        return rows if self.firsts is None else ranges(self.firsts[rows], self.firsts[rows + 1])

    def sizes(self, sequences: np.ndarray) -> np.ndarray:
        """Return (n,) the number of tokens of each sequence."""
        return np.asarray(self.offsets[sequences + 1] - self.offsets[sequences])

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return (n,) the tokens of each row when its sequences are padded to the longest of them."""
        sizes, counts = self.sizes(self.sequences(rows)), self.counts(rows)
        if self.firsts is None or not len(rows):
            return sizes
        longest: np.ndarray = np.maximum.reduceat(sizes, np.cumsum(counts) - counts)
        return longest * counts


def ranges(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return begins[0], …, ends[0] - 1, begins[1], …"""
    counts = np.asarray(ends - begins, np.int64)
    return np.repeat(np.asarray(begins, np.int64) - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend else tokenizer.get_vocab()
    # padding and truncation are settings of the last call, not of the vocabulary
    kept = {name: value for name, value in described.items() if name not in ("padding", "truncation")}
    parts = sorted(tokenizer.model_input_names)
    parts += [] if tokenizer.truncation_side == "right" else [tokenizer.truncation_side]
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)  # put around generated texts, independent of tokenizer.json
    parts += [] if ends == (None, None) else [str(ends)]
    return xxhash.xxh3_128_hexdigest(json.dumps(kept, sort_keys=True).encode() + repr(parts).encode())


@contextmanager
def explain_panics(tokenizer: Tokenizer | None = None, folder: str | Path | None = None) -> Iterator[None]:
    """Turn a panic of the tokenizers library, which is not an `Exception`, into an `InputError` that names the tokenizer."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        name = folder or (tokenizer.name_or_path if tokenizer else "") or "the model"
        reason = f"the tokenizer of {name} failed ({str(error).splitlines()[0][:200]})"
        raise InputError(f"{reason}; use the model's original tokenizer.json") from None


def with_mask_token(texts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Replace `MASK` by the tokenizer's own mask token, such as <mask> for RoBERTa."""
    own = tokenizer.mask_token
    return list(texts) if own in (None, MASK) else [text.replace(MASK, own) for text in texts]


def tokenise(
    task: DataTask, examples: Examples, tokenizer: Tokenizer, length: int, progress: Callable[[int], None] | None = None
) -> Tokens:
    """Tokenise all rows of the examples' folder into sequences of at most `length`, once per tokenizer and length."""

    def write(columns: ColumnFiles) -> None:
        shortened = 0
        for rows in examples.chunks():
            encoded = _encode(task, [examples.text(row) for row in rows], tokenizer, length)
            for name, values in _flat(encoded).items():
                (columns.add_offsets if name in OFFSETS else columns.add)(name, values)
            shortened += encoded.shortened
            if progress:
                progress(len(rows))
            interrupts.stop_if_asked()
        columns.finish({"shortened": shortened})

    folder = examples.folder / f"tokens-{tokenizer_fingerprint(tokenizer)}-{length}"
    meta = write_once(folder, write)
    stored = {name: how for name, how in ARRAYS.items() if (folder / f"{name}.bin").exists()}
    arrays = {name: column(folder, name, *how) for name, how in stored.items()}
    tokens = _tokens(task, arrays, meta["shortened"], tokenizer, examples.keys)
    return replace(tokens, documents=examples.documents) if task.follows else tokens


def tokenise_texts(
    task: DataTask, texts: Texts, tokenizer: Tokenizer, length: int, keys: np.ndarray | None = None
) -> Tokens:
    """Tokenise a few rows in memory. With their keys they are read as rows of examples, without as questions."""
    encoded = _encode(task, texts, tokenizer, length)
    arrays = {
        name: np.cumsum([0, *values], dtype=np.int64) if name in OFFSETS else values
        for name, values in _flat(encoded).items()
    }
    return _tokens(task, arrays, encoded.shortened, tokenizer, keys)


def _encode(task: DataTask, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
    with explain_panics(tokenizer):
        return task.tokenize(texts, tokenizer, length)


def _tokens(
    task: DataTask, arrays: dict[str, Any], shortened: int, tokenizer: Tokenizer, keys: np.ndarray | None
) -> Tokens:
    vocabulary = Vocabulary.of(tokenizer) if task.draws else None
    if isinstance(tokenizer, PixelReader):
        arrays["pixels"] = arrays["pixels"].reshape(-1, *tokenizer.shape)
    names = tuple(name for name in tokenizer.model_input_names if name in INPUTS)
    padding = int(tokenizer.pad_token_id or 0)
    return Tokens(shortened=shortened, names=names, padding=padding, vocabulary=vocabulary, keys=keys, **arrays)


def _flat(encoded: Encoded) -> dict[str, np.ndarray]:
    """Return the arrays of `Tokens` for some rows; sizes in place of offsets."""
    arrays = {
        "ids": np.concatenate([np.array(ids, np.int32) for ids in encoded.ids]),
        "segments": np.concatenate([np.array(segments, np.uint8) for segments in encoded.segments]),
        "offsets": np.array([len(ids) for ids in encoded.ids]),
    }
    if encoded.counts is not None:
        arrays["firsts"] = np.array(encoded.counts)
    if encoded.places is not None:
        arrays["places"] = np.concatenate([places.astype(np.int32) for places in encoded.places])
        arrays["place_offsets"] = np.array([len(places) for places in encoded.places])
    if encoded.characters is not None:
        arrays["characters"] = np.concatenate([each.astype(np.int32) for each in encoded.characters])
    if encoded.pixels is not None:
        arrays["pixels"] = encoded.pixels
    return arrays


@dataclass(frozen=True)
class ArrayView:
    """One model's reading of some rows; `potstill.signals.View` is the same with tensors."""

    inputs: dict[str, np.ndarray]  # arguments of forward
    real: np.ndarray  # (batch, tokens) bool: not padding
    at: np.ndarray  # (places, 2) row and position where the head is read
    layout: np.ndarray | None  # (predictions, classes); None: a place is a prediction
    also_at: np.ndarray | None = None  # (places, 2) of a second head

    def predictions(self, heads: np.ndarray) -> np.ndarray:
        """Return the logits, (predictions, classes), of a head's (batch, outputs) or (batch, tokens, outputs)."""
        rows = heads if heads.ndim == 3 else heads[:, None]  # a head for the whole row is read at one place
        places: np.ndarray = rows[self.at[:, 0], self.at[:, 1]]
        if self.layout is None:
            return places
        impossible = np.full(1, -np.inf, places.dtype)
        return np.asarray(np.concatenate([places.reshape(-1), impossible])[self.layout])


def array_view(task: DataTask, tokens: Tokens, rows: np.ndarray) -> ArrayView:
    """Return rows as arrays, padded to the longest sequence."""
    sequences = tokens.sequences(rows)
    lengths = tokens.sizes(sequences)
    columns = np.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    places = (tokens.offsets[sequences][:, None] + columns)[real]  # in the flat files
    ids = np.full(real.shape, tokens.padding, np.int64)
    segments = np.zeros(real.shape, np.int64)
    ids[real], segments[real] = tokens.ids[places], tokens.segments[places]
    arrays = {"input_ids": ids, "attention_mask": real.astype(np.int64), "token_type_ids": segments}
    if tokens.pixels is not None:
        arrays["pixel_values"] = tokens.pixels[sequences].astype(np.float32) / 255
    at, layout = task.places(tokens, rows)
    return ArrayView(task.inputs(arrays, real, tokens, rows), real, at, layout, task.second_places(tokens, rows))


def split_by_tokens(positions: np.ndarray, lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Return micro-batches of at most `tokens` padded tokens, longest first. A longer example is a micro-batch alone."""
    ordered = positions[np.argsort(-lengths[positions], kind="stable")]
    parts, begin = [], 0
    while begin < len(ordered):
        size = max(1, tokens // max(int(lengths[ordered[begin]]), 1))
        parts.append(ordered[begin : begin + size])
        begin += size
    return parts
