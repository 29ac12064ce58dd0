"""Checks of what is written: word-level distillation, BLEU, and the hypothesis nearest to a reference."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.signals import Signals
from potstill.tasks.metrics import texts as translation_metrics
from tests.support.references import Case, Checks, batch_of, close, tensor, total

DATA = Path(__file__).parents[2] / "../shared/data"


def check_word_kd(case: Case) -> None:
    """Word-KD is soft targets on the tokens that are no padding. Kim and Rush's cross-entropy is our KL plus the teacher's
    entropy, which the student cannot change: the gradient is the same."""
    inputs, settings, expected = case["inputs"], case["settings"], case["expected"]
    kim, hugging = expected["kim_rush"], expected["huggingface"]
    for dtype in (torch.float64, torch.float32):
        student = tensor(inputs["student_logits"], dtype).requires_grad_()
        labels = torch.tensor(inputs["labels"])
        real = labels != settings["pad_token_id"]
        assert int(real.sum()) == expected["positions"]
        ours, theirs = Signals(logits=student[real]), Signals(logits=tensor(inputs["teacher_logits"], dtype)[real])
        batch = batch_of(labels[real].tolist(), expected["positions"])

        def objective(alpha: float, temperature: float) -> Tensor:
            return total(SoftTargets(temperature, alpha).losses(ours, theirs, batch), batch)  # noqa: B023

        def gradient(loss: Tensor) -> Tensor:
            return torch.autograd.grad(loss, student, retain_graph=True)[0]  # noqa: B023

        said = theirs.logits.log_softmax(-1)
        entropy = -(said.exp() * said).sum(-1).mean()
        kl, nll, whole = objective(1.0, 1.0), objective(0.0, 1.0), objective(settings["alpha"], 1.0)
        close(kl, expected["kl_form_token_mean_T1"], dtype)
        close(whole, expected["loss_with_kl_token_mean_T1"], dtype)
        close(kl + entropy, kim["word_kd_token_mean"], dtype)
        close((kl + entropy) * len(batch.targets), kim["word_kd_sum"], dtype)
        for name in ("nll_token_mean", "nll_sum"):
            close(nll * (len(batch.targets) if name == "nll_sum" else 1), kim[name], dtype)
        loss = whole + settings["alpha"] * entropy
        close(loss, kim["loss_token_mean"], dtype)
        close(loss * len(batch.targets), kim["loss_sum"], dtype)
        close(loss * len(batch.targets) / len(labels), kim["loss_mean_over_sentences"], dtype)
        close(objective(1.0, 2.0), hugging["calc_ce_loss_T2_label_mask"], dtype)
        close(nll, hugging["nll_token_mean"], dtype)
        close(objective(0.8, 2.0), hugging["blended_0.8_0.2_corrected_mask"], dtype)
        gradients = case["gradient_wrt_student_logits"]
        close(gradient(whole), gradients["kim_rush_loss_token_mean"], dtype)
        close(gradient(objective(1.0, 2.0)), gradients["calc_ce_loss_T2_label_mask"], dtype)


def check_counts(statistics: np.ndarray, expected: Case) -> None:
    lengths, matches, totals = statistics[:2].tolist(), statistics[2:6].tolist(), statistics[6:].tolist()
    assert matches == expected["counts"] and totals == expected["totals"]
    if "sys_len" in expected:
        assert lengths == [expected["sys_len"], expected["ref_len"]]


def check_corpus_bleu(case: Case) -> None:
    settings, expected = case["settings"], case["expected"]
    if settings["tokenize"] != "13a":
        pytest.skip("texts are always split as 13a does it")
    pairs = [case["pairs"][one] for one in settings.get("pair_indices", range(len(case["pairs"])))]
    said, references = ([one[side] for one in pairs] for side in ("hypothesis", "reference"))
    if settings.get("lowercase"):
        said, references = ([text.lower() for text in side] for side in (said, references))
    summed = translation_metrics.statistics("bleu", said, references).sum(0)
    check_counts(summed, expected)
    if settings["smooth_method"] == "exp" or (settings["smooth_method"] != "add-k" and all(expected["counts"])):
        assert translation_metrics.corpus_score("bleu", summed) == expected["bleu"] / 100
    if settings["smooth_method"] == "exp" and not settings.get("lowercase") and "signature" in settings:
        ours, theirs = translation_metrics.signatures()["BLEU"], settings["signature"]
        assert ours.partition("|version")[0] == theirs.partition("|version")[0]


def check_sentence_bleu(case: Case) -> None:
    for row in case["expected"]["rows"]:
        pair = case["pairs"][row["index"]]
        (counts,) = translation_metrics.statistics("bleu", [pair["hypothesis"]], [pair["reference"]])
        check_counts(counts, row)
        assert translation_metrics.sentence_bleu(pair["hypothesis"], pair["reference"]) == row["exp"] / 100
        assert translation_metrics.corpus_score("bleu", counts) == row["exp_full_order"] / 100


def texts_of(named: str, sha256: str) -> list[str]:
    """Of "FILE, key 'NAME'" or "FILE, column 'NAME'" below the data folder."""
    file, _, which = named.partition(", ")
    path, name = DATA / file, which.split("'")[1]
    if not path.is_file():
        pytest.skip(f"needs ../shared/data/{file}")
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == sha256
    if which.startswith("key"):
        return [json.loads(line)[name] for line in gzip.decompress(content).decode().splitlines()]
    head, *rows = [line.split("\t") for line in content.decode().removesuffix("\n").split("\n")]
    return [row[head.index(name)] for row in rows]


def check_system_output(case: Case) -> None:
    """Whole test sets as real systems translated them."""
    inputs, expected = case["inputs"], case["expected"]
    said = texts_of(inputs["hypotheses"], inputs["sha256_hypotheses_file"])
    references = texts_of(inputs["references"], inputs["sha256_reference_file"])
    assert len(said) == inputs["sentences"]
    summed = translation_metrics.statistics("bleu", said, references).sum(0)
    check_counts(summed, expected)
    found = 100 * translation_metrics.corpus_score("bleu", summed)
    close(found, expected["bleu"])
    assert (round(found, 1) == expected["published_in_scores_tsv"]) is expected["matches_published_to_0.1"]


def check_seq_inter(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    several = [(one["text"], one["model_score"]) for one in inputs["k_best"]]
    for (text, _), told in zip(several, expected["sentence_bleu"], strict=True):
        close(translation_metrics.sentence_bleu(text, inputs["reference"]), told["sacrebleu_exp"])
    picked = translation_metrics.closest(inputs["reference"], several)
    assert picked == expected["picked_index"] and several[picked][0] == expected["picked_text"]


GENERATION: Checks = {
    "word_kd": {None: check_word_kd},
    "bleu": {"corpus": check_corpus_bleu, "sentence": check_sentence_bleu, "system_output": check_system_output},
    "seq_inter": {None: check_seq_inter},
}
