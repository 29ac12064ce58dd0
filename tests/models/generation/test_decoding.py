"""What is decoded: both engines search alike, and scores are the model's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.errors import InputError
from potstill.models.anatomy import is_spread
from potstill.models.generation.ctranslate2 import convert, special_tokens
from potstill.models.generation.decoding import (
    Hypothesis,
    _sources,
    batches_by_length,
    ctranslate2_search,
    decoder,
    decoder_of,
    engine_for,
    transformers_search,
)
from potstill.models.student import Student, load_student, save_student
from potstill.plugins.exports.ctranslate2 import compare
from potstill.tasks.label_matching import make_task
from tests.support.generative_models import TRANSLATORS, small_writer, trained_marian, writers_tokenizer
from tests.support.small_models import sentences, small_model

TEXTS = [text for text, _ in sentences(40, 5)]


def forward_score(student: Student, source: list[int], written: list[int]) -> float:
    """Log probability of tokens by one plain forward pass of transformers."""
    model = student.model
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            begun = torch.tensor([[model.config.decoder_start_token_id, *written[:-1]]])
            logits = model(torch.tensor([source]), decoder_input_ids=begun).logits[0]
        else:
            logits = model(torch.tensor([[*source, *written]])).logits[0, len(source) - 1 : -1]
    return float(logits.log_softmax(-1)[torch.arange(len(written)), written].sum())


def told(student: Student, engine: str, texts: list[str], beam: int, best: int, longest: int) -> list[list[Hypothesis]]:
    with decoder(student, engine, longest) as decode:  # type: ignore[arg-type]
        return decode(texts, beam, best)


def same_share(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> float:
    pairs = [both for a, b in zip(ours, theirs, strict=True) for both in zip(a, b, strict=True)]
    return float(np.mean([a.text == b.text and abs(a.score - b.score) < 1e-3 for a, b in pairs]))


@pytest.mark.parametrize("longest", [6, 48])
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_the_engines_find_the_same_hypotheses_with_the_same_scores(beam: int, longest: int) -> None:
    student = trained_marian()
    ours, theirs = (told(student, engine, TEXTS, beam, beam, longest) for engine in ("ctranslate2", "transformers"))
    assert len({one[0].text for one in ours}) > len(TEXTS) // 2, "sources have outputs of their own"
    assert same_share(ours, theirs) == 1


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_every_translator_is_decoded_alike_also_when_random(kind: str) -> None:
    student = small_writer(kind)
    assert engine_for(student) == "ctranslate2"
    ours, theirs = (told(student, engine, TEXTS[:16], 4, 4, 20) for engine in ("ctranslate2", "transformers"))
    assert same_share(ours, theirs) >= 0.95  # of a random one, many are as probable as each other


@pytest.mark.parametrize("beam", [1, 4])
def test_transformers_own_generate_finds_the_same(beam: int) -> None:
    """By a call as a user would write it, whose scores are its own."""
    student = trained_marian()
    batch = student.tokenizer(TEXTS, padding=True, return_tensors="pt")
    wish = {"early_stopping": True, "return_dict_in_generate": True, "output_scores": True} if beam > 1 else {}
    made = student.model.generate(**batch, num_beams=beam, max_new_tokens=40, **wish)
    said = student.tokenizer.batch_decode(made.sequences if beam > 1 else made, skip_special_tokens=True)
    ours = told(student, "ctranslate2", TEXTS, beam, 1, 40)
    assert [one[0].text for one in ours] == said
    if beam > 1:
        lengths = (made.sequences[:, 1:] != student.tokenizer.pad_token_id).sum(1)
        assert [one[0].score for one in ours] == pytest.approx((made.sequences_scores * lengths).tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["marian", "gpt2"])
@pytest.mark.parametrize("engine", ["ctranslate2", "transformers"])
def test_a_score_is_the_sum_of_a_forward_pass_with_the_end(engine: str, kind: str, tmp_path: Path) -> None:
    student = trained_marian() if kind == "marian" else small_writer(kind, steps=40)
    known = special_tokens(student.model, student.tokenizer)
    convert(student, tmp_path, "float32")
    search = ctranslate2_search(tmp_path, 24) if engine == "ctranslate2" else transformers_search(student, known, 24)
    sources = student.tokenizer(TEXTS)["input_ids"]
    ended = 0
    for source, hypotheses in zip(sources, search(sources, 4, 3), strict=True):
        per_token = [score / len(ids) for ids, score in hypotheses]
        assert per_token == sorted(per_token, reverse=True), "best first, by the mean"
        for ids, score in hypotheses:
            assert score == pytest.approx(forward_score(student, source, ids), abs=1e-4)
            ended += ids[-1] == known.ends[0]
            assert known.ends[0] not in ids[:-1] and len(ids) <= 24
    assert ended > 20


def test_padding_that_starts_the_decoder_is_not_zero_after_training_and_is_right_all_the_same() -> None:
    model = trained_marian().model
    assert model.get_input_embeddings().weight[model.config.pad_token_id].abs().max() > 0.01


@pytest.mark.parametrize("engine", ["ctranslate2", "transformers"])
def test_forbidden_tokens_are_never_written_and_have_no_probability(engine: str) -> None:
    student = small_writer("marian", steps=30)
    plain = told(student, engine, TEXTS[:8], 2, 1, 20)
    often = student.tokenizer(plain[0][0].text)["input_ids"][0]
    student.model.generation_config.bad_words_ids = [[often]]
    student.model.generation_config.num_beams, student.model.generation_config.no_repeat_ngram_size = 3, 1
    found = told(student, engine, TEXTS[:8], 2, 1, 20)
    assert plain != found and not any(often in student.tokenizer(one[0].text)["input_ids"] for one in found)
    other = told(student, "transformers" if engine == "ctranslate2" else "ctranslate2", TEXTS[:8], 2, 1, 20)
    assert same_share(found, other) == 1
    assert student.model.generation_config.num_beams == 3, "the model's own settings stay"


@pytest.mark.parametrize("engine", ["ctranslate2", "transformers"])
def test_odd_texts_and_none_at_all(engine: str) -> None:
    odd = ["", "   ", "x", "日本 の 映画", "🎬 " * 40, "w" * 5000, "</s>", "a\nb"]
    with decoder(trained_marian(), engine, 16) as decode:  # type: ignore[arg-type]
        assert decode([], 2, 1) == []
        found = decode(odd, 3, 2)
        assert [len(one) for one in found] == [1, *[2] * 5, 1, 2] and found[0] == [Hypothesis("", 0.0)]
        assert same_share(decode(odd[::-1], 3, 2)[::-1], found) == 1, "in the order of the texts"
        with pytest.raises(InputError, match="beam"):
            decode(odd, 2, 3)


@pytest.mark.parametrize("begins", [True, False])
def test_prompts_are_read_as_they_are_trained_on(begins: bool) -> None:
    """Also by a tokenizer that puts an end behind every text, as a translator's does; long ones lose their beginning."""
    student = small_writer("gpt2")
    tokenizer = writers_tokenizer("marian")
    tokenizer.bos_token = "<pad>" if begins else None
    known = special_tokens(student.model, tokenizer)._replace(start=None, ends=[0])
    room = 12
    made = _sources(tokenizer, known, [*TEXTS[:6], " ".join(TEXTS[:3])], room)
    task, _ = make_task("write", None, [], None, "rows", "writing")
    for text, ids in zip([*TEXTS[:6], " ".join(TEXTS[:3])], made, strict=True):
        answer = len(tokenizer("film", add_special_tokens=False)["input_ids"]) + 1
        (trained,) = task.tokenize([(text, "film")], tokenizer, room + answer).ids
        assert ids == trained[:-answer]
    assert max(map(len, made)) == room
    assert _sources(tokenizer, known, [""], room) == [[tokenizer.bos_token_id] if begins else [0]]


