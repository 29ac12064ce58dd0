"""A new network of fully connected layers for images, such as 784-800-800-10 (Hinton, Vinyals and Dean, 2015, arXiv:1503.02531)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.architectures.mlp import MlpForImageClassification
from potstill.models.architectures.mlp_config import MOST_LAYERS, MlpConfig
from potstill.models.student import Context, Student, new_network
from potstill.recipe.bounds import Width
from potstill.recipe.pace import FROM_RANDOM_WEIGHTS, Pace
from potstill.tasks.classify_images import ImageTask
from potstill.tasks.task import Task

Dropped = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Mlp:
    """`hidden`: rectified linear units of each hidden layer. Needs nothing to begin from."""

    hidden: Annotated[list[Width], Field(min_length=1, max_length=MOST_LAYERS)] = field(
        default_factory=lambda: [800, 800]
    )
    dropout: Dropped = 0.0  # of hidden units
    input_dropout: Dropped = 0.0  # of pixels

    serves: ClassVar[tuple[str, ...]] = ("ImageClassification",)
    pace: ClassVar[Pace] = FROM_RANDOM_WEIGHTS

    def begin(self, task: Task, seed: int, texts: Callable[[], Iterator[str]] | None = None) -> Student:
        """With random weights from `seed`, for images of the task's shape and its classes; `texts` are of no use to it."""
        if not isinstance(task, ImageTask):
            raise InputError(
                "mlp: reads images, but the rows are texts; write another student, such as 'keep_layers:3'"
            )
        return self._made(PixelReader(task.shape), dict(enumerate(task.labels)), task.problem, seed)

    def build(self, current: Student, context: Context) -> Student:
        if not isinstance(current.tokenizer, PixelReader):
            raise InputError(
                "mlp: reads images, but the model before it texts; write another student, such as 'fresh:4'"
            )
        before: Any = current.model.config
        return self._made(
            PixelReader(current.tokenizer.shape), dict(before.id2label), before.problem_type, context.seed
        )

    def _made(self, reader: PixelReader, labels: dict[int, str], problem: Any, seed: int) -> Student:
        channels, *size = reader.shape
        config = MlpConfig(
            hidden_sizes=list(self.hidden),
            image_size=size,
            num_channels=channels,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            id2label=labels,
            label2id={label: number for number, label in labels.items()},
            problem_type=problem,
        )
        model = new_network(lambda: MlpForImageClassification(config), seed)
        model.config.architectures = [type(model).__name__]
        return Student(model.eval(), reader)
