"""Vectors of texts are the means that they are said to be, whatever the blocks and batches; a stopped run reads its blocks back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from potstill.data.examples import Examples, store
from potstill.data.rows import open_table
from potstill.errors import InputError
from potstill.models import text_vectors
from potstill.models.builder import BuildContext, Student
from potstill.models.text_vectors import last_states, word_means
from potstill.recipe import short_forms
from potstill.system import interrupts
from potstill.tasks.label_matching import make_task
from potstill.tasks.task import Task
from tests.support.small_models import sentences, small_model, write_csv

TEXTS = [*(text for text, _ in sentences(20, 1)), "", "\ufffd", "🎬 " * 30, "w" * 5000, "good " * 300]


def no_bar(rows: int) -> None:
    pass


@pytest.fixture
def world(tmp_path: Path) -> tuple[Examples, Task, Student]:
    write_csv(tmp_path / "rows.csv", [(text, "1") for text in TEXTS])
    task, _ = make_task(None, None, ["0", "1"], None, "rows")
    return store(open_table(tmp_path / "rows.csv"), task), task, small_model("bert")


def test_states_are_the_mean_over_real_tokens(
    world: tuple[Examples, Task, Student], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers gives them, one text at a time."""
    examples, task, model = world
    monkeypatch.setattr(text_vectors, "BLOCK", 7)
    found = np.concatenate(last_states(examples, task, model, 32, no_bar))
    assert found.dtype == np.float16 and len(found) == len(TEXTS)
    model.model.eval()
    for vector, text in zip(found, TEXTS, strict=True):
        inputs = model.tokenizer(text, truncation=True, max_length=32, return_tensors="pt")
        with torch.no_grad():
            mean = model.model(**inputs, output_hidden_states=True).hidden_states[-1][0].mean(0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-3)


def test_word_means_are_weighted_by_rarity(
    world: tuple[Examples, Task, Student], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, task, model = world
    ids = [
        model.tokenizer(text, truncation=True, max_length=32, add_special_tokens=True)["input_ids"] for text in TEXTS
    ]
    table = model.model.get_input_embeddings().weight.detach().numpy()
    special = set(model.tokenizer.all_special_ids)
    counts = np.array([sum(token in of for of in ids) for token in range(len(table))])
    rarity = np.log((1 + len(TEXTS)) / (1 + counts)) * [token not in special for token in range(len(table))]
    common = (counts * rarity) @ table / (counts @ rarity)
    monkeypatch.setattr(text_vectors, "BLOCK", 7)
    blocks = word_means(examples, task, model, 32, no_bar)
    assert [len(block) for block in blocks] == [7, 7, 7, 4]
    for vector, of in zip(np.concatenate(blocks), ids, strict=True):
        total = sum(rarity[token] * (table[token] - common) for token in of)
        np.testing.assert_allclose(vector, total / max(np.linalg.norm(total), 1e-9), atol=2e-3)
    assert not np.concatenate(blocks)[20].any()  # an empty text is near to nothing


def test_a_stopped_run_reads_its_blocks_back(
    world: tuple[Examples, Task, Student], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, task, model = world
    monkeypatch.setattr(text_vectors, "BLOCK", 7)
    whole = last_states(examples, task, model, 32, no_bar)
    monkeypatch.setenv("POTSTILL_CACHE", str(examples.folder.parent / "other"))
    asked: list[int] = []
    plain = text_vectors.listen

    def counting(network: object, read: object, wants: object) -> object:
        asked.append(1)
        return plain(network, read, wants)  # type: ignore[arg-type]

    def stop() -> None:
        if len(asked) >= 2:
            raise interrupts.Interrupted(15)

    monkeypatch.setattr(text_vectors, "listen", counting)
    monkeypatch.setattr(interrupts, "stop_if_asked", stop)
    with pytest.raises(interrupts.Interrupted):
        last_states(examples, task, model, 32, no_bar)
    before = len(asked)
    monkeypatch.setattr(interrupts, "stop_if_asked", lambda: None)
    again = last_states(examples, task, model, 32, no_bar)
    assert before >= 2 and len(asked) - before < before + 2
    assert all(np.array_equal(*pair) for pair in zip(whole, again, strict=True))
    last_states(examples, task, model, 32, no_bar)
    total = len(asked)
    last_states(examples.take(np.arange(7)), task, model, 32, no_bar)  # the same texts in another run
    assert len(asked) == total


def test_a_teacher_without_layers_is_refused(world: tuple[Examples, Task, Student]) -> None:
    examples, task, model = world
    network = short_forms.make_plugin("students", {"build": "bag"}).build(
        model, BuildContext(model, 0, lambda: iter(TEXTS))
    )
    with pytest.raises(InputError, match="write by = 'words'"):
        last_states(examples, task, network, 32, no_bar)
    assert len(word_means(examples, task, network, 32, no_bar)[0]) == len(TEXTS)
