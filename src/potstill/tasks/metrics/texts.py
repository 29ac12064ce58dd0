"""How good translations are: BLEU and chrF as sacrebleu counts them, one reference each, as shares of one.

A corpus's score follows from counts that are summed over sentences. They are given sentence by sentence, so that a score
of any draw of rows is a sum away: `bleu_of(bleu_statistics(said, references)[rows].sum(0))`.
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
    """(n, 10) of each sentence: its length, the reference's, n-grams of one to four words that match, and all that it has.

    Texts are split as mteval-v13a does it; case is kept.
    """
    return _statistics(_bleu(), hypotheses, references)


def bleu_of(summed: NDArray[np.int64]) -> float:
    """Corpus BLEU (Papineni et al., 2002), 0..1, of the (10,) sum of sentences' statistics; an order without a match is
    smoothed by halves (exp)."""
    return float(_bleu()._compute_score_from_stats(summed.tolist()).score) / 100


def chrf_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """(n, 18) of each sentence: n-grams of one to six characters that it has, the reference has, and both have."""
    return _statistics(_chrf(), hypotheses, references)


def chrf_of(summed: NDArray[np.int64]) -> float:
    """Corpus chrF2 (Popović, 2015), 0..1, of the (18,) sum of sentences' statistics."""
    return float(_chrf()._compute_score_from_stats(summed.tolist()).score) / 100


def signature() -> str:
    """sacrebleu's words for how BLEU was computed: to be printed beside every figure."""
    return str(_bleu().get_signature())


def signatures() -> dict[str, str]:
    """The same of every metric that sacrebleu counts here, by the names that it gives them."""
    return {"BLEU": signature(), "chrF2": str(_chrf().get_signature())}


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """Smoothed BLEU of one sentence, 0..1; orders longer than the hypothesis are left out."""
    return float(_bleu(effective_order=True).sentence_score(hypothesis, [reference]).score) / 100


def closest(reference: str, hypotheses: Sequence[tuple[str, float]]) -> int:
    """Which of several (text, score) sequence-level interpolation keeps (Kim and Rush, 2016): the one nearest to the
    reference by sentence BLEU; among equals the one of the highest score, then the first."""
    if not hypotheses:
        raise ValueError("there are no hypotheses to choose from")
    ranks = [(sentence_bleu(text, reference), score) for text, score in hypotheses]
    return ranks.index(max(ranks))


def perplexity(loss_sum: float, tokens: int) -> float:
    """exp of the mean negative log likelihood of a token; infinite where that is too large for a float."""
    if tokens < 1:
        raise ValueError("there are no tokens to score")
    try:
        return math.exp(loss_sum / tokens)
    except OverflowError:
        return math.inf


@cache
def _bleu(effective_order: bool = False) -> Any:
    from sacrebleu.metrics import BLEU  # here, since help needs none of it

    # references make it count one each; force: texts that look tokenised are not our business
    return BLEU(tokenize="13a", effective_order=effective_order, force=True, references=[[""]])


@cache
def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF(references=[[""]])  # as above


def _statistics(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """What sacrebleu's own bootstrap resamples."""
    if len(hypotheses) != len(references):  # which would be cut to the shorter
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references; give one of each per row")
    if not hypotheses:
        raise ValueError("there are no translations to score")
    return np.array(metric._extract_corpus_statistics(list(hypotheses), [list(references)]), np.int64)
