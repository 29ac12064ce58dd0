"""Texts as token ids: made once per tokenizer and length, memory-mapped ever after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from transformers import PreTrainedTokenizerBase

from potstill.data.examples import Examples
from potstill.data.pixel_reader import PixelReader
from potstill.data.task import DataTask
from potstill.errors import InputError
from potstill.system import interrupts
from potstill.system.column_files import ColumnFiles, column, made_once

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
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
MASK = "[MASK]"  # a hidden word in a text, whatever tokenizer reads it


@dataclass(frozen=True)
class Encoded:
    """What a task makes of some rows: one or several sequences of tokens for each."""

    ids: list[list[int]]  # of each sequence
    segments: list[list[int]]  # token types
    shortened: int  # rows of which something was cut off
    counts: list[int] | None = None  # sequences of each row; None: one
    places: list[np.ndarray] | None = None  # where each sequence's predictions are read; None: at the first token
    characters: list[np.ndarray] | None = None  # (tokens, 2) first character and end in the second text, -1 elsewhere
    pixels: np.ndarray | None = None  # (sequences, channels, height, width) uint8, where each is one token: an image


@dataclass(frozen=True)
class Tokens:
    """All rows of an examples folder by one tokenizer. A row has one sequence, or several: windows, or candidates."""

    ids: np.ndarray  # flat int32
    segments: np.ndarray  # flat uint8: token type
    offsets: np.ndarray  # (sequences + 1,)
    shortened: int  # rows that were longer than the model reads
    names: tuple[str, ...]  # arguments of forward that the tokenizer makes
    padding: int
    firsts: np.ndarray | None = None  # (rows + 1,) first sequence of each row; None: row = sequence
    places: np.ndarray | None = None  # flat int32
    place_offsets: np.ndarray | None = None  # (sequences + 1,)
    characters: np.ndarray | None = None  # flat (tokens, 2) int32
    pixels: np.ndarray | None = None  # (sequences, channels, height, width) uint8

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """(n,) sequences of each row."""
        return np.ones(len(rows), np.int64) if self.firsts is None else self.firsts[rows + 1] - self.firsts[rows]

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """The rows' sequences, those of a row together and in their order."""
        return rows if self.firsts is None else ranges(self.firsts[rows], self.firsts[rows + 1])

    def sizes(self, sequences: np.ndarray) -> np.ndarray:
        """(n,) tokens of each sequence."""
        return np.asarray(self.offsets[sequences + 1] - self.offsets[sequences])

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """(n,) tokens that each row has when its sequences are padded to the longest of them."""
        sizes, counts = self.sizes(self.sequences(rows)), self.counts(rows)
        if self.firsts is None or not len(rows):
            return sizes
        longest: np.ndarray = np.maximum.reduceat(sizes, np.cumsum(counts) - counts)
        return longest * counts


