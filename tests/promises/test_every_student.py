"""Every way to make a student, found by its file, on every architecture: what it must keep and what it refuses."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedTokenizerFast

from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models import student as students
from potstill.models.anatomy import encoder_layers, layer_count, layers_path, parameters, word_embeddings
from potstill.models.architectures.own_model import OwnModel
from potstill.models.architectures.reshaped import ReshapedModel
from potstill.models.attention import eager_attention
from potstill.models.builder import BuildContext
from potstill.models.student import Student, load_student, save_student
from potstill.plugins.students.fresh import Fresh
from potstill.plugins.students.keep_layers import KeepLayers
from potstill.plugins.students.trim_vocabulary import TrimVocabulary
from potstill.recipe import plugins
from potstill.runs.planning.batches import Batches
from potstill.runs.planning.flops import forward
from potstill.system.files import MODEL_FILE
from potstill.tasks.classify import TextClassification
from potstill.tasks.classify_images import ImageClassification
from potstill.tasks.translate import Translation
from tests.support.small_models import (
    ARCHITECTURES,
    WRITERS,
    same_weights,
    sentences,
    small_images,
    small_model,
    small_translator,
    small_writer,
)
from tests.support.small_models import logits as logits_of

SHARED = Path(__file__).parents[3] / "shared"
TEXTS = [text for text, _ in sentences(12, seed=1)]  # few enough that they do not use every piece
BUILDERS = {name: plugins.find("students", name) for name in plugins.names("students")}
FIELDS = {  # where the defaults would make a test slow
    "fresh": {"layers": 2, "width": 24},
    "mobilebert": {"layers": 2, "width": 32, "bottleneck": 16, "feed_forward": 32, "stacked": 2, "embedding": 16},
    "bert": {"layers": 2, "width": 24, "positions": 64, "vocabulary": 300},
    "cnn": {"channels": [4, 6], "hidden": [12]},
    "shared_layers": {"embedding": 16},
    "bilstm": {"hidden": 8, "features": 12, "width": 16},
    "bag": {"features": 12, "width": 16},
    "marian": {"encoder_layers": 2, "decoder_layers": 1, "width": 16, "vocabulary": 300},
    "lstm_translator": {"width": 16, "vocabulary": 300},
}

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
# a builder without `task_heads` takes every text classifier, or those of its `architectures`; one with them says for which
# head its networks are
STARTS = {"ImageClassification": "digits", "Seq2SeqLM": "translator"}
SERVES = {name: [STARTS[head] for head in builder.task_heads] for name, builder in BUILDERS.items()}
EVERY = [(name, one) for name in BUILDERS for one in (SERVES[name] or BUILDERS[name].architectures or ARCHITECTURES)]
EVERY += [(name, "digits") for name, builder in BUILDERS.items() if builder.images]
BEGINS = [name for name in BUILDERS if SERVES[name]]  # they need no model to begin from
every_builder = pytest.mark.parametrize(("name", "architecture"), EVERY)


def start_of(architecture: str, seed: int = 0) -> Student:
    made = {"digits": small_images, "translator": small_translator}.get(architecture)
    return made(seed=seed) if made else small_model(architecture, seed=seed)


def logits(student: Student, texts: list[str] = TEXTS) -> torch.Tensor:
    return logits_of(student, texts)


def context(start: Student, texts: list[str] = TEXTS, seed: int = 0) -> BuildContext:
    def read() -> Iterator[str]:
        yield from texts

    return BuildContext(start=start, seed=seed, texts=read)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[tuple[str, str], tuple[Student, Path]]:
    """Each builder on each architecture, and where the result is saved."""
    folder = tmp_path_factory.mktemp("students")
    made = {}
    for name, architecture in EVERY:
        start = start_of(architecture)
        student = BUILDERS[name](**FIELDS.get(name, {})).build(start, context(start))
        save_student(student, folder / f"{name}-{architecture}")
        made[name, architecture] = student, folder / f"{name}-{architecture}"
    return made


@every_builder
def test_saved_and_loaded_it_is_bit_equal(built, name, architecture):
    student, folder = built[name, architecture]
    again = load_student(folder)
    assert same_weights(again, student)
    assert tokenizer_fingerprint(again.tokenizer) == tokenizer_fingerprint(student.tokenizer)
    assert again.tokenizer.model_input_names == student.tokenizer.model_input_names
    assert not again.model.training
    if architecture == "translator":
        assert again.model.generation_config.to_dict() == student.model.generation_config.to_dict()
        assert again.model.generation_config.decoder_start_token_id == again.tokenizer.pad_token_id
    else:
        assert again.model.config.id2label == {0: "negative", 1: "positive"}
        assert again.model.config.problem_type == "single_label_classification"
    assert torch.equal(logits(again), logits(student))
    save_student(again, folder.with_name(f"{folder.name}-again"))
    for file in folder.iterdir():
        assert (folder.with_name(f"{folder.name}-again") / file.name).read_bytes() == file.read_bytes(), file.name
    assert not [file for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".py", ".pkl")]
    # all that is written is known as potstill's, and what the user puts beside it outlives the next student
    assert [file.name for file in folder.iterdir() if not MODEL_FILE.fullmatch(file.name)] == []
    (folder.with_name(f"{folder.name}-again") / "notes.txt").write_text("mine")
    save_student(again, folder.with_name(f"{folder.name}-again"))
    kept = {file.name for file in folder.with_name(f"{folder.name}-again").iterdir()}
    assert kept == {"notes.txt", *(file.name for file in folder.iterdir())}


def test_the_plan_knows_the_operations_of_potstill_s_own_networks(built):
    """As torch counts them; where an LSTM reads the real tokens alone, the plan counts the padding too."""
    for (name, architecture), (student, _) in built.items():
        if not isinstance(student.model, OwnModel):  # those of transformers are compared in tests/runs/planning
            continue
        longest = 1 if architecture == "digits" else max(map(len, student.tokenizer(TEXTS)["input_ids"]))
        target = longest if student.model.config.is_encoder_decoder else 0
        sizes = (np.array([size]) for size in (len(TEXTS), longest + target, target, 0, 0))
        planned = forward(student.model, Batches([np.arange(len(TEXTS))], *sizes))[0]
        # the counter does not see the fused attention of stock layers
        seen = eager_attention(student.model) if isinstance(student.model, ReshapedModel) else nullcontext()
        with seen, FlopCounterMode(display=False) as counter:
            logits(student)
        counted = counter.get_total_flops()
        recurrent = any(isinstance(module, nn.LSTM) for module in student.model.modules())
        assert 0 < counted <= 1.03 * planned, (name, architecture)
        assert recurrent or planned <= 1.03 * counted, (name, architecture)


PLAIN = """
import json, sys
if sys.argv[1] == "with":
    import potstill
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline
torch.set_num_threads(1)
texts, answers = json.loads(sys.argv[2]), {}
for folder in sys.argv[3:]:
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    if AutoConfig.from_pretrained(folder).is_encoder_decoder:
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        said = model.generate(**batch, num_beams=2, max_length=8).tolist()
        batch["decoder_input_ids"] = batch["input_ids"]
    else:
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        said = pipeline("text-classification", folder)(texts)
    with torch.no_grad():
        answers[folder] = model(**batch).logits.tolist(), said
