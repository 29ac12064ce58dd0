"""What the training of a stage starts from: models, teachers, data, method and settings; and the network it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import TargetScale, TokenisedSet
from potstill.models.anatomy import chosen_parameters, layer_count, width, without_effect
from potstill.recipe.schema import Stage
from potstill.signals import Wants
from potstill.system.randomness import mix, seeded
from potstill.training.method import Method
from potstill.training.teacher.teacher import Teacher


class Scores(Protocol):
    """What measures the models on dev."""

    def __call__(self) -> dict[str, float]: ...

    @property
    def has_rows(self) -> bool:
        """Whether `loss` has rows to compare by."""

    def remember(self) -> None:
        """Ask the teachers for the rows that are compared with their answers. Every rank must call it, before the first score."""

    def loss(self) -> float:
        """What compares learning rates, lower is better."""


@dataclass(frozen=True)
class Training:
    """Everything that decides the training of one stage."""

    models: list[PreTrainedModel]  # one per data set; all share the encoder of the first
    teachers: list[Teacher]
    sources: list[TokenisedSet]
    method: Method
    stage: Stage
    seed: int
    number: int  # of the round, over all stages
    folder: Path  # checkpoints and the best weights
    accelerator: Accelerator
    score: Scores  # on dev; the first value chooses the best epoch, higher is better
    save_every: int = 200
    to_pass: tuple[
        tuple[str, float], ...
    ] = ()  # for each data set: a dev score, and above which its teacher is dropped
    repetition: int = 1  # of the stage
    precision: str = "float32"  # of matrix products
    patient_on: str | None = None  # the score by which `patience` counts, lower is better; None: the first one
    scored_within: bool = True  # on dev, and not only after the last step

    @property
    def keeps_step(self) -> int | None:
        """The step whose weights later rounds of the stage need, as their builders rewind to it."""
        # the first stage keeps it always: its first round is then one result, however many rounds follow
        later = self.stage.repeat > 1 or self.number == 0
        return self.stage.rewind if self.repetition == 1 and later else None

    @property
    def target_scales(self) -> list[TargetScale | None]:
        return [source.target_scale for source in self.sources]

    @property
    def steps(self) -> tuple[int, int]:
        """Optimizer steps of one epoch, and of the whole stage."""
        return self.stage.steps(self.rows)

    @property
    def rows(self) -> int:
        return sum(len(source.examples) for source in self.sources)

    @property
    def epochs(self) -> float:
        return self.stage.epochs_over(self.rows)

    @property
    def score_every(self) -> int:
        """After how many steps dev is scored."""
        return self.stage.score_every(self.rows) if self.scored_within else self.steps[1]

    def wants(self, data: int) -> tuple[Wants, Wants]:
        """What the method asks of the student and of the teacher of a data set."""
        model, teacher = self.models[data], self.teachers[data]
        return self.method.wants(layer_count(model), teacher_layers(teacher, model))


class Projections(nn.Module):
    """Learned projections from the width of the student to the width of the teacher, one per signal and layer.

    They belong to the training: checkpoints hold them, a saved student does not. Equal widths need none.
    """

    def __init__(self, wants: Wants, student_width: int, teacher_width: int, seed: int) -> None:
        super().__init__()
        self.across = nn.ModuleDict()
        if student_width != teacher_width:
            with seeded(seed):
                for name, layers in (("cls", wants.cls), ("hidden", wants.hidden)):
                    for layer in layers:
                        self.across[f"{name}_{layer}"] = nn.Linear(student_width, teacher_width, bias=False)

    def forward(self, name: str, layer: int, states: Tensor) -> Tensor:
        key = f"{name}_{layer}"
        projected: Tensor = self.across[key](states) if key in self.across else states
        return projected


@contextmanager
def trained_network(training: Training) -> Iterator[tuple[nn.ModuleList, Projections]]:
    """All modules that the stage trains, on its device, and the projections among them.

    Within it, parameters that the stage does not train are frozen, and so are those without an effect on the output.
    """
    projections = make_projections(training)
    network = nn.ModuleList([*training.models, projections]).to(training.accelerator.device)
    trained = {id(parameter) for parameter in chosen_by_stage(training)}
    # where scores or keys are compared, the biases of keys have an effect
    compared = [bool(training.wants(data)[0].projections) for data in range(len(training.models))]
    plain = (model for model, layers in zip(training.models, compared, strict=True) if not layers)
    trained -= {id(parameter) for parameter in without_effect(plain)}
    parameters = (parameter for model in training.models for parameter in model.parameters())
    frozen = [each for each in dict.fromkeys(parameters) if each.requires_grad and id(each) not in trained]
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield network, projections
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def chosen_by_stage(training: Training) -> list[nn.Parameter]:
    """The parameters that `trains` selects."""
    wanted = training.stage.trains
    if wanted == "all":
        return [parameter for model in training.models for parameter in model.parameters()]
    parts = ["head"] if wanted == "head" else [training.repetition if part == "round" else part for part in wanted]
    return [model.get_parameter(name) for model in training.models for name in chosen_parameters(model, parts)]


def make_projections(training: Training) -> Projections:
    model, teacher = training.models[0], training.teachers[0]
    student_wants, _ = training.wants(0)
    teacher_width = width(teacher.model if teacher.model is not None else model)
    return Projections(student_wants, width(model), teacher_width, mix(training.seed, training.number, "bridges"))


def teacher_layers(teacher: Teacher, model: PreTrainedModel) -> int:
    """The number of layers of the teacher. A file of answers has none, but then methods ask for logits alone."""
    return layer_count(teacher.model) if teacher.model is not None else layer_count(model)
