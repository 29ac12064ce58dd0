"""A teacher, rows and a student that fit together, small enough to train in a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet, epoch_order, step_batches
from potstill.data.examples import Examples, store
from potstill.data.rows import open_table
from potstill.data.tokens import tokenise
from potstill.models.anatomy import layer_count
from potstill.models.builder import BuildContext
from potstill.models.student import Student
from potstill.recipe import plugins, short_forms
from potstill.recipe.schema import Stage
from potstill.tasks.label_matching import labels_of, make_task
from potstill.tasks.task import Task
from potstill.training import checkpoints
from potstill.training.gradients import gradients
from potstill.training.loop import train
from potstill.training.method import Method
from potstill.training.setup import Projections, Training, make_projections, teacher_layers
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Teacher
from tests.support.small_models import GENERATED, KINDS, small_teacher, write_task

CPU = torch.device("cpu")
METHODS = plugins.names("methods")
TASKS = KINDS
OUTCOMES = {task: "span" if task == "answer" else "class" for task in TASKS}
TOP = "soft_targets, top 3"  # more than a classifier has here, fewer than a tagger
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {TOP: ("soft_targets", {"top": 3, "smoothing": 0.1})}


def method_of(name: str) -> Method:
    """A method by its file's name, with its own values; or one of the variants."""
    made: Method = plugins.make("methods", *VARIANTS.get(name, (name, {})))
    return made


def fits(method: str, task: str) -> bool:
    """What does not is refused: see test_what_does_not_fit_is_refused."""
    if method == TOP and task in ("answer", "choose"):  # whose classes are tokens or candidates
        return False
    _, theirs = method_of(method).wants(4, 4)
    if theirs.cls and task in GENERATED:  # no token stands for the whole text
        return False
    if theirs.per_token and task == "translate":  # two stacks, and states of two texts
        return False
    return OUTCOMES[task] in getattr(method_of(method), "outcomes", OUTCOMES.values())


def of_logits(method: str) -> bool:
    """Whether a student without layers can be taught by it."""
    ours, theirs = method_of(method).wants(4, 4)
    return not any(wants.cls or wants.per_token for wants in (ours, theirs))


CASES = [(method, task) for task in TASKS for method in (*METHODS, *VARIANTS) if fits(method, task)]


@dataclass
class World:
    """The pieces of one small distillation."""

    teacher: Student
    student: Student
    task: Task
    examples: Examples
    folder: Path
    precision: str = "float32"

    def source(self, examples: Examples | None = None) -> TokenisedSet:
        examples = self.examples if examples is None else examples
        ours = tokenise(self.task, examples, self.student.tokenizer, 64)
        return TokenisedSet(self.task, examples, ours, tokenise(self.task, examples, self.teacher.tokenizer, 64))

    def remembering(self, name: str = "memory") -> Teacher:
        return Teacher(self.teacher.model, Memory(self.folder / name), CPU)

    def live(self) -> Teacher:
        return Teacher(self.teacher.model, None, CPU)

    def training(
        self, method: Method | str, teacher: Teacher, source: TokenisedSet | None = None, **stage: Any
    ) -> Training:
        method = method_of(method) if isinstance(method, str) else method
        source = source or self.source()
        _, asked = method.wants(layer_count(self.student.model), teacher_layers(teacher, self.student.model))
        teacher.remember(source, asked)
        settings = Stage(**{"batch": 8, "epochs": 1.0, **stage})
        return Training(
            [self.student.model],
            [teacher],
            [source],
            method,
            settings,
            0,
            0,
            self.folder / "stage",
            Accelerator(cpu=True),
            lambda: {"dev": 0.0},
            precision=self.precision,
        )