assert sys.argv[1] == "with" or not [name for name in sys.modules if name.startswith("potstill")]
print(json.dumps(answers))
"""


def read_plainly(potstill: str, folders: list[str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PLAIN, potstill, json.dumps(TEXTS[:4]), *folders]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("potstill", ["without", "with"])
def test_plain_transformers_reads_every_folder_alike(potstill, built):
    """The Auto classes, pipeline and generate, in a process without potstill, give the same answers; networks of potstill's
    own need it to be imported, and nothing else."""
    of_texts = {name: one for name, one in built.items() if name[1] != "digits"}
    mine = [one for one in of_texts.values() if isinstance(one[0].model, OwnModel) == (potstill == "with")]
    done = read_plainly(potstill, [str(folder) for _, folder in mine])
    assert done.returncode == 0, done.stderr
    assert "not supported" not in done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for student, folder in mine:
        expected = logits(student, TEXTS[:4])
        theirs, labelled = answers[str(folder)]
        torch.testing.assert_close(torch.tensor(theirs), expected, rtol=0, atol=1e-6)
        if student.model.config.is_encoder_decoder:
            batch = student.tokenizer(TEXTS[:4], padding=True, return_tensors="pt")
            assert labelled == student.model.generate(**batch, num_beams=2, max_length=8).tolist()
            continue
        assert [one["label"] for one in labelled] == [("negative", "positive")[best] for best in expected.argmax(dim=1)]
        scores = expected.softmax(dim=1).amax(dim=1)
        torch.testing.assert_close(torch.tensor([one["score"] for one in labelled]), scores, rtol=0, atol=1e-5)


OURS = """
import sys
{first}
import transformers
for folder in sys.argv[1:]:
    try:
        head = transformers.AutoConfig.from_pretrained(folder).architectures[0].partition("For")[2]
        print(type(getattr(transformers, "AutoModelFor" + head).from_pretrained(folder)).__name__)
    except Exception as error:
        print(" ".join(str(error).split()))
