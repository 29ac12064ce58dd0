"""Texts as vectors of length one, whose products are cosines: means of a model's last states, or of its word vectors.

Vectors are float16 on disk, made in blocks and memory-mapped: memory does not grow with the texts. Blocks of states are
stored one by one, under the model and the texts that they are of: a killed run goes on where it was, other runs read them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import xxhash
from scipy import sparse

from potstill.data.batches import TokenisedSet, view
from potstill.data.examples import Examples, folder_of
from potstill.data.task import DataTask
from potstill.data.tokens import Tokens, ranges, tokenise, tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.anatomy import layer_count, word_embeddings
from potstill.models.builder import Student
from potstill.models.fingerprints import fingerprint
from potstill.models.hooks import listen
from potstill.models.inference import device_of, without_dropout
from potstill.signals import Wants
from potstill.system import interrupts
from potstill.system.column_files import ColumnFiles, column, write_once

FORMAT = 1  # of the stored vectors; raise it to have them made again
BLOCK = 4096  # texts
TOKENS = 8192  # padded, of a batch

Advance = Callable[[int], None]


def last_states(examples: Examples, task: DataTask, model: Student, length: int, advance: Advance) -> list[np.ndarray]:
    """Blocks of (texts, width): the mean of the last layer's states over all tokens of a text."""
    if not layer_count(model.model):
        raise InputError(
            "data.neighbours: the teacher has no layers whose states could be compared; write by = 'words'"
        )
    tokens = tokenise(task, examples, model.tokenizer, length)
    name = fingerprint(model.model, tokenizer_fingerprint(model.tokenizer), length)
    blocks = []
    for begin in range(0, len(examples), BLOCK):
        part = examples.take(np.arange(begin, min(begin + BLOCK, len(examples))))
        keys = xxhash.xxh3_128_hexdigest(part.keys[part.index].tobytes())
        folder = folder_of("states", FORMAT, name, task.name, keys)
        write_once(folder, partial(_write_states, TokenisedSet(task, part, tokens, tokens), model))
        blocks.append(column(folder, "vectors", np.float16).reshape(len(part), -1))
        advance(len(part))
        interrupts.stop_if_asked()
    return blocks


def _write_states(source: TokenisedSet, model: Student, columns: ColumnFiles) -> None:
    network = model.model
    last = layer_count(network)
    vectors: np.ndarray | None = None
    for positions in source.positions_in_order(TOKENS):
        read = view(source.task, source.teacher, source.examples.index[positions]).to(device_of(network))
        with torch.inference_mode(), without_dropout(network):
            states = listen(network, read, Wants(hidden=(last,))).hidden[:, 0].float()  # (batch, tokens, width)
        sums = (states * read.real.unsqueeze(2)).sum(1).cpu().numpy()
        vectors = np.empty((len(source.examples), sums.shape[1]), np.float16) if vectors is None else vectors
        vectors[positions] = of_length_one(sums)
    assert vectors is not None
    columns.add("vectors", vectors)
    columns.finish({})


def word_means(examples: Examples, task: DataTask, model: Student, length: int, advance: Advance) -> list[np.ndarray]:
    """Blocks of (texts, width): the mean of a text's word vectors, each weighted by how rare its token is in the texts."""
    tokens = tokenise(task, examples, model.tokenizer, length)
    table = word_embeddings(model.model).weight.detach().float().cpu().numpy()
    ordinary = np.ones(len(table), np.bool_)
    ordinary[[number for number in model.tokenizer.all_special_ids if number < len(table)]] = False
    rows = [examples.index[begin : begin + BLOCK] for begin in range(0, len(examples), BLOCK)]

    def write(columns: ColumnFiles) -> None:
        texts_with = np.zeros(len(table), np.int64)  # each token
        for of_block in rows:
            ids, offsets = _tokens_of(tokens, of_block)
            owners = np.repeat(np.arange(len(of_block)), np.diff(offsets))
            texts_with += np.bincount(np.unique(owners * len(table) + ids) % len(table), minlength=len(table))
        rarity = np.log((1 + len(examples)) / (1 + texts_with)) * ordinary
        # what all texts have in common says nothing about any of them
        common = (texts_with * rarity) @ table / max(float(texts_with @ rarity), 1e-9)
        weighted = ((table - common) * rarity[:, None]).astype(np.float32)
        for of_block in rows:
            ids, offsets = _tokens_of(tokens, of_block)
            counts = sparse.csr_array((np.ones(len(ids), np.float32), ids, offsets), (len(of_block), len(table)))
            columns.add("vectors", of_length_one(counts @ weighted).astype(np.float16))
            advance(len(of_block))
            interrupts.stop_if_asked()
        columns.finish({})

    decides = [xxhash.xxh3_128_hexdigest(table.tobytes()), tokenizer_fingerprint(model.tokenizer), length]
    folder = folder_of("word means", FORMAT, task.name, examples.folder.name, examples.index_hash, *decides)
    write_once(folder, write)
    vectors = column(folder, "vectors", np.float16).reshape(len(examples), -1)
    return [vectors[begin : begin + BLOCK] for begin in range(0, len(examples), BLOCK)]


def _tokens_of(tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all tokens of some rows, and (rows + 1,) where those of each begin."""
    begins, ends = tokens.offsets[rows], tokens.offsets[rows + 1]
    return np.asarray(tokens.ids[ranges(begins, ends)], np.int64), np.cumsum([0, *(ends - begins)])


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    """(n, width); a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-9)