def ranges(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """begins[0], …, ends[0] - 1, begins[1], …"""
    counts = np.asarray(ends - begins, np.int64)
    return np.repeat(np.asarray(begins, np.int64) - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    described = (
        tokenizer.backend_tokenizer.to_str()
        if hasattr(tokenizer, "backend_tokenizer")
        else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    )
    # padding and truncation are settings of the last call, not of the vocabulary
    described = json.dumps(
        {k: v for k, v in json.loads(described).items() if k not in ("padding", "truncation")}, sort_keys=True
    )
    side = [] if tokenizer.truncation_side == "right" else [tokenizer.truncation_side]
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)  # put around texts that are written, whatever the file says
    side += [] if ends == (None, None) else [str(ends)]
    return xxhash.xxh3_128_hexdigest(described.encode() + repr(sorted(tokenizer.model_input_names) + side).encode())


@contextmanager
def explain_panics(
    tokenizer: PreTrainedTokenizerBase | None = None, folder: str | Path | None = None
) -> Iterator[None]:
    """Turn a panic of the tokenizers library, which is not an `Exception`, into an `InputError` that names the tokenizer."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        place = folder or getattr(tokenizer, "name_or_path", "") or "the model"
        raise InputError(
            f"the tokenizer of {place} failed ({str(error).splitlines()[0][:200]}); use the model's original tokenizer.json"
        ) from None


def tokenise(
    task: DataTask,
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    progress: Callable[[int], None] | None = None,
) -> Tokens:
    """All rows of the examples' folder, in sequences of at most `length`; done once per tokenizer and length."""
    folder = examples.folder / f"tokens-{tokenizer_fingerprint(tokenizer)}-{length}"
    meta = made_once(folder, lambda columns: _write(task, examples, tokenizer, length, columns, progress))
    arrays = {
        name: column(folder, name, kind, width)
        for name, (kind, width) in ARRAYS.items()
        if (folder / f"{name}.bin").exists()
    }
    return _tokens(arrays, meta["shortened"], tokenizer)


def with_mask_token(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The texts with the mask as this tokenizer writes it, <mask> for RoBERTa: teacher and student may differ in it."""
    own = tokenizer.mask_token
    return list(texts) if own in (None, MASK) else [text.replace(MASK, own) for text in texts]


def tokenise_texts(
    task: DataTask, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
) -> Tokens:
    """The same for a few rows that lie in no folder."""
    with explain_panics(tokenizer):
        made = task.split(texts, tokenizer, length)
    arrays = {name: np.concatenate(parts) for name, parts in _flat(made, 0, 0, 0).items()}
    for name in arrays.keys() & {"offsets", "firsts", "place_offsets"}:
        arrays[name] = np.concatenate([[0], arrays[name]])
    return _tokens(arrays, made.shortened, tokenizer)


def _tokens(arrays: dict[str, np.ndarray], shortened: int, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    if isinstance(tokenizer, PixelReader):
        arrays["pixels"] = arrays["pixels"].reshape(-1, *tokenizer.shape)
    return Tokens(
        arrays["ids"],
        arrays["segments"],
        arrays["offsets"],
        shortened,
        tuple(name for name in tokenizer.model_input_names if name in INPUTS),
        int(tokenizer.pad_token_id or 0),
        *(arrays.get(name) for name in ("firsts", "places", "place_offsets", "characters", "pixels")),
    )


def _write(
    task: DataTask,
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    columns: ColumnFiles,
    progress: Callable[[int], None] | None,
) -> None:
    shortened = 0
    ends = {"offsets": 0, "firsts": 0, "place_offsets": 0}
    for rows in examples.chunks():
        with explain_panics(tokenizer):
            made = task.split([examples.text(row) for row in rows], tokenizer, length)
        for name, parts in _flat(made, *ends.values()).items():
            if rows[0] == 0 and name in ends:
                columns.add(name, np.zeros(1, np.int64))
            columns.add(name, np.concatenate(parts))
            if name in ends:
                ends[name] = int(parts[-1][-1])
        shortened += made.shortened
        if progress:
            progress(len(rows))
        if asked := interrupts.asked():
            raise interrupts.Interrupted(asked)
    columns.finish({"shortened": shortened})


def _flat(made: Encoded, tokens: int, sequences: int, places: int) -> dict[str, list[np.ndarray]]:
    """The arrays of `Tokens` in parts; what came before has so many tokens, sequences and places."""
    found: dict[str, list[np.ndarray]] = {
        "ids": [np.array(one, np.int32) for one in made.ids],
        "segments": [np.array(one, np.uint8) for one in made.segments],
        "offsets": [np.cumsum([len(one) for one in made.ids], dtype=np.int64) + tokens],
    }
    if made.counts is not None:
        found["firsts"] = [np.cumsum(made.counts, dtype=np.int64) + sequences]
    if made.places is not None:
        found["places"] = [one.astype(np.int32) for one in made.places]
        found["place_offsets"] = [np.cumsum([len(one) for one in made.places], dtype=np.int64) + places]
    if made.characters is not None:
        found["characters"] = [one.astype(np.int32) for one in made.characters]
    if made.pixels is not None:
        found["pixels"] = [made.pixels]
    return found