"""


@pytest.mark.parametrize(
    "first",
    [
        "",
        "from transformers import AutoModel\nimport potstill",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("import potstill", "import transformers, potstill")),
    ],
)
def test_our_own_networks_load_after_importing_potstill_and_fail_loudly_without(built, first):
    """Whichever is imported first."""
    mine = {
        name: one
        for (name, architecture), one in built.items()
        if isinstance(one[0].model, OwnModel)
        and (architecture in STARTS.values() if SERVES[name] else architecture == "bert")
    }
    assert set(mine) >= {"bilstm", "bag", "mlp", "cnn", "lstm_translator", "low_rank", "pruned_heads"}
    words = [sys.executable, "-c", OURS.format(first=first), *(str(folder) for _, folder in mine.values())]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for name, said in zip(mine, done.stdout.splitlines(), strict=True):
        if first:
            assert said == type(mine[name][0].model).__name__
        else:
            kind = mine[name][0].model.config.model_type
            shaped = isinstance(mine[name][0].model, ReshapedModel)
            assert kind == ("potstill-bert" if shaped else f"potstill-{name.replace('_', '-')}")
            assert kind in said


@every_builder
def test_building_changes_neither_what_it_is_given_nor_the_random_state(name, architecture):
    current, start = start_of(architecture, seed=1), start_of(architecture)
    before = copy.deepcopy(current), copy.deepcopy(start)
    torch.manual_seed(3)
    made = BUILDERS[name](**FIELDS.get(name, {})).build(current, context(start))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    for student, old in zip((current, start), before, strict=True):
        assert same_weights(student, old)
        assert student.model.config.to_dict() == old.model.config.to_dict()
        assert tokenizer_fingerprint(student.tokenizer) == tokenizer_fingerprint(old.tokenizer)
    pointers = {parameter.data_ptr() for parameter in current.model.parameters()}
    assert pointers.isdisjoint(parameter.data_ptr() for parameter in made.model.parameters())


# those that begin from nothing


def begun(name: str, seed: int = 0) -> Student:
    task = Translation() if "translator" in SERVES[name] else ImageClassification(("a", "b"), shape=(1, 8, 8))
    return BUILDERS[name](**FIELDS.get(name, {})).begin(task, seed, lambda: iter(TEXTS))


@pytest.mark.parametrize("name", BEGINS)
def test_beginning_is_a_function_of_the_seed(name):
    torch.manual_seed(3)
    first, again, other = begun(name), begun(name), begun(name, seed=1)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert same_weights(first, again)
    assert not same_weights(first, other)
    assert (
        tokenizer_fingerprint(first.tokenizer)
        == tokenizer_fingerprint(again.tokenizer)
        == tokenizer_fingerprint(other.tokenizer)
    )


@pytest.mark.parametrize("name", BEGINS)
def test_what_is_begun_is_what_is_built_after_it(name):
    """The same weights, so that a student has them whether or not a teacher of its vocabulary is there."""
    first = begun(name)
    built = BUILDERS[name](**FIELDS.get(name, {})).build(first, context(first))
    assert same_weights(first, built)
    assert tokenizer_fingerprint(first.tokenizer) == tokenizer_fingerprint(built.tokenizer)


@pytest.mark.parametrize("name", BEGINS)
def test_networks_for_another_task_are_refused(name):
    with pytest.raises(InputError, match=f"{name}: .*; write "):
        BUILDERS[name]().build(small_model("bert"), context(small_model("bert")))
    with pytest.raises(InputError, match=f"{name}: .*; write "):
        BUILDERS[name]().begin(TextClassification(("a", "b")), 0, lambda: iter(TEXTS))


# keep_layers


@every_architecture
def test_keeping_all_layers_changes_nothing(architecture):
    start = small_model(architecture)
    assert torch.equal(logits(KeepLayers(4).build(start, context(start))), logits(start))


@every_architecture
def test_kept_layers_are_the_chosen_ones_and_all_else_comes_along(architecture):
    start = small_model(architecture)
    kept = KeepLayers([1, 3]).build(start, context(start))
    assert layer_count(kept.model) == kept.model.config.num_hidden_layers == 2
    for place, layer in ((0, 0), (1, 2)):
        ours, theirs = encoder_layers(kept.model)[place], encoder_layers(start.model)[layer]
        assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))
    path = f"{layers_path(start.model)}."
    outside = {name: weight for name, weight in start.model.state_dict().items() if not name.startswith(path)}
    assert outside
    assert all(torch.equal(kept.model.state_dict()[name], weight) for name, weight in outside.items())
    if architecture == "modernbert":
        types = start.model.config.layer_types
        assert kept.model.config.layer_types == [types[0], types[2]]


@every_architecture
def test_kept_layers_compute_what_skipping_the_others_does(architecture):
    """The student's logits are those of the start with the other layers taken out of its list by hand."""
    start = small_model(architecture)
    expected = copy.deepcopy(start)
    layers = encoder_layers(expected.model)
    del layers[1]
    expected.model.config.num_hidden_layers = 3
    if architecture == "modernbert":
        del expected.model.config.layer_types[1]
    assert torch.equal(logits(KeepLayers([1, 3, 4]).build(start, context(start))), logits(expected))


