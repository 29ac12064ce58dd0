"""Language modelling: every token of a text given those before it, or of an answer given its prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens
from potstill.tasks.generate import TARGET, Generation


@dataclass(frozen=True)
class LanguageModelling(Generation):
    """A row is a prompt, which may be empty, and a text.

    A long text is read in consecutive windows, each token once. Every window begins with the tokenizer's BOS token; if it
    has none, the first token of a window is not predicted.
    """

    name = "write"
    metrics = ("likelihood", "token_accuracy", "perplexity")

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        """An answer follows its prompt; if both are too long together, the prompt loses its beginning."""
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        options = {"add_special_tokens": False, "return_attention_mask": False}
        prompts = tokenizer([text for text, _ in texts], **options)["input_ids"]
        answers = tokenizer([str(pair or "") for _, pair in texts], **options)["input_ids"]
        room = length - len(bos)
        ids: list[list[int]] = []
        types: list[list[int]] = []
        counts: list[int] = []
        truncated = 0
        for (text, pair), prompt, answer in zip(texts, prompts, answers, strict=True):
            target = [*answer, *eos] if pair else []
            if text:
                kept = target[:room]
                before = prompt[len(prompt) - min(len(prompt), room - len(kept)) :]
                truncated += len(kept) < len(target) or len(before) < len(prompt)
                windows = [(before, kept)]
            else:
                windows = [([], target[at : at + room]) for at in range(0, max(len(target), 1), room)]
            for before, kept in windows:
                window = [*bos, *before, *kept]
                unpredicted = max(len(window) - len(kept), 1)  # no token precedes the first one
                ids.append(window or [tokenizer.eos_token_id or 0])
                types.append(([0] * unpredicted + [TARGET] * len(window))[: len(ids[-1])])
            counts.append(len(windows))
        return Encoded(ids, types, truncated, counts)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """A token is predicted where the one before it is read."""
        positions, counts = self.target_tokens(tokens, rows)
        owners = np.repeat(np.arange(len(counts)), counts)
        begins = np.asarray(tokens.offsets[tokens.sequences(rows)], np.int64)
        return np.stack([owners, positions - begins[owners] - 1], 1), None
