"""Metrics of generated texts: BLEU and chrF as sacrebleu computes them with one reference, from 0 to 1, and perplexity.

A corpus score depends on counts summed over sentences. The functions below return the counts of each sentence, so that the
score of any sample of rows is quick: `corpus_score("bleu", statistics("bleu", hypotheses, references)[rows].sum(0))`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BEAM = 5  # width of the beam search that is measured, as in papers on translation


def search_name(beam: int) -> str:
    """Return the name of a search in measurements.json."""
    return "greedy" if beam == 1 else f"beam {beam}"


def statistics(metric: str, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """Return the counts of each sentence, which sacrebleu's own bootstrap resamples.

    bleu, (n, 10): its length, the reference's length, its matching n-grams of 1 to 4 words, all its n-grams; tokenized
    as by mteval-v13a, with case. chrf, (n, 18): n-grams of 1 to 6 characters in it, in the reference, and in both.
    """
    if len(hypotheses) != len(references):  # sacrebleu would ignore the rest
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references; give one of each per row")
    if not hypotheses:
        raise ValueError("there are no translations to score")
    return np.array(_metric(metric)._extract_corpus_statistics(list(hypotheses), [list(references)]), np.int64)


def corpus_score(metric: str, summed: NDArray[np.int64]) -> float:
    """BLEU (Papineni et al., 2002; exponential smoothing) or chrF2 (Popović, 2015), 0..1, from a sum of statistics."""
    return float(_metric(metric)._compute_score_from_stats(summed.tolist()).score) / 100


def signatures() -> dict[str, str]:
    """sacrebleu's signatures of BLEU and chrF2, which are printed beside every figure."""
    return {"BLEU": str(_metric("bleu").get_signature()), "chrF2": str(_metric("chrf").get_signature())}


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """Smoothed BLEU of one sentence, 0..1; n-grams longer than the hypothesis are ignored."""
    return float(_metric("bleu", effective_order=True).sentence_score(hypothesis, [reference]).score) / 100


def closest(reference: str, hypotheses: Sequence[tuple[str, float]]) -> int:
    """The index of the (text, score) that sequence-level interpolation keeps (Kim and Rush, 2016).

    It is the text nearest to the reference by sentence BLEU; among equals the one with the highest score, then the first.
    """
    if not hypotheses:
        raise ValueError("there are no hypotheses to choose from")
    ranks = [(sentence_bleu(text, reference), score) for text, score in hypotheses]
    return ranks.index(max(ranks))


def perplexity(loss_sum: float, tokens: int) -> float:
    """exp of the mean negative log likelihood per token; infinite if that is too large for a float."""
    if tokens < 1:
        raise ValueError("there are no tokens to score")
    try:
        return math.exp(loss_sum / tokens)
    except OverflowError:
        return math.inf


@cache
def _metric(name: str, **options: Any) -> Any:
    from sacrebleu.metrics import BLEU, CHRF  # not needed for --help

    if name == "chrf":
        return CHRF(references=[[""]])
    # references: one for each text; force: do not warn about texts that look tokenized
    return BLEU(tokenize="13a", force=True, references=[[""]], **options)
