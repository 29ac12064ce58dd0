"""What is said, and refused, of rows and teachers that write before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.generation.languages import knows_language
from potstill.models.student import save_student
from potstill.models.tokenizers.joint_bpe import joint_bpe
from potstill.plugins.students.marian import Marian
from potstill.recipe.resolve import resolve
from potstill.runs.build import build
from potstill.runs.data_set import DataSet, texts_of
from potstill.tasks.translate import Translation
from tests.data.test_unlabelled import Heard
from tests.support.prepared import prepared_data
from tests.support.small_models import same_weights, sentences, small_teacher, translations, write_csv

FOREIGN = [(row["source"], row["target"]) for row in translations(30, 1)]


def prepared(*sets: str) -> tuple[list[DataSet], list[str]]:
    heard = Heard()
    return prepared_data(resolve(None, None, list(sets)).recipe, heard), heard.told


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teachers of the same shape: one learned its pieces with >>de<< before every source, one without."""
    home = tmp_path_factory.mktemp("home")
    write_csv(home / "pairs.csv", FOREIGN, ("source", "target"))
    write_csv(home / "labels.csv", sentences(30, 1))
    save_student(small_teacher("write"), home / "writer")
    for name, before in (("de", ">>de<< "), ("plain", "")):
        texts = [f"{before}{source}" for source, _ in FOREIGN]
        shape = Marian(encoder_layers=1, decoder_layers=1, width=16, vocabulary=300)
        save_student(shape.begin(Translation(), 0, lambda texts=texts: iter(texts)), home / name)
    return home


def test_a_teacher_that_does_not_know_the_language_is_refused(home: Path) -> None:
    """It would translate the letters of >>de<<."""
    rows = [f"data.train={home}/pairs.csv", f"data.dev={home}/pairs.csv", "data.task=translate"]
    told = "plain has no token >>de<< and would read it as part of every text; "
    with pytest.raises(InputError, match=f"{told}give a teacher that was trained with language = 'de'"):
        prepared(f"teacher={home}/plain", *rows, "data.language=de")
    for teacher, language, count in (("plain", "de", 1), ("de", "de", 0), ("de", "fr", 1), ("plain", None, 0)):
        asked = [f"data.language={language}"] if language else []
        (data,), heard = prepared(f"teacher={home}/{teacher}", *rows, *asked, "force=true")
        assert sum("has no token" in one for one in heard) == count
        assert data.loaded_teacher is not None
        assert knows_language(data.loaded_teacher.tokenizer, language or "de") is (teacher == "de" and language == "de")


def test_labels_that_a_teacher_of_texts_does_not_read_are_told_of(home: Path) -> None:
    rows = [f"data.train={home}/labels.csv", f"data.dev={home}/labels.csv", f"teacher={home}/writer", "force=true"]
    (data,), heard = prepared(*rows)
    assert data.task.name == "write"
    told = [one for one in heard if "the labels in 'label' are not read" in one]
    assert len(told) == 1 and told[0].endswith("; give a classifier as the teacher to learn them")
    _, heard = prepared(*rows, "data.task=write")  # it was said what is meant
    assert not any("not read" in one for one in heard)
    with pytest.raises(InputError, match="omit --label"):
        prepared(*rows, "data.label=label")


def test_targets_are_no_labels(home: Path) -> None:
    """Though the column has a usual name for them."""
    rows = [f"data.train={home}/pairs.csv", f"data.dev={home}/pairs.csv", f"teacher={home}/plain", "force=true"]
    (data,), heard = prepared(*rows)
    assert data.task.name == "translate" and not any("not read" in one for one in heard)


def test_a_student_that_only_translates_says_what_the_rows_are_for(home: Path) -> None:
    """Where nobody else does; a teacher's rows are taken for what it writes, as ever."""
    rows = [f"data.train={home}/pairs.csv", "data.text=source", "data.pair=target"]
    for student in ("marian:1+1x16", "lstm_translator:1x16"):
        resolved = resolve(None, None, [*rows, f"student={student}"])
        assert resolved.recipe.data[0].task == "translate" and resolved.sources["data.0.task"] == "student"
    for other in ("student=keep_layers:1", "student=mlp"):
        assert resolve(None, None, [*rows, other]).recipe.data[0].task is None
    taught = resolve(None, None, [*rows, "student=marian:1+1x16", f"teacher={home}/plain"])
    assert taught.recipe.data[0].task is None and taught.sources["data.0.task"] == "default"
    named = resolve(None, None, [*rows, "student=marian:1+1x16", "data.task=write"])
    assert named.recipe.data[0].task == "write" and named.sources["data.0.task"] == "--set"
    (data,), _ = prepared(*rows, "student=marian:1+1x16", "student.vocabulary=300")
    assert data.task.name == "translate"


def test_byte_pairs_are_looked_for_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the rows are read; students of every seed have the same, but other texts or another size do not."""
    made: list[int] = []

    def counted(texts: Iterator[str], size: int, found: list[str]) -> PreTrainedTokenizerBase:
        made.append(size)
        return joint_bpe(texts, size, found)

    monkeypatch.setattr("potstill.models.tokenizers.joint_bpe.joint_bpe", counted)
    monkeypatch.setattr("potstill.models.tokenizers.joint_bpe._last", {})
    rows = [
        f"data.train={home}/pairs.csv",
        f"data.dev={home}/pairs.csv",
        "data.task=translate",
        "student=marian:1+1x16",
    ]
    recipe = resolve(None, None, [*rows, "student.vocabulary=300"]).recipe
    data = prepared_data(recipe)
    built = [build(recipe.model_copy(update={"seed": seed}), data) for seed in (0, 1)]
    assert made == [300]
    first, second = (student.tokenizer for student in built)
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(second) and first is not second
    assert not same_weights(*(student.students[0] for student in built))
    expected = joint_bpe(list(texts_of(one.train for one in data)), 300)
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(expected)
    for sets in (["student.vocabulary=301"], ["student.vocabulary=300", "data.language=de"]):
        build(other := resolve(None, None, [*rows, *sets]).recipe, prepared_data(other))
    assert made == [300, 301, 300]
