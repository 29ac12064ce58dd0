"""Losses, layer maps and metrics meet the numbers that the papers' own code gives.

The folder is POTSTILL_REFERENCE (default ../shared/reference/dev); other files of the same form may be given. A file of
a method that is not built yet is listed as such. Within a file that is covered, a case of an unknown kind fails.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from potstill.data.augment.tagging import TaggedTexts
from potstill.data.augment.word_changes import ChangedTexts, Corpus, Rules, seeds_of
from potstill.data.examples import key_of
from potstill.models.architectures.word_vectors import BilstmConfig, BilstmForSequenceClassification, pair_features
from potstill.plugins.methods.logit_regression import LogitRegression
from potstill.plugins.methods.patient import Patient
from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.signals import Batch, Signals, Term
from potstill.tasks.metrics import labels as metrics
from potstill.training import layer_maps as layers
from potstill.training import losses
from tests.support.compression_references import COMPRESSION
from tests.support.distilbert_references import DISTILBERT
from tests.support.generation_references import GENERATION
from tests.support.references import Case, Checks, batch_of, close, tensor, total, value
from tests.support.scoring import answer_scores, class_scores, entity_scores
from tests.support.ticket_references import TICKETS
from tests.support.tinybert_references import TINYBERT

FOLDER = Path(os.environ.get("POTSTILL_REFERENCE", Path(__file__).parents[2] / "../shared/reference/dev"))


def objective(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, Term], Batch, Tensor | None]:
    inputs, settings = case["inputs"], case["settings"]
    student = tensor(inputs["student_logits"], dtype).requires_grad_()
    teacher = tensor(inputs["teacher_logits"], dtype) if inputs["teacher_logits"] is not None else None
    batch = batch_of(inputs["labels"], len(student))
    method = SoftTargets(temperature=settings["T"], alpha=settings["alpha"])
    terms = method.losses(
        Signals(logits=student), Signals(logits=teacher if teacher is not None else student.detach()), batch
    )
    return student, total(terms, batch), terms, batch, teacher


def check_hinton(case: Case) -> None:
    expected, settings = case["expected"], case["settings"]
    for dtype in (torch.float64, torch.float32):
        loose = 100.0 if "very_large" in case["name"] else 1.0
        student, whole, _, batch, teacher = objective(case, dtype)
        assert teacher is not None
        each = losses.soft_targets(student, teacher, settings["T"])
        close(each.mean(), expected["soft_kl_batchmean_times_T2"], dtype, loose)
        close(each / settings["T"] ** 2, expected["kl_per_example"], dtype, loose)
        close(each.mean() / settings["T"] ** 2, expected["kl_batchmean"], dtype, loose)
        close(losses.hard(student, batch).mean(batch.counts), expected["hard"], dtype, loose)
        close(whole, expected["total"], dtype, loose)
        (soft_gradient,) = torch.autograd.grad(each.mean(), student, retain_graph=True)
        (gradient,) = torch.autograd.grad(whole, student)
        close(soft_gradient, case["gradient_wrt_student_logits"]["soft"], dtype, loose)
        close(gradient, case["gradient_wrt_student_logits"]["total"], dtype, loose)


def check_soft_and_hard(case: Case) -> None:
    """The authors' KL is also divided by the number of classes; `corrected` is the definition that we keep to."""
    expected, alpha = case["expected"], case["settings"]["alpha"]
    for dtype in (torch.float64, torch.float32):
        loose = 100.0 if "very_large" in case["name"] else 1.0
        student, whole, terms, batch, teacher = objective(case, dtype)
        hard = losses.hard(student, batch).mean(batch.counts)
        close(hard, expected["hard"], dtype, loose)
        gradients = case["gradient_wrt_student_logits"]
        if teacher is None:
            close(whole, expected["total"], dtype, loose)
            close(torch.autograd.grad(whole, student)[0], gradients["total"], dtype, loose)
            continue
        soft = losses.soft_targets(student, teacher, case["settings"]["T"]).mean()
        classes = student.shape[1]
        corrected = expected["corrected"]
        close(soft, corrected["soft_batchmean"], dtype, loose)
        close(soft / classes, expected["soft"], dtype, loose)
        close(alpha * soft / classes + (1 - alpha) * hard, expected["total"], dtype, loose)
        close(whole, corrected["total_batchmean"], dtype, loose)
        close(value(terms, "soft", batch), alpha * corrected["soft_batchmean"], dtype, loose)
        theirs = torch.autograd.grad(alpha * soft / classes + (1 - alpha) * hard, student, retain_graph=True)[0]
        close(theirs, gradients["total"], dtype, loose)
        close(torch.autograd.grad(whole, student)[0], gradients["corrected_total_batchmean"], dtype, loose)


