"""Which form the rows of a table have, and which columns hold their parts.

What the user does not name is found by usual column names. The forms: a text (or a pair) with a label; words with a tag
each; a question with its answers in a context; a question with candidates; the pixels of an image with a label; a text
with its translation; a text to generate, perhaps after a prompt.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import NamedTuple

from potstill.errors import InputError
from potstill.recipe.task_words import Form

MOST_CHOICES = 26  # candidates of a question: each is named by a letter

# fmt: off
# usual names in lower case, in the order in which they are looked for
PAIRS = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
         ("text1", "text2"), ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text", "text_pair"),
         ("query", "passage"), ("query", "document"))
TEXTS = ("text", "sentence", "review", "content", "comment", "body", "utterance", "question", "title", "tweet",
         "message", "document")
LABELS = ("label", "labels", "score", "sentiment", "class", "category", "target", "intent", "topic", "rating",
          "gold_label")
WORDS = ("tokens", "words")
CERTAIN_TAGS = ("tags", "ner_tags", "ner", "pos_tags")  # no other form has columns of these names
TAGS = ("tags", "ner_tags", "ner", "labels", "label", "pos_tags")
QA_QUESTIONS, QA_CONTEXTS, QA_ANSWERS = ("question", "query"), ("context", "passage"), ("answers", "answer")
BESIDE_ANSWERS = ("answer_starts", "answer_start", "is_impossible")  # read too if they are there
CANDIDATES = ("choices", "options", "candidates", "endings")
NUMBERED_CANDIDATES = ("ending", "choice")  # one column per candidate, counted from 0 or 1
LETTERED_CANDIDATES = ("opa", "opb", "opc", "opd")
PASSAGES = ("article", "passage", "context", "text", "sent1", "premise")
QUESTIONS = ("question", "query", "sent2", "questions")  # "questions" is RACE's name
RIGHT_CANDIDATES = ("answer", "answerkey", "label", "gold", "answer_idx", "answers")
IMAGES = ("images", "image", "pixels", "x", "data", "arr_0")
IMAGE_LABELS = (*LABELS, "targets", "y", "arr_1")
CERTAIN_TRANSLATIONS = (("source", "target"), ("src", "tgt"), ("src", "trg"))  # recognised without --task
TRANSLATIONS = (*CERTAIN_TRANSLATIONS, ("source", "translation"), ("src", "translation"), ("text", "translation"))
LANGUAGES = "translation"  # a column that holds {"en": ..., "de": ...}
CERTAIN_PROMPTS = (("prompt", "completion"), ("prompt", "response"))
PROMPTS = (*CERTAIN_PROMPTS, ("prompt", "answer"), ("instruction", "output"))
# fmt: on
GENERATED: tuple[Form, ...] = ("translation", "writing")  # the second text is the target
ANSWER_LISTS = (("logits", False), ("probabilities", True), ("probs", True))  # name, are they probabilities
ANSWER_PREFIXES = (("logit_", False), ("probability_", True), ("prob_", True))


@dataclass(frozen=True)
class Columns:
    """The columns that hold text, second text and label."""

    text: str | None = None  # None: found by its usual name
    pair: str | None = None
    label: str | tuple[str, ...] | None = None  # a tuple: columns of 0 and 1, one per label
    separator: str | None = None  # separates several labels in one cell
    before: str = ""  # put in front of every text
    choices: str | tuple[str, ...] | None = None  # a column with a list of candidates, or one column per candidate

    @property
    def label_columns(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    @property
    def choice_columns(self) -> tuple[str, ...]:
        return (self.choices,) if isinstance(self.choices, str) else self.choices or ()

    @property
    def names(self) -> list[str]:
        """All columns."""
        return [*filter(None, (self.text, self.pair)), *self.label_columns, *self.choice_columns]


class AnswerColumns(NamedTuple):
    """Columns with a teacher's answers."""

    columns: tuple[str, ...]
    are_probabilities: bool
    labels: tuple[str, ...] | None  # one per column; None: the only column holds a list


Names = Mapping[str, str]
"""Column names by their lower case."""


class FormColumns(NamedTuple):
    """How the columns of a form are found, and what messages call them."""

    find: Callable[[Names, Columns], Columns]
    needed: tuple[tuple[str, str], ...]  # option and description of the parts without which there is no row
    target: str = "labels"
    header: str = "text,label"  # an example