@pytest.mark.parametrize(
    ("layers", "of_12"),
    [
        (3, [1, 2, 3]),
        ("first:2", [1, 2]),
        ("last:3", [10, 11, 12]),
        ("every:2", [2, 4, 6, 8, 10, 12]),
        ("skip:3", [4, 8, 12]),
        ("skip:6", [2, 4, 6, 8, 10, 12]),
        ("skip:12", list(range(1, 13))),
        ([2, 5, 12], [2, 5, 12]),
        ((1,), [1]),
    ],
)
def test_ways_to_choose_layers(layers, of_12):
    assert KeepLayers(layers).kept(12) == of_12


@pytest.mark.parametrize(
    "layers", [0, 13, -1, "3", "some:3", "last:0", "skip:13", "every:", [], [0, 1], [3, 2], [2, 2], [13]]
)
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(InputError, match=r"keep_layers: .* write"):
        KeepLayers(layers).kept(12)


def test_modernbert_must_keep_its_first_layer():
    start = small_model("modernbert")
    with pytest.raises(InputError, match=r"layers = \[1, 4\]"):
        KeepLayers("every:2").build(start, context(start))


# fresh


@every_architecture
def test_fresh_has_the_shape_that_was_asked_for(architecture):
    start = small_model(architecture)
    made = Fresh(layers=2, width=48, feed_forward=80, heads=6).build(start, context(start))
    assert type(made.model) is type(start.model)
    assert layer_count(made.model) == 2
    assert word_embeddings(made.model).weight.shape == (len(start.tokenizer), 48)
    assert made.model.config.num_attention_heads == 6
    assert made.model.config.max_position_embeddings == start.model.config.max_position_embeddings
    assert logits(made).shape == (len(TEXTS), 2)
    attention_and_feed_forward = {  # per layer, biases and norms included
        "modernbert": 4 * 48 * 48 + 3 * 48 * 80 + 48,  # gated, without biases; the first layer has one norm less
    }.get(architecture, 4 * (48 * 48 + 48) + 48 * 80 + 80 + 80 * 48 + 48 + 4 * 48)
    shared = {"modernbert": 2 * 48, "mpnet": 32 * 6}.get(architecture, 0)  # norms; biases by distance and head
    assert parameters(made.model)["layers"] == 2 * attention_and_feed_forward + shared


