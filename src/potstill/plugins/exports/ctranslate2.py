"""A model that writes, for CTranslate2 in weights of eight bits: smaller, and beam search several times faster on processors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from potstill.errors import TrainingError
from potstill.inference.export_types import Checked, Rows
from potstill.models.generation.ctranslate2 import Pieces, Weights, convert, library, longest_text, pieces, vocabulary
from potstill.models.generation.decoding import by_ctranslate2, by_transformers, scores_of
from potstill.models.student import Student
from potstill.system.scratch import scratch_folder

LARGEST_DIFFERENCE = (
    1e-3  # of the log probability of a token, in float32: larger, and the converter took the model wrongly
)
CHECKED = 200  # rows
WRITTEN = 32  # of them, anew, which takes longer
LONGEST = 64  # tokens of what is compared


@dataclass(frozen=True)
class Ctranslate2:
    """The conversion is compared in float32 first, so that a difference found after rounding is the rounding's."""

    weights: Weights = "int8"

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        with scratch_folder() as place:
            convert(student, place, "float32")
            apart = compare(student, place, rows).difference
        if apart > LARGEST_DIFFERENCE:
            raise TrainingError(
                f"CTranslate2 takes this {student.model.config.model_type} for another: a token's log probability differs by "
                f"{apart:.1e}; leave the model as it is, `potstill translate` runs it too"
            )
        convert(student, out, self.weights)
        return compare(student, out, rows)


def compare(student: Student, folder: Path, rows: Rows) -> Checked:
    """Largest difference of a text's log probability per token, and share of texts with the same greedy output; of the rows'
    texts and pairs, or of random tokens without them."""
    known, names = pieces(student.model, student.tokenizer), vocabulary(student.model, student.tokenizer)
    longest = min(LONGEST, longest_text(student) // 2)
    sources, targets = _tokens(student, rows, longest, known)
    theirs = _scores(folder, names, sources, targets, known.start is not None)
    ours = scores_of(student, known._replace(forced=None), sources, targets)
    apart = [abs(a - b) / len(ids) for a, b, ids in zip(ours, theirs, targets, strict=True)]
    searches = by_transformers(student, known, longest), by_ctranslate2(folder, longest, "cpu", known.forced)
    written = sources[:WRITTEN]
    said = [[one[0][0] for one in search(written, 1, 1)] for search in searches]
    same = float(np.mean([a == b for a, b in zip(*said, strict=True)]))
    return Checked(
        folder / "model.bin", max(apart), same, "a text's log probability per token", len(sources), len(written)
    )


def _tokens(student: Student, rows: Rows, longest: int, known: Pieces) -> tuple[list[list[int]], list[list[int]]]:
    """Of each row its source, or prompt, and what is written after it with its end; the source where a row has no pair."""
    if not rows:
        random = np.random.default_rng(0)
        most = min(len(student.tokenizer), int(student.model.get_output_embeddings().weight.shape[0]))
        usual = np.setdiff1d(np.arange(most), [*student.tokenizer.all_special_ids, *known.never])
        drawn = [random.choice(usual, (2, length)).tolist() for length in random.integers(1, longest, 40)]
        rest = [known.ends[0]] if known.start is not None else []
        return [[*one, *rest] for one, _ in drawn], [[*two, known.ends[0]] for _, two in drawn]
    cut = {"truncation": True, "max_length": longest}
    texts = [text or "." for text, _ in rows[:CHECKED]]  # an empty one is not asked about
    pairs = [pair or text for (_, pair), text in zip(rows, texts, strict=False)]
    sources = student.tokenizer(texts, **cut)["input_ids"]
    said = student.tokenizer(text_target=pairs, add_special_tokens=False, **cut)["input_ids"]
    return sources, [[*ids, known.ends[0]] for ids in said]


def _scores(
    folder: Path, names: list[str], sources: list[list[int]], targets: list[list[int]], translates: bool
) -> list[float]:
    """Log probabilities of the targets, by CTranslate2."""
    runs = {"intra_threads": torch.get_num_threads()}
    together = {"max_batch_size": 32, "max_input_length": 0}
    if translates:  # the end is added there
        given = [[[names[one] for one in ids] for ids in side] for side in (sources, [ids[:-1] for ids in targets])]
        scored = library().Translator(str(folder), **runs).score_batch(*given, **together)
        return [sum(one.log_probs) for one in scored]
    whole = [[names[one] for one in (*ids, *more)] for ids, more in zip(sources, targets, strict=True)]
    scored = library().Generator(str(folder), **runs).score_batch(whole, **together)
    return [sum(one.log_probs[-len(ids) :]) for one, ids in zip(scored, targets, strict=True)]