def names_by_lower_case(names: Sequence[str], without: Sequence[str] = ()) -> dict[str, str]:
    """Return the column names by their lower case; of "text" and "Text" the first one is taken."""
    lowered = {name.lower(): name for name in reversed(names) if name not in without}
    return lowered | {name: name for name in names if name in lowered and name not in without}


def first_of(names: Names, usual: Sequence[str], used: Sequence[str | None] = ()) -> str | None:
    """Return the first column with a usual name that is not used for something else."""
    return next((names[name] for name in usual if name in names and names[name] not in used), None)


def first_pair_of(names: Names, usual: Sequence[tuple[str, str]]) -> tuple[str | None, str | None]:
    pairs = ((names[first], names[second]) for first, second in usual if first in names and second in names)
    return next(pairs, (None, None))


def detect_form(
    columns: Sequence[str], wanted: Columns, first_values: Callable[[list[str]], Mapping[str, object]]
) -> Form:
    """Return the form of the rows, by the names of the columns and the values of some columns in the first record.

    `first_values` reads these values. It is called only if the names alone do not decide.
    """
    first: Mapping[str, object] = {}
    if wanted.text or any(name.lower() in (*WORDS, *CANDIDATES, *QA_ANSWERS, LANGUAGES) for name in columns):
        deciding = {*WORDS, *CANDIDATES, *QA_ANSWERS, *TAGS, *TEXTS, *(text for text, _ in PAIRS), LANGUAGES}
        asked = {wanted.text, *wanted.label_columns}
        first = first_values([name for name in columns if name.lower() in deciding or name in asked])
    names = names_by_lower_case(columns)
    lists = (first.get(names[name]) for name in CANDIDATES if name in names)
    if wanted.choices or candidate_columns(names) or any(isinstance(value, list | dict) for value in lists):
        return "choices"
    named = wanted.text, wanted.pair, wanted.label
    usual = [names.get(name) for name in ("question", "context", "answers")]
    if all(usual) and all(column in (None, name) for column, name in zip(named, usual, strict=True)):
        labelled = wanted.label is None and first_of(names, LABELS)  # then "answers" is read only if it is a list
        return "text" if labelled and not isinstance(first.get(str(usual[2])), list | dict) else "answers"
    label = first.get(wanted.label) if isinstance(wanted.label, str) else None
    spans = label if isinstance(label, list) and label else [label]
    if wanted.text and wanted.pair and all(isinstance(span, dict) and "answer_start" in span for span in spans):
        return "answers"
    if has_words(columns, wanted, first):
        return "words"
    return detect_generated_form(columns, wanted, first) or "text"


def detect_generated_form(columns: Sequence[str], wanted: Columns, first: Mapping[str, object]) -> Form | None:
    """Return a form whose target is a text if the columns hold neither a plain text nor a label."""
    names = names_by_lower_case(columns)
    plain = text_columns(names, wanted)
    if isinstance(first.get(names.get(LANGUAGES, "")), dict) and plain.text not in columns:
        return "translation"
    if plain.text or wanted.pair or wanted.label:
        return None
    certain: dict[Form, tuple[tuple[str, str], ...]]
    certain = {"translation": CERTAIN_TRANSLATIONS, "writing": CERTAIN_PROMPTS}
    targets = ((form, first_pair_of(names, usual)[1]) for form, usual in certain.items())
    return next((form for form, target in targets if target and not first_of(names, LABELS, (target,))), None)


def has_words(columns: Sequence[str], wanted: Columns, first: Mapping[str, object]) -> bool:
    """Tell whether rows are words with tags."""
    names = names_by_lower_case(columns, wanted.label_columns)
    text = wanted.text or first_of(names, WORDS)
    if text is None or wanted.pair or isinstance(wanted.label, tuple):
        return False
    tags = wanted.label or first_of(names, TAGS, (text,))
    words, tag_values = first.get(text), first.get(tags or "")
    if wanted.text:
        if isinstance(words, str) and text.lower() in WORDS and isinstance(tag_values, str):
            as_many = words.count(" ") == tag_values.strip().count(" ")
            return as_many and (" " in words or str(tags).lower() in CERTAIN_TAGS)
        return isinstance(words, list)
    plain = text_columns(names, wanted)
    if isinstance(first.get(plain.text or ""), str):  # a label belongs to this text, a list of tags to the words
        tag_values = first.get(first_of(names, CERTAIN_TAGS) or "")
        as_many = isinstance(words, list) and isinstance(tag_values, list) and len(words) == len(tag_values)
        return as_many and plain.label is None
    return isinstance(words, list | str)


