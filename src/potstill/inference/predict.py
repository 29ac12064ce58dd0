"""Predictions of a model for single examples, in the order in which they are given.

An exported ONNX model answers without torch and transformers, whose imports take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potstill.data.formats.reading import short_repr
from potstill.data.row import Row
from potstill.data.rows import Columns, open_table
from potstill.data.tokens import Tokens, array_view, split_by_tokens, tokenise_texts
from potstill.errors import InputError
from potstill.inference.reading import UNMEASURED, Way, circumstances, fastest_way
from potstill.models.folders import onnx_file, stored_temperature
from potstill.models.onnx.exported import ArrayForward, ExportedModel, can_load_light, default_threads, load_exported
from potstill.system import processor
from potstill.system.paths import expand_user
from potstill.tasks.label_matching import make_task
from potstill.tasks.registry import task_class, task_of
from potstill.tasks.task import Asked, Task

if TYPE_CHECKING:
    from potstill.models.inference import Network

AT_ONCE = 256  # examples read ahead: few enough for a pipe to flow, enough to sort by length

Say = Callable[[str], None]
Opens = Callable[[], ArrayForward | None]
"""Opens a model in another form, if it has that."""


def predict(model: str | Path, texts: Iterable[Asked], length: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield one prediction per text, in order, by a student's folder or an exported one. See `Predictor`."""
    yield from Predictor(model, length)(texts)


class Predictor:
    """A model that is loaded once and called many times. Its task's `describe` says what a prediction looks like.

    An example is a text, or a tuple of two for pairs. Words to be tagged are a list, or a text, which is split at spaces and
    punctuation. For question answering it is {"question", "context"}, for multiple choice {"text", "question", "choices"},
    as objects or as JSON. An image is an array or list of its pixels, from 0 to 255.
    """

    def __init__(self, model: str | Path, length: int | None = None, say: Say = lambda message: None) -> None:
        """`length`: tokens that are read of an example; None: as many as the model was trained with."""
        self.model, self.say = str(model), say
        self.network, self.forward, self._streams, self._bfloat16 = _load(model)
        self.way: Way | None = None  # measured when there are many texts
        self.kind = task_of(self.network.config)
        self.temperature = stored_temperature(self.network.config, model)
        self.length = min(length or self.network.trained_length, self.network.longest)
        if self.kind.generates:
            raise InputError(f"{model} generates texts; write potstill translate {model}")

    def __call__(self, examples: Iterable[Asked]) -> Iterator[dict[str, Any]]:
        iterator = iter(examples)
        while rows := [self._row(example) for example in islice(iterator, AT_ONCE)]:
            candidates = self.kind.choices_of(rows)
            task, _ = make_task(None, self.network.config, [], None, self.model, self.kind.form, candidates)
            task = replace(task.with_tokenizer(self.network.tokenizer), temperature=self.temperature)
            if self.way is None and len(rows) == AT_ONCE:
                self._settle_way(task, rows)
            for (text, pair), output in zip(rows, self._outputs(task, rows), strict=True):
                yield task.describe(output, text, pair)

    def rows_of(self, file: str, text: str | None = None, pair: str | None = None) -> Iterator[Any]:
        """Yield the examples of a file; `text` and `pair` are the names of its columns."""
        for row in rows_for(self.network.config, file, text, pair):
            yield self.kind.asked(row)

    def _row(self, example: Asked) -> tuple[str, str | None]:
        try:
            return self.kind.row(example)
        except (KeyError, TypeError, ValueError):
            raise InputError(f"the model cannot read {short_repr(example)}; write {self.kind.how_to_ask}") from None

    def _settle_way(self, task: Task, rows: list[tuple[str, str | None]]) -> None:
        """Measure how many texts are read fastest, with these; or recall it."""
        self.way, file = Way(), onnx_file(self.model)
        files = [file] if file is not None else sorted(expand_user(self.model).glob("*.safetensors"))
        if not files:  # a model of the hub
            return
        tokens = tokenise_texts(task, rows, self.network.tokenizer, self.length)
        streams, library = self._streams(), "torch" if file is None else "onnxruntime"
        engine = f"{library} {version(library)}"
        form = ""
        if (faster := self._bfloat16()) is not None and self._same_in(faster, task, tokens, files, engine):
            self.forward, form = faster, " in bfloat16"
        self.way = fastest_way(
            files,
            default_threads(),
            engine + form,
            {False: self.forward, **({True: streams} if streams else {})},
            tokens.lengths(np.arange(len(rows))),
            lambda batch: array_view(task, tokens, batch).inputs,
        )
        if self.way.streams and streams:
            self.forward = streams
        on = processor.described(default_threads())
        self.say(
            f"reading {self.way.padded} tokens at once{' in streams' * self.way.streams}{form}, as measured on {on}"
        )

    def _same_in(self, faster: ArrayForward, task: Task, tokens: Tokens, files: list[Path], engine: str) -> bool:
        """Whether these texts are answered the same in bfloat16, and faster."""
        import torch  # it is loaded already

        from potstill.inference.agreement import better_in_bfloat16

        def logits(forward: ArrayForward) -> Callable[[np.ndarray], torch.Tensor]:
            def of(rows: np.ndarray) -> torch.Tensor:
                view = array_view(task, tokens, rows)
                return torch.from_numpy(view.predictions(forward(view.inputs)))

            return of

        every = np.arange(AT_ONCE)
        batches = list(split_by_tokens(every, tokens.lengths(every), UNMEASURED))
        what = circumstances("form", files, default_threads(), engine)
        return better_in_bfloat16(logits(self.forward), logits(faster), batches, task.outcome, what)

    def _outputs(self, task: Task, rows: list[tuple[str, str | None]]) -> list[np.ndarray]:
        tokens = tokenise_texts(task, rows, self.network.tokenizer, self.length)
        outputs: dict[int, np.ndarray] = {}
        every = np.arange(len(rows))
        for batch in split_by_tokens(every, tokens.lengths(every), (self.way or Way()).padded):
            view = array_view(task, tokens, batch)
            logits = view.predictions(self.forward(view.inputs))
            outputs |= zip(batch.tolist(), task.read_logits(logits, tokens, batch, _Unlabelled(rows)), strict=True)
        return [outputs[place] for place in range(len(rows))]


