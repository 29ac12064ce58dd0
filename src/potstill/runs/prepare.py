"""From a recipe's names to things in hand: rows read, labels matched, the teacher loaded and asked whether it knows the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from potstill.data.batches import Source, window_keys
from potstill.data.examples import Examples, store
from potstill.data.pixel_reader import in_words
from potstill.data.rows import BETWEEN, Columns, open_table
from potstill.data.splits import held_out, leaks
from potstill.data.tokens import fingerprint as tokenizer_fingerprint
from potstill.data.tokens import tokenise
from potstill.data.unlabelled import with_unlabelled
from potstill.errors import InputError
from potstill.inference.answers import answers, network, said_by
from potstill.models.anatomy import longest_input
from potstill.models.fingerprints import fingerprint
from potstill.models.generation.languages import knows_language
from potstill.models.inference import torch_run
from potstill.models.student import Student, load_student
from potstill.recipe.schema import Data, Recipe
from potstill.runs.build import begin_anew, begin_from
from potstill.signals import Wants
from potstill.system import paths, ranks
from potstill.system.display import Display
from potstill.system.randomness import mix
from potstill.tasks.chance import judge, near_chance
from potstill.tasks.generate import Generating
from potstill.tasks.label_matching import labels_of, make_task
from potstill.tasks.positive_class import with_positive
from potstill.tasks.registry import FORMS, WHAT, kind_of
from potstill.tasks.task import Task
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher

Say = Callable[[str], None]
CHANCE_ROWS = 1000  # on which a teacher must be better than chance


@dataclass
class DataSet:
    """One data set of a recipe, read and matched, with its teacher."""

    name: str
    task: Task
    train: Examples
    dev: Examples
    tests: dict[str, Examples]
    teacher: Teacher
    taught_by: Student | None  # the teacher's model and tokenizer; None for a file of answers, or where nobody teaches
    class_weights: Tensor | None
    length: int  # tokens that are read of a text at most
    answered: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # split -> (rows of its folder,) bool, for a file of answers
    leaks: list[dict[str, Any]] = field(default_factory=list)  # rows that stand in two splits

    def source(self, examples: Examples, tokenizer: PreTrainedTokenizerBase, split: str) -> Source:
        """The examples as a student with this tokenizer reads them."""
        ours = tokenise(self.task, examples, tokenizer, self.length)
        theirs = ours
        if self.taught_by is not None and tokenizer_fingerprint(self.taught_by.tokenizer) != tokenizer_fingerprint(
            tokenizer
        ):
            theirs = tokenise(self.task, examples, self.taught_by.tokenizer, self.length)
        return Source(self.task, examples, ours, theirs, self._answered(examples, split), self.class_weights)

    def _answered(self, examples: Examples, split: str) -> np.ndarray | None:
        """(rows of the examples' folder,) bool. A data maker's rows lie in another one than those of the file."""
        known = self.answered.get(split)
        if known is None or split != "train" or examples.folder == self.train.folder:
            return known
        return np.isin(examples.keys, self.train.keys[known])

    def reading(self, examples: Examples, tokenizer: PreTrainedTokenizerBase) -> Source:
        """The same without the teacher: for scoring and timing."""
        ours = tokenise(self.task, examples, tokenizer, self.length)
        return Source(self.task, examples, ours, ours)

    def texts(self) -> Iterator[str]:
        """Every text and pair of train: what is counted on dev would make dev easier than test."""
        return _texts(self.train)


def _texts(examples: Examples) -> Iterator[str]:
    for text, pair in examples.texts():
        for part in (text,) if pair is None else (text, *pair.split(BETWEEN)):
            yield part.replace(BETWEEN, " ")


def prepare(recipe: Recipe, device: torch.device, show: Display) -> list[DataSet]:
    found = [_prepare(recipe, data, device, show) for data in recipe.data]
    if len({one.task.head for one in found}) > 1:
        told = ", ".join(f"{one.name} ({one.task.name})" for one in found)
        raise InputError(f"the data sets are of tasks with different heads: {told}; make a run for each")
    return found


def _prepare(recipe: Recipe, data: Data, device: torch.device, show: Display) -> DataSet:
    say = show.say
    columns = Columns(
        data.text,
        data.pair,
        tuple(data.label) if isinstance(data.label, list) else data.label,
        data.separator,
        f">>{data.language}<< " if data.language else "",
        tuple(data.choices) if isinstance(data.choices, list) else data.choices,
    )
    name = data.teacher or recipe.teacher
    taught_by = load_student(name, devices=recipe.teacher_devices) if name else None
    if taught_by and data.language and not knows_language(taught_by.tokenizer, data.language):
        _strange_language(str(name), data.language, recipe.force, say)
    form = FORMS[data.task] if data.task else None
    if form is None and taught_by is not None and issubclass(made_for := kind_of(taught_by.model.config), Generating):
        form = made_for.form  # two texts in a row could be anything; what the teacher writes, the rows are taken for
    scored = form == "translation" and not data.dev  # a part of them will be dev
    train = open_table(data.train, columns, need_label=scored, form=form)
    if data.task is None and form and train.unread_label:
        told = f"the labels in {train.unread_label!r} are not read, since the teacher is made for {WHAT[form]}"
        say(f"{train.source}: {told}; give a classifier as the teacher to learn them")
    dev = open_table(data.dev, columns, form=train.form) if data.dev else None
    tests = {name: open_table(path, columns, form=train.form) for name, path in data.test.items()}
    for other in (*((dev,) if dev else ()), *tests.values()):
        if other.choices != train.choices:
            raise InputError(
                f"{other.source} has {other.choices} candidates for each question, {train.source} {train.choices}; give as many in both"
            )
        if other.shape and train.shape and other.shape != train.shape:
            raise InputError(
                f"{other.source} has images of {in_words(other.shape)}, {train.source} of {in_words(train.shape)}; give images of one size"
            )
        if (other.columns.pair is None) != (train.columns.pair is None):
            raise InputError(
                f"{other.source} and {train.source} do not both have a second text; name the columns with --text and --pair"
            )
    head = taught_by.model.config if taught_by else None
    found = labels_of(train)
    named = data.labels or (list(train.answer_labels) if train.answer_labels and not taught_by else None)
    shaped = (train.form, train.choices, train.shape)
    task, matched = make_task(data.task, head, found, named, train.source, *shaped, label_map=data.label_map)
    if taught_by and train.has_answers:
        say(f"{train.source}: the answers in its rows are not used, since a teacher model is given")
    if found or taught_by:
        say(f"{data.name}: {matched}" if len(recipe.data) > 1 else matched)
    rows, *others = ranks.the_first_before_others(
        lambda: (
            [store(train, task)]
            + [store(table, task.knowing(labels_of(table))) for table in (*((dev,) if dev else ()), *tests.values())]
        )
    )
    held = others.pop(0) if dev else None
    if held is None:
        rows, held = held_out(rows, task)
        told = f"{len(held)} rows, drawn from each class, no text of them is left in train"
        say(f"no dev file: a tenth of {train.source} is held out as dev ({told}); give your own with --dev")
    tested = dict(zip(tests, others, strict=True))
    leaked = leaks(rows, {"dev": held, **tested}, task)
    for one in leaked:
        told = f"{one['rows']} of {one['of']} rows of {one['split']} stand in {one['also_in']} too"
        say(f"warning: {told} (the same text); scores on them say little about new texts")
    if data.unlabelled:
        if taught_by is None:
            raise InputError(
                f"{data.unlabelled}: only a teacher can teach texts without labels; give its model with --teacher, or leave --unlabelled away"
            )
        add = partial(with_unlabelled, rows, data.unlabelled, train, task, [held, *tested.values()], say)
        rows = ranks.the_first_before_others(add)
    for name, examples in {"train": rows, "dev": held, **tested}.items():
        _say_unlabelled(examples, name, say)
    task = with_positive(task, data.positive, rows.scored)
    begun_from = _begun(recipe, task, partial(_texts, rows)) if recipe.start or not taught_by else None
    readers = [reader for reader in (taught_by, begun_from) if reader]
    length = min(recipe.length, *(longest_input(reader.model, reader.tokenizer) for reader in readers))
    made = DataSet(
        data.name, task, rows, held, tested, Teacher(None, None, device), taught_by, _weights(data, task, rows), length
    )
    made.leaks = leaked
    made.teacher = _teacher(recipe, made, device)
    cut = {}
    for name, examples in {"train": rows, "dev": held, **tested}.items():
        with show.bar(f"tokenising {examples.source}", examples.meta["rows"]) as bar:
            made_tokens = partial(tokenise, task, examples, readers[0].tokenizer, length, bar.advance)
            cut[name] = ranks.the_first_before_others(made_tokens).shortened
    if any(cut.values()):
        told = ", ".join(f"{count} of {name}" for name, count in cut.items() if count)
        say(f"texts longer than {length} tokens were cut: {told}; --set length=N reads more of them")
    if taught_by and not recipe.force:
        _refuse_chance(made, say)
    return made


def _strange_language(teacher: str, language: str, force: bool, say: Say) -> None:
    told = f"{teacher} does not know >>{language}<< as one piece, and would read it as letters of every text"
    if not force:
        todo = f"give a teacher that was trained with language = '{language}', leave language out, or write --force"
        raise InputError(f"{told}; {todo}")
    say(f"{told}; it is used all the same")


def _begun(recipe: Recipe, task: Task, texts: Callable[[], Iterator[str]]) -> Student:
    """What the student begins from, for its reading alone."""
    if recipe.start is None and (new := begin_anew(recipe.student, task, texts)) is not None:
        return new
    if recipe.start is None and recipe.teacher is None:
        own = {"ImageClassification": "mlp", "Seq2SeqLM": "marian:4+4x256"}.get(task.head)
        instead = f", or a network of its own: --student {own}" if own else ""
        raise InputError(
            f"nothing to start from; give a teacher's folder with --teacher, or the weights to begin with as start = 'DIR'{instead}"
        )
    return begin_from(str(recipe.start or recipe.teacher), task)


def _say_unlabelled(examples: Examples, name: str, say: Say) -> None:
    missing = len(examples) - len(examples.scored)
    if missing == len(examples) and name != "train":
        raise InputError(
            f"{examples.source}: no row has a label, so {name} cannot be scored; give labelled rows, or leave it out"
        )
    if missing:
        say(
            f"{examples.source}: {missing} of {len(examples)} rows have no label"
            + ("; the teacher alone teaches them" if name == "train" else " and are not scored")
        )


def _weights(data: Data, task: Task, rows: Examples) -> Tensor | None:
    """(classes,) that average to one over the training rows."""
    if data.class_weights is None or not len(rows.scored):
        return None
    if task.outcome != "class" or not task.names_outputs:
        raise InputError("class_weights are for rows or words of one class each; leave them out here")
    golds = [np.ravel(gold) for row in rows.scored.index if (gold := rows.gold(row)) is not None]
    targets = np.concatenate(golds).astype(int)
    counts = np.bincount(targets, minlength=task.classes)
    given = 1.0 / np.maximum(counts, 1) if data.class_weights == "balanced" else np.array(data.class_weights, float)
    if len(given) != task.classes:
        raise InputError(
            f"class_weights names {len(given)} weights for {task.classes} classes; write one for each of {', '.join(task.labels)}"
        )
    return torch.tensor(given * len(targets) / max(float(given[targets].sum()), 1e-12), dtype=torch.float32)


def _teacher(recipe: Recipe, data: DataSet, device: torch.device) -> Teacher:
    if data.taught_by is not None:
        model = data.taught_by.model
        known = fingerprint(model, tokenizer_fingerprint(data.taught_by.tokenizer), data.length)
        return Teacher(model, Memory(paths.memory(recipe.memory) / known), device)
    splits = {"train": data.train, "dev": data.dev, **data.tests}
    answered = {name: examples for name, examples in splits.items() if examples.meta["answers"]}
    if "train" not in answered:
        return Teacher(None, None, device)
    named = xxhash.xxh3_128_hexdigest(repr(sorted(str(one.folder) for one in answered.values())).encode())
    memory = Memory(paths.memory(recipe.memory) / f"file-{named}")
    with memory.lock():
        for name, examples in answered.items():
            given = examples.answers
            known = ~np.isnan(given).any(1)
            data.answered[name] = known
            rows = np.flatnonzero(known)
            rows = rows[memory.missing(np.asarray(examples.keys[rows]), ["logits"])] if len(rows) else rows
            if len(rows):
                # a model gives one number for each candidate, which is a sequence of its own, and so does a file
                several = data.task.classes if not data.task.names_outputs else 1
                keys = window_keys(np.asarray(examples.keys[rows]), np.full(len(rows), several))
                memory.write(keys, {"logits": given[rows].reshape(len(keys), -1)})
    return Teacher(None, memory, device)


def asked_first(data: DataSet) -> Examples:
    """Labelled rows that show whether the teacher knows the task: of a large file a sample, since files may be sorted."""
    return _sampled(data, data.dev.scored if len(data.dev.scored) else data.train.scored, 0)


def _sampled(data: DataSet, examples: Examples, known: int) -> Examples:
    most = CHANCE_ROWS // 10 if data.task.generates else CHANCE_ROWS  # of texts each token is asked for
    drawn = np.random.default_rng(mix("chance")).permutation(len(examples))[: max(0, most - known)]
    return examples.take(np.sort(drawn))


def _refuse_chance(data: DataSet, say: Say) -> None:
    """Rows of train are asked too where those of dev are too few to tell."""
    examples = asked_first(data)
    if not len(examples):
        return
    asked = [_asked(data, examples, "dev")]
    told = judge(data.task, asked)
    if told.kind == "unsure" and len(more := _sampled(data, data.train.scored, len(examples))):
        asked.append(_asked(data, more, "train"))
        told = judge(data.task, asked)
    if (reason := near_chance(told)) is not None:
        raise InputError(f"{examples.source}: {reason}")
    if told.kind == "unsure":
        say(f"{examples.source}: too few rows to tell whether the teacher knows the task ({told}); it is used")


def _asked(data: DataSet, examples: Examples, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Targets, and what the teacher says."""
    assert data.taught_by is not None
    source = data.source(examples, data.taught_by.tokenizer, split)
    said = (
        answers(network(torch_run(data.taught_by.model)), source)
        if data.task.generates
        else teacher_answers(data, source)
    )
    return data.task.golds(examples), said


def teacher_answers(data: DataSet, source: Source) -> np.ndarray:
    """(n, …) of the teacher, remembered like all it says, but for what it writes."""
    if data.task.generates:
        assert data.taught_by is not None
        return said_by(data.taught_by, source, beam=True)
    wants = Wants(logits=True)
    data.teacher.remember(source, wants)
    return answers(lambda batch: data.teacher.signals(batch, wants).logits.cpu().numpy(), source)


def can_teach(data: DataSet) -> bool:
    return data.taught_by is not None or "train" in data.answered
