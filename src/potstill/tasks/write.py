"""Language modelling: every token of a text after those before it, or of an answer after its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.row import Form
from potstill.data.tokens import Encoded, Tokens
from potstill.tasks.generate import WRITTEN, Generating
from potstill.tasks.task import TaskName


@dataclass(frozen=True)
class Writing(Generating):
    """A row is a prompt, which may be empty, and a text. A long text is read in windows, one after the other, each token
    once; every window begins with the token that begins texts, where the tokenizer has one, else its first token is given.
    """

    form: ClassVar[Form] = "writing"
    head: ClassVar[str] = "CausalLM"

    @property
    def name(self) -> TaskName:
        return "write"

    @property
    def metrics(self) -> list[str]:
        return ["likelihood", "token_accuracy", "perplexity"]

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        """An answer is written behind the end of its prompt, which is cut at its beginning where both are too long."""
        begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        plain = {"add_special_tokens": False, "return_attention_mask": False}
        prompts = tokenizer([text for text, _ in texts], **plain)["input_ids"]
        answers = tokenizer([str(pair or "") for _, pair in texts], **plain)["input_ids"]
        found = Encoded([], [], 0, [])
        assert found.counts is not None
        shortened = 0
        for (text, pair), prompt, answer in zip(texts, prompts, answers, strict=True):
            written = [*answer, *end] if pair else []
            room = length - len(begin)
            if text:
                kept = written[:room]
                before = prompt[len(prompt) - min(len(prompt), room - len(kept)) :]
                shortened += len(kept) < len(written) or len(before) < len(prompt)
                windows = [(before, kept)]
            else:
                windows = [([], written[at : at + room]) for at in range(0, max(len(written), 1), room)]
            for before, kept in windows:
                ids = [*begin, *before, *kept]
                given = max(len(ids) - len(kept), 1)  # the first token of all has nothing before it
                found.ids.append(ids or [tokenizer.eos_token_id or 0])
                found.segments.append(([0] * given + [WRITTEN] * len(ids))[: len(found.ids[-1])])
            found.counts.append(len(windows))
        return Encoded(found.ids, found.segments, shortened, found.counts)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """A token is predicted where the one before it is read."""
        places, counts = self.written(tokens, rows)
        owners = np.repeat(np.arange(len(counts)), counts)
        begins = np.asarray(tokens.offsets[tokens.sequences(rows)], np.int64)
        return np.stack([owners, places - begins[owners] - 1], 1), None
