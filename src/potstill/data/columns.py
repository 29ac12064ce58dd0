"""Seven forms of rows, and which columns hold their parts: what the user did not say is guessed by usual names.

A text (or pair) with a label; words with a tag each; a question with its answers in a context; candidates of which one
is right; the pixels of an image with a label; a text with its translation; a text to be written, perhaps to a prompt.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Literal, NamedTuple

from potstill.errors import InputError

Form = Literal["text", "words", "answers", "choices", "pixels", "translation", "writing"]

BETWEEN = "\x00"  # separates the parts inside one text; it cannot occur in a text, `speakable` replaces it
MOST_CHOICES = 26  # candidates: one per letter

# fmt: off
# usual names in small letters, in the order in which they are looked for
PAIRS = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
         ("text1", "text2"), ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text", "text_pair"),
         ("query", "passage"), ("query", "document"))
TEXTS = ("text", "sentence", "review", "content", "comment", "body", "utterance", "question", "title", "tweet",
         "message", "document")
LABELS = ("label", "labels", "score", "sentiment", "class", "category", "target", "intent", "topic", "rating",
          "gold_label")
WORDS = ("tokens", "words")
SURE_TAGS = ("tags", "ner_tags", "ner", "pos_tags")  # no other form has columns of these names
TAGS = ("tags", "ner_tags", "ner", "labels", "label", "pos_tags")
ASKED, CONTEXTS, GOLD = ("question", "query"), ("context", "passage"), ("answers", "answer")
BESIDE_GOLD = ("answer_starts", "answer_start", "is_impossible")  # read too where they are there
CANDIDATES = ("choices", "options", "candidates", "endings")
NUMBERED = ("ending", "choice")  # one column per candidate, counted from 0 or 1
LETTERED = ("opa", "opb", "opc", "opd")
PASSAGES = ("article", "passage", "context", "text", "sent1", "premise")
QUESTIONS = ("question", "query", "sent2", "questions")  # the last as RACE calls them
KEYS = ("answer", "answerkey", "label", "gold", "answer_idx", "answers")
IMAGES = ("images", "image", "pixels", "x", "data", "arr_0")
OF_IMAGES = (*LABELS, "targets", "y", "arr_1")
SURE_TRANSLATIONS = (("source", "target"), ("src", "tgt"), ("src", "trg"))  # found without being told the form
TRANSLATIONS = (*SURE_TRANSLATIONS, ("source", "translation"), ("src", "translation"), ("text", "translation"))
TOGETHER = "translation"  # a column that holds {"en": ..., "de": ...}
SURE_PROMPTS = (("prompt", "completion"), ("prompt", "response"))
PROMPTS = (*SURE_PROMPTS, ("prompt", "answer"), ("instruction", "output"))
# fmt: on
# parts without which there is no row, and what they are called in messages
NEEDED = {
    "text": (("text", "text"),),
    "words": (("text", "words"),),
    "answers": (("text", "questions"), ("pair", "contexts")),
    "choices": (("choices", "candidates"),),
    "pixels": (("text", "images"),),
    "translation": (("text", "texts to be translated"),),
    "writing": (),  # a prompt or a text
}
GENERATED = {"translation": "translations", "writing": "texts to be written"}  # the second text is the target
HEADERS = {"translation": "source,target", "writing": "prompt,completion"}  # examples; of other forms text,label
ANSWER_LISTS = (("logits", False), ("probabilities", True), ("probs", True))  # name, are they probabilities
ANSWER_PREFIXES = (("logit_", False), ("probability_", True), ("prob_", True))


class Span(NamedTuple):
    """A gold answer."""

    start: int  # character of the context on which it begins
    text: str


# canonical text; of words a tag each, of choices the letter of the right one
Label = str | tuple[str, ...] | tuple[Span, ...]


@dataclass(frozen=True)
class Columns:
    """Where text, second text and label stand."""

    text: str | None = None  # None: guessed by its usual name
    pair: str | None = None
    label: str | tuple[str, ...] | None = None  # several: columns of 0 and 1, one per label
    separator: str | None = None  # a label text holds several labels, separated by this
    before: str = ""  # put in front of every text
    choices: str | tuple[str, ...] | None = None  # a column with a list of candidates, or one column per candidate

    @property
    def label_columns(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    @property
    def choice_columns(self) -> tuple[str, ...]:
        return (self.choices,) if isinstance(self.choices, str) else self.choices or ()


class AnswerColumns(NamedTuple):
    """The teacher's."""

    columns: tuple[str, ...]
    are_probabilities: bool
    labels: tuple[str, ...] | None  # one per column; None: the one column holds a list


