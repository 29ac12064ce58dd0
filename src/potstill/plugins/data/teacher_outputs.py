"""What the teacher writes by beam search in place of the references: sequence-level distillation (arXiv:1606.07947)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import xxhash

from potstill.data.derived import replace_targets
from potstill.data.examples import Examples, key_of
from potstill.data.making import Context
from potstill.data.row import HAS_TARGET
from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.fingerprints import fingerprint
from potstill.models.generation.ctranslate2 import pieces
from potstill.models.generation.decoding import Decoder, decoder
from potstill.recipe.bounds import Count
from potstill.system import interrupts, paths, ranks
from potstill.system.files import locked
from potstill.tasks.metrics.texts import closest
from potstill.training.teacher.black_boxes import by_command, by_function, what_decides
from potstill.training.teacher.texts import Outputs

FORMAT = 2  # of what is remembered
BLOCK = 512  # sources that are decoded and written together: what a kill costs at most


@dataclass(frozen=True)
class TeacherOutputs:
    """Seq-KD: y = the teacher's best hypothesis. Seq-Inter (`closest`): y = argmax over the `best` ones of the smoothed
    sentence BLEU against the reference, among equals the one of the highest probability.

    Without `closest`, a source stands once with each of its `best` hypotheses. Dev and test keep their references.
    """

    asks_teacher: ClassVar[bool] = True

    beam: Count = 5
    best: Count | None = None  # none: all of the beam with `closest`, else 1
    closest: bool = False
    engine: Literal["auto", "ctranslate2", "transformers"] = "auto"
    command: str | None = None  # a program that reads a text per line and writes one per line, instead of the teacher
    function: str | None = None  # module:name, from a list of texts to as many

    def make(self, examples: Examples, context: Context) -> Examples:
        outputs, keys = self._asked(examples, context)
        self._remember(outputs, examples, keys, context)
        chosen, target = [outputs.folder.name, self._kept, self.closest], _target(examples, context)
        work = lambda: replace_targets(examples, chosen, lambda: self._rows(examples, keys, outputs), target)  # noqa: E731
        made = ranks.first_before_others(work)()
        if len(made) and not len(made.labelled_only):
            raise InputError(
                f"data.teacher_outputs: no text that the teacher writes ends within {context.longest} tokens; give a longer "
                "`length`, or a teacher that was trained to end"
            )
        return made

    def unknown(self, examples: Examples, context: Context) -> tuple[Path, np.ndarray, np.ndarray]:
        """Where outputs are kept, (n,) the sources' keys, and the positions of those that are not there, each once."""
        outputs, keys = self._asked(examples, context)
        outputs.refresh()
        return outputs.folder, keys, outputs.missing(keys)

    def imagined(self, examples: Examples, context: Context) -> Examples:
        """As many rows as there will be. Their texts are about as long: the references, and sources where there is none."""
        times = 1 if self.closest else self._kept
        if times == 1 and len(examples.labelled_only) == len(examples):
            return examples

        def rows() -> Iterator[tuple[str, str, int]]:
            for origin, (text, reference) in enumerate(examples.texts()):
                yield from [(text, reference or text, origin)] * times

        return replace_targets(examples, ["imagined", times], rows, _target(examples, context))

    def _asked(self, examples: Examples, context: Context) -> tuple[Outputs, np.ndarray]:
        self._refuse(context)
        keys = np.fromiter((key_of(text, None) for text, _ in examples.texts()), np.int64, len(examples))
        if context.task is not None and context.task.form == "writing" and key_of("", None) in keys:
            raise InputError(
                "data.teacher_outputs: there are rows without a prompt, such as running text, and all would get the same "
                "continuation of nothing; leave it out, and learn by 'soft_targets'"
            )
        return Outputs(paths.outputs() / self._decides(context)), keys

    @property
    def block(self) -> int:
        return BLOCK

    @property
    def _kept(self) -> int:
        return self.best or (self.beam if self.closest else 1)

    def _refuse(self, context: Context) -> None:
        if context.task is not None and context.task.form not in ("translation", "writing"):
            raise InputError(
                f"data maker 'teacher_outputs' is for tasks that write texts, not for task '{context.task.name}'; "
                "leave it out of the stage's data"
            )
        if self.command is not None and self.function is not None:
            raise InputError("data.teacher_outputs: there are a command and a function; write one of them")
        if self._kept > self.beam:
            raise InputError(f"data.teacher_outputs: best = {self._kept} of a beam of {self.beam}; write a wider beam")
        if context.teacher is None and not self.black_box:
            raise InputError(
                "data.teacher_outputs: there is no teacher that could write; name one, or a command or a function"
            )

    @property
    def black_box(self) -> bool:
        return self.command is not None or self.function is not None

    def _decides(self, context: Context) -> str:
        """A hash of whatever the outputs hang on. The engine is not in it: both write the same."""
        if self.black_box:
            what: list[object] = [what_decides(self.command, self.function)]
        else:
            assert context.teacher is not None
            model, tokenizer = context.teacher.model, context.teacher.tokenizer
            what = [fingerprint(model, tokenizer_fingerprint(tokenizer), context.longest), self.beam]
            what += [pieces(model, tokenizer)._asdict()]
        return xxhash.xxh3_128_hexdigest(json.dumps([FORMAT, *what]).encode())

    def decoder(self, context: Context) -> AbstractContextManager[Decoder]:
        if self.command is not None:
            return nullcontext(by_command(self.command))
        if self.function is not None:
            return nullcontext(by_function(self.function))
        assert context.teacher is not None
        return decoder(context.teacher, self.engine, context.longest)

    def _remember(self, outputs: Outputs, examples: Examples, keys: np.ndarray, context: Context) -> None:
        """Decode what is not known yet, block by block; all hypotheses of the beam are kept, so that Seq-Inter asks nobody."""
        share, rank = ranks.count(), ranks.number()

        @ranks.on_first
        def lacking() -> tuple[np.ndarray, list[int]]:
            outputs.refresh()
            outputs.clean()
            unknown = outputs.missing(keys)
            return unknown, outputs.free_numbers(-(-len(unknown) // BLOCK))

        # the first holds the lock until all have written: another run that wants the same waits and finds it
        with locked(outputs.folder) if rank == 0 else nullcontext():
            unknown, numbers = lacking()
            if len(unknown):
                with self.decoder(context) as decode, context.bar("the teacher writes", len(unknown)) as advance:
                    for place in range(rank, len(numbers), share):
                        rows = unknown[place * BLOCK : (place + 1) * BLOCK]
                        texts = [examples.text(row)[0] for row in examples.index[rows]]
                        outputs.write(numbers[place], keys[rows], decode(texts, self.beam, self.beam))
                        advance(len(rows))
                        if asked := interrupts.asked():
                            raise interrupts.Interrupted(asked)  # what is written is kept
            ranks.wait()
        outputs.refresh()

    def _rows(self, examples: Examples, keys: np.ndarray, outputs: Outputs) -> Iterator[tuple[str, str, int]]:
        for origin, (text, reference) in enumerate(examples.texts()):
            # one that was cut off would teach to end in the middle of a sentence
            found = [one for one in outputs.read(int(keys[origin])) if one.finished][: self._kept]
            if self.closest and reference and found:
                found = [found[closest(reference, [one[:2] for one in found])]]
            elif self.closest:
                found = found[:1]
            for said in [one.text for one in found] or [""]:  # a row without a target
                yield text, said, origin


def _target(examples: Examples, context: Context) -> list[float]:
    if context.task is None:
        return [0.0] * int(examples.meta["target_width"])
    return list(context.task.encode(HAS_TARGET, examples.source))
