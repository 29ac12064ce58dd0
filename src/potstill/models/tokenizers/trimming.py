"""Remove tokens from a vocabulary by editing tokenizer.json, so that everything that remains is tokenized as before."""

from __future__ import annotations

import json
import re
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
from potstill.models.folders import TRIMMABLE
from potstill.models.loading import reload_tokenizer

UNUSED = re.compile(r"\W?unused\W?\d+\W?", re.IGNORECASE)  # places that a vocabulary keeps free
CHUNK = 1000  # texts that are tokenized at once, to bound the memory
Settings = dict[str, Any]  # the content of tokenizer.json


def read_settings(tokenizer: PreTrainedTokenizerBase) -> Settings:
    """Return the tokenizer as JSON; its `model.type` is one of `TRIMMABLE`."""
    settings: Settings = json.loads(tokenizer.backend_tokenizer.to_str())
    settings["padding"] = settings["truncation"] = None  # left over from the last batch
    if settings["model"]["type"] not in TRIMMABLE:
        raise InputError(
            f"trim_vocabulary: a tokenizer of type {settings['model']['type']} cannot be trimmed; "
            f"omit trim_vocabulary, or use a model whose tokenizer is one of {', '.join(TRIMMABLE)}"
        )
    return settings


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Iterator[list[int]]:
    """Yield the token ids of each whole text, without special tokens and truncation."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    waiting = iter(texts)
    while chunk := [replace_surrogates(text) for text in islice(waiting, CHUNK)]:
        with explain_panics(tokenizer):
            encodings = backend.encode_batch_fast(chunk, add_special_tokens=False)
        for encoding in encodings:
            yield encoding.ids


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which a tokenizer cannot take, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def vocabulary_ids(settings: Settings) -> dict[str, int]:
    """Return the id of every token, added tokens included."""
    vocabulary = settings["model"]["vocab"]
    ids = {entry[0]: id for id, entry in enumerate(vocabulary)} if isinstance(vocabulary, list) else dict(vocabulary)
    return ids | {token["content"]: token["id"] for token in settings["added_tokens"]}


def most_frequent(settings: Settings, counts: Counter[int], number: int) -> set[str]:
    """Return the tokens that occur most often in the texts, and after these those with the lowest ids.

    Vocabularies are listed from the most frequent token of their own texts to the rarest, so a low id is the best guess for
    texts to come. Characters, special and unused tokens are not counted.
    """
    model = settings["model"]
    aside = {token["content"] for token in settings["added_tokens"]} | _characters(model)
    ids = {token: id for token, id in vocabulary_ids(settings).items() if token not in aside}
    used = (token for token in ids if not UNUSED.fullmatch(token) or counts[ids[token]])
    return set(sorted(used, key=lambda token: (-counts[ids[token]], ids[token]))[:number])


def tokens_to_keep(settings: Settings, wanted: set[str]) -> set[str]:
    """Return the wanted tokens, added ones, those that spell unseen words, and the parts of all these."""
    model = settings["model"]
    kept = {token["content"] for token in settings["added_tokens"]} | {model.get("unk_token")}
    kept |= wanted | _spelling(settings)
    if model["type"] == "Unigram":
        # the score of an unknown token depends on the lowest score of all
        kept |= {model["vocab"][model["unk_id"] or 0][0], min(model["vocab"], key=lambda entry: entry[1])[0]}
    if model["type"] == "BPE":
        parts_of: dict[str, set[str]] = {}
        for left, right in _merges(model):
            parts_of.setdefault(_merged(model, left, right), set()).update((left, right))
        waiting = list(kept)
        while waiting:
            parts = parts_of.get(waiting.pop(), set()) - kept
            kept |= parts
            waiting.extend(parts)
    return kept & vocabulary_ids(settings).keys()


def renumber(settings: Settings, kept: set[str]) -> tuple[Settings, dict[int, int]]:
    """Return tokenizer.json with only these tokens, and {old id: new id}: in the old order, without gaps."""
    old = vocabulary_ids(settings)
    new = {token: id for id, token in enumerate(sorted(kept, key=old.__getitem__))}
    settings = json.loads(json.dumps(settings))
    model = settings["model"]
    if isinstance(model["vocab"], list):
        unknown = None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]
        model["vocab"] = [entry for entry in model["vocab"] if entry[0] in kept]
        model["unk_id"] = None if unknown is None else new[unknown]
    else:
        model["vocab"] = {token: new[token] for token in model["vocab"] if token in kept}
    if model["type"] == "BPE":
        pairs = ((left, right) for left, right in _merges(model) if {left, right, _merged(model, left, right)} <= kept)
        model["merges"] = [list(pair) for pair in pairs]
    for token in settings["added_tokens"]:
        token["id"] = new[token["content"]]
    _renumber_processor(settings["post_processor"], new)
    return settings, {old[token]: id for token, id in new.items()}


def rebuild(tokenizer: PreTrainedTokenizerBase, settings: Settings) -> PreTrainedTokenizerBase:
    """Return a tokenizer of the same class with this tokenizer.json, by way of a folder, as loading does."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
        rebuilt = reload_tokenizer(tokenizer, folder)
    # the folder is gone: its name must not be saved with a student
    rebuilt.init_kwargs.pop("name_or_path", None)
    rebuilt.name_or_path = tokenizer.name_or_path
    return rebuilt