def usual_names(names: Sequence[str], without: Sequence[str] = ()) -> dict[str, str]:
    """Names by their small letters; "text" before "Text"."""
    known = {name.lower(): name for name in reversed(names) if name not in without}
    return known | {name: name for name in names if name in known and name not in without}


def first_of(known: Mapping[str, str], usual: Sequence[str], taken: Sequence[str | None] = ()) -> str | None:
    return next((known[name] for name in usual if name in known and known[name] not in taken), None)


def worth_a_look(names: Sequence[str], wanted: Columns) -> list[str]:
    """Columns whose first values tell the form; none where the names alone do."""
    telling = {*WORDS, *CANDIDATES, *GOLD, *TAGS, *TEXTS, *(first for first, _ in PAIRS), TOGETHER}
    if not wanted.text and not any(name.lower() in (*WORDS, *CANDIDATES, *GOLD, TOGETHER) for name in names):
        return []
    asked = {wanted.text, *wanted.label_columns}
    return [name for name in names if name.lower() in telling or name in asked]


def find_form(names: Sequence[str], wanted: Columns, first: Mapping[str, object]) -> Form:
    """By names and the first record's values; whatever was plain text before there were other forms stays so."""
    known = usual_names(names)
    listed = (first.get(known[name]) for name in CANDIDATES if name in known)
    if wanted.choices or spread_candidates(known) or any(isinstance(value, list | dict) for value in listed):
        return "choices"
    columns = wanted.text, wanted.pair, wanted.label
    usual = [known.get(name) for name in ("question", "context", "answers")]
    if all(usual) and all(column in (None, name) for column, name in zip(columns, usual, strict=True)):
        labelled = wanted.label is None and first_of(known, LABELS)  # then a text in "answers" is only a column more
        return "text" if labelled and not isinstance(first.get(str(usual[2])), list | dict) else "answers"
    label = first.get(wanted.label) if isinstance(wanted.label, str) else None
    spans = label if isinstance(label, list) and label else [label]
    if wanted.text and wanted.pair and all(isinstance(span, dict) and "answer_start" in span for span in spans):
        return "answers"
    if has_words(names, wanted, first):
        return "words"
    return generated_form(names, wanted, first) or "text"


def generated_form(names: Sequence[str], wanted: Columns, first: Mapping[str, object]) -> Form | None:
    """A form whose target is a text, where the columns are nothing as plain texts: no text among them, nor a label."""
    known = usual_names(names)
    plain = text_columns(known, wanted)
    if isinstance(first.get(known.get(TOGETHER, "")), dict) and plain.text not in names:
        return "translation"
    if plain.text or wanted.pair or wanted.label:
        return None
    forms: tuple[tuple[Form, tuple[tuple[str, str], ...]], ...]
    forms = ("translation", SURE_TRANSLATIONS), ("writing", SURE_PROMPTS)
    for form, usual in forms:
        _, target = both_of(known, usual)
        if target and first_of(known, LABELS, (target,)) is None:
            return form
    return None


def has_words(names: Sequence[str], wanted: Columns, first: Mapping[str, object]) -> bool:
    known = usual_names(names, wanted.label_columns)
    text = wanted.text or first_of(known, WORDS)
    if text is None or wanted.pair or isinstance(wanted.label, tuple):
        return False
    tags = wanted.label or first_of(known, TAGS, (text,))
    value, marks = first.get(text), first.get(tags or "")
    if wanted.text:
        if isinstance(value, str) and text.lower() in WORDS and isinstance(marks, str):
            fitting = value.count(" ") == marks.strip().count(" ")
            return fitting and (" " in value or str(tags).lower() in SURE_TAGS)
        return isinstance(value, list)
    plain = text_columns(known, wanted)
    if isinstance(first.get(plain.text or ""), str):  # it is what a label belongs to, but not a list of tags
        marks = first.get(first_of(known, SURE_TAGS) or "")
        same = isinstance(value, list) and isinstance(marks, list) and len(value) == len(marks)
        return same and plain.label is None
    return isinstance(value, list | str)


