"""Tokenizers of strangers: what cannot be the model's own, and what would make gigabytes of a text, is refused."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.safety import json_object

SHORTEST = 3  # tokens: what stands around a text, and one of its own
MOST_GROWTH = 64  # letters that may become of one
MOST_ADDED = 64  # pieces that may be put around a text
LONGEST_FORM = 256  # bytes: the longest form that Unicode has for one letter needs 33
INSIDE = ("normalizers", "pretokenizers", "decoders", "processors")  # parts of a sequence


def refuse_growing(folder: Path) -> None:
    """An error where tokenizer.json would make far more of a text than it is: looked at as data, before any text is read."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return
    settings = json_object(file, "use the model's original tokenizer.json")
    parts = {name: _parts(settings.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")}
    for name, chain in {"text": parts["normalizer"] + parts["pre_tokenizer"], "piece": parts["decoder"]}.items():
        if (grown := growth(chain)) > MOST_GROWTH:
            raise InputError(
                f"{file} makes up to {grown:,.0f} letters of one letter of a {name}; use the model's original tokenizer.json"
            )
    for part in parts["post_processor"]:
        pieces = [*(part.get("single") or ()), *(part.get("pair") or ())]
        special = part.get("special_tokens") or {}
        added = [one.get("ids") or () for one in special.values() if isinstance(one, dict)]
        if len(pieces) > MOST_ADDED or any(len(ids) > MOST_ADDED for ids in added):
            raise InputError(
                f"{file} puts more than {MOST_ADDED} pieces around a text; use the model's original tokenizer.json"
            )


def growth(parts: list[dict[str, Any]]) -> float:
    """Letters at most that become of one, by parts that follow each other. What one part writes is multiplied by a later
    one only where that could find its pattern in it."""
    found: list[tuple[str | None, float]] = []  # what each may write (None: anything), and how much it has grown
    for part in parts:
        pattern, content, factor = _replaced(part)
        before = [
            grown for written, grown in found if pattern is None or written is None or set(written) & set(pattern)
        ]
        found.append((content, factor * max(before, default=1.0)))
    return max((grown for _, grown in found), default=1.0)


def _replaced(part: dict[str, Any]) -> tuple[str | None, str | None, float]:
    """What a part looks for (None: anything), what it writes, and letters of the second for each of the first at most."""
    kind = part.get("type")
    if kind == "Replace":
        content = str(part.get("content", ""))
        pattern = part.get("pattern")
        given = pattern if isinstance(pattern, dict) else {}
        if text := given.get("String"):
            return str(text), content, max(1.0, len(content) / len(str(text)))
        return None, content, max(1.0, len(content) + (0 if _consumes(str(given.get("Regex", ""))) else 1))
    if kind == "Prepend":
        return None, None, 1.0 + len(str(part.get("prepend", "")))
    if kind == "ByteLevel":
        return None, None, 4.0  # bytes of a letter, each written as one
    if kind == "Precompiled":
        longest = _longest_form(part.get("precompiled_charsmap"))
        return None, None, 1.0 if longest <= LONGEST_FORM else float(longest)
    return None, None, 1.0


def _parts(part: Any) -> list[dict[str, Any]]:
    """The parts of a part, one after the other, however deep they lie."""
    if not isinstance(part, dict):
        return []
    inside = [one for name in INSIDE if isinstance(part.get(name), list) for one in part[name]]
    return [found for one in inside for found in _parts(one)] if inside else [part]


def _consumes(pattern: str) -> bool:
    """Whether a regular expression matches a letter at least; what Python cannot read may match none."""
    try:
        return re._parser.parse(pattern).getwidth()[0] >= 1  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError):
        return False


def _longest_form(charsmap: Any) -> int:
    """Bytes of the longest text that a letter becomes, in a map as SentencePiece compiles it: a trie, then texts."""
    try:
        raw = base64.b64decode(str(charsmap or ""))
    except ValueError:
        return 0  # the library refuses it
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def refuse_unusable(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """An error where the vocabulary's file is missing, or a text would have no room."""
    files = set(tokenizer.vocab_files_names.values()) | {"tokenizer.json"}
    if tokenizer.vocab_files_names and not any((folder / name).exists() for name in files):
        raise InputError(
            f"{folder} has no vocabulary ({' or '.join(sorted(files))}); put the model's tokenizer there, as "
            "`tokenizer.save_pretrained(folder)` writes it"
        )
    most = tokenizer.model_max_length
    if isinstance(most, bool) or not isinstance(most, int | float) or not SHORTEST <= most < sys.float_info.max:
        raise InputError(
            f"{folder / 'tokenizer_config.json'} says model_max_length = {most!r:.80}; write how many tokens the model "
            f"reads, {SHORTEST} at least, or take it out"
        )


def refuse_other_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, folder: str | Path) -> None:
    """An error where the tokenizer is not that of a table of word vectors with so many rows."""
    numbers = tokenizer.get_vocab().values()
    most = max(numbers, default=-1)
    if most >= rows:
        raise InputError(
            f"{folder}: the tokenizer has pieces up to number {most}, the model vectors for {rows}; use a tokenizer.json "
            "that belongs to the weights, or call model.resize_token_embeddings(len(tokenizer)) and save it again"
        )
    if 2 * len(numbers) < rows:
        raise InputError(
            f"{folder}: the tokenizer knows {len(numbers)} pieces, the model {rows}; use a tokenizer.json that belongs to "
            "the weights"
        )
