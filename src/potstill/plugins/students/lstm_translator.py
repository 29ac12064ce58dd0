"""Two stacks of LSTMs with attention for translation, as Kim and Rush (2016, arXiv:1606.07947) distilled: 4x1000 into 2x500 and 2x300."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from transformers import GenerationConfig

from potstill.models.architectures.lstm_translator import LstmTranslatorForSeq2SeqLM
from potstill.models.architectures.recurrent_configs import LstmTranslatorConfig
from potstill.models.student import Context, Student, new_network
from potstill.models.tokenizers.joint_bpe import LONGEST
from potstill.plugins.students._translation import HEAD, Vocabulary, new_vocabulary, sizes, taken_vocabulary
from potstill.recipe.bounds import Layers, Rows, Share, Width
from potstill.recipe.pace import FROM_RANDOM_WEIGHTS, Pace
from potstill.tasks.task import Task


@dataclass(frozen=True)
class LstmTranslator:
    """Begins from nothing, with byte pairs of the rows' texts; after another model it takes over its tokenizer.

    One table of word vectors, as wide as the states, for both sides and the output.
    """

    layers: Layers = 2  # of either side
    width: Width = 500
    input_feeding: bool = True  # the attention's last finding is read beside the next word: slower, and the paper's
    vocabulary: Rows = 8000  # pieces, where a tokenizer is made
    dropout: Share = 0.2
    tokenizer: str | None = None  # a folder to take it from

    serves: ClassVar[tuple[str, ...]] = (HEAD,)
    pace: ClassVar[Pace] = FROM_RANDOM_WEIGHTS

    @staticmethod
    def short_form(text: str) -> dict[str, int]:
        layers, width = sizes("lstm_translator", text, r"(\d+)x(\d+)", "2x500")
        return {"layers": layers, "width": width}

    def begin(self, task: Task, seed: int, texts: Callable[[], Iterator[str]]) -> Student:
        return self._made(new_vocabulary("lstm_translator", self.tokenizer, task, texts, self.vocabulary), seed)

    def build(self, current: Student, context: Context) -> Student:
        return self._made(taken_vocabulary("lstm_translator", self.tokenizer, current), context.seed)

    def _made(self, vocabulary: Vocabulary, seed: int) -> Student:
        config = LstmTranslatorConfig(
            vocab_size=vocabulary.size,
            hidden_size=self.width,
            lstm_layers=self.layers,
            input_feeding=self.input_feeding,
            dropout=self.dropout,
            **vocabulary.special,
        )
        model = new_network(lambda: LstmTranslatorForSeq2SeqLM(config), seed)
        model.config.architectures = [type(model).__name__]
        model.generation_config = GenerationConfig(max_length=LONGEST, **vocabulary.special)
        return Student(model.eval(), vocabulary.tokenizer)
