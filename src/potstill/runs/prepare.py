"""Load what a recipe names: read the rows, match labels to classes, load the teacher and check that it knows the task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor

from potstill.data.examples import Examples, store
from potstill.data.pools import Pool, Say, with_unlabelled
from potstill.data.rows import Table
from potstill.data.running_text import in_windows
from potstill.data.splits import leaks, split_off_dev
from potstill.data.tokens import tokenise
from potstill.errors import InputError
from potstill.inference.answers import answers, logits_of
from potstill.models.anatomy import longest_input
from potstill.models.generation.languages import knows_language
from potstill.models.student import Student, load_student
from potstill.recipe.schema import Data, Recipe, Stage
from potstill.runs.build import Start, begin
from potstill.runs.data_set import DataSet, teacher_predictions, texts_of
from potstill.runs.tables import Tables, cut_in_windows, open_tables, refuse_windows, with_masks
from potstill.runs.teachers import has_forms, how_forms_compare, make_teacher
from potstill.system import ranks
from potstill.system.display import Display
from potstill.system.randomness import mix
from potstill.tasks.chance import judge, near_chance
from potstill.tasks.label_matching import labels_of, make_task, with_positive
from potstill.tasks.registry import TASKS
from potstill.tasks.task import Task
from potstill.training.teacher.forms import Comparison, described, fastest

CHECKED_ROWS = 1000  # on which the teacher is compared with chance
CHECKED_TEXTS = 100  # of models that predict tokens, many in each text

Splits = dict[str, Examples]
"""The rows of a data set: "train", "dev", then the tests."""


def make_accelerator(recipe: Recipe) -> Accelerator:
    kind = recipe.device.split(":")[0]
    available = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(kind, False):
        instead = "write --device cpu, or --device auto to use what is there"
        raise InputError(f"this machine has no device '{recipe.device}'; {instead}")
    if recipe.precision == "float16" and not available["cuda"]:
        raise InputError("float16 needs a CUDA device; write precision = 'bfloat16' or 'float32'")
    if ":" in recipe.device:
        os.environ["ACCELERATE_TORCH_DEVICE"] = recipe.device
    # the other ranks wait while rank 0 measures; a rank that died is noticed at once, whatever the limit
    waiting = InitProcessGroupKwargs(timeout=timedelta(hours=12))
    # of the mixed precisions only float16 needs its help: a scaler. Products are cast in `training.gradients`
    scaling = "fp16" if recipe.precision == "float16" else "no"
    if AcceleratorState._shared_state.get("_mixed_precision", scaling) != scaling:
        AcceleratorState._reset_state()  # an earlier run in this process had the other one
    return Accelerator(cpu=kind == "cpu", mixed_precision=scaling, kwargs_handlers=[waiting])


class DataSets:
    """The data sets of a recipe. Each is prepared, with its teacher, when a stage first asks for it."""

    def __init__(self, recipe: Recipe, device: torch.device, display: Display) -> None:
        self.recipe, self.device, self.display = recipe, device, display
        self._ready: dict[str, DataSet] = {}  # by the fields of the data set in the stage
        self._teachers: dict[str, Student] = {}
        self._start: Start | None = None
        self._released_seconds = 0.0

    def of(self, stage: Stage, student: Student | None = None) -> list[DataSet]:
        """The data sets of a stage. `student`: as the stage finds it; None before the first one."""
        wanted = {data.model_dump_json(): data for data in self.recipe.data_of(stage)}
        missing = {key: data for key, data in wanted.items() if key not in self._ready}
        read = {key: self._read(data) for key, data in missing.items()}
        if self.recipe.teacher_precision == "auto":
            self._settle_form(read)
        if student is None and read and (self.recipe.start or not all(rows.loaded_teacher for rows in read.values())):
            every = list(read.values())
            texts = partial(texts_of, [rows.splits["train"] for rows in every])
            self._start = begin(self.recipe, every[0].task, every[0].loaded_teacher, texts)
            student = self._start.student
        for key, rows in read.items():
            self._ready[key] = self._finish(missing[key], rows, student)
        return [self._ready[key] for key in wanted]

    def have_teachers(self, stage: Stage) -> bool:
        named = all(data.teacher for data in self.recipe.data_of(stage))  # else the rows may carry its answers
        return named or all(data.has_teacher for data in self.of(stage))

    @property
    def last(self) -> list[DataSet]:
        """Those of the last stage, on which the student is measured."""
        return self.of(self.recipe.stage[-1])

    def take_start(self, recipe: Recipe) -> Start | None:
        """The model that the student starts from, if it was loaded to read its tokenizer. It is given away once."""
        start, self._start = self._start, None
        same = ("start", "teacher", "student", "seed")
        return start if all(getattr(recipe, name) == getattr(self.recipe, name) for name in same) else None

    def release(self, later: Sequence[Stage]) -> None:
        """Forget the teachers that no later stage needs, and the data sets that they taught."""
        before = self.teacher_seconds
        needed = {data.model_dump_json(): teacher_key(data) for stage in later for data in self.recipe.data_of(stage)}
        self._ready = {key: data for key, data in self._ready.items() if key in needed or data.loaded_teacher is None}
        self._teachers = {key: teacher for key, teacher in self._teachers.items() if key in needed.values()}
        self._released_seconds += before - self.teacher_seconds

    @property
    def teacher_seconds(self) -> float:
        """Seconds that all teachers spent on answers."""
        return self._released_seconds + sum(data.teacher.seconds for data in self._ready.values())

    def _settle_form(self, first: dict[str, ReadRows]) -> None:
        """Measure in which form the teachers are asked. `first`: the data sets of the first stage, which are read already.

        A run has one form for all teachers, so those of later stages are loaded for it and released again.
        """
        found: dict[str, tuple[int, Comparison]] = {}
        for data in (data for stage in self.recipe.stage for data in self.recipe.data_of(stage)):
            if not data.teacher or teacher_key(data) in found:
                continue
            later = DataSets(self.recipe, self.device, Display(quiet=True))
            rows = first.get(data.model_dump_json()) or later._read(data)
            if rows.loaded_teacher is not None and has_forms(rows.loaded_teacher):
                asked = rows.loaded_teacher, rows.splits["train"], rows.task, self.device
                found[teacher_key(data)] = how_forms_compare(self.recipe, data, *asked)
        form = fastest(list(found.values()))
        for _, forms in found.values():
            if len(forms) > 1:
                self.display.say(described(form, forms))
        self.recipe = self.recipe.model_copy(update={"teacher_precision": form})

    def _read(self, data: Data) -> ReadRows:
        """Read the rows of a data set and match their labels to the classes of its teacher."""
        say = self.display.say
        teacher = self._load_teacher(data)
        tables = open_tables(data, teacher, say)
        task, matched = choose_task(data, tables, teacher, say)
        if matched:
            say(f"{data.name}: {matched}" if len(self.recipe.data) > 1 else matched)
        task = with_masks(task, data)
        refuse_windows(data, task, tables["train"])
        splits = store_splits(tables, task, say, cut_in_windows(data, task))
        if data.train is None:
            no_rows = replace(splits["dev"].take(np.arange(0)), source=", ".join(data.pools))
            splits = {**splits, "train": no_rows}
        leaked = [] if cut_in_windows(data, task) else find_leaks(splits, task, say)
        splits = add_unlabelled(splits, data, tables["train"], task, teacher, say)
        for name, examples in splits.items():
            check_labels(examples, name, say)
        task = with_positive(task, data.positive, splits["train"].labelled_only)
        return ReadRows(task, splits, leaked, teacher)

    def _finish(self, data: Data, rows: ReadRows, student: Student | None) -> DataSet:
        """Tokenise the rows, and check the teacher."""
        task, splits, loaded_teacher = rows.task, rows.splits, rows.loaded_teacher
        readers = [model for model in (loaded_teacher, student) if model]
        length = min(self.recipe.length, *(longest_input(model.model, model.tokenizer) for model in readers))
        if cut_in_windows(data, task):
            cut = partial(ranks.first_before_others(in_windows), pairs=task.follows)
            splits = {name: cut(examples, readers[0].tokenizer, length) for name, examples in splits.items()}
            rows = rows._replace(splits=splits, leaked=find_leaks(splits, task, self.display.say))
        tokenise_splits(splits, task, readers[0], length, self.display, cut_in_windows(data, task))
        teacher, answered = make_teacher(self.recipe, loaded_teacher, splits, task, length, self.device)
        weights = class_weights(data, task, splits["train"])
        tests = {name: splits[name] for name in data.test}
        train, dev = splits["train"], splits["dev"]
        prepared = DataSet(
            data.name, task, train, dev, tests, teacher, loaded_teacher, weights, length, answered, rows.leaked
        )
        if prepared.predicting_teacher and not self.recipe.force:
            check_teacher(prepared, self.display.say)
        return prepared

    def _load_teacher(self, data: Data) -> Student | None:
        if not data.teacher:
            return None
        head, key = encoder_head(data), teacher_key(data)
        if key not in self._teachers:
            labels = () if head else None  # then it may be without that head
            devices = self.recipe.teacher_devices
            self._teachers[key] = load_student(data.teacher, labels, head=head, devices=devices)
        teacher = self._teachers[key]
        if data.language and not knows_language(teacher.tokenizer, data.language):
            problem = f"{data.teacher} has no token >>{data.language}<< and would read it as part of every text"
            if not self.recipe.force:
                trained = f"a teacher that was trained with language = '{data.language}'"
                raise InputError(f"{problem}; give {trained}, omit language, or write --force")
            self.display.say(f"{problem}; it is used because of --force")
        return teacher


def encoder_head(data: Data) -> str | None:
    """The head that a teacher gets for a task whose texts are their own labels: it may be any encoder, of which methods ask
    states alone. None: it must have the head of its task."""
    kind = TASKS[data.task] if data.task else None
    return kind.head if kind is not None and kind.own_targets and not kind.generates else None


def teacher_key(data: Data) -> str:
    return f"{data.teacher} {encoder_head(data) or ''}"


class ReadRows(NamedTuple):
    """The rows of a data set before they are tokenised."""

    task: Task
    splits: Splits
    leaked: list[dict[str, object]]
    loaded_teacher: Student | None


def choose_task(data: Data, tables: Tables, teacher: Student | None, say: Say) -> tuple[Task, str]:
    """The task, and how labels were matched to classes ("" where there was nothing to match)."""
    train = tables["train"]
    labels = labels_of(train, data.task)
    config = teacher.model.config if teacher else None
    names = data.labels or (list(train.answer_labels) if train.answer_labels and not teacher else None)
    row_shape = (train.form, train.choices, train.shape)
    task, matched = make_task(data.task, config, labels, names, train.source, *row_shape, label_map=data.label_map)
    if teacher and train.answers:
        say(f"{train.source}: the answers in its rows are not used, since a teacher model is given")
    return task, matched if labels or teacher else ""


def store_splits(tables: Tables, task: Task, say: Say, documents: bool = False) -> Splits:
    """Store the rows in the cache. Without a dev file, a tenth of train is held out; of whole `documents`, if asked."""
    save = ranks.first_before_others(store)
    splits = {
        name: save(table, task if name == "train" else task.with_spellings_of(labels_of(table, task.name)))
        for name, table in tables.items()
    }
    if "dev" in splits:
        return splits
    train, dev = split_off_dev(splits.pop("train"), task, documents)
    drawn = "whole documents" if documents else "drawn from each class, whose texts do not occur in train any more"
    held_out = f"a tenth of {train.source} is held out as dev ({len(dev)} rows, {drawn})"
    say(f"no dev file: {held_out}; give your own with --dev")
    return {"train": train, "dev": dev, **splits}


def find_leaks(splits: Splits, task: Task, say: Say) -> list[dict[str, object]]:
    """Texts of dev or test that occur in an earlier split as well."""
    leaked = leaks(splits["train"], {name: splits[name] for name in splits if name != "train"}, task)
    for leak in leaked:
        rows = f"{leak['rows']} of {leak['of']} rows of {leak['split']} are also in {leak['also_in']}"
        say(f"warning: {rows} (the same text); scores on them say little about new texts")
    return leaked


def add_unlabelled(splits: Splits, data: Data, train: Table, task: Task, teacher: Student | None, say: Say) -> Splits:
    if not data.pools:
        return splits
    if teacher is None:
        instead = "give its model with --teacher, or omit --unlabelled"
        raise InputError(f"{', '.join(data.pools)}: texts without labels need a teacher; {instead}")
    add = ranks.first_before_others(with_unlabelled)
    held_out = {name: examples for name, examples in splits.items() if name != "train"}
    pool = Pool(data.pools, train, data.sentences)
    return {**splits, "train": add(splits["train"], pool, task, held_out, say)}


def check_labels(examples: Examples, split: str, say: Say) -> None:
    """Report rows without a label; refuse a split for scoring that has no label at all."""
    missing = len(examples) - len(examples.labelled_only)
    if missing == len(examples) and split != "train":
        problem = f"no row has a label, so {split} cannot be scored"
        raise InputError(f"{examples.source}: {problem}; give labelled rows, or omit the file")
    if missing:
        effect = "; only the teacher teaches them" if split == "train" else " and are not scored"
        say(f"{examples.source}: {missing} of {len(examples)} rows have no label{effect}")


def class_weights(data: Data, task: Task, train: Examples) -> Tensor | None:
    """(classes,) with a mean of one over the training rows."""
    labelled = train.labelled_only
    if data.class_weights is None or not len(labelled):
        return None
    if task.outcome != "class" or not task.names_outputs:
        raise InputError("class_weights need rows or words with one class each; omit them for this task")
    golds = [np.ravel(gold) for row in labelled.index if (gold := train.gold(row)) is not None]
    targets = np.concatenate(golds).astype(int)
    counts = np.bincount(targets, minlength=task.classes)
    weights = 1.0 / np.maximum(counts, 1) if data.class_weights == "balanced" else np.array(data.class_weights, float)
    if len(weights) != task.classes:
        problem = f"class_weights has {len(weights)} weights for {task.classes} classes"
        raise InputError(f"{problem}; write one for each of {', '.join(task.labels)}")
    return torch.tensor(weights * len(targets) / max(float(weights[targets].sum()), 1e-12), dtype=torch.float32)


def tokenise_splits(
    splits: Splits, task: Task, reader: Student, length: int, display: Display, windows: bool = False
) -> None:
    """Tokenise every split into the cache, and report the texts that were cut, and how full the `windows` of train are."""
    cut = {}
    for name, examples in splits.items():
        with display.bar(f"tokenising {examples.source}", examples.meta["rows"]) as bar:
            tokens = ranks.first_before_others(tokenise)(task, examples, reader.tokenizer, length, bar.advance)
            cut[name] = tokens.shortened
        if windows and name == "train" and len(examples):
            mean = tokens.offsets[-1] / (len(tokens.offsets) - 1)
            display.say(
                f"{examples.source}: {len(examples):,} windows of {mean:.0f} tokens on average, {length} at most"
            )
    if any(cut.values()):
        counts = ", ".join(f"{count} of {name}" for name, count in cut.items() if count)
        display.say(f"texts longer than {length} tokens were cut: {counts}; --set length=N reads more of them")


def check_teacher(data: DataSet, say: Say) -> None:
    """Compare the teacher's predictions with the labels of some dev rows, and of train rows where dev has too few."""
    examples = rows_to_check(data)
    if not len(examples):
        return
    results = [_labels_and_predictions(data, examples, "dev")]
    verdict = judge(data.task, results)
    if verdict.kind == "unsure" and len(more := _sample(data, data.train.labelled_only, len(examples))):
        results.append(_labels_and_predictions(data, more, "train"))
        verdict = judge(data.task, results)
    if (reason := near_chance(verdict)) is not None:
        raise InputError(f"{examples.source}: {reason}")
    if verdict.kind == "unsure":
        say(f"{examples.source}: too few rows to tell whether the teacher knows the task ({verdict}); it is used")


def rows_to_check(data: DataSet) -> Examples:
    """Labelled rows of dev, or of train where dev has none. A large file is sampled, since it may be sorted."""
    return _sample(data, data.dev.labelled_only if len(data.dev.labelled_only) else data.train.labelled_only, 0)


def _sample(data: DataSet, examples: Examples, already_checked: int) -> Examples:
    most = CHECKED_TEXTS if data.task.vocabulary else CHECKED_ROWS
    rows = np.random.default_rng(mix("chance")).permutation(len(examples))[: max(0, most - already_checked)]
    return examples.take(np.sort(rows))


def _labels_and_predictions(data: DataSet, examples: Examples, split: str) -> tuple[np.ndarray, np.ndarray]:
    assert data.loaded_teacher is not None
    source = data.tokenised(examples, data.loaded_teacher.tokenizer, split)
    if data.task.vocabulary:  # its predictions of tokens are enough; decoding would take longer
        return data.task.golds(examples), answers(logits_of(data.loaded_teacher.model), source)
    return data.task.golds(examples), teacher_predictions(data, source)