def test_fresh_can_have_the_size_of_tinybert():
    """The published TinyBERT (4 layers of 312 and 1200, BERT's vocabulary) has 14,350,248 weights without its head."""
    start = small_model("bert")
    start.model.resize_token_embeddings(30522)
    start.model.config.max_position_embeddings = 512
    made = Fresh(feed_forward=1200, heads=12).build(start, context(start))
    assert sum(parameter.numel() for parameter in made.model.base_model.parameters()) == 14_350_248


def test_fresh_weights_follow_the_seed():
    start = small_model("bert")
    first, again, other = (Fresh(1, 16).build(start, context(start, seed=seed)) for seed in (1, 1, 2))
    assert same_weights(first, again)
    assert not same_weights(first, other)


@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a != "mpnet"])
@pytest.mark.parametrize("of", ["bert", "modernbert"])
def test_fresh_can_change_the_architecture(of, architecture, tmp_path):
    """It reads what its tokenizer gives, up to the same length, also when it has been saved."""
    start = small_model(of)
    save_student(Fresh(2, 24, architecture=architecture).build(start, context(start)), tmp_path / "student")
    made = load_student(tmp_path / "student")
    assert made.model.config.model_type == architecture
    segments = of == "bert" and architecture in ("bert", "roberta", "electra")
    assert ("token_type_ids" in made.tokenizer("film")) == segments
    assert made.model.config.id2label == start.model.config.id2label
    assert word_embeddings(made.model).padding_idx == start.tokenizer.pad_token_id
    long = start.tokenizer(["film " * 100], truncation=True, return_tensors="pt")["input_ids"]
    assert long.shape == (1, 64)
    assert made.model(input_ids=long).logits.isfinite().all()
    alone = torch.cat([logits(made, [text]) for text in TEXTS])
    torch.testing.assert_close(logits(made), alone, rtol=0, atol=1e-5)  # padding is no part of the text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 24, "heads": 5}, "write heads = 1"),
        ({"architecture": "gpt2"}, "write one of bert"),
        ({"architecture": "mpnet"}, "write architecture = 'bert'"),  # its padding is always piece 1
        ({"layers": 0}, "at least 1"),
        ({"heads": -6}, "at least 1"),
        ({"width": 25, "architecture": "modernbert"}, "write width = 26"),
    ],
)
def test_fresh_refuses_shapes_that_cannot_be(fields, message):
    start = small_model("bert")
    with pytest.raises(InputError, match=message):
        plugins.make("students", "fresh", fields).build(start, context(start))


def test_heads_are_about_64_wide():
    start = small_model("bert")
    for width, heads in ((768, 12), (384, 6), (312, 6), (128, 2), (30, 1)):
        assert Fresh(1, width).build(start, context(start)).model.config.num_attention_heads == heads


# trim_vocabulary


