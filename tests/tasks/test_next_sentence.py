"""Next sentence prediction, alone and together with masked tokens: what is drawn, and that the losses are transformers'."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModel, AutoModelForNextSentencePrediction, AutoModelForPreTraining

from potstill.data.batches import TokenisedSet
from potstill.data.examples import store
from potstill.data.rows import Columns
from potstill.data.running_text import in_windows, open_running_text
from potstill.data.tokens import Tokens, tokenise
from potstill.errors import InputError
from potstill.inference.answers import answers, logits_of
from potstill.inference.predict import predict
from potstill.models import packing
from potstill.models.student import save_student
from potstill.tasks.drawn import NAME, RIGHT
from potstill.tasks.next_sentence import NEXT, OTHER, NextSentence, classes_of, with_other_seconds
from potstill.tasks.pretrain import Pretraining
from tests.support.commands import measurements, potstill
from tests.support.small_models import LONGEST, NEUTRAL, small_model, small_tokenizer
from tests.support.training_world import World, loss_and_norm, stopped_and_resumed

BOTH = {"next_sentence": NextSentence(), "pretrain": Pretraining()}
UNLIKELY = 1e-4  # what is drawn follows from fixed keys, so that a test passes always or never
FAST = ["--set", "dropout=0", "--set", "timing=none", "--quiet", "--length", "32", "--set", "precision=float32"]


def write_documents(path: Path, documents: int = 40, seed: int = 0) -> Path:
    """Each says two words of its own between others: what tells whether texts belong together."""
    random = np.random.default_rng(seed)
    said = []
    for _ in range(documents):
        own = random.choice(NEUTRAL[:30], 2)
        lines = [
            " ".join(random.choice([*own, *own, *NEUTRAL[:6]], 8)) + " ." for _ in range(int(random.integers(4, 9)))
        ]
        said.append("\n".join(lines))
    path.write_text("\n\n".join(said))
    return path


def source_of(folder: Path, task: str, documents: int = 40, batch_seed: tuple[int, ...] = (7, 0)) -> TokenisedSet:
    kind, tokenizer = BOTH[task], small_tokenizer("bert")
    rows = store(open_running_text(str(write_documents(folder / "a.txt", documents)), Columns()), kind)
    examples = in_windows(rows, tokenizer, 32, pairs=True)
    tokens = tokenise(kind, examples, tokenizer, LONGEST)
    return TokenisedSet(kind, examples, tokens, tokens, seed=batch_seed)


def seconds(tokens: Tokens, rows: np.ndarray) -> list[tuple[int, ...]]:
    spans = zip(tokens.offsets[rows], tokens.offsets[rows + 1], strict=True)
    return [tuple(tokens.ids[begin:end][tokens.segments[begin:end] == 1].tolist()) for begin, end in spans]


def test_half_of_the_seconds_are_those_of_other_documents_each_as_likely(tmp_path: Path) -> None:
    source = source_of(tmp_path, "next_sentence", 60)
    tokens, rows = source.student, np.arange(len(source.examples))
    documents = np.asarray(tokens.documents)
    owner = {text: row for row, text in enumerate(seconds(tokens, rows))}
    assert len(owner) == len(rows)  # all differ, so that it is known whose each is
    taken, classes = [], []
    for epoch in range(40):
        drawn, every = with_other_seconds(source._drawn_tokens(epoch)[0], rows)
        found = np.array([owner[text] for text in seconds(drawn, every)])
        kinds = classes_of(drawn, every)
        assert np.array_equal(found == rows, kinds == NEXT)
        assert (documents[found] != documents[rows])[kinds == OTHER].all()
        taken.append(found[kinds == OTHER])
        classes.append(kinds)
    share = np.concatenate(classes).mean()
    assert share == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(40 * len(rows)))
    assert chisquare(np.bincount(np.concatenate(taken), minlength=len(rows))).pvalue > UNLIKELY


@pytest.mark.parametrize("task", BOTH)
def test_what_is_drawn_is_a_function_of_seed_epoch_and_key(task: str, tmp_path: Path) -> None:
    """The same again, alone or among others; another in the next epoch; fixed on dev."""
    source, positions = source_of(tmp_path, task), np.arange(12)
    first, again, other = (source.batch(positions, source.count(positions, epoch), epoch) for epoch in (0, 0, 1))
    assert torch.equal(first.student.inputs["input_ids"], again.student.inputs["input_ids"])
    assert torch.equal(first.targets, again.targets) and not torch.equal(first.targets, other.targets)
    for place in range(12):
        alone = source.batch(positions[place : place + 1], source.count(positions[:1], 0), 0)
        real = alone.student.real[0]
        assert torch.equal(first.student.inputs["input_ids"][place][: len(real)], alone.student.inputs["input_ids"][0])
        assert float(alone.targets[-1]) == float(first.targets[len(first.targets) - 12 + place])
    fixed = [source.batch(positions, source.count(positions)) for _ in range(2)]
    assert torch.equal(fixed[0].targets, fixed[1].targets)
    assert all(len(batch.targets) == batch.counts["predictions"] for batch in (first, other, *fixed))


def world_of(folder: Path, task: str, seed: tuple[int, ...] = (7, 0)) -> World:
    student, teacher = (small_model("bert", layers, seed=layers, head=BOTH[task].head) for layers in (2, 4))
    for model in (student.model, teacher.model):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    source = source_of(folder, task, batch_seed=seed)
    return World(teacher, student, source.task, source.examples, folder)


@pytest.mark.parametrize("task", BOTH)
def test_a_step_is_that_of_transformers_however_it_is_cut(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In loss and gradient norm: whole, in micro-batches, packed."""
    world, positions = world_of(tmp_path, task), np.arange(24)
    source = source_of(tmp_path, task)
    model = world.student.model.double()
    batch = source.batch(positions, source.count(positions, 0), 0)
    labels = torch.full_like(batch.student.inputs["input_ids"], -100)
    pairs = batch.targets[-24:].long()
    if task == "pretrain":
        labels[batch.student.at[:, 0], batch.student.at[:, 1]] = batch.targets[:-24].long()
        loss = model(**batch.student.inputs, labels=labels, next_sentence_label=pairs).loss
    else:
        loss = model(**batch.student.inputs, labels=pairs).loss
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    expected = float(loss.detach()), float(norm)
    for worth, tokens in ((2.0, 4096), (2.0, 100), (-1.0, 4096), (-1.0, 100)):
        monkeypatch.setattr(packing, "WORTH", worth)
        training = world.training("hard_labels", world.live(), source, batch=24, tokens=tokens)
        assert loss_and_norm(training, positions, precise=True) == pytest.approx(expected, rel=1e-6), (worth, tokens)


