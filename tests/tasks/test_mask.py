"""Masked language modelling: which tokens are predicted, what is read in their place, and that the loss is transformers'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import pipeline as pipeline_of

from potstill.data.batches import TokenisedSet, view
from potstill.data.examples import key_of, store
from potstill.data.rows import open_table
from potstill.data.tokens import Tokens, Vocabulary, tokenise, tokenise_texts
from potstill.errors import InputError
from potstill.inference.answers import answers, network
from potstill.inference.predict import predict
from potstill.models.anatomy import set_dropout
from potstill.models.inference import torch_forward
from potstill.models.student import load_student, save_student
from potstill.plugins.methods.soft_targets import SoftTargets
from potstill.signals import Wants
from potstill.tasks.drawn import LOSS, RIGHT
from potstill.tasks.label_matching import make_task
from potstill.tasks.mask import MaskedLanguageModelling
from potstill.training import losses
from tests.support.commands import FAST, potstill
from tests.support.small_models import (
    LONGEST,
    NEUTRAL,
    running_texts,
    small_model,
    small_tokenizer,
    small_writer,
    write_csv,
    write_task,
)
from tests.support.training_world import loss_and_norm, make_world

TASK = MaskedLanguageModelling()
UNLIKELY = 1e-4  # what is drawn follows from fixed keys, so that a test passes always or never


def tokenised(texts: list[str], length: int = LONGEST, architecture: str = "bert") -> Tokens:
    rows = [(text, None) for text in texts]
    keys = np.array([key_of(*row) for row in rows], np.int64)
    return tokenise_texts(TASK, rows, small_tokenizer(architecture), length, keys)


def source_of(folder: Path, rows: int = 24, architecture: str = "bert") -> TokenisedSet[MaskedLanguageModelling]:
    examples = store(open_table(write_task(folder / "train", "mask", rows, 1), form="text"), TASK)
    tokens = tokenise(TASK, examples, small_tokenizer(architecture), LONGEST)
    return TokenisedSet(TASK, examples, tokens, tokens, seed=(7, 0))


def test_fifteen_percent_are_predicted_80_masked_10_random_10_as_they_are() -> None:
    """Over 1,000 texts of 100 words: the shares, that every token and every place is as likely, and never a special one."""
    random = np.random.default_rng(0)
    tokens = tokenised([" ".join(random.choice(NEUTRAL, 100)) for _ in range(1000)], length=256)
    rows = np.arange(1000)
    chosen, read = TASK.chosen(tokens, rows)
    own, vocabulary = tokens.ids[chosen.positions], tokens.vocabulary
    assert vocabulary is not None
    candidates = np.bincount(TASK.candidates(tokens, rows).owners)
    assert np.array_equal(np.bincount(chosen.owners), np.rint(0.15 * candidates))
    assert len(own) / candidates.sum() == pytest.approx(0.15, abs=0.001)
    masked, kept = read == vocabulary.mask, read == own
    replaced = ~masked & ~kept
    size = len(vocabulary.ordinary)
    expected = np.array([0.8, 0.1 + 0.1 / size, 0.1 - 0.1 / size]) * len(own)  # a random token may be the own one
    assert len(own) >= 15_000 and chisquare([masked.sum(), kept.sum(), replaced.sum()], expected).pvalue > UNLIKELY
    special = np.array(small_tokenizer("bert").all_special_ids)
    assert not np.isin(own, special).any() and not np.isin(read[replaced], special).any()
    of_vocabulary = np.bincount(np.searchsorted(vocabulary.ordinary, read[replaced]), minlength=size)
    assert chisquare(of_vocabulary).pvalue > UNLIKELY
    places = chosen.positions - tokens.offsets[chosen.owners]  # all texts have at least 100 tokens
    assert chisquare(np.bincount(places, minlength=101)[1:101]).pvalue > UNLIKELY


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), architecture=st.sampled_from(["bert", "roberta", "modernbert"]))
def test_a_row_is_masked_alike_whatever_shares_its_batch(seed: int, architecture: str) -> None:
    """Alone, twice, or among longer rows in any order: the same tokens are predicted, and the same is read."""
    tokens = tokenised([row["text"] for row in running_texts(8, seed)], 24, architecture)
    order = np.random.default_rng(seed).integers(0, 8, 12)
    chosen, read = TASK.chosen(tokens, order)
    assert np.array_equal(np.bincount(chosen.owners, minlength=12), TASK.predictions(tokens, order))
    together = view(TASK, tokens, order)
    starts = np.cumsum(tokens.counts(order)) - tokens.counts(order)  # a long row has several sequences
    for place, row in enumerate(order):
        alone, ids = TASK.chosen(tokens, np.array([row]))
        mine = chosen.owners == place
        assert np.array_equal(chosen.positions[mine], alone.positions) and np.array_equal(read[mine], ids)
        single = view(TASK, tokens, np.array([row]))
        of_row = (together.at[:, 0] >= starts[place]) & (together.at[:, 0] < starts[place] + len(single.real))
        assert torch.equal(together.at[of_row] - torch.tensor([starts[place], 0]), single.at)
        for sequence, real in enumerate(single.real):
            mine_ids = together.inputs["input_ids"][starts[place] + sequence][: int(real.sum())]
            assert torch.equal(mine_ids, single.inputs["input_ids"][sequence][real])


def test_a_long_text_is_read_in_windows_each_token_once() -> None:
    text = " ".join(NEUTRAL * 3)
    tokens, whole = tokenised([text], 16), tokenised([text], 512)
    assert int(tokens.counts(np.array([0]))[0]) > 10 and tokens.sizes(np.arange(3)).tolist() == [16, 16, 16]
    every = [each.ids[TASK.candidates(each, np.array([0])).positions].tolist() for each in (tokens, whole)]
    assert every[0] == every[1]
    predicted = [each.ids[TASK.chosen(each, np.array([0]))[0].positions].tolist() for each in (tokens, whole)]
    assert predicted[0] == predicted[1]  # also what is drawn does not depend on the windows


def test_training_draws_anew_in_every_epoch_and_the_same_again(tmp_path: Path) -> None:
    source, positions = source_of(tmp_path), np.arange(12)
    counts = source.count(positions)
    drawn = [source.batch(positions, counts, epoch) for epoch in (0, 0, 1)]
    first, again, other = (batch.student.inputs["input_ids"] for batch in drawn)
    assert torch.equal(first, again) and torch.equal(drawn[0].targets, drawn[1].targets)
    assert not torch.equal(first, other) and not torch.equal(drawn[0].student.at, drawn[2].student.at)
    fixed = [source.batch(positions, counts) for _ in range(2)]  # dev and test
    assert torch.equal(fixed[0].student.inputs["input_ids"], fixed[1].student.inputs["input_ids"])
    assert not torch.equal(fixed[0].student.inputs["input_ids"], first)
    assert all(len(batch.targets) == counts["predictions"] for batch in (*drawn, *fixed))
    assert drawn[0].teacher is drawn[0].student and source.needs_live_teacher(Wants(cls=(1,)))


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "electra", "modernbert"])
def test_loss_and_gradient_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    """On the same masked batch; only the chosen positions count, so all other labels are -100 there."""
    model = small_model(architecture, seed=3, head="MaskedLM").model.train(False)
    source, positions = source_of(tmp_path, architecture=architecture), np.arange(12)
    batch = source.batch(positions, source.count(positions), epoch=2)
    labels = torch.full_like(batch.student.inputs["input_ids"], -100)
    labels[batch.student.at[:, 0], batch.student.at[:, 1]] = batch.targets.long()
    found = []
    for own in (True, False):
        model.zero_grad()
        outputs = model(**batch.student.inputs, **({} if own else {"labels": labels}))
        ours = losses.hard(batch.student.predictions(outputs.logits), batch).mean(batch.counts) if own else outputs.loss
        ours.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found.append((ours.item(), float(torch.stack([gradient.norm() for gradient in gradients]).norm())))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_scores_are_those_of_the_masked_tokens(tmp_path: Path) -> None:
    """Accuracy and perplexity from the logits of transformers, token by token."""
    student, source = small_model("bert", seed=3, head="MaskedLM"), source_of(tmp_path)
    outputs = answers(network(torch_forward(student.model)), source)
    batch = source.batch(np.arange(24), source.count(np.arange(24)))
    with torch.no_grad():
        logits = student.model(**batch.student.inputs).logits[batch.student.at[:, 0], batch.student.at[:, 1]]
    each = torch.nn.functional.cross_entropy(logits, batch.targets.long(), reduction="none")
    scores = TASK.score(TASK.golds(source.examples), outputs)
    assert scores["perplexity"] == pytest.approx(float(each.mean().exp()), rel=1e-5)
    assert scores["likelihood"] == pytest.approx(1 / scores["perplexity"])
    right = logits.argmax(-1) == batch.targets
    assert scores["accuracy"] == pytest.approx(float(right.float().mean()))
    assert sorted(outputs[outputs[..., RIGHT] >= 0, LOSS]) == pytest.approx(sorted(each.tolist()), abs=1e-5)
    assert TASK.agreement(outputs, outputs) == 1.0 and not TASK.disagreement(outputs, outputs).any()
    assert TASK.agreement(outputs[:, :-1], outputs) is None  # another tokenizer


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_masks_are_filled_as_the_pipeline_of_transformers_fills_them(architecture: str, tmp_path: Path) -> None:
    save_student(small_model(architecture, seed=1, head="MaskedLM"), tmp_path / "model")
    fill = pipeline_of("fill-mask", model=str(tmp_path / "model"), top_k=5)
    for text in ("a [MASK] film .", "[MASK] story and the actor was good"):
        (ours,) = predict(tmp_path / "model", [text])
        theirs = fill(text.replace("[MASK]", fill.tokenizer.mask_token))
        (mask,) = ours["masks"]
        assert [one["token"] for one in mask["nbest"]] == [one["token_str"].strip() for one in theirs]
        assert [one["probability"] for one in mask["nbest"]] == pytest.approx(
            [one["score"] for one in theirs], abs=1e-5
        )
    (two,) = predict(tmp_path / "model", ["a [MASK] film is [MASK] ."])
    assert len(two["masks"]) == 2 and "[MASK]" not in two["text"]
    (none,) = predict(tmp_path / "model", ["nothing is missing ."])
    assert none == {"text": "nothing is missing .", "masks": []}


def test_empty_lines_and_labels_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a film\n\n  \nanother film , long ago\n")
    write_csv(tmp_path / "b.csv", [("a film", "x"), ("a story", "")])
    for name, rows in (("a.txt", 2), ("b.csv", 2)):
        examples = store(open_table(tmp_path / name, form="text"), TASK)
        assert len(examples) == len(examples.labelled_only) == rows


def test_a_tokenizer_without_a_mask_token_is_refused() -> None:
    with pytest.raises(InputError, match="no mask token, which task 'mask' needs; start from a model that has one"):
        tokenise_texts(TASK, [("a film", None)], small_writer("llama").tokenizer, 16)


def test_the_model_decides_for_texts_without_labels_and_labels_are_refused() -> None:
    config = SimpleNamespace(architectures=["BertForMaskedLM"])
    task, sentence = make_task(None, config, [], None, "rows.txt")
    assert task.name == "mask" and sentence == "masked tokens are predicted"
    with pytest.raises(
        InputError, match=r"texts with a label, but the model needs running text.* or write --task mask"
    ):
        make_task(None, config, ["good", "bad"], None, "rows.csv")
    classifier = SimpleNamespace(architectures=["BertForSequenceClassification"])
    with pytest.raises(InputError, match="the rows are running text, but the model needs texts with a label"):
        make_task("mask", classifier, [], None, "rows.txt")


def test_an_encoder_trained_on_running_text_is_the_start_of_a_classifier(tmp_path: Path) -> None:
    rows = write_task(tmp_path / "train", "mask", 60, 1)
    save_student(small_model("bert"), tmp_path / "bare")
    words = ["finetune", tmp_path / "bare", "--train", rows, "--task", "mask", "--epochs", "1", *FAST]
    assert potstill(*words, "--out", tmp_path / "run") == 0
    trained = load_student(tmp_path / "run/student")
    assert type(trained.model).__name__ == "BertForMaskedLM"
    classifier = load_student(tmp_path / "run/student", ("a", "b", "c"), head="SequenceClassification")
    ours, theirs = classifier.model.base_model.state_dict(), trained.model.base_model.state_dict()
    assert classifier.new_head and all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_whole_words_are_predicted_or_not_at_all(architecture: str) -> None:
    """15 % of the words, in all their tokens; words are those that the tokenizer itself tells apart."""
    words = ["watching", "dreadful", "unwatchable", "filmmakers", "the", "a", "storytelling"]
    texts = [" ".join(np.random.default_rng(seed).choice(words, 60)) for seed in range(20)]
    tokenizer, task = small_tokenizer(architecture), MaskedLanguageModelling(whole_words=True)
    tokens, rows = tokenised(texts, 512, architecture), np.arange(20)
    chosen, _ = task.chosen(tokens, rows)
    assert np.array_equal(np.bincount(chosen.owners), task.predictions(tokens, rows))
    several = 0
    for row, text in enumerate(texts):
        of_token = tokenizer(text).encodings[0].word_ids
        predicted = set((chosen.positions[chosen.owners == row] - tokens.offsets[row]).tolist())
        every = {word for word in of_token if word is not None}
        whole = [{place for place, word in enumerate(of_token) if word == one} for one in every]
        taken = [places for places in whole if places & predicted]
        assert all(places <= predicted for places in taken) and len(taken) == round(0.15 * len(every))
        several += sum(len(places) > 1 for places in taken)
    assert several > 20


def test_a_step_with_whole_words_does_not_depend_on_how_it_is_cut(tmp_path: Path) -> None:
    world = make_world(tmp_path, task="mask")
    set_dropout(world.student.model, 0.0)
    source = replace(world.source(), task=MaskedLanguageModelling(whole_words=True), seed=(1, 0))
    whole, parts = (
        loss_and_norm(world.training("hard_labels", world.live(), source, tokens=tokens), np.arange(16), precise=True)
        for tokens in (4096, 60)
    )
    assert parts == pytest.approx(whole, rel=1e-6)


def test_a_tokenizer_that_shows_no_words_is_refused() -> None:
    tokens = tokenised(["a film"])
    assert tokens.vocabulary is not None
    hidden = replace(tokens, vocabulary=replace(tokens.vocabulary, continues=None))
    with pytest.raises(InputError, match="does not show where words begin; omit whole_words"):
        MaskedLanguageModelling(whole_words=True).chosen(hidden, np.array([0]))


@pytest.mark.parametrize("method", [SoftTargets(top=3), SoftTargets(draws=5)], ids=["top", "draws"])
def test_masks_come_back_and_the_teacher_is_asked_once_about_each(method: SoftTargets, tmp_path: Path) -> None:
    """In every epoch a step with remembered answers is that with a live teacher, in loss and gradient norm; no run asks again."""
    world = make_world(tmp_path, task="mask")
    set_dropout(world.student.model, 0.0)
    task = MaskedLanguageModelling(masks=2)
    source, positions = replace(world.source(), task=task, seed=(1, 0)), np.arange(16)
    first, second, third = (source.batch(positions, source.count(positions, epoch), epoch) for epoch in range(3))
    assert torch.equal(first.student.inputs["input_ids"], third.student.inputs["input_ids"])
    assert torch.equal(first.keys, third.keys) and not torch.equal(first.keys, second.keys)
    assert not torch.equal(first.student.inputs["input_ids"], second.student.inputs["input_ids"])
    wants = method.wants(2, 2)[1]
    assert not source.needs_live_teacher(wants) and source.needs_live_teacher(Wants(logits=True))
    teacher = world.remembering()
    assert teacher.remember(source, wants, epochs=5) == 2 * len(source.examples)
    assert teacher.remember(replace(source, seed=(2, 0)), wants, epochs=5) == 0  # another run
    asked: list[int] = []
    hook = world.teacher.model.register_forward_hook(lambda *_: asked.append(1))
    for epoch in range(4):
        found = []
        for side in (teacher, world.live()):
            training = world.training(method, side, replace(source, draw=epoch))
            found.append(loss_and_norm(training, positions, epoch=epoch))
            assert bool(asked) == (side is not teacher)
            asked.clear()
        assert found[0] == pytest.approx(found[1], rel=1e-5)
    hook.remove()


def test_a_byte_level_tokenizer_with_a_token_of_number_signs_shows_where_words_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPT-2's and RoBERTa's vocabularies have "####" too, which is no part of a word of WordPiece."""
    tokenizer = small_tokenizer("roberta")
    plain, tokens = Vocabulary.of(tokenizer).continues, tokenizer.get_vocab()
    monkeypatch.setattr(tokenizer, "get_vocab", lambda: {**tokens, "####": len(tokens)})
    more = Vocabulary.of(tokenizer).continues
    assert plain is not None and more is not None and plain.any()
    assert np.array_equal(more[: len(plain)], plain) and more[-1]