@every_architecture
def test_trimming_keeps_pieces_and_logits(architecture):
    start = small_model(architecture)
    trimmed = TrimVocabulary().build(start, context(start))
    assert [trimmed.tokenizer.tokenize(text) for text in TEXTS] == [start.tokenizer.tokenize(text) for text in TEXTS]
    torch.testing.assert_close(logits(trimmed), logits(start), rtol=0, atol=1e-6)
    table = word_embeddings(trimmed.model)
    assert table.num_embeddings == len(trimmed.tokenizer) == trimmed.model.config.vocab_size
    assert table.num_embeddings < len(start.tokenizer) - 20
    assert sorted(trimmed.tokenizer.get_vocab().values()) == list(range(len(trimmed.tokenizer)))


@every_architecture
def test_trimming_keeps_special_tokens_and_spells_unseen_words(architecture):
    start = small_model(architecture)
    trimmed = TrimVocabulary().build(start, context(start))
    assert trimmed.tokenizer.special_tokens_map == start.tokenizer.special_tokens_map
    assert trimmed.tokenizer.unk_token_id not in trimmed.tokenizer("xylophone quiz 2035; juggled!")["input_ids"]
    ours, theirs = (s.tokenizer("one film", "two", return_special_tokens_mask=True) for s in (trimmed, start))
    assert trimmed.tokenizer.convert_ids_to_tokens(ours["input_ids"]) == start.tokenizer.convert_ids_to_tokens(
        theirs["input_ids"]
    )
    before, after = (json.loads(s.tokenizer.backend_tokenizer.to_str()) for s in (start, trimmed))
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        assert after[part] == before[part]
    assert [token | {"id": 0} for token in after["added_tokens"]] == [t | {"id": 0} for t in before["added_tokens"]]
    assert ours["special_tokens_mask"] == theirs["special_tokens_mask"]
    assert (
        trimmed.model.config.pad_token_id
        == trimmed.tokenizer.pad_token_id
        == word_embeddings(trimmed.model).padding_idx
    )


@every_architecture
def test_trimming_rows_follow_their_pieces(architecture):
    start = small_model(architecture)
    trimmed = TrimVocabulary().build(start, context(start))
    old, new = start.tokenizer.get_vocab(), trimmed.tokenizer.get_vocab()
    rows = word_embeddings(start.model).weight[[old[piece] for piece in new]]
    assert torch.equal(word_embeddings(trimmed.model).weight[list(new.values())], rows)


@pytest.mark.parametrize("architecture", WRITERS)
def test_what_writes_is_not_trimmed(architecture):
    start = small_writer(architecture)
    with pytest.raises(InputError, match=r"omit trim_vocabulary and keep fewer layers instead"):
        TrimVocabulary().build(start, context(start))


def test_rare_pieces_go_when_a_minimum_is_given():
    start = small_model("bert")
    texts = ["film film story"]
    assert "story" in TrimVocabulary(1).build(start, context(start, texts)).tokenizer.get_vocab()
    trimmed = TrimVocabulary(2).build(start, context(start, texts))
    assert trimmed.tokenizer.tokenize("film story") == ["film", "s", "##t", "##o", "##r", "##y"]


@every_architecture
def test_a_number_of_tokens_stays_besides_characters(architecture):
    """With fewer than the texts use, the rest is spelled; with more, texts are read as before."""
    start = small_model(architecture)
    few, many = (TrimVocabulary(tokens=number).build(start, context(start)) for number in (5, 10_000))
    assert len(few.tokenizer) < len(TrimVocabulary().build(start, context(start)).tokenizer) < len(many.tokenizer)
    assert [many.tokenizer.tokenize(text) for text in TEXTS] == [start.tokenizer.tokenize(text) for text in TEXTS]
    assert few.tokenizer.unk_token_id not in few.tokenizer(TEXTS[0])["input_ids"]
    torch.testing.assert_close(logits(many), logits(start), rtol=0, atol=1e-6)


