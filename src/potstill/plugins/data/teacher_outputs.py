"""What the teacher writes by beam search in place of the references: sequence-level distillation (arXiv:1606.07947)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np

from potstill.api import (
    Count,
    Examples,
    InputError,
    MakeContext,
    Missing,
    Student,
    TeacherDataMaker,
    black_boxes,
    decoding,
    derived,
    key_of,
    teacher_texts,
    text_metrics,
)


@dataclass(frozen=True)
class TeacherOutputs(TeacherDataMaker):
    """Seq-KD: y = the teacher's best hypothesis. Seq-Inter (`closest`): y = argmax over the `best` hypotheses of the smoothed
    sentence BLEU against the reference; of equals, the most probable.

    Without `closest`, a source occurs once with each of its `best` hypotheses. Dev and test keep their references.

    beam: width of the beam.
    best: hypotheses of a source. None: all of the beam with `closest`, otherwise 1.
    engine: "auto" is CTranslate2 if it can run the model.
    command: a program that reads a text per line and writes one per line, instead of the teacher.
    function: module:name of a function from a list of texts to as many, instead of the teacher.
    """

    block = 512  # a kill loses at most this many decoded texts

    beam: Count = 5
    best: Count | None = None
    closest: bool = False
    engine: Literal["auto", "ctranslate2", "transformers"] = "auto"
    command: str | None = None
    function: str | None = None

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        outputs, keys = self._outputs(examples, context)
        # all hypotheses of the beam are stored, so that Seq-Inter needs no decoding of its own
        with outputs.missing_blocks(keys, self.block) as blocks:
            if blocks:
                total = sum(len(rows) for _, rows in blocks)
                with self.decoder(context) as decode, context.bar("the teacher writes", total) as advance:
                    for number, rows in blocks:
                        texts = [examples.text(row)[0] for row in examples.index[rows]]
                        outputs.write(number, keys[rows], decode(texts, self.beam, self.beam))
                        advance(len(rows))

        def rows_of_teacher() -> Iterator[tuple[str, str, int]]:
            for origin, (text, reference) in enumerate(examples.texts()):
                # a text that was cut off would teach the student to end in the middle of a sentence
                hypotheses = [each for each in outputs.read(int(keys[origin])) if each.finished][: self._kept]
                if self.closest and hypotheses:
                    best = text_metrics.closest(reference, [each[:2] for each in hypotheses]) if reference else 0
                    hypotheses = [hypotheses[best]]
                for target in [each.text for each in hypotheses] or [""]:  # "": a row without a target
                    yield text, target, origin

        identity = [outputs.folder.name, self._kept, self.closest]
        written = derived.replace_targets(examples, identity, rows_of_teacher, context.task)
        if len(written) and not len(written.labelled_only):
            raise InputError(
                f"data.teacher_outputs: no text of the teacher ends within {context.longest} tokens; write a larger "
                "`length`, or give a teacher that was trained to end its texts"
            )
        return written

    def missing(self, examples: Examples, context: MakeContext) -> Missing:
        outputs, keys = self._outputs(examples, context)
        outputs.refresh()
        return Missing(outputs.folder, keys, outputs.missing(keys))

    def stand_in(self, examples: Examples, context: MakeContext) -> Examples:
        """Return the references, or the sources where there is none, as often as there will be hypotheses."""
        times = 1 if self.closest else self._kept
        if times == 1 and len(examples.labelled_only) == len(examples):
            return examples

        def rows() -> Iterator[tuple[str, str, int]]:
            for origin, (text, reference) in enumerate(examples.texts()):
                yield from [(text, reference or text, origin)] * times

        return derived.replace_targets(examples, ["imagined", times], rows, context.task)

    @property
    def black_box(self) -> bool:
        return self.command is not None or self.function is not None

    def decoder(self, context: MakeContext) -> AbstractContextManager[decoding.Decoder]:
        if self.command is not None:
            return nullcontext(black_boxes.command_decoder(self.command))
        if self.function is not None:
            return nullcontext(black_boxes.function_decoder(self.function))
        return decoding.decoder(_teacher(context), self.engine, context.longest)

    @property
    def _kept(self) -> int:
        """How many hypotheses of a source are used."""
        return self.best or (self.beam if self.closest else 1)

    def _outputs(self, examples: Examples, context: MakeContext) -> tuple[teacher_texts.TeacherTexts, np.ndarray]:
        """Return the stored texts and the key of each example's source."""
        self._check(context)
        keys = np.fromiter((key_of(text, None) for text, _ in examples.texts()), np.int64, len(examples))
        if context.task is not None and context.task.form == "writing" and key_of("", None) in keys:
            raise InputError(
                "data.teacher_outputs: some rows have no prompt, such as running text, and would all get the same "
                "continuation; omit it, and use method 'soft_targets'"
            )
        if self.black_box:
            return teacher_texts.stored_texts([black_boxes.black_box_identity(self.command, self.function)]), keys
        identity = decoding.search_identity(_teacher(context), self.beam, context.longest)
        return teacher_texts.stored_texts(identity), keys

    def _check(self, context: MakeContext) -> None:
        if context.task is not None and not context.task.generates:
            raise InputError(
                f"data.teacher_outputs is for tasks that generate texts, not for task '{context.task.name}'; omit it"
            )
        if self.command is not None and self.function is not None:
            raise InputError("data.teacher_outputs: it has a command and a function; write only one of them")
        if self._kept > self.beam:
            raise InputError(f"data.teacher_outputs: best = {self._kept} of a beam of {self.beam}; write a wider beam")
        if context.teacher is None and not self.black_box:
            raise InputError("data.teacher_outputs: no teacher can write; name one, or a command or a function")


def _teacher(context: MakeContext) -> Student:
    assert isinstance(context.teacher, Student)
    return context.teacher
