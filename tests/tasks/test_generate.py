"""Tasks that write: losses are those of transformers, every token counts once, answers survive being kept as numbers."""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MarianConfig, MarianMTModel, MarianTokenizer

from potstill.data.batches import TokenisedSet, view
from potstill.data.examples import store
from potstill.data.rows import Columns, open_table
from potstill.data.tokens import tokenise
from potstill.inference.answers import answers, network
from potstill.models.generation.languages import knows_language
from potstill.models.inference import torch_forward
from potstill.models.student import Student, load_student, save_student
from potstill.models.tokenizers.joint_bpe import joint_bpe
from potstill.plugins.students.marian import Marian
from potstill.reporting.numbers import short
from potstill.system import paths
from potstill.tasks.generate import Generated, array_to_text, text_to_array, unpack
from potstill.tasks.metrics.texts import signatures
from potstill.tasks.translate import Translation
from potstill.tasks.write import LanguageModelling
from potstill.training.loop import surpassed, train
from tests.support.commands import FAST, measurements, potstill
from tests.support.small_models import small_teacher, translations, write_csv
from tests.support.training_world import make_world

ENGLISH = ["a dog runs .", "two men eat", "a child", "the old man sleeps on a bench in the park .", "dogs"]
GERMAN = ["ein hund läuft .", "zwei männer essen etwas", "ein kind", "der alte mann schläft .", "hunde 🐕"]

SMALL = {"layers": 1, "ffn_dim": 32, "attention_heads": 2}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.floats(0, 1e3, width=32), texts, texts | st.none())
def test_an_answer_survives_being_numbers(loss: float, greedy: str, beam: str | None) -> None:
    answer = Generated(loss, 7.0, 3.0, -1.5, greedy, beam)
    longer = np.concatenate([answer.pack(), np.full((5, 2), -1, np.float32)])  # beside a longer one
    assert unpack(longer) == answer
    assert array_to_text(np.concatenate([text_to_array(greedy), [-1.0, -1.0]])) == greedy


def translator(seed: int = 0) -> Student:
    student = Marian(1, 1, 16, heads=2, vocabulary=300).begin(Translation(), seed, lambda: iter([*ENGLISH, *GERMAN]))
    with torch.no_grad():  # so that no two tokens are alike
        for parameter in student.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
    return student


