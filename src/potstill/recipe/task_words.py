"""Which tasks there are, and all that is said of them without loading them: for recipes, messages, model folders, the hub.

A task is an entry of `TASK_WORDS` and the file of `tasks/` with the same name. Nothing else knows tasks by name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

Form = str
"""The form of rows, which is a file of `potstill.data.forms`."""


class TaskWords(NamedTuple):
    """How a task is called outside of its own module."""

    form: Form  # of the rows that it reads
    rows: str  # in messages
    model: str  # in messages
    head: str  # the end of the model's class name in transformers, after "For"
    hub: str  # the pipeline tag on the Hugging Face Hub
    code: str  # for the model card: the call whose predictions were measured
    note: str  # for the model card: what to know about that call
    named_outputs: bool = False  # the labels are the names of the head's outputs
    vocabulary: bool = False  # the outputs are the tokens of the vocabulary
    mapping: str = ""  # in transformers: the classes with this head, if their names do not tell, as MarianMTModel
    new_student: str = ""  # a student that needs no weights to start from
    differ: str = (  # on the page, above the rows for which student and teacher differ; HTML
        "Rows with different predictions, and the probability that each model gives to its own. ✓: equal to the label."
    )


OTHER_TEXTS = "Texts that they translate differently, the least similar first; <i>label</i> is the reference."


def _classifier_code(options: str = "") -> str:
    call = f'classify = pipeline("text-classification", model="path/to/this/folder"{options})'
    return f'from transformers import pipeline\n\n{call}\nclassify("a text")'


CLASSIFY = TaskWords(
    form="text",
    rows="texts with a label",
    model="a text classifier",
    head="SequenceClassification",
    hub="text-classification",
    code=_classifier_code(),
    note='A pair of texts is given as `{"text": …, "text_pair": …}`.',
    named_outputs=True,
)
TASK_WORDS: dict[str, TaskWords] = {  # by the word that the user types
    "classify": CLASSIFY,
    "multilabel": CLASSIFY._replace(code=_classifier_code(", top_k=None")),  # all labels
    "regress": CLASSIFY._replace(code=_classifier_code(', function_to_apply="none"')),  # numbers need no softmax
    "tag": TaskWords(
        form="words",
        rows="words with tags",
        model="a token classifier",
        head="TokenClassification",
        hub="token-classification",
        code="""from transformers import pipeline

tag = pipeline("token-classification", model="path/to/this/folder", aggregation_strategy="first")
tag("A text with names in it .")""",
        note="It was measured on pre-split words, each read at its first token; `first` does the same.",
        named_outputs=True,
    ),
    "answer": TaskWords(
        form="answers",
        rows="questions with answers in a context",
        model="a model for extractive question answering",
        head="QuestionAnswering",
        hub="question-answering",
        code="""from potstill import predict

for answer in predict("path/to/this/folder", [("a question ?", "A long context with the answer in it .")]):
    print(answer["answer"], answer["probability"])""",
        note="`AutoModelForQuestionAnswering` loads it too, without windows and without the search for the best span.",
    ),
    "choose": TaskWords(
        form="choices",
        rows="questions with candidates",
        model="a multiple-choice model",
        head="MultipleChoice",
        hub="multiple-choice",
        code="""from potstill import predict

question = {"text": "A passage .", "question": "it was _ .", "choices": ["wet", "dry"]}
print(next(predict("path/to/this/folder", [question]))["candidate"])""",
        note="`AutoModelForMultipleChoice` loads it too: give (questions, candidates, tokens).",
    ),
    "translate": TaskWords(
        form="translation",
        rows="texts with their translation",
        model="a translation model",
        head="Seq2SeqLM",
        hub="translation",
        code="""from potstill import translate

for text in translate("path/to/this/folder", ["A text to be translated ."], beam=5):
    print(text)""",
        note="`potstill translate` does the same for files. `generate` of transformers works too: load the model with "
        "`AutoModelForSeq2SeqLM`, after `import potstill` if the network is one of potstill's own.",
        vocabulary=True,
        mapping="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        new_student="marian:4+4x256",
        differ=OTHER_TEXTS,
    ),
    "write": TaskWords(
        form="writing",
        rows="texts to be generated",
        model="a causal language model",
        head="CausalLM",
        hub="text-generation",
        code="""from transformers import pipeline

write = pipeline("text-generation", model="path/to/this/folder")
write("A text that begins")""",
        note="The probability of given texts was measured, not the quality of generated ones.",
        vocabulary=True,
        mapping="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        differ=OTHER_TEXTS,
    ),
    "mask": TaskWords(
        form="text",
        rows="running text",
        model="a masked language model",
        head="MaskedLM",
        hub="fill-mask",
        code="""from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder")
fill(f"A text with a {fill.tokenizer.mask_token} in it .")""",
        note="Its predictions of masked and replaced tokens were measured, the same ones for every model.",
        vocabulary=True,
    ),
    "next_sentence": TaskWords(
        form="text",
        rows="running text",
        model="a model for the next sentence",
        head="NextSentencePrediction",
        hub="text-classification",
        code="""from potstill import predict

for answer in predict("path/to/this/folder", [("A sentence .", "Perhaps the next one .")]):
    print(answer["next"], answer["probability"])""",
        note="`AutoModelForNextSentencePrediction` loads it too; its class 0 means that the second text is the next.",
    ),
    "pretrain": TaskWords(
        form="text",
        rows="running text",
        model="a model for masked tokens and the next sentence",
        head="PreTraining",
        hub="fill-mask",
        code="""from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/folder")
fill(f"A text with a {fill.tokenizer.mask_token} in it .")""",
        note="`AutoModelForPreTraining` loads both heads.",
        vocabulary=True,
    ),
}
IMAGES = TaskWords(  # of the first three tasks where the rows are images: they have no word of their own
    form="pixels",
    rows="images with a label",
    model="an image classifier",
    head="ImageClassification",
    hub="image-classification",
    code="""from potstill import predict

for answer in predict("path/to/this/folder", images):  # arrays of pixels from 0 to 255
    print(answer["label"], answer["probability"])""",
    note="After `import potstill`, `AutoModelForImageClassification` loads it too: give pixels from 0 to 1.",
    named_outputs=True,
    new_student="mlp",
)
EVERY = (*TASK_WORDS.values(), IMAGES)


def words_of_run(tasks: Collection[str], forms: Collection[str]) -> TaskWords:
    """Return the words of a run's tasks, which all have the same head; of several the last one's."""
    if IMAGES.form in forms:
        return IMAGES
    return next((words for task, words in reversed(TASK_WORDS.items()) if task in tasks), CLASSIFY)