def test_language_models_continue_a_prompt_alone_as_among_others() -> None:
    student = small_writer("gpt2", steps=40)
    prompts = [*TEXTS[:6], ""]
    together = told(student, "auto", prompts, 3, 2, 8)
    alone = [told(student, "auto", [text], 3, 2, 8)[0] for text in prompts]
    assert same_share(together, alone) == 1


def test_a_conversion_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    student = small_writer("marian")
    before = {name: tensor.clone() for name, tensor in student.model.state_dict().items()}
    config = student.model.config.to_dict()
    convert(student, tmp_path, "int8")
    assert student.model.config.to_dict() == config
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.model.state_dict().items())
    with decoder_of(tmp_path, 20) as decode:
        rough = decode(TEXTS, 2, 1)
    assert len(rough) == len(TEXTS)


def test_what_ctranslate2_cannot_run_goes_to_transformers_or_is_refused() -> None:
    student = small_writer("bart")
    student.model.generation_config.forced_bos_token_id = 7
    assert engine_for(student) == "transformers"
    with pytest.raises(InputError, match='engine = "transformers"'):
        engine_for(student, "ctranslate2")
    found = told(student, "auto", TEXTS[:3], 2, 1, 10)
    forced = student.tokenizer.decode([7])
    assert all(one[0].text.startswith(forced) for one in found)
    assert special_tokens(student.model, student.tokenizer).forced == 7