def spread_candidates(known: Mapping[str, str]) -> tuple[str, ...]:
    """Columns that hold a candidate each."""
    for prefix in NUMBERED:
        for start in (0, 1):
            found = tuple(takewhile(known.__contains__, (f"{prefix}{number}" for number in count(start))))
            if len(found) > 1:
                return tuple(known[name] for name in found)
    return tuple(known[name] for name in LETTERED) if all(name in known for name in LETTERED) else ()


def resolve(
    form: Form, names: Sequence[str], wanted: Columns, need_label: bool, where: str, hint: str = ""
) -> tuple[Columns, AnswerColumns | None]:
    """Fill in by their usual names what the user did not say; the teacher's answers are looked for in what is left."""
    there = f"the columns are {', '.join(repr(name[:60]) for name in names[:20])}{' ...' if len(names) > 20 else ''}"
    check_names(names, wanted, where, there, hint)
    if form in ("text", "translation") and wanted.pair is not None and wanted.text is None:
        raise InputError(f"{where}: --pair names the second text, but the first is not named; add --text NAME")
    if form in ("words", "pixels") and wanted.pair is not None:
        raise InputError(f"{where}: --pair names a second text, but rows of {form} have only one; leave --pair out")
    if form not in ("text", "pixels") and isinstance(wanted.label, tuple):
        raise InputError(f"{where}: --label names several columns, which only texts can have; name one")
    if form in GENERATED and wanted.label is not None:
        reason = f"--label names a label, but rows of {form} have a text in its place"
        raise InputError(f"{where}: {reason}; name it by --pair, and leave --label out")
    known = usual_names(names, wanted.label_columns)
    found = FILL[form](known, wanted)
    refuse_inputs_left_out(form, known, wanted, found, f"{where}: ")
    refuse_missing(form, names, found, need_label, f"{where}: ", there, hint)
    if form in ("words", "answers", *GENERATED):
        return found, None
    used = {found.text, found.pair, *found.label_columns, *found.choice_columns}
    return found, find_answers([name for name in names if name not in used])


def refuse_missing(
    form: Form, names: Sequence[str], found: Columns, need_label: bool, where: str, there: str, hint: str
) -> None:
    missing = [(f"--{part}", what) for part, what in NEEDED[form] if not getattr(found, part)]
    if form == "choices" and not (found.text or found.pair):
        missing.append(("--text or --pair", "passages or questions"))
    if form == "writing" and not (found.text or found.pair):
        missing.append(("--text", GENERATED[form]))
    target = "pair" if form in GENERATED else "label"
    if need_label and not getattr(found, target):
        missing.append((f"--{target}", GENERATED.get(form, "labels")))
    others = [name[:60] for name in names if name != found.text][:20]
    if missing and missing[0][0] == "--pair" and form == "translation" and others:
        listed = " or ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)
        raise InputError(f"{where}the column of the translations is missing; name it with --pair: {listed}")
    for flag, what in missing[:1]:
        todo = f"say which it is by {flag} NAME"
        if form == "translation" and flag == "--pair":
            todo = "give two files with a line for each other, as in train.en,train.de"
        elif form == "translation" and len(names) > 1 and not any(" " in name for name in names):
            todo = f"say which they are, and which their translations, as in --text {names[0]} --pair {names[1]}"
        if flag == "--text":
            todo += hint.replace("text,label", HEADERS.get(form, "text,label"))
        raise InputError(f"{where}no column has a usual name for {what}, {there}; {todo}")


def refuse_inputs_left_out(form: Form, known: Mapping[str, str], wanted: Columns, found: Columns, where: str) -> None:
    """Instructions of Alpaca's kind are whole only with their inputs, which are in a column of their own."""
    guessed = form == "writing" and wanted.text is None and found.text
    if guessed and guessed == known.get("instruction") and "input" in known:
        todo = (
            f"join them in one column, or write --text {guessed} --pair {found.pair or 'NAME'} to leave the inputs out"
        )
        raise InputError(f"{where}an 'instruction' is guessed to be the prompt, but there is 'input' too; {todo}")


