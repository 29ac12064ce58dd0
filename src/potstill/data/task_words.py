"""The tasks by the form of their rows: the one table that names heads, hub tasks and rows. It needs no torch."""

from __future__ import annotations

from typing import NamedTuple

from potstill.data.row import Form


class TaskWords(NamedTuple):
    """How a task is called outside of its own module."""

    rows: str  # in messages
    model: str  # in messages
    head: str  # the end of the model's class name in transformers, after "For"
    hub: str  # the pipeline tag on the Hugging Face Hub


TASK_WORDS: dict[Form, TaskWords] = {
    "text": TaskWords("texts with a label", "a text classifier", "SequenceClassification", "text-classification"),
    "words": TaskWords("words with tags", "a tagger", "TokenClassification", "token-classification"),
    "answers": TaskWords(
        "questions with answers in a context",
        "a model for extractive question answering",
        "QuestionAnswering",
        "question-answering",
    ),
    "choices": TaskWords(
        "questions with candidates", "a model for multiple choice", "MultipleChoice", "multiple-choice"
    ),
    "pixels": TaskWords("images with a label", "an image classifier", "ImageClassification", "image-classification"),
    "translation": TaskWords("texts with their translation", "a translation model", "Seq2SeqLM", "translation"),
    "writing": TaskWords("texts to be generated", "a language model", "CausalLM", "text-generation"),
}