def test_batches_hold_every_place_once_the_longest_first() -> None:
    lengths = [3, 900, 40, 2000, 40, 1]
    found = list(batches_by_length(range(6), lengths))
    assert sorted(place for batch in found for place in batch) == list(range(6))
    assert found[0] == [3] and all(len(one) * lengths[one[0]] <= 1024 for one in found[1:])


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_texts_are_written_without_dropout_whatever_mode_the_model_is_in(kind: str) -> None:
    student = small_writer(kind)
    for part in student.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.5
    student.model.config.dropout = 0.5  # Bart's own, which it reads at every call
    for layer in (one for one in student.model.modules() if hasattr(one, "dropout") and isinstance(one.dropout, float)):
        layer.dropout = 0.5
    calm = told(student, "transformers", TEXTS[:6], 2, 2, 12)
    student.model.train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert told(student, "transformers", TEXTS[:6], 2, 2, 12) == calm
    assert student.model.training


@pytest.mark.parametrize("kind", ["m2m_100", "bart"])
def test_an_export_begins_with_the_token_that_is_forced(kind: str, tmp_path: Path) -> None:
    student = small_writer(kind, steps=40)
    student.model.generation_config.forced_bos_token_id = 20
    convert(student, tmp_path, "float32")
    with decoder_of(tmp_path, 20) as decode:
        found = decode(TEXTS, 1, 1)
    assert found[0][0].text.startswith(student.tokenizer.decode([20]))
    for ours, theirs in zip(found, told(student, "transformers", TEXTS, 1, 1, 20), strict=True):
        assert ours[0].text == theirs[0].text and ours[0].score == pytest.approx(theirs[0].score, abs=1e-3)
    checked = compare(student, tmp_path, [(text, text) for text in TEXTS])
    assert checked.agreement == 1.0 and checked.difference < 1e-3 and (checked.rows, checked.answers) == (40, 32)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_translator_that_lies_on_disk_writes_as_it_does_in_memory(kind: str, tmp_path: Path) -> None:
    save_student(small_writer(kind, steps=20), tmp_path)
    whole, spread = load_student(tmp_path), load_student(tmp_path, devices={"cpu": "60KB"})
    assert is_spread(spread.model) and engine_for(spread) == "transformers"
    assert told(spread, "auto", TEXTS[:5], 2, 1, 12) == told(whole, "transformers", TEXTS[:5], 2, 1, 12)


def test_what_is_never_saved_cannot_lie_on_disk(tmp_path: Path) -> None:
    """Marian's sines."""
    save_student(small_writer("marian"), tmp_path)
    with pytest.raises(InputError, match=r"embed_positions\.weight is in no file and cannot be offloaded"):
        load_student(tmp_path, devices={"cpu": "60KB"})


def test_a_classifier_does_not_write() -> None:
    with pytest.raises(InputError, match="does not generate text; give the folder of a translation model"):
        told(small_model("roberta"), "auto", TEXTS, 1, 1, 10)


def test_a_prompt_and_what_follows_it_share_the_positions_of_an_export(tmp_path: Path) -> None:
    student = small_writer("gpt2")
    convert(student, tmp_path, "float32")
    long = " ".join(TEXTS)  # longer than there are positions
    with decoder_of(tmp_path, 1000) as decode:
        ours = decode([long], 1, 1)
    assert ours[0][0].text == told(student, "transformers", [long], 1, 1, 1000)[0][0].text
