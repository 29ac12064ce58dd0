"""What the builders of translation models share: their vocabulary and the parsing of short forms such as 4+4x256."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import xxhash
from transformers import PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import word_embeddings
from potstill.models.generation.languages import languages
from potstill.models.heads import WHAT
from potstill.models.loading import load_tokenizer, quiet_transformers
from potstill.models.student import Student, head_of
from potstill.models.tokenizers.joint_bpe import joint_bpe
from potstill.models.tokenizers.trimming import readable
from potstill.tasks.task import Task

HEAD = "Seq2SeqLM"
_MADE: dict[tuple[str, int], PreTrainedTokenizerBase] = {}  # the last one, keyed by a hash of its texts and its size


class Vocabulary(NamedTuple):
    """One for both sides. The decoder starts with the padding, as those of Marian and T5 do."""

    tokenizer: PreTrainedTokenizerBase
    size: int  # rows of the table of embeddings: some models have more than their tokenizer pieces
    pad: int
    end: int

    @property
    def special(self) -> dict[str, Any]:
        """What a config and a generation config say of them."""
        return {"pad_token_id": self.pad, "eos_token_id": self.end, "decoder_start_token_id": self.pad}


def new_vocabulary(
    who: str, folder: str | None, task: Task, texts: Callable[[], Iterator[str]], size: int
) -> Vocabulary:
    """Of a student that nothing comes before: that of `folder`, or byte pairs of the rows' texts."""
    if task.head != HEAD:
        raise InputError(
            f"{who}: translates, but the rows are for {WHAT.get(task.head, task.head)}; write task = 'translate' for "
            "rows of two languages, or another student, such as 'keep_layers:3'"
        )
    tokenizer = load_tokenizer(folder) if folder else _byte_pairs(texts, size)
    return _vocabulary(who, tokenizer, len(tokenizer))


def _byte_pairs(texts: Callable[[], Iterator[str]], size: int) -> PreTrainedTokenizerBase:
    """Made once of the same texts: a run reads its rows with them, and so does every student it makes, seed by seed."""
    digest = xxhash.xxh3_128()

    def seen() -> Iterator[str]:
        for text in texts():
            digest.update(readable(text).encode() + b"\0")
            yield text

    found = languages(seen())
    known = digest.hexdigest(), size
    if known not in _MADE:
        _MADE.clear()
        _MADE[known] = joint_bpe(texts(), size, found)
    return copy.deepcopy(_MADE[known])


def taken_vocabulary(who: str, folder: str | None, current: Student) -> Vocabulary:
    """That of the model before, so that both give logits for the same pieces, where no `folder` says otherwise."""
    before = head_of(current.model.config)
    if before != HEAD:
        raise InputError(
            f"{who}: translates, but the model before it is {WHAT[before]}; write another student, such as 'keep_layers:3'"
        )
    if folder:
        tokenizer = load_tokenizer(folder)
        return _vocabulary(who, tokenizer, len(tokenizer))
    with quiet_transformers():  # a copy of Marian's own tokenizer warns as a new one does
        tokenizer = copy.deepcopy(current.tokenizer)
    return _vocabulary(who, tokenizer, word_embeddings(current.model).num_embeddings)


def _vocabulary(who: str, tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
        raise InputError(
            f"{who}: its tokenizer needs a piece for padding and one for a text's end; "
            "write tokenizer = 'DIR' with one that has both, or leave it out"
        )
    return Vocabulary(tokenizer, size, int(tokenizer.pad_token_id), int(tokenizer.eos_token_id))


def sizes(who: str, text: str, pattern: str, example: str) -> list[int]:
    """The numbers in a short form such as 4+4x256."""
    found = re.fullmatch(pattern, text.replace(" ", "").replace("×", "x"))
    if not found or not all(int(number) for number in found.groups()):
        raise InputError(f"{who}:{text} is not a shape; write for example {who}:{example}")
    return [int(number) for number in found.groups()]
