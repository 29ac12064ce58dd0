"""A new network of fully connected layers for images, such as 784-800-800-10 (Hinton et al., 2015, arXiv:1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from potstill.api import (
    BuildContext,
    Builder,
    DataTask,
    Field,
    InputError,
    Student,
    Texts,
    Width,
    classify_images,
    networks,
    pixel_reader,
    transformers,
)

Dropout = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Mlp(Builder):
    """A multi-layer perceptron with rectified linear units. It needs no model to begin from.

    hidden: units of each hidden layer.
    dropout: of hidden units.
    input_dropout: of pixels.
    """

    task_heads = ("ImageClassification",)
    random_weights = True

    hidden: Annotated[list[Width], Field(min_length=1, max_length=64)] = field(default_factory=lambda: [800, 800])
    dropout: Dropout = 0.0
    input_dropout: Dropout = 0.0

    def begin(self, task: DataTask, seed: int, texts: Texts | None = None) -> Student:
        if not isinstance(task, classify_images.ImageTask):
            raise InputError(
                "mlp: reads images, but the rows are texts; write another student, such as 'keep_layers:3'"
            )
        return self._student(task.shape, dict(enumerate(task.labels)), task.problem, seed)

    def build(self, current: Student, context: BuildContext) -> Student:
        if not isinstance(current.tokenizer, pixel_reader.PixelReader):
            raise InputError(
                "mlp: reads images, but the model before it reads texts; write another student, such as 'fresh:4'"
            )
        before: Any = current.model.config
        return self._student(current.tokenizer.shape, dict(before.id2label), before.problem_type, context.seed)

    def _student(self, shape: tuple[int, int, int], labels: dict[int, str], problem: str | None, seed: int) -> Student:
        channels, *size = shape
        config = transformers.AutoConfig.for_model(
            "potstill-mlp",
            hidden_sizes=list(self.hidden),
            image_size=size,
            num_channels=channels,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            id2label=labels,
            label2id={label: number for number, label in labels.items()},
            problem_type=problem,
        )
        return Student(networks.new_model(config, "ImageClassification", seed), pixel_reader.PixelReader(shape))
