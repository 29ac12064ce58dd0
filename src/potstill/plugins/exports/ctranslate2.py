"""A generative model for CTranslate2 with weights of eight bits: smaller, and beam search several times faster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from potstill.api import (
    Checked,
    Export,
    Rows,
    Student,
    TrainingError,
    ctranslate2,
    decoding,
    form_speed,
    scratch,
    torch,
)

LARGEST_DIFFERENCE = 1e-3  # of a token's log probability in float32; if it is larger, the converter misread the model
CHECKED = 200  # rows whose log probabilities are compared
DECODED = 32  # of these, the rows that are decoded too, which takes longer
LONGEST = 64  # tokens of a compared text


@dataclass(frozen=True)
class Ctranslate2(Export):
    """The conversion is checked in float32 first, so that a difference in int8 is due to rounding alone."""

    weights: Literal["int8", "float32"] = "int8"

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        with scratch.scratch_folder() as folder:
            ctranslate2.convert(student, folder, "float32")
            difference = compare(student, folder, rows).difference
        if difference > LARGEST_DIFFERENCE:
            raise TrainingError(
                f"CTranslate2 misreads this {student.model.config.model_type}: a token's log probability differs by "
                f"{difference:.1e}; use the model as it is, `potstill translate` runs it too"
            )
        ctranslate2.convert(student, out, self.weights)
        return compare(student, out, rows)


def compare(student: Student, folder: Path, rows: Rows) -> Checked:
    """Return the largest difference of a text's log probability per token, and the share of texts with equal greedy output.

    The texts are those of the rows with their pairs, or random tokens if there are no rows.
    """
    tokens = ctranslate2.special_tokens(student.model, student.tokenizer)
    longest = min(LONGEST, ctranslate2.longest_text(student) // 2)
    sources, targets = _token_ids(student, rows, longest, tokens)
    names = ctranslate2.output_tokens(student.model, student.tokenizer)
    theirs = _scores(folder, names, sources, targets, tokens.start is not None)
    ours = decoding.log_probabilities(student, tokens._replace(forced=None), sources, targets)
    differences = [abs(a - b) / len(ids) for a, b, ids in zip(ours, theirs, targets, strict=True)]
    searches = (
        decoding.transformers_search(student, tokens, longest),
        decoding.ctranslate2_search(folder, longest, "cpu", tokens.forced),
    )
    decoded = sources[:DECODED]
    outputs = [[hypotheses[0][0] for hypotheses in search(decoded, 1, 1)] for search in searches]
    agreement = float(np.mean([a == b for a, b in zip(*outputs, strict=True)]))
    measured = "a text's log probability per token"
    seconds = form_speed.form_seconds(
        {"greedy search": lambda texts: searches[1](texts, 1, 1)},
        [[source] for source in decoded[: form_speed.ALONE]],
        decoded,
        len(decoded),
    )
    return Checked(folder / "model.bin", max(differences), agreement, measured, len(sources), len(decoded), seconds)


def _token_ids(
    student: Student, rows: Rows, longest: int, tokens: ctranslate2.SpecialTokens
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the source or prompt of each row, and what follows it with its end token; the source again without a pair."""
    end = tokens.ends[0]
    if not rows:
        random = np.random.default_rng(0)
        most = min(len(student.tokenizer), int(student.model.get_output_embeddings().weight.shape[0]))
        usual = np.setdiff1d(np.arange(most), [*student.tokenizer.all_special_ids, *tokens.never])
        drawn = [random.choice(usual, (2, length)).tolist() for length in random.integers(1, longest, 40)]
        source_end = [end] if tokens.start is not None else []
        return [[*source, *source_end] for source, _ in drawn], [[*target, end] for _, target in drawn]
    cut = {"truncation": True, "max_length": longest}
    texts = [text or "." for text, _ in rows[:CHECKED]]  # an empty source is answered without the model
    pairs = [pair or text for (_, pair), text in zip(rows, texts, strict=False)]
    sources = student.tokenizer(texts, **cut)["input_ids"]
    targets = student.tokenizer(text_target=pairs, add_special_tokens=False, **cut)["input_ids"]
    return sources, [[*ids, end] for ids in targets]


def _scores(
    folder: Path, names: list[str], sources: list[list[int]], targets: list[list[int]], translates: bool
) -> list[float]:
    """Return CTranslate2's log probabilities of the targets."""

    def words(rows: list[list[int]]) -> list[list[str]]:
        return [[names[number] for number in ids] for ids in rows]

    engine, threads = ctranslate2.import_ctranslate2(), torch.get_num_threads()
    limits = {"max_batch_size": 32, "max_input_length": 0}
    if translates:  # CTranslate2 adds the end itself
        pairs = words(sources), words([ids[:-1] for ids in targets])
        scored = engine.Translator(str(folder), intra_threads=threads).score_batch(*pairs, **limits)
        return [sum(result.log_probs) for result in scored]
    whole = words([[*ids, *more] for ids, more in zip(sources, targets, strict=True)])
    scored = engine.Generator(str(folder), intra_threads=threads).score_batch(whole, **limits)
    return [sum(result.log_probs[-len(ids) :]) for result, ids in zip(scored, targets, strict=True)]
