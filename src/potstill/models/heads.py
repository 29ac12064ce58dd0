"""Task heads, named as transformers names the classes of models. Loads neither torch nor transformers by itself."""

from __future__ import annotations

from typing import Any

from potstill.data.row import TASK_WORDS

DESCRIPTIONS = {words.head: words.model for words in TASK_WORDS.values()}  # of models with this head, in messages
WITH_LABELS = ("SequenceClassification", "TokenClassification", "ImageClassification")  # heads whose outputs have names
GENERATIVE = ("Seq2SeqLM", "CausalLM")


def head_of_class(architecture: str) -> str | None:
    """Return the head of a class such as BertForTokenClassification; None if it has none of ours."""
    heads = [head for head in DESCRIPTIONS if architecture.endswith(f"For{head}")]
    if heads and heads[0] not in GENERATIVE:
        return heads[0]
    from transformers.models.auto import modeling_auto as auto  # generative classes follow no pattern: MarianMTModel

    if architecture in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return "Seq2SeqLM"
    if architecture in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "CausalLM"
    return heads[0] if heads else None


def head_of(config: Any) -> str:
    """Return the head that a config names; sequence classification if it names none."""
    return head_of_class(str((config.architectures or [""])[0])) or "SequenceClassification"


def auto_class(head: str) -> Any:
    """Return the Auto class of transformers for a head, such as AutoModelForTokenClassification."""
    import transformers

    return getattr(transformers, f"AutoModelFor{head}")
