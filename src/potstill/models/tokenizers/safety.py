"""Check an untrusted tokenizer.json before any text is tokenized with it. Loads neither torch nor transformers.

A few lines of JSON can make a tokenizer turn a short text into gigabytes, so its chain of replacements is examined.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.models.safety import json_object

MOST_GROWTH = 64  # characters that one character may become
MOST_ADDED = 64  # tokens that may be put around a text
LONGEST_FORM = 256  # bytes: the longest normal form of one character in Unicode needs 33
NESTED = ("normalizers", "pretokenizers", "decoders", "processors")  # fields of a sequence that list its parts


def refuse_growing(folder: Path) -> None:
    """Refuse a tokenizer.json that would make far more of a text than it is."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return
    settings = json_object(file, "use the model's original tokenizer.json")
    parts = {name: _parts(settings.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")}
    for name, chain in {"text": parts["normalizer"] + parts["pre_tokenizer"], "token": parts["decoder"]}.items():
        if (factor := growth(chain)) > MOST_GROWTH:
            raise InputError(
                f"{file} makes up to {factor:,.0f} characters of one character of a {name}; use the model's original "
                "tokenizer.json"
            )
    for part in parts["post_processor"]:
        template = [*(part.get("single") or ()), *(part.get("pair") or ())]
        special = part.get("special_tokens") or {}
        added = [token.get("ids") or () for token in special.values() if isinstance(token, dict)]
        if len(template) > MOST_ADDED or any(len(ids) > MOST_ADDED for ids in added):
            raise InputError(
                f"{file} puts more than {MOST_ADDED} tokens around a text; use the model's original tokenizer.json"
            )


def growth(parts: list[dict[str, Any]]) -> float:
    """Return the most characters that parts in sequence can make of one character.

    A part multiplies what an earlier part writes only if its pattern could occur in that.
    """
    steps: list[tuple[str | None, float]] = []  # what each part may write (None: anything), and the growth up to it
    for part in parts:
        pattern, content, factor = _replacement(part)
        before = [
            grown for written, grown in steps if pattern is None or written is None or set(written) & set(pattern)
        ]
        steps.append((content, factor * max(before, default=1.0)))
    return max((grown for _, grown in steps), default=1.0)


def _replacement(part: dict[str, Any]) -> tuple[str | None, str | None, float]:
    """Return what a part matches (None: anything), what it writes (None: anything), and its largest growth."""
    kind = part.get("type")
    if kind == "Replace":
        content = str(part.get("content", ""))
        pattern = part.get("pattern")
        fields = pattern if isinstance(pattern, dict) else {}
        if text := fields.get("String"):
            return str(text), content, max(1.0, len(content) / len(str(text)))
        return None, content, max(1.0, len(content) + (0 if _consumes(str(fields.get("Regex", ""))) else 1))
    if kind == "Prepend":
        return None, None, 1.0 + len(str(part.get("prepend", "")))
    if kind == "ByteLevel":
        return None, None, 4.0  # a character has up to four bytes, each written as a character
    if kind == "Precompiled":
        longest = _longest_form(part.get("precompiled_charsmap"))
        return None, None, 1.0 if longest <= LONGEST_FORM else float(longest)
    return None, None, 1.0


def _parts(part: Any) -> list[dict[str, Any]]:
    """Flatten a part of tokenizer.json that may be a sequence of parts, at any depth."""
    if not isinstance(part, dict):
        return []
    inner = [item for name in NESTED if isinstance(part.get(name), list) for item in part[name]]
    return [leaf for item in inner for leaf in _parts(item)] if inner else [part]


def _consumes(pattern: str) -> bool:
    """Whether a regular expression always matches at least one character; False if Python cannot parse it."""
    try:
        return re._parser.parse(pattern).getwidth()[0] >= 1  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError):
        return False


def _longest_form(charsmap: Any) -> int:
    """Return the bytes of the longest replacement in SentencePiece's compiled map, which is a trie and then texts."""
    try:
        raw = base64.b64decode(str(charsmap or ""))
    except ValueError:
        return 0  # the library refuses it
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def refuse_other_vocabulary(vocabulary: dict[str, int], rows: int, folder: str | Path) -> None:
    """Refuse a tokenizer that does not belong to an embedding table with so many rows."""
    largest = max(vocabulary.values(), default=-1)
    if largest >= rows:
        raise InputError(
            f"{folder}: the tokenizer has token ids up to {largest}, the model {rows} embeddings; use a tokenizer.json "
            "that belongs to the weights, or call model.resize_token_embeddings(len(tokenizer)) and save it again"
        )
    if 2 * len(vocabulary) < rows:
        raise InputError(
            f"{folder}: the tokenizer has {len(vocabulary)} tokens, the model {rows} embeddings; use a tokenizer.json "
            "that belongs to the weights"
        )
