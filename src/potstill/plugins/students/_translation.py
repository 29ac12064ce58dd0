"""What the builders of translation models share: the vocabulary of both languages, and short forms such as 4+4x256."""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import xxhash

from potstill.api import (
    BuildContext,
    Builder,
    BuilderTask,
    InputError,
    Share,
    Student,
    TableRows,
    Texts,
    anatomy,
    heads,
    joint_bpe,
    languages,
    loading,
    transformers,
    trimming,
)

HEAD = "Seq2SeqLM"
_LAST_BPE: dict[
    tuple[str, int], transformers.PreTrainedTokenizerBase
] = {}  # keyed by a hash of its texts and by its size


class Vocabulary(NamedTuple):
    """One vocabulary for both languages. The decoder starts with the padding token, as in Marian and T5."""

    tokenizer: transformers.PreTrainedTokenizerBase
    size: int  # rows of the embedding table: some models have more rows than their tokenizer has tokens
    pad: int
    end: int

    @property
    def special(self) -> dict[str, Any]:
        """The special tokens as fields of a config and of a generation config."""
        return {"pad_token_id": self.pad, "eos_token_id": self.end, "decoder_start_token_id": self.pad}


@dataclass(frozen=True, kw_only=True)
class TranslationBuilder(Builder):
    """The student begins with a byte-pair vocabulary of the train texts, or takes over the tokenizer of the model before it.

    vocabulary: tokens, if a tokenizer is made.
    tokenizer: a folder to take the tokenizer from.
    """

    task_heads: ClassVar[tuple[str, ...]] = (HEAD,)
    random_weights: ClassVar[bool] = True
    name: ClassVar[str]  # for messages

    vocabulary: TableRows = 8000
    dropout: Share = 0.1
    tokenizer: str | None = None

    @abstractmethod
    def network(self, vocabulary: Vocabulary, seed: int) -> transformers.PreTrainedModel:
        """Return the network with random weights."""

    def begin(self, task: BuilderTask, seed: int, texts: Texts) -> Student:
        if task.head != HEAD:
            raise InputError(
                f"{self.name}: translates, but the rows are for {heads.DESCRIPTIONS.get(task.head, task.head)}; "
                "write task = 'translate' for rows of two languages, or another student, such as 'keep_layers:3'"
            )
        tokenizer = loading.load_tokenizer(self.tokenizer) if self.tokenizer else _bpe(texts, self.vocabulary)
        return self._student(tokenizer, len(tokenizer), seed)

    def build(self, current: Student, context: BuildContext) -> Student:
        before = heads.head_of(current.model.config)
        if before != HEAD:
            raise InputError(
                f"{self.name}: translates, but the model before it is {heads.DESCRIPTIONS[before]}; "
                "write another student, such as 'keep_layers:3'"
            )
        if self.tokenizer:
            tokenizer = loading.load_tokenizer(self.tokenizer)
            return self._student(tokenizer, len(tokenizer), context.seed)
        with loading.quiet_transformers():  # a copy of Marian's own tokenizer warns like a new one
            tokenizer = copy.deepcopy(current.tokenizer)
        # as many rows as before, so that both models give logits for the same tokens
        return self._student(tokenizer, anatomy.word_embeddings(current.model).num_embeddings, context.seed)

    def _student(self, tokenizer: transformers.PreTrainedTokenizerBase, size: int, seed: int) -> Student:
        if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
            raise InputError(
                f"{self.name}: its tokenizer needs a padding token and an end token; "
                "write tokenizer = 'DIR' with a tokenizer that has both, or omit tokenizer"
            )
        vocabulary = Vocabulary(tokenizer, size, int(tokenizer.pad_token_id), int(tokenizer.eos_token_id))
        model = self.network(vocabulary, seed)
        model.config.architectures = [type(model).__name__]
        model.generation_config = transformers.GenerationConfig(max_length=joint_bpe.LONGEST, **vocabulary.special)
        return Student(model.eval(), tokenizer)


def _bpe(texts: Texts, size: int) -> transformers.PreTrainedTokenizerBase:
    """Return a byte-pair tokenizer of the texts. The last one is kept: a run makes it for its rows and for every seed."""
    digest = xxhash.xxh3_128()

    def hashed() -> Iterator[str]:
        for text in texts():
            digest.update(trimming.replace_surrogates(text).encode() + b"\0")
            yield text

    targets = languages.languages(hashed())
    key = digest.hexdigest(), size
    if key not in _LAST_BPE:
        _LAST_BPE.clear()
        _LAST_BPE[key] = joint_bpe.joint_bpe(texts(), size, targets)
    return copy.deepcopy(_LAST_BPE[key])


def sizes(name: str, text: str, pattern: str, example: str) -> list[int]:
    """Return the numbers in a short form such as 4+4x256."""
    match = re.fullmatch(pattern, text.replace(" ", "").replace("×", "x"))
    if not match or not all(int(number) for number in match.groups()):
        raise InputError(f"{name}:{text} is not a shape; write for example {name}:{example}")
    return [int(number) for number in match.groups()]