def check_patience(case: Case) -> None:
    expected, unit = case["expected"], case["settings"]["normalized"]
    paper = expected["paper_form_sum_over_layers_and_width"]
    for dtype, name in ((torch.float64, "float64_without_half"), (torch.float32, "float32_without_half")):
        student = tensor(case["inputs"]["student_cls"], dtype).requires_grad_()
        teacher = tensor(case["inputs"]["teacher_cls"], dtype)
        examples, count, width = student.shape
        distance = losses.direction_distance if unit else losses.squared_distance
        summed = distance(student, teacher).sum(1)  # (batch,)
        close(summed.sum(), paper["summed_over_batch"], dtype)
        close(summed.mean(), paper["mean_over_batch"], dtype)
        close(summed.mean() / (count * width), expected[name], dtype)
        (gradient,) = torch.autograd.grad(summed.mean() / (count * width), student)
        close(gradient, case["gradient_wrt_student_cls"]["float64_without_half"], dtype)
        if unit:  # the method's own two scales
            logits, batch = torch.zeros(examples, 2, dtype=dtype), batch_of([0] * examples, examples)
            signals = Signals(logits=logits, cls=student), Signals(logits=logits, cls=teacher)
            close(
                value(Patient(beta=1.0, scale="mean").losses(*signals, batch), "patient", batch), expected[name], dtype
            )
            close(
                value(Patient(beta=1.0, scale="sum").losses(*signals, batch), "patient", batch),
                paper["mean_over_batch"],
                dtype,
            )


def check_layer_map(case: Case) -> None:
    expected, settings = case["expected"], case["settings"]
    sizes = settings["student_layers"], settings["teacher_layers"]
    for name in ("skip", "last"):
        ours, theirs = layers.pairs(name, *sizes)
        assert list(ours) == expected["student_layers_one_based"]
        assert list(theirs) == expected[f"{name}_teacher_layers_one_based"]
        assert [layer - 1 for layer in theirs] == expected[f"{name}_fc_layer_idx_zero_based"]


def check_classification(case: Case) -> None:
    labels, predictions = case["inputs"]["labels"], case["inputs"]["predictions"]
    scores = class_scores(labels, predictions)
    found = {
        "accuracy": scores["accuracy"],
        "matthews": metrics.matthews(labels, predictions),
        "f1_macro": metrics.f1(labels, predictions, "macro"),
    }
    if "f1_positive_class_1" in case["expected"]:
        found["f1_positive_class_1"] = metrics.f1(labels, predictions, "binary")
        found |= {"precision": scores["precision"], "recall": scores["recall"]}
        found["accuracy_and_f1_mean"] = (found["accuracy"] + found["f1_positive_class_1"]) / 2
    for name, expected in case["expected"].items():
        if name == "confusion":
            pairs = list(zip(labels, predictions, strict=True))
            found["confusion"] = {
                "tp": pairs.count((1, 1)),
                "fp": pairs.count((0, 1)),
                "fn": pairs.count((1, 0)),
                "tn": pairs.count((0, 0)),
            }
            assert found["confusion"] == expected
        else:
            close(found[name], expected)


def check_regression(case: Case) -> None:
    labels, predictions = case["inputs"]["labels"], case["inputs"]["predictions"]
    both = {"pearson": metrics.pearson(labels, predictions), "spearman": metrics.spearman(labels, predictions)}
    both["mean_of_both"] = (both["pearson"] + both["spearman"]) / 2
    for name, expected in case["expected"].items():
        close(both[name], expected)