@pytest.mark.parametrize("method", ["soft_targets", "distilbert"])
def test_a_teacher_with_two_heads_teaches_both(method: str, tmp_path: Path) -> None:
    world = world_of(tmp_path, "pretrain")
    whole, parts = (
        loss_and_norm(
            world.training(method, world.live(), source_of(tmp_path, "pretrain"), batch=24, tokens=tokens),
            np.arange(24),
            precise=True,
        )
        for tokens in (4096, 100)
    )
    assert parts == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("task", BOTH)
def test_a_stopped_run_goes_on_to_the_same_bits(task: str, tmp_path: Path) -> None:
    source = partial(source_of, task=task)
    difference, changed = stopped_and_resumed(
        lambda folder: world_of(folder, task),
        tmp_path,
        "hard_labels",
        (3,),
        lambda world: source(world.folder),
        batch=24,
    )
    assert difference == 0.0 and changed


@pytest.mark.parametrize("task", BOTH)
def test_scores_are_those_of_the_heads(task: str, tmp_path: Path) -> None:
    student, source = small_model("bert", seed=3, head=BOTH[task].head), source_of(tmp_path, task)
    outputs = answers(logits_of(student.model), source)
    scores = source.task.score(source.task.golds(source.examples), outputs)
    positions = np.arange(len(source.examples))
    batch = source.batch(positions, source.count(positions))
    with torch.no_grad():
        said = student.model(**batch.student.inputs)
    logits = said.seq_relationship_logits if task == "pretrain" else said.logits
    classes = batch.targets[-len(positions) :]
    right = (logits.argmax(-1) == classes).float()
    assert scores["next_sentence" if task == "pretrain" else "accuracy"] == pytest.approx(float(right.mean()))
    assert np.array_equal(outputs[:, 0, RIGHT], right.numpy())
    assert np.array_equal(outputs[:, 0, NAME], logits.argmax(-1).numpy())
    if task == "pretrain":
        at = batch.student.at
        each = torch.nn.functional.cross_entropy(
            said.prediction_logits[at[:, 0], at[:, 1]], batch.targets[: len(at)].long(), reduction="none"
        )
        assert scores["perplexity"] == pytest.approx(float(each.mean().exp()), rel=1e-5)


