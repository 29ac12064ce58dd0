"""Metrics of generated texts: BLEU and chrF as sacrebleu computes them with one reference, from 0 to 1, and perplexity.

A corpus score depends on counts summed over sentences. The functions below return the counts of each sentence, so that the
score of any sample of rows is quick: `bleu_of(bleu_statistics(hypotheses, references)[rows].sum(0))`.
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


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """(n, 10) for each sentence: its length, the reference's length, its matching n-grams of 1 to 4 words, all its n-grams.

    Texts are tokenized as by mteval-v13a; case is kept.
    """
    return _statistics(_bleu(), hypotheses, references)


def bleu_of(summed: NDArray[np.int64]) -> float:
    """Corpus BLEU (Papineni et al., 2002), 0..1, from the (10,) sum of statistics; exponential smoothing."""
    return float(_bleu()._compute_score_from_stats(summed.tolist()).score) / 100


def chrf_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """(n, 18) for each sentence: n-grams of 1 to 6 characters in it, in the reference, and in both."""
    return _statistics(_chrf(), hypotheses, references)


def chrf_of(summed: NDArray[np.int64]) -> float:
    """Corpus chrF2 (Popović, 2015), 0..1, from the (18,) sum of statistics."""
    return float(_chrf()._compute_score_from_stats(summed.tolist()).score) / 100


def signatures() -> dict[str, str]:
    """sacrebleu's signatures of BLEU and chrF2, which are printed beside every figure."""
    return {"BLEU": str(_bleu().get_signature()), "chrF2": str(_chrf().get_signature())}


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """Smoothed BLEU of one sentence, 0..1; n-grams longer than the hypothesis are ignored."""
    return float(_bleu(effective_order=True).sentence_score(hypothesis, [reference]).score) / 100


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
def _bleu(effective_order: bool = False) -> Any:
    from sacrebleu.metrics import BLEU  # not needed for --help

    # references: one for each text; force: do not warn about texts that look tokenized
    return BLEU(tokenize="13a", effective_order=effective_order, force=True, references=[[""]])


@cache
def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF(references=[[""]])


def _statistics(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """The statistics that sacrebleu's own bootstrap resamples."""
    if len(hypotheses) != len(references):  # sacrebleu would ignore the rest
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references; give one of each per row")
    if not hypotheses:
        raise ValueError("there are no translations to score")
    return np.array(metric._extract_corpus_statistics(list(hypotheses), [list(references)]), np.int64)