def check_answers(case: Case) -> None:
    exact, f1 = answer_scores(case["inputs"]["items"])
    close(100 * float(np.mean(exact)), case["expected"]["exact_match"])
    close(100 * float(np.mean(f1)), case["expected"]["f1"])
    for *ours, theirs in zip(exact, f1, case["expected"]["per_question"], strict=True):
        close(float(ours[0]), float(theirs["exact"]))
        close(ours[1], theirs["f1"])


def check_entities(case: Case) -> None:
    scores = entity_scores(case["inputs"]["gold"], case["inputs"]["predicted"])
    for name in ("precision", "recall", "f1"):
        close(scores[name], case["expected"]["default_conlleval_like"][name])


def check_augmentation(case: Case) -> None:
    """500 copies of each sentence, duplicates kept; what cannot be seen in them is found by other rules with the same draws."""
    inputs, expected = (
        [[one.rpartition("/")[::2] for one in row] for row in case["inputs"]["tagged_sentences"]],
        case["expected"],
    )
    p_mask, p_pos, p_ng = (case["settings"][name] for name in ("p_mask", "p_pos", "p_ng"))
    words, tags = (sorted({one[part] for row in inputs for one in row}) for part in (0, 1))
    sizes = np.array([len(row) for row in inputs])
    offsets = np.repeat(np.concatenate([[0], np.cumsum(sizes)]), 2)[1:]  # the pairs are empty
    pieces = np.array([2 * words.index(word) + (place > 0) for row in inputs for place, (word, _) in enumerate(row)])
    numbers = np.array([tags.index(tag) for row in inputs for _, tag in row])
    corpus = Corpus(TaggedTexts(pieces, numbers, offsets, words, tags))
    places = [str(place) for place in range(len(pieces))]  # a corpus in which each word occurs once
    numbered = Corpus(TaggedTexts(2 * np.arange(len(pieces)), numbers, offsets, places, tags))
    copies = case["settings"]["outputs_per_sentence"]
    rows = np.repeat(np.arange(len(inputs)), copies)
    keys = np.array([key_of(" ".join(word for word, _ in row), None) for row in inputs])[rows]
    seeds = seeds_of(0, keys, np.tile(np.arange(copies), len(inputs)), 0)

    def changed(mask: float, pos: float, ngram: float, of: Corpus = corpus, longest: int = 5) -> ChangedTexts:
        return of.changed(2 * rows, seeds, Rules(mask, pos, ngram, longest, "keep"))

    def within(found: float, told: dict[str, float]) -> None:
        assert abs(found - told["expected"]) <= told["tolerance_5_sigma"], (found, told)

    plain, before = changed(0, 0, 0), changed(p_mask, p_pos, 0)
    masked = before.words >> 1 == len(words)
    ruled = (changed(p_mask + p_pos, 0, 0).words >> 1 == len(words)) & ~masked
    same = before.words == plain.words
    stated = expected["before_n_gram_sampling_fraction_of_words"]
    assert len(masked) == stated["masked"]["trials"]
    for name, found in {
        "masked": masked,
        "pos_rule_applied": ruled,
        "neither_rule": ~masked & ~ruled,
        "pos_rule_gave_the_same_word": ruled & same,
        "visibly_replaced": ~masked & ~same,
        "visibly_unchanged": same,
    }.items():
        within(found.mean(), stated[name])
    assert not (~masked & ~same & ~ruled).any()
    within(1 - before.altered.mean(), expected["identical_to_original_before_n_gram_sampling"])
    their_tags = np.concatenate([numbers[offsets[2 * row] : offsets[2 * row + 1]] for row in rows])
    for tag, each in expected["replacement_words_within_tag"].items():
        drawn = before.words[ruled & (their_tags == tags.index(tag))] >> 1
        assert {words[one] for one in np.unique(drawn)} <= each.keys()
        for word, told in each.items():
            within((drawn == words.index(word)).mean(), told)

    after = changed(p_mask, p_pos, p_ng)
    within((after.words >> 1 == len(words)).mean(), expected["mask_fraction_of_output_words_after_n_gram_sampling"])
    # a sentence of one word is one n-gram either way: of two words the same draw shows
    longer = np.repeat(np.arange(len(pieces)), np.where(np.repeat(sizes, sizes) == 1, 2, 1))
    doubled = np.repeat(np.concatenate([[0], np.cumsum(np.maximum(sizes, 2))]), 2)[1:]
    visible = Corpus(TaggedTexts(pieces[longer], numbers[longer], doubled, words, tags))
    sampled = changed(0, 0, p_ng, visible, longest=1).sizes == 1
    several = sizes[rows] > 1
    assert np.array_equal(sampled[several], (changed(0, 0, p_ng, longest=1).sizes == 1)[several])
    within(sampled.mean(), expected["n_gram_sampled_fraction_of_outputs"])
    told = expected["after_n_gram_sampling"]["cap"]
    for size, each in told["output_length"].items():
        within((after.sizes == int(size)).mean(), each)
    assert set(np.unique(after.sizes)) <= set(map(int, told["output_length"]))
    assert abs(after.sizes.mean() - told["mean_output_length"]) <= told["mean_output_length_tolerance_5_sigma"]
    kept = changed(0, 0, p_ng, numbered)
    assert np.array_equal(kept.sizes, after.sizes)
    ends = np.cumsum(kept.sizes)
    first, last = kept.words[ends - kept.sizes] >> 1, kept.words[ends - 1] >> 1
    assert np.array_equal(last - first + 1, kept.sizes)  # a run of words
    within((last == offsets[2 * rows + 1] - 1)[sampled].mean(), told["n_gram_contains_last_word"])
    within((first == offsets[2 * rows])[sampled].mean(), told["n_gram_contains_first_word"])