def _load(model: str | Path) -> tuple[ExportedModel | Network, ArrayForward, Opens, Opens]:
    """The model, how it answers, and its other forms: in streams, and in bfloat16."""
    file = onnx_file(model)
    if file is not None and can_load_light(file):
        exported = load_exported(file)
        return exported, exported.forward, exported.in_streams, lambda: None
    import torch  # not above: see the first lines of this file

    from potstill.models.inference import Forward, load_network
    from potstill.models.onnx.exported import refuse_infinite

    def of_arrays(forward: Forward) -> ArrayForward:
        return lambda arrays: forward({name: torch.from_numpy(arrays[name]) for name in arrays})

    network = load_network(model)

    def opened(make: Callable[[], Forward | None]) -> ArrayForward | None:
        forward = make()
        return of_arrays(refuse_infinite(forward, model)) if forward else None

    others = partial(opened, network.in_streams), partial(opened, network.bfloat16)
    return network, of_arrays(network.forward), *others


def rows_for(config: Any, file: str, text: str | None = None, pair: str | None = None) -> Iterator[Row]:
    """Yield the rows of a file, which must have the form that a model with this config reads."""
    kind = task_of(config)
    # a generative model decides the form: two columns of text, or one alone, could mean many things
    table = open_table(file, Columns(text, pair), form=kind.form if kind.generates else None)
    if table.form != kind.form:
        rows, wanted = task_class(table.form).words.rows, kind.words.rows
        raise InputError(f"{file}: the rows are {rows}, but the model needs {wanted}; give these")
    yield from table.rows()


@dataclass(frozen=True)
class _Unlabelled:
    rows: list[tuple[str, str | None]]

    def text(self, row: int) -> tuple[str, str | None]:
        return self.rows[row]

    def gold(self, row: int) -> None:
        return None
