"""Task heads, named as transformers names the classes of models. Loads neither torch nor transformers by itself."""

from __future__ import annotations

from itertools import chain
from typing import Any

from potstill.recipe.task_words import EVERY

DESCRIPTIONS = {words.head: words.model for words in EVERY}  # of models with this head, in messages
WITH_LABELS = {words.head for words in EVERY if words.named_outputs}  # heads whose outputs have names
OVER_VOCABULARY = {words.head for words in EVERY if words.vocabulary}  # heads whose outputs are tokens
MAPPINGS = {words.head: words.mapping for words in EVERY if words.mapping}  # heads whose classes follow no pattern


def head_of_class(architecture: str) -> str | None:
    """Return the head of a class such as BertForTokenClassification; None if it has none of ours."""
    heads = [head for head in DESCRIPTIONS if architecture.endswith(f"For{head}")]
    if heads and heads[0] not in MAPPINGS:
        return heads[0]
    from transformers.models.auto import modeling_auto as auto

    listed = (head for head, mapping in MAPPINGS.items() if architecture in getattr(auto, mapping).values())
    return next(chain(listed, heads), None)


def head_of(config: Any) -> str:
    """Return the head that a config names; sequence classification if it names none."""
    return head_of_class(str((config.architectures or [""])[0])) or "SequenceClassification"


def auto_class(head: str) -> Any:
    """Return the Auto class of transformers for a head, such as AutoModelForTokenClassification."""
    import transformers

    return getattr(transformers, f"AutoModelFor{head}")
