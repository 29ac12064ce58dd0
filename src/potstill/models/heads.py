"""The heads that models of tasks have, by the names that transformers gives to the classes of models."""

from __future__ import annotations

WHAT = {
    "SequenceClassification": "a text classifier",
    "TokenClassification": "a tagger",
    "QuestionAnswering": "a reader of questions",
    "MultipleChoice": "a model for multiple choice",
    "ImageClassification": "an image classifier",
    "Seq2SeqLM": "a translator",
    "CausalLM": "a language model",
}


def head_named(architecture: str) -> str | None:
    """The head of a class such as BertForTokenClassification; those that write texts have names of many kinds."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    if architecture in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values():
        return "Seq2SeqLM"
    if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return "CausalLM"
    return next((head for head in WHAT if architecture.endswith(f"For{head}")), None)