def check_logits_mse(case: Case) -> None:
    """The authors' loss is also divided by the number of classes; the paper's squared norm is what we keep to."""
    expected, settings, inputs = case["expected"], case["settings"], case["inputs"]
    for dtype in (torch.float64, torch.float32):
        student = tensor(inputs["student_logits"], dtype).requires_grad_()
        teacher = tensor(inputs["teacher_logits"], dtype)
        classes = student.shape[1]
        batch = batch_of(None if settings["regression"] else inputs["labels"], len(student))
        terms = LogitRegression(alpha=0.0).losses(Signals(logits=student), Signals(logits=teacher), batch)
        squared = total(terms, batch)
        close(squared, expected["paper_squared_norm_mean_over_batch"], dtype)
        close(squared / classes, expected["mse_mean_over_batch_and_classes"], dtype)
        hard = student.new_zeros(()) if settings["regression"] else losses.hard(student, batch).mean(batch.counts)
        close(hard, expected["cross_entropy"], dtype)
        theirs = settings["distill_lambda"] * squared / classes + settings["ce_lambda"] * hard
        close(theirs, expected["loss"], dtype)
        gradients = case["gradient_wrt_student_logits"]
        close(torch.autograd.grad(theirs, student, retain_graph=True)[0], gradients["loss"], dtype)
        ours = gradients["paper_squared_norm_mean_over_batch"]
        close(torch.autograd.grad(squared, student)[0], ours, dtype)


def check_siamese_features(case: Case) -> None:
    a, b = tensor(case["inputs"]["h1"]), tensor(case["inputs"]["h2"])
    close(pair_features(a, b), case["expected"]["paper_order_h1_h2_product_absdiff"])


def bilstm_of(case: Case, pairs: bool) -> BilstmForSequenceClassification:
    """Our network with the case's weights, in float64."""
    settings, weights = case["settings"], case["inputs"]["weights"]
    config = BilstmConfig(
        vocab_size=settings["vocabulary"],
        embedding_size=settings["embedding"],
        hidden_size=settings["hidden_per_direction"],
        features=settings["fc"],
        pairs=pairs,
        num_labels=settings["classes"],
    )
    model = BilstmForSequenceClassification(config).double().eval()
    names = {"embed": "encoder.embeddings", "bi_rnn": "encoder.lstm", "fc1": "dense", "fc2": "out"}
    ours = {f"{names[name.split('.')[0]]}.{name.split('.')[1]}": tensor(value) for name, value in weights.items()}
    if pairs:
        ours["dense.weight"] = ours["dense.weight"][:, case["expected"]["fc1_columns_for_paper_order"]]
    model.load_state_dict(ours, strict=True)
    return model


