"""Copies with suggested words: which words are replaced by what, that nothing else decides them, and that a stop loses little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from potstill.data.examples import CHUNK, Examples, store
from potstill.data.making import MakeContext
from potstill.data.rows import open_table
from potstill.errors import InputError
from potstill.models import word_candidates
from potstill.models.student import Student, save_student
from potstill.models.word_candidates import Finder, MaskedCandidates, nearest_words, words_of
from potstill.plugins.data.masked_words import MaskedWords
from potstill.system import paths
from potstill.tasks.label_matching import labels_of, make_task
from tests.support.small_models import sentences, small_model, write_csv

TEXT = "a great film , 1999 and xylophones"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "masked"
    save_student(small_model("bert", layers=1, head="MaskedLM"), folder)
    return folder


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))


def examples_of(folder: Path, rows: list[tuple[Any, ...]]) -> Examples:
    write_csv(folder / "rows.csv", rows, ("text", "label") if len(rows[0]) == 2 else ("text1", "text2", "label"))
    table = open_table(folder / "rows.csv")
    task, _ = make_task(None, None, labels_of(table), None, "rows", table.form)
    return store(table, task)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mobilebert"])
def test_candidates_are_the_most_probable_words_at_the_mask(architecture: str) -> None:
    """Asked one text at a time, without tricks. The word itself is none, and neither are pieces inside words."""
    student = masked_model(architecture)
    finder = MaskedCandidates(student, 5)
    texts = [TEXT, "the story", "film"]
    ids, places = finder.places(texts)
    single = [place for place in places if place.token is not None]
    assert {texts[place.text][place.begin : place.end] for place in places} == {*TEXT.split(), "the", "story"} - {
        ",",
        "1999",
    }
    for place, found in zip(single, finder.best(ids, single), strict=True):
        word = texts[place.text][place.begin : place.end]
        masked = list(ids[place.text])
        assert student.tokenizer.decode([masked[place.token or 0]]).strip() == word
        masked[place.token or 0] = student.tokenizer.mask_token_id
        with torch.no_grad():
            logits = student.model(input_ids=torch.tensor([masked])).logits[0, place.token or 0]
        ranked = [finder.words[number] for number in logits.argsort(descending=True).tolist() if number in finder.words]
        assert found == [each for each in ranked if each != word][:5]
        assert not any(each.startswith("##") for each in found)


def masked_model(architecture: str) -> Student:
    if architecture != "mobilebert":
        return small_model(architecture, layers=1, head="MaskedLM")
    from potstill.models.builder import BuildContext
    from potstill.plugins.students.mobilebert import MobileBert

    start = small_model("bert", layers=1, head="MaskedLM")
    made = MobileBert(layers=1, width=32, bottleneck=16, feed_forward=32, stacked=1, embedding=16)
    return made.build(start, BuildContext(start, 0, lambda: iter(())))


def test_words_of_several_pieces_have_candidates_of_the_vectors(model: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("xylophones 1 0\nmarimbas 0.9 0.1\nthe 0 1\ndrums 0.8 0.4\n")
    both, alone = (Finder("here", each, str(vectors), 2) for each in (str(model), None))
    found = {TEXT[one.begin : one.end]: one.words for one in both.find([TEXT])[0]}
    assert found["xylophones"] == ["marimbas", "drums"]
    assert set(found) == {"a", "great", "film", "and", "xylophones"}
    assert [TEXT[one.begin : one.end] for one in alone.find([TEXT])[0]] == ["xylophones"]
    assert "xylophones" not in {
        TEXT[one.begin : one.end] for one in Finder("here", str(model), None, 2).find([TEXT])[0]
    }


def test_nearest_words_are_those_of_the_largest_cosine() -> None:
    names, vectors = [f"w{number}" for number in range(200)], np.random.default_rng(0).normal(size=(200, 8))
    found = nearest_words(["w3", "w150", "other", "w3"], names, vectors, 4)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert list(found) == ["w3", "w150"]
    for word, near in found.items():
        order = np.argsort(-(units @ units[names.index(word)]))
        assert near == [names[number] for number in order if names[number] != word][:4]


def test_a_word_is_replaced_with_the_given_probability(model: Path, tmp_path: Path) -> None:
    rows = [(text, label) for text, label in sentences(60, 3)]
    examples = examples_of(tmp_path, rows)
    finder = Finder("here", str(model), None, 15)
    made = MaskedWords(str(model), copies=10, p=0.4).make(examples, MakeContext(0))
    texts = [text for text, _ in made.texts()]
    assert texts[: len(examples)] == [text for text, _ in examples.texts()] and len(set(texts)) == len(texts)
    changed, words = 0, 0
    for text, origin in list(zip(texts, made.origins[made.index].tolist(), strict=True))[len(examples) :]:
        before = rows[0][0] if origin < 0 else texts[origin]
        assert len(text.split()) == len(before.split())
        choices = {before[one.begin : one.end]: set(one.words) for one in finder.find([before])[0]}
        pairs = list(zip(before.split(), text.split(), strict=True))
        changed += sum(ours != theirs for ours, theirs in pairs)
        words += len(words_of(before))
        assert all(ours == theirs or ours in choices for ours, theirs in pairs)
    assert abs(changed / words - 0.4) < 0.05
    assert len(MaskedWords(str(model), p=0.0).make(examples, MakeContext(0))) == len(examples)


def test_more_copies_and_other_draws_ask_the_model_nothing_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = examples_of(tmp_path, [(text, label) for text, label in sentences(20, 3)])
    asked: list[int] = []
    best = MaskedCandidates.best
    monkeypatch.setattr(MaskedCandidates, "best", lambda self, ids, places: asked.append(1) or best(self, ids, places))
    first = MaskedWords(str(model), copies=2).make(examples, MakeContext(0))
    more = MaskedWords(str(model), copies=4).make(examples, MakeContext(0))
    other = MaskedWords(str(model), copies=2, draw=1).make(examples, MakeContext(5))
    assert len(asked) == 1
    kept = {text for text, _ in first.texts()}
    assert kept <= {text for text, _ in more.texts()} and kept != {text for text, _ in other.texts()}


def test_a_stop_loses_no_finished_thousand(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"{text} {number}", label) for number, (text, label) in enumerate(sentences(CHUNK + 50, 3))]
    examples, maker = examples_of(tmp_path, rows), MaskedWords(str(model), copies=1)
    found: list[int] = []

    def find(self: Finder, texts: list[str]) -> list[list[word_candidates.Choice]]:
        found.append(len(texts))
        if len(found) == 2:
            raise KeyboardInterrupt
        return [[word_candidates.Choice(*words_of(text)[0], ["other"])] for text in texts]

    monkeypatch.setattr(Finder, "find", find)
    with pytest.raises(KeyboardInterrupt):
        maker.make(examples, MakeContext(0))
    assert not list((paths.cache() / "examples").rglob(".tmp-*"))
    maker.make(examples, MakeContext(0))
    assert found == [CHUNK, 50, 50]


def test_what_gives_no_candidates_is_refused(model: Path, tmp_path: Path) -> None:
    examples = examples_of(tmp_path, [(text, label) for text, label in sentences(20, 3)])
    with pytest.raises(InputError, match=r"write model = 'DIR', or vectors = 'glove'"):
        MaskedWords().make(examples, MakeContext(0))
    save_student(small_model("bert", layers=1), tmp_path / "classifier")
    with pytest.raises(InputError, match=r"has no trained head"):
        MaskedWords(str(tmp_path / "classifier")).make(examples, MakeContext(0))
    with pytest.raises(InputError, match=r"there is no file .*; write vectors = "):
        MaskedWords(vectors=str(tmp_path / "none.txt")).make(examples, MakeContext(0))