def test_padding_keeps_its_id_where_positions_hang_on_it():
    """RoBERTa counts positions from the padding's id: pieces before it stay even if no text uses them."""
    start = small_model("roberta")
    settings = json.loads(start.tokenizer.backend_tokenizer.to_str())
    by_id = sorted(settings["model"]["vocab"], key=settings["model"]["vocab"].__getitem__)
    by_id.remove("<pad>")
    by_id.insert(450, "<pad>")  # behind pieces that no text uses
    tokenizer = type(start.tokenizer)(
        vocab={piece: number for number, piece in enumerate(by_id)},
        merges=[tuple(merge) for merge in settings["model"]["merges"]],
    )
    model = small_model("roberta").model
    config = copy.deepcopy(model.config)
    config.pad_token_id, config.max_position_embeddings = 450, 64 + 451
    start = Student(students.stock_model(model, config, None), tokenizer)
    trimmed = TrimVocabulary().build(start, context(start))
    assert trimmed.tokenizer.pad_token_id == 450
    assert len(trimmed.tokenizer) < len(tokenizer)
    torch.testing.assert_close(logits(trimmed), logits(start), rtol=0, atol=1e-6)


def test_unigram_tokenizers_can_be_trimmed():
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;!"
    special = ["<pad>", "<cls>", "<sep>", "<unk>"]
    backend.train_from_iterator(
        [text for text, _ in sentences(200, seed=4)],
        trainers.UnigramTrainer(
            vocab_size=250,
            special_tokens=special,
            unk_token="<unk>",
            initial_alphabet=list(letters),
            show_progress=False,
        ),
    )
    backend.post_processor = processors.BertProcessing(("<sep>", 2), ("<cls>", 1))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", cls_token="<cls>", sep_token="<sep>", unk_token="<unk>"
    )
    start = Fresh(1, 16).build(Student(small_model("bert").model, tokenizer), context(small_model("bert")))
    texts = [*(text for text in TEXTS if len(text) < 60), "a naïve film"]
    trimmed = TrimVocabulary().build(start, context(start, texts))
    assert len(trimmed.tokenizer) < len(tokenizer)
    assert [trimmed.tokenizer.tokenize(text) for text in texts] == [tokenizer.tokenize(text) for text in texts]
    torch.testing.assert_close(logits(trimmed, texts), logits(start, texts), rtol=0, atol=1e-6)


def test_trimming_reads_texts_whole_and_in_any_state():
    """A tokenizer left with truncation and padding, a text longer than the model reads, half a character."""
    start = small_model("bert")
    start.tokenizer("film", truncation=True, max_length=4, padding="max_length")
    trimmed = TrimVocabulary().build(start, context(start, ["film " * 90 + "brilliant", "a \ud800 b", ""]))
    assert "brilliant" in trimmed.tokenizer.get_vocab()


def test_trimming_without_any_text_is_refused():
    start = small_model("bert")
    with pytest.raises(InputError, match="no text"):
        TrimVocabulary().build(start, context(start, []))


def test_a_real_model_without_pooler_and_head(tmp_path):
    """gte-small, stored in float16: three of its layers, then only the pieces of some film reviews."""
    if not (SHARED / "models" / "gte-small").is_dir():
        pytest.skip("the folder ../shared with real models is not here")
    start = load_student(SHARED / "models" / "gte-small", ["negative", "positive"], "single_label_classification")
    kept = KeepLayers("skip:3").build(start, context(start))
    assert parameters(kept.model)["layers"] == 3 * 1_774_464
    trimmed = TrimVocabulary().build(kept, context(kept))
    words = {token for token in trimmed.tokenizer.get_vocab() if len(token.removeprefix("##")) > 1}
    assert len(words) < 400  # besides all single characters
    torch.testing.assert_close(logits(trimmed), logits(kept), rtol=0, atol=1e-6)
    save_student(trimmed, tmp_path / "student")
    assert torch.equal(logits(load_student(tmp_path / "student")), logits(trimmed))