def check_names(names: Sequence[str], wanted: Columns, where: str, there: str, hint: str) -> None:
    """No column twice, and those the user names are there."""
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise InputError(f"{where}: two columns are called {twice!r}; give each column its own name")
    asked = [("--text", wanted.text), ("--pair", wanted.pair)]
    asked += [("--label", name) for name in wanted.label_columns]
    asked += [("--choices", name) for name in wanted.choice_columns]
    for flag, name in asked:
        if name is not None and name not in names:
            close = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
            todo = f"did you mean {flag} {close[0]}?" if close else f"write {flag} and one of these"
            raise InputError(f"{where}: there is no column {name!r}, {there}; {todo}{'' if close else hint}")


def text_columns(known: Mapping[str, str], wanted: Columns) -> Columns:
    text, pair = wanted.text, wanted.pair
    if text is None:
        pairs = ((known[first], known[second]) for first, second in PAIRS if first in known and second in known)
        text, pair = next(pairs, (first_of(known, TEXTS), None))
    return replace(wanted, text=text, pair=pair, label=wanted.label or first_of(known, LABELS, (text, pair)))


def words_columns(known: Mapping[str, str], wanted: Columns) -> Columns:
    text = wanted.text or first_of(known, WORDS + TEXTS)
    return replace(wanted, text=text, label=wanted.label or first_of(known, TAGS, (text,)))


def answers_columns(known: Mapping[str, str], wanted: Columns) -> Columns:
    text = wanted.text or first_of(known, ASKED, (wanted.pair,))
    pair = wanted.pair or first_of(known, CONTEXTS, (text,))
    return replace(wanted, text=text, pair=pair, label=wanted.label or first_of(known, GOLD, (text, pair)))


def choices_columns(known: Mapping[str, str], wanted: Columns) -> Columns:
    """A passage is not needed, nor is a question, but one of them is."""
    choices = wanted.choices or first_of(known, CANDIDATES) or spread_candidates(known) or None
    columns = replace(wanted, choices=choices)
    pair = wanted.pair or first_of(known, QUESTIONS, (wanted.text, *columns.choice_columns))
    text = wanted.text or first_of(known, PASSAGES, (pair, *columns.choice_columns))
    label = wanted.label or first_of(known, KEYS, (text, pair, *columns.choice_columns))
    return replace(columns, text=text, pair=pair, label=label)


def pixels_columns(known: Mapping[str, str], wanted: Columns) -> Columns:
    text = wanted.text or first_of(known, IMAGES)
    return replace(wanted, text=text, label=wanted.label or first_of(known, OF_IMAGES, (text,)))


def both_of(known: Mapping[str, str], usual: Sequence[tuple[str, str]]) -> tuple[str | None, str | None]:
    found = ((known[first], known[second]) for first, second in usual if first in known and second in known)
    return next(found, (None, None))


def translation_columns(known: Mapping[str, str], wanted: Columns) -> Columns:
    """Without a second column they are texts that nobody has translated yet."""
    if wanted.text is not None:
        return wanted
    text, pair = both_of(known, TRANSLATIONS)
    return replace(wanted, text=text or first_of(known, ("source", "src", *TEXTS)), pair=pair)


def writing_columns(known: Mapping[str, str], wanted: Columns) -> Columns:
    """Prompts and answers; prompts alone; or running text, which is what is written and has no prompt."""
    if wanted.pair is not None:
        return wanted
    if wanted.text is not None:
        is_prompt = wanted.text.lower() in {prompt for prompt, _ in PROMPTS}
        return wanted if is_prompt else replace(wanted, text=None, pair=wanted.text)
    prompt, answer = both_of(known, PROMPTS)
    if prompt is None and (answer := first_of(known, TEXTS)) is None:
        prompt = first_of(known, ("prompt", "instruction"))
    return replace(wanted, text=prompt, pair=answer)


FILL = {
    "text": text_columns,
    "words": words_columns,
    "answers": answers_columns,
    "choices": choices_columns,
    "pixels": pixels_columns,
    "translation": translation_columns,
    "writing": writing_columns,
}


def find_answers(names: Sequence[str]) -> AnswerColumns | None:
    for usual, are_probabilities in ANSWER_LISTS:
        for name in names:
            if name.lower() == usual:
                return AnswerColumns((name,), are_probabilities, None)
    for prefix, are_probabilities in ANSWER_PREFIXES:
        columns = tuple(name for name in names if name.lower().startswith(prefix) and len(name) > len(prefix))
        if columns:
            return AnswerColumns(columns, are_probabilities, tuple(name[len(prefix) :].strip() for name in columns))
    return None