def check_bilstm(case: Case) -> None:
    model, inputs = bilstm_of(case, pairs=False), case["inputs"]
    ids, lengths = torch.tensor(inputs["tokens"]), torch.tensor(inputs["lengths"])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        close(model.encoder(ids, lengths), case["expected"]["sentence_vector"])
        close(model(input_ids=ids, attention_mask=mask).logits, case["expected"]["logits"])


def check_siamese_bilstm(case: Case) -> None:
    model, inputs = bilstm_of(case, pairs=True), case["inputs"]
    rows = [
        (first[:n], second[:m])
        for first, n, second, m in zip(
            inputs["tokens1"], inputs["lengths1"], inputs["tokens2"], inputs["lengths2"], strict=True
        )
    ]
    longest = max(len(first) + len(second) for first, second in rows)
    ids, mask, types = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(3))
    for place, (first, second) in enumerate(rows):
        whole = len(first) + len(second)
        ids[place, :whole] = torch.tensor(first + second)
        mask[place, :whole] = 1
        types[place, len(first) : whole] = 1
    with torch.no_grad():
        for side in (1, 2):
            tokens, lengths = torch.tensor(inputs[f"tokens{side}"]), torch.tensor(inputs[f"lengths{side}"])
            close(model.encoder(tokens, lengths), case["expected"][f"h{side}"])
        close(model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits, case["expected"]["logits"])


CHECKS: Checks = {
    "augmentation": {None: check_augmentation},
    "hinton": {None: check_hinton},
    "pkd": {"soft_and_hard": check_soft_and_hard, "patience": check_patience, "layer_map": check_layer_map},
    "bilstm": {
        "logits_mse": check_logits_mse,
        "siamese_features": check_siamese_features,
        "bilstm": check_bilstm,
        "siamese_bilstm": check_siamese_bilstm,
    },
    **COMPRESSION,
    **DISTILBERT,
    **GENERATION,
    **TICKETS,
    **TINYBERT,
    "glue_metrics": {
        "classification": check_classification,
        "regression": check_regression,
        "squad_v1.1": check_answers,
        "ner": check_entities,
    },
}


def cases() -> list[Any]:
    if not FOLDER.is_dir():
        return [
            pytest.param(
                None,
                None,
                marks=pytest.mark.skip(reason=f"no reference files in {FOLDER.name}; set POTSTILL_REFERENCE"),
            )
        ]
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text())
        if content["name"] not in CHECKS:
            found.append(
                pytest.param(
                    None, None, id=content["name"], marks=pytest.mark.skip(reason=f"{content['name']}: not built yet")
                )
            )
        else:
            shared = {"pairs": content["pairs"]} if "pairs" in content else {}  # that all cases of the file read
            found += [
                pytest.param(content["name"], {**shared, **case}, id=f"{content['name']}-{case['name']}")
                for case in content["cases"]
            ]
    return found


@pytest.mark.parametrize(("name", "case"), cases())
def test_reference(name: str, case: Case) -> None:
    kind = case.get("kind")
    assert kind in CHECKS[name], f"{name}: no check for cases of kind {kind!r}"
    CHECKS[name][kind](case)


def test_reference_files_of_what_is_built_are_there() -> None:
    if not FOLDER.is_dir():
        pytest.skip("no reference files; set POTSTILL_REFERENCE")
    names = {json.loads(path.read_text())["name"] for path in FOLDER.glob("*.json")}
    assert names & set(CHECKS), f"no file in {FOLDER} is covered: {sorted(names)}"


def test_n_grams_are_seen_also_in_a_sentence_of_one_word() -> None:
    """The check above reads the draw of each copy; here as many of one word are cut as of three."""
    words = ["a", "b", "c"]
    texts = TaggedTexts(np.array([0, 0, 3, 5]), np.zeros(4, int), np.array([0, 1, 1, 4, 4]), words, ["X"])
    rows = np.repeat([0, 1], 4000)
    seeds = seeds_of(0, rows + 7, np.tile(np.arange(4000), 2), 0)
    found = Corpus(texts).changed(2 * rows, seeds, Rules(0.0, 0.0, 0.25, 1, "keep"))
    assert (found.sizes[rows == 0] == 1).all()
    assert abs((found.sizes[rows == 1] == 1).mean() - 0.25) < 0.05