def candidate_columns(names: Names) -> tuple[str, ...]:
    """Return the columns that hold one candidate each."""
    for prefix in NUMBERED_CANDIDATES:
        for start in (0, 1):
            numbered = list(takewhile(names.__contains__, (f"{prefix}{number}" for number in count(start))))
            if len(numbered) > 1:
                return tuple(names[name] for name in numbered)
    if all(name in names for name in LETTERED_CANDIDATES):
        return tuple(names[name] for name in LETTERED_CANDIDATES)
    return ()


def resolve_columns(
    form: Form, names: Sequence[str], wanted: Columns, need_label: bool = False, hint: str = ""
) -> tuple[Columns, AnswerColumns | None]:
    """Find the columns that the user did not name; look for a teacher's answers in the remaining ones.

    Errors do not say which table it is. `hint` ends the error if no column has a usual name.
    """
    check_names(names, wanted, hint)
    if form in ("text", "translation") and wanted.pair is not None and wanted.text is None:
        raise InputError("--pair names the second text, but the first is not named; add --text NAME")
    if form in ("words", "pixels") and wanted.pair is not None:
        raise InputError(f"--pair names a second text, but rows of {form} have only one; omit --pair")
    if form not in ("text", "pixels") and isinstance(wanted.label, tuple):
        raise InputError("--label names several columns, which only texts can have; name one")
    if form in GENERATED and wanted.label is not None:
        raise InputError(f"rows of {form} have a text in place of a label; name it with --pair, and omit --label")
    by_lower_case = names_by_lower_case(names, wanted.label_columns)
    columns = FORMS[form].find(by_lower_case, wanted)
    guessed = columns.text if form == "writing" and wanted.text is None else None
    if guessed and guessed == by_lower_case.get("instruction") and "input" in by_lower_case:  # Alpaca
        reason = "'instruction' seems to be the prompt, but there is 'input' too"
        todo = f"join them, or write --text {guessed} --pair {columns.pair or 'NAME'} to omit the inputs"
        raise InputError(f"{reason}; {todo}")
    refuse_missing(form, names, columns, need_label, hint)
    if form in ("words", "answers", *GENERATED):
        return columns, None
    return columns, find_answers([name for name in names if name not in columns.names])


def unread_label(names: Sequence[str], columns: Columns) -> str | None:
    """Return a column with a usual name for labels that is not used."""
    return first_of(names_by_lower_case(names), LABELS, columns.names)


def list_names(names: Sequence[str]) -> str:
    return f"the columns are {', '.join(repr(name[:60]) for name in names[:20])}{' ...' if len(names) > 20 else ''}"


