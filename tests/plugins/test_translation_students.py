"""New networks for translation: whose vocabulary they have, and that their answers hang on their text alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.anatomy import word_embeddings
from potstill.models.builder import BuildContext
from potstill.models.safety import LARGEST_VOCABULARY
from potstill.models.student import Student, save_student
from potstill.plugins.students.lstm_translator import LstmTranslator
from potstill.plugins.students.marian import Marian
from potstill.recipe import short_forms
from potstill.recipe.schema import Recipe
from potstill.runs.build import begin_anew
from potstill.tasks.translate import Translation
from potstill.training.losses import smoothed_cross_entropy, soft_top_classes
from potstill.training.teacher.top_classes import top_classes
from tests.support.small_models import sentences, small_translator

TEXTS = [text for text, _ in sentences(12, seed=1)]
TASK = Translation()
SHAPES = {
    "marian": Marian(encoder_layers=2, decoder_layers=1, width=32, vocabulary=300),
    "input feeding": LstmTranslator(layers=2, width=24, vocabulary=300),
    "no input feeding": LstmTranslator(layers=1, width=24, input_feeding=False, vocabulary=300),
}
every_shape = pytest.mark.parametrize("shape", SHAPES)


def texts() -> Iterator[str]:
    yield from TEXTS


def begun(shape: str) -> Student:
    """With weights wide enough that the likeliest piece is not always the same."""
    student = SHAPES[shape].begin(TASK, 0, texts)
    with torch.no_grad():
        for parameter in student.model.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                parameter.mul_(6)
    return student


def read(student: Student, some: list[str]) -> dict[str, Tensor]:
    return dict(student.tokenizer(some, padding=True, return_tensors="pt"))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("marian:4+4x256", [{"build": "marian", "encoder_layers": 4, "decoder_layers": 4, "width": 256}]),
        ("marian : 6 + 2 x 128", [{"build": "marian", "encoder_layers": 6, "decoder_layers": 2, "width": 128}]),
        ("lstm_translator:2x500", [{"build": "lstm_translator", "layers": 2, "width": 500}]),
        (
            "marian:2+2x64+keep_layers:1",
            [
                {"build": "marian", "encoder_layers": 2, "decoder_layers": 2, "width": 64},
                {"build": "keep_layers", "layers": 1},
            ],
        ),
    ],
)
def test_short_forms(text: str, fields: list[dict[str, object]]) -> None:
    assert short_forms.plugin_tables("students", text) == fields


@pytest.mark.parametrize("text", ["marian:4", "marian:4x256", "marian:0+4x256", "lstm_translator:500", "marian:a+bxc"])
def test_other_short_forms_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"write for example (marian:4\+4x256|lstm_translator:2x500)"):
        short_forms.plugin_tables("students", text)


@every_shape
def test_its_vocabulary_is_that_of_the_model_before_or_of_a_folder_or_new(shape: str, tmp_path) -> None:
    teacher, other = small_translator(), SHAPES["marian"].begin(TASK, 0, texts)
    context = BuildContext(teacher, 0, texts)
    taken = SHAPES[shape].build(teacher, context)
    assert tokenizer_fingerprint(taken.tokenizer) == tokenizer_fingerprint(teacher.tokenizer)
    assert word_embeddings(taken.model).num_embeddings == word_embeddings(teacher.model).num_embeddings
    save_student(other, tmp_path / "other")
    from_folder = type(SHAPES[shape])(**{**vars(SHAPES[shape]), "tokenizer": str(tmp_path / "other")})
    for student in (from_folder.build(teacher, context), from_folder.begin(TASK, 0, lambda: iter(()))):
        assert tokenizer_fingerprint(student.tokenizer) == tokenizer_fingerprint(other.tokenizer)
        assert word_embeddings(student.model).num_embeddings == len(other.tokenizer)
    alone = {"data": [{"train": "a.csv"}], "student": [{"build": "marian", "vocabulary": 300, "width": 16}]}
    new = begin_anew(Recipe.model_validate(alone), TASK, None, texts)
    assert new is not None and len(new.tokenizer) == 300


@every_shape
def test_a_folder_with_a_tokenizer_alone_will_do(shape: str, tmp_path) -> None:
    wanted = SHAPES["marian"].begin(TASK, 0, texts).tokenizer
    wanted.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("config.json")) and not list(tmp_path.glob("*.safetensors"))
    from_folder = type(SHAPES[shape])(**{**vars(SHAPES[shape]), "tokenizer": str(tmp_path)})
    student = from_folder.begin(TASK, 0, lambda: iter(()))
    assert tokenizer_fingerprint(student.tokenizer) == tokenizer_fingerprint(wanted)
    assert word_embeddings(student.model).num_embeddings == len(wanted)


def test_a_tokenizer_s_folder_is_looked_at_like_a_model_s(tmp_path) -> None:
    """Code of its own, a link that leads out, a file larger than it can need to be, nothing, and no tokenizer at all."""
    tokenizer = SHAPES["marian"].begin(TASK, 0, texts).tokenizer
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    places = {name: tmp_path / name for name in ("code", "link", "large", "broken", "empty")}
    for name, place in places.items():
        place.mkdir()
        if name != "empty":
            tokenizer.save_pretrained(place)
    settings = json.loads((places["code"] / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["theirs.Theirs", None]}
    (places["code"] / "tokenizer_config.json").write_text(json.dumps(settings))
    (places["link"] / "special_tokens_map.json").symlink_to(outside)
    with (places["large"] / "tokenizer.json").open("wb") as file:
        file.truncate(LARGEST_VOCABULARY + 1)
    (places["broken"] / "tokenizer.json").write_text('{"model": []}')
    told = {
        "code": "never run; use a stock architecture",
        "link": "leads out of the folder; put the file itself there",
        "large": "such a file can need; use the model's original folder",
        "broken": r"no tokenizer that can be read .*; give a folder that `tokenizer.save_pretrained\(folder\)`",
        "empty": "give a folder with a tokenizer_config.json",
    }
    for name, words in told.items():
        with pytest.raises(InputError, match=words):
            Marian(tokenizer=str(places[name])).begin(TASK, 0, texts)
    with pytest.raises(InputError, match="write the path of a model's folder, or a name on the hub"):
        Marian(tokenizer=str(tmp_path / "nowhere")).begin(TASK, 0, texts)


@every_shape
def test_a_translation_hangs_on_its_text_alone(shape: str) -> None:
    """Not on the padding that other texts bring, on either side."""
    student = begun(shape)
    words = student.tokenizer(["a film", "the ending was quite good"], padding=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        together = student.model(**read(student, [TEXTS[0], " ".join(TEXTS[:4])]), decoder_input_ids=words).logits[0]
        alone = student.model(**read(student, [TEXTS[0]]), decoder_input_ids=words[:1]).logits[0]
        shorter = student.model(**read(student, [TEXTS[0]]), decoder_input_ids=words[:1, :2]).logits[0]
        other = student.model(**read(student, [TEXTS[1]]), decoder_input_ids=words[:1]).logits[0]
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-5)
    torch.testing.assert_close(shorter, alone[:2], rtol=0, atol=2e-5)
    assert (other - alone).abs().max() > 1e-2


@every_shape
def test_beams_with_a_memory_find_what_plain_recomputation_finds(shape: str, monkeypatch) -> None:
    """And their scores are the log probabilities that a whole pass gives to the same words."""
    student = begun(shape)
    model, source = student.model, read(student, TEXTS[:4])
    wanted = {"num_beams": 4, "num_return_sequences": 4, "max_length": 10, "length_penalty": 0.0}
    wanted |= {"return_dict_in_generate": True, "output_scores": True}
    orders = []
    if shape != "marian":
        reorder = model._reorder_cache
        monkeypatch.setattr(model, "_reorder_cache", lambda past, rows: orders.append(rows) or reorder(past, rows))
    kept = model.generate(**source, **wanted, use_cache=True)
    again = model.generate(**source, **wanted, use_cache=False)
    assert shape == "marian" or any(not torch.equal(rows, torch.arange(16)) for rows in orders)
    assert torch.equal(kept.sequences, again.sequences)
    repeated = {name: tensor.repeat_interleave(4, 0) for name, tensor in source.items()}
    with torch.no_grad():
        likely = model(**repeated, decoder_input_ids=kept.sequences[:, :-1]).logits.log_softmax(-1)
    words = kept.sequences[:, 1:]
    ends = words == student.tokenizer.eos_token_id
    over = ends.cumsum(1) - ends.long() > 0  # what follows the first end is filling
    told = likely.gather(2, words[:, :, None])[:, :, 0].masked_fill(over, 0.0)
    torch.testing.assert_close(told.sum(1), kept.sequences_scores, rtol=0, atol=1e-3)
    assert student.tokenizer.pad_token_id not in words[:, 0]


@every_shape
def test_it_learns_and_padding_stays_zero(shape: str) -> None:
    """Labels alone are enough, as for every network of transformers; the row that the decoder starts from is not trained."""
    student = SHAPES[shape].begin(TASK, 0, texts)
    model, batch = copy.deepcopy(student.model).train(), read(student, TEXTS[:4])
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], 5e-3)
    losses, never = [], [student.tokenizer.pad_token_id]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(25):
            loss = model(**batch, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        for _ in range(3):  # no share of a label is given to what is never written
            real = labels != -100
            starts = torch.cat([torch.zeros_like(labels[:, :1]), batch["input_ids"][:, :-1]], 1)
            smoothed_cross_entropy(
                model(**batch, decoder_input_ids=starts).logits[real], labels[real], None, 0.1, never
            ).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        for _ in range(3):  # nor of what a teacher leaves to the words that were not kept
            logits = model(**batch, decoder_input_ids=starts).logits[real]
            theirs = top_classes(torch.randn(logits.shape), 16)
            assert (theirs.rest > -10).all()
            (loss := soft_top_classes(logits, theirs, 1.0, never).mean()).backward()
            assert loss < 10  # a share of padding alone would cost more
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.75 * losses[0]
    table = word_embeddings(model).weight
    assert not table[student.tokenizer.pad_token_id].any()
    assert table[student.tokenizer.eos_token_id].any()
    with torch.no_grad():
        logits = model.eval()(**batch, decoder_input_ids=starts).logits
    mine = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels)
    torch.testing.assert_close(mine, model(**batch, labels=labels).loss, rtol=0, atol=1e-5)


def test_the_paper_s_sizes() -> None:
    """Of 2x500 with input feeding: LSTMs of 4·500·(500 + 500 + 2) numbers a layer, 500 more inputs for the first one that
    writes, the attention's two matrices, one table."""
    student = LstmTranslator(vocabulary=300).begin(TASK, 0, texts)
    layer = 4 * 500 * (500 + 500 + 2)
    expected = 4 * layer + 4 * 500 * 500 + 500 * 500 + 1000 * 500 + 300 * 500
    assert sum(parameter.numel() for parameter in student.model.parameters()) == expected


def test_shapes_that_cannot_be_are_refused() -> None:
    for shape, told in (
        (Marian(width=30, heads=4), "28 or 32"),
        (Marian(width=33), "32 or 34"),
        (Marian(width=1), "2"),
        (Marian(width=20, heads=9), "18 or 36"),
    ):
        with pytest.raises(InputError, match=f"; write a width of {told}$"):
            shape.begin(TASK, 0, texts)
