"""`potstill pretrain`: an encoder from nothing or from another one, on running text."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from potstill.data.examples import store
from potstill.data.rows import Columns
from potstill.data.running_text import open_running_text
from potstill.inference.predict import predict
from potstill.models.student import load_student, save_student
from potstill.models.tokenizers.wordpiece import wordpiece
from potstill.runs.planning import within
from potstill.system.paths import RunFolder
from potstill.tasks.mask import MaskedLanguageModelling
from tests.support.commands import measurements, potstill
from tests.support.small_models import running_texts, small_model

FAST = ["--set", "dropout=0", "--set", "timing=none", "--quiet", "--length", "32", "--set", "precision=float32"]
PHRASES = [
    "a lovely film",
    "the dull story",
    "one boring scene",
    "two clever heroes",
    "three long hours",
    "every weak plot",
]
PLAIN = """
import sys
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline
folder = sys.argv[1]
print(type(AutoModel.from_pretrained(folder)).__name__, type(AutoTokenizer.from_pretrained(folder)).__name__)
print(type(AutoModelForMaskedLM.from_pretrained(folder)).__name__, "potstill" in sys.modules)
print(pipeline("fill-mask", model=folder, top_k=1)("a lovely film one [MASK] scene the dull story .")[0]["token_str"])
"""


def write_text(folder: Path) -> Path:
    """Documents of three lines in two files, of six phrases."""
    folder.mkdir()
    chance = random.Random(0)
    lines = [[f"{' '.join(chance.sample(PHRASES, 4))} ." for _ in range(3)] for _ in range(120)]
    said = ["\n".join(three) + "\n" for three in lines]
    (folder / "a.txt").write_text("\n".join(said[:60]))
    (folder / "b.txt").write_text("\n".join(said[60:]))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("pretrain")
    words = ["pretrain", "--train", write_text(home / "texts"), "--shape", "bert:2x32", "--rate", "5e-3"]
    words += ["--epochs", "20", "--set", "student.vocabulary=300", "--batch", "16", *FAST]
    assert potstill(*words, "--out", home / "run") == 0
    return home / "run"


def test_an_encoder_from_nothing_is_a_stock_folder(encoder: Path) -> None:
    """Read by plain transformers, in a process that never imports potstill; it fills a mask with a word of the text."""
    found = subprocess.run([sys.executable, "-c", PLAIN, encoder / "student"], capture_output=True, text=True)
    assert found.stdout.split("\n")[:2] == ["BertModel BertTokenizer", "BertForMaskedLM False"], found.stderr
    assert found.stdout.split("\n")[2].strip() in " ".join(PHRASES)


def test_masked_tokens_are_measured(encoder: Path) -> None:
    """Better than a model that knows how frequent every word is."""
    words = " ".join(path.read_text() for path in sorted((encoder.parent / "texts").glob("*.txt"))).split()
    shares = np.unique(words, return_counts=True)[1] / len(words)
    unigram = float(np.exp(-(shares * np.log(shares)).sum()))
    (model,) = measurements(encoder)["models"].values()
    dev = model["quality"]["task"]["dev"]
    assert dev["perplexity"] < 0.7 * unigram and dev["accuracy"] > 1.5 * shares.max()


def test_windows_of_the_run_fill_the_length(encoder: Path) -> None:
    recipe = RunFolder(encoder).recipe.read_text()
    assert "windows = true" in recipe and 'task = "mask"' in recipe
    (answer,) = predict(encoder / "student", ["the [MASK] ."])
    assert len(answer["masks"]) == 1


def test_going_on_with_an_encoder_keeps_its_tokenizer(encoder: Path, tmp_path: Path) -> None:
    save_student(small_model("roberta"), tmp_path / "roberta")
    text = encoder.parent / "texts"
    words = ["pretrain", tmp_path / "roberta", "--train", text, "--epochs", "1", *FAST, "--out", tmp_path / "run"]
    assert potstill(*words) == 0
    before, after = load_student(tmp_path / "roberta"), load_student(tmp_path / "run/student")
    assert type(after.model).__name__ == "RobertaForMaskedLM"
    assert after.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    weights = (student.model.base_model.embeddings.word_embeddings.weight for student in (before, after))
    assert torch.nn.functional.cosine_similarity(*weights).median() > 0.9
    assert potstill(*words[:2], "--shape", "bert:2x32", *words[2:]) == 2  # either one or the other


def test_the_tokenizer_of_an_encoder_can_be_given(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is also said how full the windows are."""
    words = ["pretrain", "--train", encoder.parent / "texts", "--tokenizer", encoder / "student", "--epochs", "1"]
    aloud = [word for word in FAST if word != "--quiet"]
    assert potstill(*words, "--shape", "bert:1x16", *aloud, "--out", tmp_path / "run") == 0
    found = re.search(r"(\d+) windows of (\d+) tokens on average, 32 at most", capsys.readouterr().err)
    assert found is not None and 16 < int(found[2]) <= 32
    ours, theirs = (load_student(folder / "student").tokenizer.get_vocab() for folder in (tmp_path / "run", encoder))
    assert ours == theirs


