"""What the teacher writes by beam search in place of the references: sequence-level distillation (arXiv:1606.07947)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import xxhash

from potstill.api import (
    Count,
    Examples,
    InputError,
    MakeContext,
    Missing,
    Student,
    TeacherDataMaker,
    black_boxes,
    ctranslate2,
    decoding,
    derived,
    files,
    fingerprints,
    interrupts,
    key_of,
    paths,
    ranks,
    teacher_texts,
    text_metrics,
    tokens,
)

FORMAT = 2  # of the stored texts


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

    block: ClassVar[int] = 512  # a kill loses at most this many decoded texts

    beam: Count = 5
    best: Count | None = None
    closest: bool = False
    engine: Literal["auto", "ctranslate2", "transformers"] = "auto"
    command: str | None = None
    function: str | None = None

    def make(self, examples: Examples, context: MakeContext) -> Examples:
        outputs, keys = self._outputs(examples, context)
        self._decode_missing(outputs, examples, keys, context)
        decides = [outputs.folder.name, self._kept, self.closest]
        rows = partial(self._rows, examples, keys, outputs)
        work = partial(derived.replace_targets, examples, decides, rows, context.task)
        written = ranks.first_before_others(work)()
        if len(written) and not len(written.labelled_only):
            raise InputError(
                f"data.teacher_outputs: no text of the teacher ends within {context.longest} tokens; write a larger `length`, "
                "or give a teacher that was trained to end its texts"
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
                "data.teacher_outputs: some rows have no prompt, such as running text, and all of them would get the same "
                "continuation; omit it, and use method 'soft_targets'"
            )
        return teacher_texts.TeacherTexts(paths.outputs() / self._fingerprint(context)), keys

    def _check(self, context: MakeContext) -> None:
        if context.task is not None and context.task.form not in ("translation", "writing"):
            raise InputError(
                f"data maker 'teacher_outputs' is for tasks that generate texts, not for task '{context.task.name}'; "
                "omit it from the stage's data"
            )
        if self.command is not None and self.function is not None:
            raise InputError("data.teacher_outputs: it has a command and a function; write only one of them")
        if self._kept > self.beam:
            raise InputError(f"data.teacher_outputs: best = {self._kept} of a beam of {self.beam}; write a wider beam")
        if context.teacher is None and not self.black_box:
            raise InputError(
                "data.teacher_outputs: there is no teacher that could write; name one, or a command or a function"
            )

    def _fingerprint(self, context: MakeContext) -> str:
        """Return a hash of all that the texts depend on. The engine is not part of it: both write the same."""
        if self.black_box:
            parts: list[object] = [black_boxes.black_box_identity(self.command, self.function)]
        else:
            model, tokenizer = _teacher(context).model, _teacher(context).tokenizer
            parts = [
                fingerprints.fingerprint(model, tokens.tokenizer_fingerprint(tokenizer), context.longest),
                self.beam,
            ]
            parts += [ctranslate2.special_tokens(model, tokenizer)._asdict()]
        return xxhash.xxh3_128_hexdigest(json.dumps([FORMAT, *parts]).encode())

    def _decode_missing(
        self, outputs: teacher_texts.TeacherTexts, examples: Examples, keys: np.ndarray, context: MakeContext
    ) -> None:
        """Decode missing sources block by block. All hypotheses of the beam are stored, so that Seq-Inter needs no decoding."""
        share, rank = ranks.count(), ranks.number()

        @ranks.on_first
        def missing() -> tuple[np.ndarray, list[int]]:
            outputs.refresh()
            outputs.clean()
            positions = outputs.missing(keys)
            return positions, outputs.free_numbers(-(-len(positions) // self.block))

        # the first rank holds the lock until all have written: another run that wants the same texts waits for them
        with files.folder_lock(outputs.folder) if rank == 0 else nullcontext():
            positions, numbers = missing()
            if len(positions):
                with self.decoder(context) as decode, context.bar("the teacher writes", len(positions)) as advance:
                    for place in range(rank, len(numbers), share):
                        rows = positions[place * self.block : (place + 1) * self.block]
                        texts = [examples.text(row)[0] for row in examples.index[rows]]
                        outputs.write(numbers[place], keys[rows], decode(texts, self.beam, self.beam))
                        advance(len(rows))
                        interrupts.stop_if_asked()  # the blocks so far are stored
            ranks.wait()
        outputs.refresh()

    def _rows(
        self, examples: Examples, keys: np.ndarray, outputs: teacher_texts.TeacherTexts
    ) -> Iterator[tuple[str, str, int]]:
        for origin, (text, reference) in enumerate(examples.texts()):
            # a text that was cut off would teach the student to end in the middle of a sentence
            hypotheses = [each for each in outputs.read(int(keys[origin])) if each.finished][: self._kept]
            if self.closest and reference and hypotheses:
                hypotheses = [hypotheses[text_metrics.closest(reference, [each[:2] for each in hypotheses])]]
            elif self.closest:
                hypotheses = hypotheses[:1]
            for target in [hypothesis.text for hypothesis in hypotheses] or [""]:  # "": a row without a target
                yield text, target, origin


def _teacher(context: MakeContext) -> Student:
    assert isinstance(context.teacher, Student)
    return context.teacher