def _spelling(settings: Settings) -> set[str]:
    """Return what spells every word that the tokenizer could read before: single characters, and bytes."""
    model = settings["model"]
    characters = set(string.ascii_letters + string.digits + string.punctuation)
    if '"ByteLevel"' in json.dumps([settings["pre_tokenizer"], settings["normalizer"]]):
        characters |= set(ByteLevel.alphabet())
    prefix, suffix = _affixes(model)
    forms = {form for c in characters for form in (c, prefix + c, c + suffix, prefix + c + suffix, "▁" + c)}
    return forms | _characters(model) | {"▁"} | {f"<0x{byte:02X}>" for byte in range(256)}


def _characters(model: Settings) -> set[str]:
    """Return every form of a single character in the vocabulary: alone, inside a word (##x), at its end (x</w>) or start (▁x).

    Where a longer token has a character that the vocabulary lacks in this form, nothing else could spell it: it counts too.
    """
    prefix, suffix = _affixes(model)
    vocabulary = model["vocab"]
    tokens = {entry[0] for entry in vocabulary} if isinstance(vocabulary, list) else vocabulary.keys()

    def bare(token: str) -> str:
        return token.removeprefix(prefix).removesuffix(suffix).removeprefix("▁")

    single = {token for token in tokens if len(bare(token)) == 1}
    if model["type"] != "WordPiece":
        return single
    return single | {token for token in tokens if not _pieces(token, prefix) <= single and not UNUSED.fullmatch(token)}


def _pieces(token: str, prefix: str) -> set[str]:
    """Return the forms of its characters in a WordPiece token: "##ing" is spelled ##i ##n ##g, and "in" i ##n."""
    inside = token.startswith(prefix)
    text = token.removeprefix(prefix)
    return {prefix + c if inside or place else c for place, c in enumerate(text)}


def _affixes(model: Settings) -> tuple[str, str]:
    return model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""


def _merges(model: Settings) -> Iterator[tuple[str, str]]:
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def _merged(model: Settings, left: str, right: str) -> str:
    return left + right.removeprefix(model.get("continuing_subword_prefix") or "")


def _renumber_processor(processor: Settings | None, new: dict[str, int]) -> None:
    """Renumber the special tokens of post-processors: templates have a table, BERT and RoBERTa pairs."""
    if processor is None:
        return
    for inner in processor.get("processors", ()):
        _renumber_processor(inner, new)
    if processor["type"] == "TemplateProcessing":
        for token in processor["special_tokens"].values():
            token["ids"] = [new[content] for content in token["tokens"]]
    for name in ("sep", "cls"):
        if name in processor:
            processor[name] = [processor[name][0], new[processor[name][0]]]