def test_windows_are_refused_for_other_tasks(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,0\nb,1\nc,0\nd,1\n")
    words = ["finetune", encoder / "student", "--train", tmp_path / "rows.csv", "--set", "data.0.windows=true", *FAST]
    assert potstill(*words, "--out", tmp_path / "run") == 2
    assert "windows are cut from running text" in capsys.readouterr().err


def test_a_vocabulary_is_that_of_the_tokenizers_library_whatever_the_order(tmp_path: Path) -> None:
    texts = [row["text"] for row in running_texts(80, 1)]
    ours = wordpiece(lambda: texts, 200)
    shuffled = [texts[place] for place in np.random.default_rng(0).permutation(80)]
    again = wordpiece(lambda: shuffled, 200)
    assert ours.get_vocab() == again.get_vocab() and len(ours) <= 200
    assert ours.convert_ids_to_tokens([0, 1, 2, 3, 4]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ours.save_pretrained(tmp_path)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in texts:
        ids = ours(text)["input_ids"]
        assert theirs.encode(text).ids == ids and ours.unk_token_id not in ids


def test_documents_of_a_folder_are_those_of_its_files(tmp_path: Path) -> None:
    rows = store(open_running_text(str(write_text(tmp_path / "texts")), Columns()), MaskedLanguageModelling())
    assert len(set(rows.documents.tolist())) == 120


def test_a_run_within_a_time_goes_on_with_the_epochs_that_it_began_with(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"what": "train fine-tuned", "seconds": 600, "steps": 20, "runs": 1}
    lines = [training, {"what": "score dev", "seconds": 6}]
    monkeypatch.setattr(within, "plan", lambda recipe, out: {"lines": lines, "seconds": 700})
    words = ["pretrain", "--train", encoder.parent / "texts", "--shape", "bert:1x16", "--within", "30m", *FAST]
    assert potstill(*words, "--epochs", "1", "--out", tmp_path / "run") == 2  # either one or the other
    assert potstill(*words, "--out", tmp_path / "run") == 0
    assert "epochs = 2.813" in (first := RunFolder(tmp_path / "run").recipe.read_text())
    monkeypatch.setattr(within, "plan", None)
    assert potstill(*words, "--out", tmp_path / "run") == 0
    assert RunFolder(tmp_path / "run").recipe.read_text() == first


def test_a_run_within_a_time_has_room_for_the_trials_of_rates() -> None:
    """A third of the steps more, where there are enough of them."""
    rates = [1e-4, 2e-4, 4e-4, 8e-4]
    assert within.epochs_with_trials(400, 100, 0, 1000, []) == 4
    assert within.epochs_with_trials(400, 100, 0, 1000, rates) == pytest.approx(3, abs=0.002)
    assert within.epochs_with_trials(400, 100, 0, 100, rates) == 4  # no trials: 400 steps
    assert within.epochs_with_trials(700, 100, 0, 100, rates) == pytest.approx(5.99)  # with trials, 525 steps would fit
