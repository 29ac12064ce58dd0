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
OTHER_NAMES = {"Seq2SeqLM": ("ForConditionalGeneration", "MTModel"), "CausalLM": ("LMHeadModel",)}


def head_named(architecture: str) -> str | None:
    """The head of a class such as BertForTokenClassification."""
    return next((head for head in WHAT if architecture.endswith((f"For{head}", *OTHER_NAMES.get(head, ())))), None)
