"""What the builders of networks for images share: they begin from a task of images, or take the place of such a network."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from potstill.api import (
    BuildContext,
    Builder,
    DataTask,
    Field,
    InputError,
    Student,
    Texts,
    classify_images,
    networks,
    pixel_reader,
    transformers,
)

Dropout = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class ImageBuilder(Builder):
    """A new network with random weights from the recipe's seed. It needs no model to begin from."""

    task_heads = ("ImageClassification",)
    random_weights = True
    name: ClassVar[str]  # for messages; its network is "potstill-NAME"

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields of the config that this builder sets."""

    def begin(self, task: DataTask, seed: int, texts: Texts | None = None) -> Student:
        if not isinstance(task, classify_images.ImageTask):
            raise InputError(
                f"{self.name}: reads images, but the rows are texts; write another student, such as 'keep_layers:3'"
            )
        return self._student(task.shape, dict(enumerate(task.labels)), task.problem, seed)

    def build(self, current: Student, context: BuildContext) -> Student:
        if not isinstance(current.tokenizer, pixel_reader.PixelReader):
            raise InputError(
                f"{self.name}: reads images, but the model before it reads texts; write another student, such as 'fresh:4'"
            )
        before: Any = current.model.config
        return self._student(current.tokenizer.shape, dict(before.id2label), before.problem_type, context.seed)

    def _student(self, shape: tuple[int, int, int], labels: dict[int, str], problem: str | None, seed: int) -> Student:
        channels, *size = shape
        config = transformers.AutoConfig.for_model(
            f"potstill-{self.name}",
            **self.fields(),
            image_size=size,
            num_channels=channels,
            id2label=labels,
            label2id={label: number for number, label in labels.items()},
            problem_type=problem,
        )
        return Student(networks.new_model(config, "ImageClassification", seed), pixel_reader.PixelReader(shape))
