"""Texts to be generated, perhaps after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from potstill.data.columns import TEXTS, Columns, Names, first_of, first_pair_of
from potstill.data.formats.reading import Records
from potstill.data.forms.base import FirstValues, RowForm, has_target_alone
from potstill.data.records import Parts, Values, read_target, read_text
from potstill.data.row import HAS_TARGET
from potstill.errors import InputError

CERTAIN_PROMPTS = (("prompt", "completion"), ("prompt", "response"))
PROMPTS = (*CERTAIN_PROMPTS, ("prompt", "answer"), ("instruction", "output"))


class Writing(RowForm):
    """text: prompt, "" if none; pair: text to generate; label: HAS_TARGET if there is one"""

    order = 5
    target = "texts to be written"
    target_part = "pair"
    header = "prompt,completion"

    def is_form_of(self, columns: Sequence[str], names: Names, wanted: Columns, first: FirstValues) -> bool:
        return has_target_alone(names, wanted, CERTAIN_PROMPTS)

    def find(self, names: Names, wanted: Columns) -> Columns:
        """Prompts and answers, prompts alone, or running text, which is a target without a prompt."""
        if wanted.pair is not None:
            return wanted
        if wanted.text is not None:
            is_prompt = wanted.text.lower() in {prompt for prompt, _ in PROMPTS}
            return wanted if is_prompt else replace(wanted, text=None, pair=wanted.text)
        prompt, answer = first_pair_of(names, PROMPTS)
        if prompt is None and (answer := first_of(names, TEXTS)) is None:
            prompt = first_of(names, ("prompt", "instruction"))
        return replace(wanted, text=prompt, pair=answer)

    def also_missing(self, columns: Columns) -> list[tuple[str, str]]:
        return [] if columns.text or columns.pair else [("--text", self.target)]

    def doubt(self, names: Names, wanted: Columns, columns: Columns) -> str:
        guessed = columns.text if wanted.text is None else None
        if guessed and guessed == names.get("instruction") and "input" in names:  # Alpaca
            reason = "'instruction' seems to be the prompt, but there is 'input' too"
            todo = f"join them, or write --text {guessed} --pair {columns.pair or 'NAME'} to omit the inputs"
            return f"{reason}; {todo}"
        return ""

    def read(self, values: Values, columns: Columns) -> Parts:
        if columns.text is None:
            return "", read_text(values, columns.pair), HAS_TARGET
        prompt = read_text(values, columns.text)
        if columns.pair is None:
            return prompt, "", None
        target = read_target(values, columns.pair)
        if not prompt.strip() and not target:
            raise InputError(
                f"{columns.text!r} and {columns.pair!r} are both empty; write one of them, or delete the row"
            )
        return prompt, target, HAS_TARGET if target else None

    def records(self, records: Records, columns: Columns) -> Records:
        """Skip the empty texts between the paragraphs of running text."""
        for record in records:
            value = record.values.get(str(columns.pair)) if columns.text is None else None
            if not isinstance(value, str) or value.strip():
                yield record