def check_names(names: Sequence[str], wanted: Columns, hint: str) -> None:
    """Refuse two columns of one name, and names that the user gives but the table does not have."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two columns are called {twice!r}; give each column its own name")
    asked = [("--text", wanted.text), ("--pair", wanted.pair)]
    asked += [("--label", name) for name in wanted.label_columns]
    asked += [("--choices", name) for name in wanted.choice_columns]
    for option, name in asked:
        if name is not None and name not in names:
            close = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
            todo = f"did you mean {option} {close[0]}?" if close else f"write {option} and one of these{hint}"
            raise InputError(f"there is no column {name!r}, {list_names(names)}; {todo}")


def refuse_missing(form: Form, names: Sequence[str], columns: Columns, need_label: bool, hint: str) -> None:
    """Refuse a table without a column that the form needs."""
    spec = FORMS[form]
    missing = [(f"--{part}", what) for part, what in spec.needed if not getattr(columns, part)]
    if form in ("choices", "writing") and not (columns.text or columns.pair):
        passages = ("--text or --pair", "passages or questions")
        missing.append(passages if form == "choices" else ("--text", spec.target))
    target = "pair" if form in GENERATED else "label"
    if need_label and not getattr(columns, target):
        missing.append((f"--{target}", spec.target))
    if not missing:
        return
    option, what = missing[0]
    todo = f"name it with {option} NAME"
    if form == "translation" and option == "--pair":
        if others := [name[:60] for name in names if name != columns.text][:20]:
            either = " or ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)
            raise InputError(f"the column of the translations is missing; name it with --pair: {either}")
        todo = "give two files of translated lines, as in train.en,train.de"
    elif form == "translation" and len(names) > 1 and not any(" " in name for name in names):
        todo = f"name them and their translations, as in --text {names[0]} --pair {names[1]}"
    if option == "--text":
        todo += hint.replace("text,label", spec.header)
    raise InputError(f"no column has a usual name for {what}, {list_names(names)}; {todo}")


def text_columns(names: Names, wanted: Columns) -> Columns:
    text, pair = wanted.text, wanted.pair
    if text is None:
        text, pair = first_pair_of(names, PAIRS)
        text = text or first_of(names, TEXTS)
    return replace(wanted, text=text, pair=pair, label=wanted.label or first_of(names, LABELS, (text, pair)))


def words_columns(names: Names, wanted: Columns) -> Columns:
    text = wanted.text or first_of(names, WORDS + TEXTS)
    return replace(wanted, text=text, label=wanted.label or first_of(names, TAGS, (text,)))


def answers_columns(names: Names, wanted: Columns) -> Columns:
    text = wanted.text or first_of(names, QA_QUESTIONS, (wanted.pair,))
    pair = wanted.pair or first_of(names, QA_CONTEXTS, (text,))
    return replace(wanted, text=text, pair=pair, label=wanted.label or first_of(names, QA_ANSWERS, (text, pair)))


def choices_columns(names: Names, wanted: Columns) -> Columns:
    """A passage may be missing, or a question, but not both."""
    choices = wanted.choices or first_of(names, CANDIDATES) or candidate_columns(names) or None
    columns = replace(wanted, choices=choices)
    pair = wanted.pair or first_of(names, QUESTIONS, (wanted.text, *columns.choice_columns))
    text = wanted.text or first_of(names, PASSAGES, (pair, *columns.choice_columns))
    label = wanted.label or first_of(names, RIGHT_CANDIDATES, (text, pair, *columns.choice_columns))
    return replace(columns, text=text, pair=pair, label=label)


def pixels_columns(names: Names, wanted: Columns) -> Columns:
    text = wanted.text or first_of(names, IMAGES)
    return replace(wanted, text=text, label=wanted.label or first_of(names, IMAGE_LABELS, (text,)))


def translation_columns(names: Names, wanted: Columns) -> Columns:
    """Without a second column the texts have no translation yet."""
    if wanted.text is not None:
        return wanted
    text, pair = first_pair_of(names, TRANSLATIONS)
    return replace(wanted, text=text or first_of(names, ("source", "src", *TEXTS)), pair=pair)


def writing_columns(names: Names, wanted: Columns) -> Columns:
    """Prompts and answers, prompts alone, or running text, which is a target without a prompt."""
    if wanted.pair is not None:
        return wanted
    if wanted.text is not None:
        is_prompt = wanted.text.lower() in {prompt for prompt, _ in PROMPTS}
        return wanted if is_prompt else replace(wanted, text=None, pair=wanted.text)
    prompt, answer = first_pair_of(names, PROMPTS)
    if prompt is None and (answer := first_of(names, TEXTS)) is None:
        prompt = first_of(names, ("prompt", "instruction"))
    return replace(wanted, text=prompt, pair=answer)


FORMS: dict[Form, FormColumns] = {
    "text": FormColumns(text_columns, (("text", "text"),)),
    "words": FormColumns(words_columns, (("text", "words"),)),
    "answers": FormColumns(answers_columns, (("text", "questions"), ("pair", "contexts"))),
    "choices": FormColumns(choices_columns, (("choices", "candidates"),)),
    "pixels": FormColumns(pixels_columns, (("text", "images"),)),
    "translation": FormColumns(translation_columns, (("text", "source texts"),), "translations", "source,target"),
    "writing": FormColumns(writing_columns, (), "texts to be written", "prompt,completion"),
}


def find_answers(names: Sequence[str]) -> AnswerColumns | None:
    """Return the columns with a teacher's logits or probabilities."""
    for usual, are_probabilities in ANSWER_LISTS:
        if column := next((name for name in names if name.lower() == usual), None):
            return AnswerColumns((column,), are_probabilities, None)
    for prefix, are_probabilities in ANSWER_PREFIXES:
        columns = tuple(name for name in names if name.lower().startswith(prefix) and len(name) > len(prefix))
        if columns:
            return AnswerColumns(columns, are_probabilities, tuple(name[len(prefix) :].strip() for name in columns))
    return None
