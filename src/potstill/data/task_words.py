"""The names of tasks by the form of their rows: the only such table. It needs no torch."""

from __future__ import annotations

from typing import NamedTuple

from potstill.data.row import Form


class TaskWords(NamedTuple):
    """How a task is called outside of its own module."""

    task: str  # the word that the user types; images have none of their own, and texts have three
    rows: str  # in messages
    model: str  # in messages
    head: str  # the end of the model's class name in transformers, after "For"
    hub: str  # the pipeline tag on the Hugging Face Hub


TASK_WORDS: dict[Form, TaskWords] = {
    "text": TaskWords(
        "classify", "texts with a label", "a text classifier", "SequenceClassification", "text-classification"
    ),
    "words": TaskWords("tag", "words with tags", "a token classifier", "TokenClassification", "token-classification"),
    "answers": TaskWords(
        "answer",
        "questions with answers in a context",
        "a model for extractive question answering",
        "QuestionAnswering",
        "question-answering",
    ),
    "choices": TaskWords(
        "choose", "questions with candidates", "a multiple-choice model", "MultipleChoice", "multiple-choice"
    ),
    "pixels": TaskWords(
        "", "images with a label", "an image classifier", "ImageClassification", "image-classification"
    ),
    "translation": TaskWords(
        "translate", "texts with their translation", "a translation model", "Seq2SeqLM", "translation"
    ),
    "writing": TaskWords("write", "texts to be generated", "a causal language model", "CausalLM", "text-generation"),
}