@pytest.mark.parametrize("task", BOTH)
def test_a_run_ends_in_a_stock_folder(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_documents(tmp_path / "a.txt", 80)
    words = ["pretrain", "--train", text, "--task", task, "--shape", "bert:2x32", "--epochs", "2", *FAST]
    assert potstill(*words, "--out", tmp_path / "run") == 0
    (model,) = measurements(tmp_path / "run")["models"].values()
    quality = model["quality"]["task"]["dev"]
    assert 0 <= quality["next_sentence" if task == "pretrain" else "accuracy"] <= 1
    folder = tmp_path / "run/student"
    auto = AutoModelForPreTraining if task == "pretrain" else AutoModelForNextSentencePrediction
    assert type(auto.from_pretrained(folder)).__name__ == f"BertFor{BOTH[task].head}"
    assert type(AutoModel.from_pretrained(folder)).__name__ == "BertModel"
    assert potstill("measure", folder, "--data", text) == 2  # single texts: nothing is drawn from them
    assert "texts" in capsys.readouterr().err.splitlines()[-1]
    if task == "pretrain":
        (answer,) = predict(folder, ["the [MASK] ."])
        assert len(answer["masks"]) == 1
    else:
        (answer,) = predict(folder, [("the film .", "a story .")])
        assert isinstance(answer["next"], bool) and 0.5 <= answer["probability"] <= 1


def test_what_cannot_follow_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a film .\nthe story .\n" * 30)
    rows = store(open_running_text(str(tmp_path / "one.txt"), Columns()), BOTH["pretrain"])
    with pytest.raises(InputError, match="two documents of several sentences are needed"):
        in_windows(rows, small_tokenizer("bert"), 16, pairs=True)
    source = source_of(tmp_path, "next_sentence")
    with pytest.raises(InputError, match="does not tell two texts apart; use a BERT, or write task = 'mask'"):
        tokenise(BOTH["next_sentence"], source.examples, small_tokenizer("roberta"), LONGEST)
    with pytest.raises(InputError, match="reads pairs of texts that follow each other; write windows = true"):
        tokenise(BOTH["next_sentence"], rows, small_tokenizer("bert"), LONGEST)


def test_a_teacher_of_next_sentences_teaches_a_student(tmp_path: Path) -> None:
    """Its answers cannot be remembered, since another second text is another row: it is asked live, on dev too."""
    save_student(small_model("bert", 2, seed=2, head="NextSentencePrediction"), tmp_path / "teacher")
    words = ["distill", "--teacher", tmp_path / "teacher", "--train", write_documents(tmp_path / "a.txt")]
    words += ["--task", "next_sentence", "--student", "keep_layers:1", "--epochs", "1", "--rate", "1e-3", "--force"]
    assert potstill(*words, *FAST, "--out", tmp_path / "run") == 0
    assert measurements(tmp_path / "run")["models"]["distilled"]["quality"]["task"]["dev"]["agreement"] > 0


def test_a_length_without_room_for_two_texts_is_refused(tmp_path: Path) -> None:
    rows = store(open_running_text(str(write_documents(tmp_path / "a.txt")), Columns()), NextSentence())
    with pytest.raises(
        InputError, match="length = 4 leaves no room for a token of each text; write length = 5 or more"
    ):
        in_windows(rows, small_tokenizer("bert"), 4, pairs=True)
