"""What the builders of translation models share: one vocabulary for both languages, and short forms such as 4+4x256."""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from potstill.api import (
    BuildContext,
    Builder,
    DataTask,
    InputError,
    Share,
    Student,
    TableRows,
    Texts,
    anatomy,
    heads,
    joint_bpe,
    loading,
    networks,
    transformers,
)

HEAD = "Seq2SeqLM"


@dataclass(frozen=True, kw_only=True)
class TranslationBuilder(Builder):
    """The student begins with a byte-pair vocabulary of the train texts, or takes over the tokenizer of the model before it.

    vocabulary: tokens, if a tokenizer is made.
    tokenizer: a folder to take the tokenizer from.
    """

    task_heads = (HEAD,)
    random_weights = True
    name: ClassVar[str]  # for messages
    shape: ClassVar[str]  # an example of its short form, such as 4+4x256
    sizes: ClassVar[tuple[str, ...]]  # the fields that the numbers of the short form set

    vocabulary: TableRows = 8000
    dropout: Share = 0.1
    tokenizer: str | None = None

    @abstractmethod
    def config(self, rows: int, special: dict[str, Any]) -> transformers.PreTrainedConfig:
        """Return the config of a network with so many rows in its embedding table; `special` are fields of it."""

    @classmethod
    def short_form(cls, text: str) -> dict[str, int]:
        pattern = re.sub(r"\d+", r"(\\d+)", re.escape(cls.shape))
        match = re.fullmatch(pattern, text.replace(" ", "").replace("×", "x"))
        if not match or not all(int(number) for number in match.groups()):
            raise InputError(f"{cls.name}:{text} is not a shape; write for example {cls.name}:{cls.shape}")
        return dict(zip(cls.sizes, map(int, match.groups()), strict=True))

    def begin(self, task: DataTask, seed: int, texts: Texts) -> Student:
        self._refuse_other(task.head, "the rows are for")
        if self.tokenizer:
            return self.student(loading.load_tokenizer(self.tokenizer), seed)
        return self.student(joint_bpe.joint_bpe_of(texts, self.vocabulary), seed)

    def build(self, current: Student, context: BuildContext) -> Student:
        self._refuse_other(heads.head_of(current.model.config), "the model before it is")
        if self.tokenizer:
            return self.student(loading.load_tokenizer(self.tokenizer), context.seed)
        with loading.quiet_transformers():  # a copy of Marian's own tokenizer warns like a new one
            tokenizer = copy.deepcopy(current.tokenizer)
        # as many rows as before, so that both models give logits for the same tokens
        return self.student(tokenizer, context.seed, anatomy.word_embeddings(current.model).num_embeddings)

    def student(self, tokenizer: transformers.PreTrainedTokenizerBase, seed: int, rows: int | None = None) -> Student:
        """Return a new network for a tokenizer, with a row of its embedding table for each token unless `rows` says more."""
        padding, end = tokenizer.pad_token_id, tokenizer.eos_token_id
        if padding is None or end is None:
            raise InputError(
                f"{self.name}: its tokenizer needs a padding token and an end token; "
                "write tokenizer = 'DIR' with a tokenizer that has both, or omit tokenizer"
            )
        # the decoder starts with the padding token, as in Marian and T5
        special: dict[str, Any] = {"pad_token_id": padding, "eos_token_id": end, "decoder_start_token_id": padding}
        model = networks.new_model(self.config(rows or len(tokenizer), special), HEAD, seed)
        model.generation_config = transformers.GenerationConfig(max_length=joint_bpe.LONGEST, **special)
        return Student(model, tokenizer)

    def _refuse_other(self, head: str, what: str) -> None:
        if head != HEAD:
            raise InputError(
                f"{self.name}: translates, but {what} {heads.DESCRIPTIONS[head]}; write another student, such as "
                "'keep_layers:3', or task = 'translate' for rows of two languages"
            )