def make_world(
    folder: Path,
    layers: int = 2,
    width: int | None = None,
    rows: int = 48,
    architecture: str = "bert",
    task: str = "classify",
    over_words: dict[str, Any] | None = None,
) -> World:
    """`width` other than the teacher's 32 makes projections necessary. `over_words`: a student without layers, {"build": NAME, …}."""
    table = open_table(write_task(folder / "train", task, rows, seed=1))
    teacher = small_teacher(task, architecture, seed=3)
    made, _ = make_task(None, teacher.model.config, labels_of(table), None, "train", table.form, table.choices)
    examples = store(table, made)
    context = BuildContext(teacher, 0, lambda: (text for text, _ in examples.texts()), bool(examples.meta["pairs"]))
    builder: dict[str, Any] = {"build": "keep_layers", "layers": layers}
    if width is not None:
        builder |= {"build": "fresh", "width": width, "heads": 4}
        if task == "translate":
            stacks = {"encoder_layers": layers, "decoder_layers": layers}
            builder = {"build": "marian", "width": width, "heads": 4, **stacks}
    student = short_forms.make_plugin("students", over_words or builder).build(teacher, context)
    return World(teacher, student, made, examples, folder)


def loss_and_norm(
    training: Training, step: Any = None, seed_step: int = 0, precise: bool = False, epoch: int = 0
) -> tuple[float, float]:
    """Of one optimiser step, without taking it: two ways to say one thing must agree in both.

    `precise`: student and live teacher in float64, so that sums of another order differ by next to nothing.
    """
    for teacher in training.teachers:
        if teacher.model is not None:
            teacher.model.to(torch.float64 if precise else torch.float32)
    for model in training.models:
        model.train().to(torch.float64 if precise else torch.float32)
        model.zero_grad(set_to_none=True)
    lengths = training.sources[0].lengths
    if step is None:
        step = epoch_order(lengths, training.stage.batch, 0, "test")[0]
    projections = make_projections(training).to(torch.float64 if precise else torch.float32)
    terms = gradients(
        training,
        projections,
        step_batches(
            training.sources,
            step,
            lengths,
            torch.zeros(1, dtype=torch.long).numpy(),
            training.stage.tokens,
            epoch=epoch,
        ),
        seed_step,
    )
    return sum(terms.values()), norm_of(training.models[0], projections)


def norm_of(model: PreTrainedModel, projections: Projections) -> float:
    every = [p.grad for p in [*model.parameters(), *projections.parameters()] if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in every])))


def stopped_and_resumed(
    make: Callable[[Path], World],
    folder: Path,
    method: Method | str,
    stops: Sequence[int] = (3, 7),
    source: Callable[[World], TokenisedSet] = World.source,
    **stage: Any,
) -> tuple[float, bool]:
    """The largest difference of a weight or a step's loss between a whole run and runs that were stopped after these steps
    and went on from the checkpoint; and whether training changed anything. Gradients of a step are summed over micro-batches.
    """
    (folder / "whole").mkdir()
    world = make(folder / "whole")
    start = {name: tensor.clone() for name, tensor in world.student.model.state_dict().items()}
    options = {"epochs": 2.0, "tokens": 60, "keep": "last", **stage}
    whole = list(train(world.training(method, world.remembering(), source(world), **options)))
    expected = {name: tensor.clone() for name, tensor in world.student.model.state_dict().items()}
    difference = 0.0
    for stop in stops:
        world.student.model.load_state_dict(start)
        world.folder = folder / f"stopped{stop}"
        world.folder.mkdir()
        training = world.training(method, world.remembering(), source(world), **options)
        object.__setattr__(training, "save_every", 1)
        running = train(training)
        told = [next(running) for _ in range(stop + 1)]  # the step after the save of `stop`
        running.close()
        for tensor in world.student.model.state_dict().values():
            tensor.zero_()
        resume = checkpoints.newest(training.folder / "checkpoints")
        assert resume is not None and resume.step == stop
        told = told[:stop] + list(train(training, resume))
        assert len(told) == len(whole)
        difference = max(difference, *(abs(a.loss - b.loss) for a, b in zip(told, whole, strict=True)))
        for name, tensor in world.student.model.state_dict().items():
            difference = max(difference, float((tensor.double() - expected[name].double()).abs().max()))
    return difference, any(not torch.equal(start[name], expected[name]) for name in start)
