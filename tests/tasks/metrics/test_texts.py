"""BLEU and chrF from summed counts are those of sacrebleu's corpus scores, for any texts and any draw of rows."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from potstill.tasks.metrics import texts as metrics

# few words, so that n-grams match; some marks, case, and what is empty
words = st.sampled_from(["the", "The", "cat", "sat", "on", "a", "mat.", "3,5", "(x)", "'s", "größer", "&amp;", "猫"])
texts = st.one_of(st.lists(words, max_size=12).map(" ".join), st.text(max_size=20))
pairs = st.lists(st.tuples(texts, texts), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(pairs)
def test_scores_of_summed_statistics_are_sacrebleus(rows: list[tuple[str, str]]) -> None:
    said, references = [one for one, _ in rows], [one for _, one in rows]
    drawn = np.random.default_rng(len(rows)).integers(0, len(rows), len(rows))
    bleu, chrf = metrics.statistics("bleu", said, references), metrics.statistics("chrf", said, references)
    assert bleu.shape == (len(rows), 10) and chrf.shape == (len(rows), 18)
    for which in (np.arange(len(rows)), drawn):
        theirs = [said[one] for one in which], [[references[one] for one in which]]
        assert metrics.corpus_score("bleu", bleu[which].sum(0)) == BLEU().corpus_score(*theirs).score / 100
        assert metrics.corpus_score("chrf", chrf[which].sum(0)) == CHRF().corpus_score(*theirs).score / 100
    assert (
        metrics.sentence_bleu(*rows[0])
        == BLEU(effective_order=True).sentence_score(rows[0][0], [rows[0][1]]).score / 100
    )


def test_the_signature_is_sacrebleus() -> None:
    scorer = BLEU()
    scorer.corpus_score(["a b"], [["a c"]])
    assert metrics.signatures()["BLEU"] == str(scorer.get_signature())
    assert "|tok:13a|" in metrics.signatures()["BLEU"] and "case:mixed" in metrics.signatures()["BLEU"]


def test_every_signature_is_that_of_a_score_of_one_reference() -> None:
    scorers = {"BLEU": BLEU(), "chrF2": CHRF()}
    names = [scorer.corpus_score(["a b"], [["a c"]]).name for scorer in scorers.values()]
    assert metrics.signatures() == {name: str(scorer.get_signature()) for name, scorer in scorers.items()}
    assert names == list(scorers)


def test_two_thousand_draws_take_no_time() -> None:
    random = np.random.default_rng(0)
    statistics = metrics.statistics("bleu", ["a cat sat on the mat"] * 3000, ["the cat sat on a mat"] * 3000)
    begun = time.perf_counter()
    for _ in range(2000):
        metrics.corpus_score("bleu", statistics[random.integers(0, 3000, 3000)].sum(0))
    assert time.perf_counter() - begun < 5


def test_rows_that_do_not_fit_are_refused() -> None:
    """sacrebleu would score as many as there are of both."""
    for metric in ("bleu", "chrf"):
        with pytest.raises(ValueError, match="one of each per row"):
            metrics.statistics(metric, ["a", "b"], ["a"])
        with pytest.raises(ValueError, match="no translations"):
            metrics.statistics(metric, [], [])
    with pytest.raises(ValueError, match="no hypotheses"):
        metrics.closest("a", [])


def test_the_closest_is_the_best_by_bleu_then_by_score_then_the_first() -> None:
    reference = "the cat sat on the mat"
    assert metrics.closest(reference, [("a dog", -0.1), (reference, -9.0), ("the cat", -0.2)]) == 1
    assert metrics.closest(reference, [(reference, -9.0), (reference, -3.0), (reference, -3.0)]) == 1
    assert metrics.closest(reference, [("", -1.0), ("", -1.0)]) == 0


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    assert metrics.perplexity(50 * math.log(7.0), 50) == pytest.approx(7.0, rel=1e-12)
    assert metrics.perplexity(0.0, 3) == 1.0
    assert metrics.perplexity(1e6, 2) == math.inf
    with pytest.raises(ValueError, match="no tokens"):
        metrics.perplexity(0.0, 0)


def test_sacrebleu_is_loaded_when_it_is_needed() -> None:
    code = "import sys, potstill.tasks.metrics.texts; print('sacrebleu' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