def test_the_loss_of_a_translation_is_that_of_transformers(tmp_path: Path) -> None:
    student = translator()
    write_csv(tmp_path / "rows.csv", list(zip(ENGLISH, GERMAN, strict=True)), ("source", "target"))
    table = open_table(tmp_path / "rows.csv", form="translation")
    task = Translation()
    examples = store(table, task)
    tokens = tokenise(task, examples, student.tokenizer, 64)
    source = TokenisedSet(task, examples, tokens, tokens)
    said = [unpack(one) for one in answers(network(torch_forward(student.model)), source)]
    for english, german, one in zip(ENGLISH, GERMAN, said, strict=True):
        inputs = student.tokenizer(english, return_tensors="pt")
        labels = student.tokenizer(text_target=german, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected = student.model(**inputs, labels=labels)
        assert one.tokens == labels.shape[1]
        assert one.loss / one.tokens == pytest.approx(float(expected.loss), rel=1e-5)
        assert one.right == int((expected.logits.argmax(-1) == labels).sum())
    scores = task.score(task.golds(examples), np.stack(answers(network(torch_forward(student.model)), source)))
    total = sum(one.loss for one in said) / sum(one.tokens for one in said)
    assert scores["perplexity"] == pytest.approx(np.exp(total), rel=1e-5)
    assert scores["likelihood"] == pytest.approx(np.exp(-total), rel=1e-5)


def test_the_decoder_reads_what_stands_before_and_no_padding(tmp_path: Path) -> None:
    student = translator()
    write_csv(tmp_path / "rows.csv", list(zip(ENGLISH, GERMAN, strict=True)), ("source", "target"))
    task = Translation()
    examples = store(open_table(tmp_path / "rows.csv", form="translation"), task)
    tokens = tokenise(task, examples, student.tokenizer, 64)
    rows = np.arange(5)
    seen = view(task, tokens, rows)
    targets = task.targets(examples, tokens, rows)
    assert len(targets) == len(seen.at) == task.predictions(tokens, rows).sum()
    assert torch.equal(seen.inputs["decoder_targets"][seen.at[:, 0], seen.at[:, 1]], torch.from_numpy(targets).long())
    ids, mask = seen.inputs["input_ids"], seen.inputs["attention_mask"].bool()
    for row, english in enumerate(ENGLISH):
        assert ids[row][mask[row]].tolist() == student.tokenizer(english)["input_ids"]


def language_model() -> Student:
    tokenizer = joint_bpe(ENGLISH, 300)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return Student(LlamaForCausalLM(config).eval(), tokenizer)


def test_the_loss_of_a_text_is_that_of_transformers_and_windows_hold_every_token_once(tmp_path: Path) -> None:
    student = language_model()
    (tmp_path / "rows.txt").write_text("\n".join(ENGLISH) + "\n")
    task = LanguageModelling()
    examples = store(open_table(tmp_path / "rows.txt", form="writing"), task)
    for length in (64, 8):
        tokens = tokenise(task, examples, student.tokenizer, length)
        said = [
            unpack(one)
            for one in answers(network(torch_forward(student.model)), TokenisedSet(task, examples, tokens, tokens))
        ]
        for text, one in zip(ENGLISH, said, strict=True):
            ids = student.tokenizer(text, return_tensors="pt")["input_ids"]  # with the end
            losses, count = 0.0, 0
            for part in ids[0].split(length):
                with torch.no_grad():
                    logits = student.model(part[None]).logits[0]
                losses += float(torch.nn.functional.cross_entropy(logits[:-1], part[1:], reduction="sum"))
                count += len(part) - 1
            assert one.tokens == count
            assert one.loss == pytest.approx(losses, rel=1e-5)


def test_of_a_prompt_and_its_answer_the_answer_is_learned(tmp_path: Path) -> None:
    student = language_model()
    write_csv(tmp_path / "rows.csv", [("a dog", " runs ."), ("two", " men eat")], ("prompt", "completion"))
    task = LanguageModelling()
    examples = store(open_table(tmp_path / "rows.csv", Columns(), form="writing"), task)
    tokens = tokenise(task, examples, student.tokenizer, 64)
    plain = student.tokenizer(" runs .", add_special_tokens=False)["input_ids"]
    assert task.targets(examples, tokens, np.arange(1)).tolist() == [*plain, 1]


def test_a_teacher_falls_silent_only_while_it_is_passed() -> None:
    class Two:
        to_pass = (("dev.de.bleu", 0.3), ("dev.fr.bleu", 0.4))

    history = [{"dev.de.bleu": 0.31, "dev.fr.bleu": 0.2}, {"dev.de.bleu": 0.29, "dev.fr.bleu": 0.5}]
    assert [surpassed(Two, history[:n]) for n in range(3)] == [set(), {0}, {1}]  # type: ignore[arg-type]


def test_a_translator_is_made_taught_and_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From nothing to a teacher, a student by its sentences, and a translation, by the command alone."""
    rows = [(english, german) for english, german in zip(ENGLISH, GERMAN, strict=True)] * 4
    write_csv(tmp_path / "rows.csv", rows, ("en", "de"))
    data = [
        "--train",
        tmp_path / "rows.csv",
        "--dev",
        tmp_path / "rows.csv",
        "--text",
        "en",
        "--pair",
        "de",
        "--quiet",
        "--batch",
        "5",
    ]
    make = ["train", "--shape", "marian:1+1x32", *data, "--epochs", "60", "--rate", "0.01"]
    make += ["--set", "student.vocabulary=300", "--set", "student.heads=2", "--set", "timing=none"]
    assert potstill(*make, "--out", tmp_path / "teacher") == 0, capsys.readouterr().err
    found, told = measurements(tmp_path / "teacher"), capsys.readouterr().out.splitlines()
    assert found["signatures"] == signatures() and f"BLEU|{signatures()['BLEU']}" in told
    assert {name: found["versions"][name] for name in ("sacrebleu", "ctranslate2")} == {
        name: version(name) for name in ("sacrebleu", "ctranslate2")
    }
    assert "on a sample of train" not in (tmp_path / "teacher/report.html").read_text()
    teach = [
        "distill",
        "--teacher",
        tmp_path / "teacher/student",
        *data,
        "--student",
        "marian:1+1x16",
        "--rate",
        "0.01",
    ]
    teach += ["--set", "stage.data=teacher_outputs", "--method", "hard_labels", "--epochs", "60", "--no-baseline"]
    assert potstill(*teach, "--set", "timing=none", "--out", tmp_path / "run") == 0, capsys.readouterr().err
    capsys.readouterr()
    assert potstill("translate", tmp_path / "run/student", tmp_path / "source.txt") == 2
    (tmp_path / "source.txt").write_text("a child\n")
    capsys.readouterr()
    assert potstill("translate", tmp_path / "run/student", tmp_path / "source.txt") == 0
    assert capsys.readouterr().out.strip() == "ein kind"


def test_an_average_is_the_mean_of_the_last_epochs(tmp_path: Path) -> None:
    """Trained once for each number of epochs; the order of rows and the constant rate are the same in all."""
    world = make_world(tmp_path, rows=24)
    before = {name: weight.clone() for name, weight in world.student.model.state_dict().items()}
    steady = {"name": "sgd", "rate": 0.1, "weight_decay": 0.0, "warmup": 0.0, "decay": "constant"}
    ends = []
    for number, (epochs, keep) in enumerate([(2.0, "last"), (3.0, "last"), (3.0, "average")]):
        world.student.model.load_state_dict(before)
        training = world.training("hard_labels", world.live(), epochs=epochs, keep=keep, averaged=2, optimizer=steady)
        for _ in train(replace(training, folder=tmp_path / str(number))):
            pass
        ends.append({name: weight.clone() for name, weight in world.student.model.state_dict().items()})
    for name, weight in ends[2].items():
        torch.testing.assert_close(weight, (ends[0][name] + ends[1][name]) / 2, rtol=0, atol=1e-7, msg=name)
    assert any(not torch.equal(ends[0][name], ends[1][name]) for name in before)


def test_a_translator_with_marians_own_tokenizer_teaches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is written in Python and reads two languages in two ways, as all of Helsinki's models have it."""
    pieces: dict[str, int] = {"</s>": 0, "<unk>": 1}
    for name, texts in (("source", ENGLISH), ("target", GERMAN)):
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=made, vocab_size=60, hard_vocab_limit=False, minloglevel=2
        )
        (tmp_path / f"{name}.spm").write_bytes(made.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
        for number in range(3, model.get_piece_size()):
            pieces.setdefault(model.id_to_piece(number), len(pieces))
    pieces[">>deu<<"] = len(pieces)
    pieces["<pad>"] = len(pieces)
    (tmp_path / "vocab.json").write_text(json.dumps(pieces))
    files = [str(tmp_path / name) for name in ("source.spm", "target.spm", "vocab.json")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which normalises signs, is not needed
        tokenizer = MarianTokenizer(*files, source_lang="en", target_lang="de")
    sizes = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in SMALL.items()}
    special = {"pad_token_id": pieces["<pad>"], "eos_token_id": 0, "decoder_start_token_id": pieces["<pad>"]}
    model = MarianMTModel(MarianConfig(vocab_size=len(pieces), d_model=16, **sizes, **special))
    save_student(Student(model, tokenizer), tmp_path / "teacher")
    write_csv(tmp_path / "rows.csv", list(zip(ENGLISH, GERMAN, strict=True)), ("en", "de"))
    words = [
        "distill",
        "--teacher",
        tmp_path / "teacher",
        "--train",
        tmp_path / "rows.csv",
        "--dev",
        tmp_path / "rows.csv",
    ]
    words += ["--text", "en", "--pair", "de", "--student", "marian:1+1x16", "--epochs", "1", "--quiet", "--force"]
    words += ["--method", "soft_targets", "--no-baseline", "--set", "timing=none", "--out", tmp_path / "run"]
    assert potstill(*words) == 0, capsys.readouterr().err
    loaded = load_student(tmp_path / "run/student").tokenizer
    assert loaded(text_target=GERMAN[0])["input_ids"] == tokenizer(text_target=GERMAN[0])["input_ids"]
    assert loaded(ENGLISH[0])["input_ids"] == tokenizer(ENGLISH[0])["input_ids"]
    assert knows_language(loaded, "deu") and not knows_language(loaded, "fra")


def test_a_language_model_is_distilled_on_running_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command: a student of one layer, its page and its card."""
    for name, seed in (("train", 1), ("dev", 2)):
        lines = [row["source"] + " " + row["target"] for row in translations(60, seed)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines))
    save_student(small_teacher("write"), tmp_path / "untaught")
    rows = ["--train", tmp_path / "train.txt", "--dev", tmp_path / "dev.txt", "--task", "write", *FAST]
    make = ["finetune", tmp_path / "untaught", *rows, "--epochs", "10", "--out", tmp_path / "teacher"]
    assert potstill(*make) == 0, capsys.readouterr().err
    teach = ["distill", "--teacher", tmp_path / "teacher/student", *rows, "--student", "keep_layers:1", "--epochs", "3"]
    teach += ["--method", "soft_targets", "--set", "method.top=8"]
    assert potstill(*teach, "--out", tmp_path / "run") == 0, capsys.readouterr().err
    found = measurements(tmp_path / "run")
    scores = {name: model["quality"]["task"]["dev"] for name, model in found["models"].items()}
    assert list(scores) == ["teacher", "fine-tuned", "distilled"]
    assert all(one["likelihood"] > 0.03 and "agreement" not in one for one in scores.values())
    assert load_student(tmp_path / "run/student").model.config.num_hidden_layers == 1
    page, card = ((tmp_path / "run" / name).read_text() for name in ("report.html", "student/README.md"))
    assert 'pipeline_tag: "text-generation"' in card and 'pipeline("text-generation"' in card
    assert "errors such as perplexity" in page and f">{short(scores['distilled']['perplexity'])}" in page
    capsys.readouterr()
    assert potstill(*teach, "--set", "metric=perplexity", "--out", tmp_path / "other") == 2
    assert "write metric = 'likelihood'" in capsys.readouterr().err


def test_the_texts_of_a_language_model_need_no_room_where_nothing_is_written(tmp_path: Path) -> None:
    """One long text among many must not make all others as long; what is asked about can still be told apart."""
    task, found = LanguageModelling(), []
    for last in ("b", "c"):
        (tmp_path / f"{last}.txt").write_text("a\n\n" * 200 + "z" * 10_000 + last)
        found.append(task.golds(store(open_table(tmp_path / f"{last}.txt", form="writing"), task)))
    assert found[0].shape == (201, 2) and (found[0][:200] == found[1][:200]).all()
    assert found[0][200, 0] == 10_001 and (found[0][200] != found[1][200]).any()


def test_students_of_other_vocabularies_have_baselines_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights of two students of one size are the same, but not what their tokens mean."""
    write_csv(tmp_path / "rows.csv", list(zip(ENGLISH, GERMAN, strict=True)) * 2, ("source", "target"))
    rows = ["--train", tmp_path / "rows.csv", "--dev", tmp_path / "rows.csv", "--student", "marian:1+1x16", *FAST]
    made = []
    for name, words in (("one", ENGLISH), ("other", [text.upper() for text in ENGLISH])):
        teacher = Marian(1, 1, 16, vocabulary=280).begin(Translation(), 0, lambda words=words: iter(words))
        assert len(teacher.tokenizer) == 280
        save_student(teacher, tmp_path / name)
        more = ["--method", "soft_targets", "--force", "--epochs", "1", "--quiet", "--out", tmp_path / f"run-{name}"]
        assert potstill("distill", "--teacher", tmp_path / name, *rows, *more) == 0, capsys.readouterr().err
        made.append(json.loads((tmp_path / f"run-{name}/baseline-run/stages/0/result.json").read_text())["key"])
        assert (paths.cache() / "stages" / made[-1]).is_dir()
    assert len(set(made)) == 2


def test_one_student_of_two_teachers_translates_into_two_languages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Teachers that share a tokenizer; the student is one network, saved once, with a line for each pair."""
    data = ""
    for seed, (language, second) in enumerate((("de", GERMAN), ("nl", [f"{text} x" for text in ENGLISH]))):
        write_csv(tmp_path / f"{language}.csv", list(zip(ENGLISH, second, strict=True)) * 2, ("source", "target"))
        save_student(translator(seed), tmp_path / f"teacher-{language}")
        rows = f"{tmp_path}/{language}.csv"
        data += (
            f'[[data]]\nname = "en-{language}"\ntask = "translate"\nlanguage = "{language}"\ntrain = "{rows}"\n'
            f'dev = "{rows}"\nteacher = "{tmp_path}/teacher-{language}"\n'
        )
    more = 'timing = "none"\nforce = true\nstudent = "keep_layers:1"\n'
    stage = '[[stage]]\nmethod = "soft_targets"\nstop_teaching = 0.01\nepochs = 2\nbatch = 5\n'
    (tmp_path / "both.toml").write_text(more + data + stage)
    for wrong, told in (
        ("method.name=hard_labels", "never asks a teacher"),
        ("metric=bleu_beam", "write metric = 'bleu'"),
    ):
        assert potstill("distill", tmp_path / "both.toml", "--set", wrong, "--out", tmp_path / "wrong") == 2
        assert told in capsys.readouterr().err
    done = potstill("distill", tmp_path / "both.toml", "--out", tmp_path / "run", "--quiet")
    assert done == 0, capsys.readouterr().err
    found = measurements(tmp_path / "run")
    for made in ("distilled", "fine-tuned"):  # who learns from no teacher stops at none
        assert {"en-de", "en-nl"} == set(found["models"][made]["quality"])
    saved = {one.parent.name for one in (tmp_path / "run").rglob("model.safetensors")}
    assert saved == {"student", "baseline"}
    assert '">>de<< A text to be translated ."' in (tmp_path / "run/student/README.md").read_text()
    page = (tmp_path / "run/report.html").read_text()
    assert "on en-de dev" in page and "on en-nl dev" in page
