"""Fewer pieces for a tokenizer: edits tokenizer.json, so that all that remains is split as before."""

from __future__ import annotations

import json
import string
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from potstill.data.tokens import explain_panics
from potstill.errors import InputError
from potstill.models.loading import reload_tokenizer

CHUNK = 1000  # texts tokenised at once: memory stays the same however many there are
SUPPORTED = ("WordPiece", "BPE", "Unigram")
Settings = dict[str, Any]  # tokenizer.json as Python sees it


def read_settings(tokenizer: PreTrainedTokenizerBase) -> Settings:
    """The tokenizer as JSON; `model.type` is one of `SUPPORTED`."""
    settings: Settings = json.loads(tokenizer.backend_tokenizer.to_str())
    settings["padding"] = settings["truncation"] = None  # they belong to the batch that was read last
    if settings["model"]["type"] not in SUPPORTED:
        raise InputError(
            f"trim_vocabulary: a tokenizer of type {settings['model']['type']} cannot be trimmed; "
            f"leave trim_vocabulary out, or use a model whose tokenizer is one of {', '.join(SUPPORTED)}"
        )
    return settings


def split(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Iterator[list[int]]:
    """The ids of each whole text without special tokens, whatever truncation the tokenizer was left with."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    waiting = iter(texts)
    while chunk := [readable(text) for text in islice(waiting, CHUNK)]:
        with explain_panics(tokenizer):
            found = backend.encode_batch_fast(chunk, add_special_tokens=False)
        for encoding in found:
            yield encoding.ids


def readable(text: str) -> str:
    """Half a character (a lone surrogate) cannot be handed to a tokenizer: it is read as a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def ids_of(settings: Settings) -> dict[str, int]:
    """The id of every piece, added tokens included."""
    vocabulary = settings["model"]["vocab"]
    ids = (
        {entry[0]: place for place, entry in enumerate(vocabulary)}
        if isinstance(vocabulary, list)
        else dict(vocabulary)
    )
    return ids | {token["content"]: token["id"] for token in settings["added_tokens"]}


def pieces_to_keep(settings: Settings, counts: Counter[int], minimum: int) -> set[str]:
    """Added tokens, pieces seen at least `minimum` times, what spells unseen words, and what those are merged from."""
    model = settings["model"]
    kept = {token["content"] for token in settings["added_tokens"]} | {model.get("unk_token")}
    kept |= {piece for piece, number in ids_of(settings).items() if counts[number] >= minimum} | _spelling(settings)
    if model["type"] == "Unigram":
        # the score of an unknown piece hangs on the lowest score of all
        kept |= {model["vocab"][model["unk_id"] or 0][0], min(model["vocab"], key=lambda entry: entry[1])[0]}
    if model["type"] == "BPE":
        made_from: dict[str, set[str]] = {}
        for left, right in _merges(model):
            made_from.setdefault(_merged(model, left, right), set()).update((left, right))
        waiting = list(kept)
        while waiting:
            parts = made_from.get(waiting.pop(), set()) - kept
            kept |= parts
            waiting.extend(parts)
    return kept & ids_of(settings).keys()


def renumbered(settings: Settings, kept: set[str]) -> tuple[Settings, dict[int, int]]:
    """tokenizer.json with only these pieces, and {old id: new id}: in the old order, without holes."""
    old = ids_of(settings)
    new = {piece: place for place, piece in enumerate(sorted(kept, key=old.__getitem__))}
    settings = json.loads(json.dumps(settings))
    model = settings["model"]
    if isinstance(model["vocab"], list):
        unknown = None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]
        model["vocab"] = [entry for entry in model["vocab"] if entry[0] in kept]
        model["unk_id"] = None if unknown is None else new[unknown]
    else:
        model["vocab"] = {piece: new[piece] for piece in model["vocab"] if piece in kept}
    if model["type"] == "BPE":
        pairs = ((left, right) for left, right in _merges(model) if {left, right, _merged(model, left, right)} <= kept)
        model["merges"] = [list(pair) for pair in pairs]
    for token in settings["added_tokens"]:
        token["id"] = new[token["content"]]
    _renumber_processor(settings["post_processor"], new)
    return settings, {old[piece]: place for piece, place in new.items()}


def rebuilt(tokenizer: PreTrainedTokenizerBase, settings: Settings) -> PreTrainedTokenizerBase:
    """A tokenizer of the same class from this tokenizer.json, by way of a folder: just what loading gives later."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
        again = reload_tokenizer(tokenizer, folder)
    # the folder is gone: its name must not be written into a student
    again.init_kwargs.pop("name_or_path", None)
    again.name_or_path = tokenizer.name_or_path
    return again


def _spelling(settings: Settings) -> set[str]:
    """Every form of a single letter, digit or sign: alone, inside a word (##x), at its end (x</w>) or start (▁x)."""
    model = settings["model"]
    characters = set(string.ascii_letters + string.digits + string.punctuation)
    if '"ByteLevel"' in json.dumps([settings["pre_tokenizer"], settings["normalizer"]]):
        characters |= set(ByteLevel.alphabet())
    before = model.get("continuing_subword_prefix") or ""
    after = model.get("end_of_word_suffix") or ""
    forms = {form for c in characters for form in (c, before + c, c + after, before + c + after, "▁" + c)}
    return forms | {"▁"} | {f"<0x{byte:02X}>" for byte in range(256)}


def _merges(model: Settings) -> Iterator[tuple[str, str]]:
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def _merged(model: Settings, left: str, right: str) -> str:
    return left + right.removeprefix(model.get("continuing_subword_prefix") or "")


def _renumber_processor(processor: Settings | None, new: dict[str, int]) -> None:
    """Post-processors give special tokens by id: templates in a table, BERT's and RoBERTa's in pairs."""
    if processor is None:
        return
    for inner in processor.get("processors", ()):
        _renumber_processor(inner, new)
    if processor["type"] == "TemplateProcessing":
        for token in processor["special_tokens"].values():
            token["ids"] = [new[piece] for piece in token["tokens"]]
    for name in ("sep", "cls"):
        if name in processor:
            processor[name] = [processor[name][0], new[processor[name][0]]]
