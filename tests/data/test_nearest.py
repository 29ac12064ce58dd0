"""The search for nearest texts is compared with all products at once; what is chosen holds no near-duplicates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.data import nearest
from potstill.data.examples import Examples, ExampleWriter
from potstill.data.nearest import Neighbours, choose, union, without_near_duplicates
from potstill.system.column_files import ColumnFiles
from potstill.tasks.label_matching import make_task

TASK = make_task(None, None, ["no", "yes"], None, "rows")[0]


def no_bar(rows: int) -> None:
    pass


def vectors_of(count: int, seed: int, width: int = 3) -> np.ndarray:
    """Few different ones, so that many cosines are equal."""
    vectors = np.random.default_rng(seed).integers(-1, 2, (count, width)).astype(np.float64)
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)).astype(np.float16)


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 60),
    block=st.integers(1, 70),
    k=st.integers(1, 9),
    queries=st.integers(1, 5),
    seed=st.integers(0, 99),
    share=st.sampled_from([0.1, 0.5, 0.9]),
)
def test_the_nearest_are_those_of_all_products(
    count: int, block: int, k: int, queries: int, seed: int, share: float
) -> None:
    vectors = vectors_of(count, seed)
    is_row = np.random.default_rng(seed + 1).random(count) < share
    rows = np.flatnonzero(is_row)
    blocks = [vectors[begin : begin + block] for begin in range(0, count, block)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "QUERIES", queries)
        positions, cosines = nearest.nearest(blocks, rows, ~is_row, k, no_bar)
    every = vectors.astype(np.float32) @ vectors.astype(np.float32).T
    others = np.flatnonzero(~is_row)
    for place, row in enumerate(rows):
        order = others[np.lexsort((others, -every[row, others]))][:k]
        found = positions[place][: len(order)]
        np.testing.assert_allclose(cosines[place][: len(order)], every[row, order], atol=1e-6)
        assert len(set(found.tolist())) == len(order) and (positions[place][len(order) :] == -1).all()
        clear = (
            every[row, order] > every[row, order].min(initial=np.inf) + 1e-5
        )  # of nearly equal cosines rounding decides
        assert set(order[clear]) <= set(found.tolist())


def test_of_equal_cosines_the_earlier_text_comes_first_whatever_the_blocks() -> None:
    vectors = np.tile(np.array([[0.6, 0.8]], np.float16), (50, 1))
    for block in (1, 7, 50):
        blocks = [vectors[begin : begin + block] for begin in range(0, 50, block)]
        positions, _ = nearest.nearest(blocks, np.array([0]), np.arange(50) > 0, 4, no_bar)
        assert positions.tolist() == [[1, 2, 3, 4]]


def test_the_first_neighbours_of_all_rows_come_first_and_every_text_once() -> None:
    positions = np.array([[7, 5, -1], [7, 8, 9]])
    cosines = np.array([[0.5, 0.4, -np.inf], [0.9, 0.8, 0.7]], np.float32)
    found = union(positions, cosines)
    assert found.positions.tolist() == [7, 8, 5, 9] and found.rows.tolist() == [1, 1, 0, 1]


def written(place: Path, texts: list[str], labelled: int) -> Examples:
    place.mkdir()
    writer = ExampleWriter(ColumnFiles(place), 1)
    has_label = np.arange(len(texts)) < labelled
    writer.add([(text, None) for text in texts], np.zeros((len(texts), 1)), has_label)
    writer.finish()
    return Examples("rows", place, np.arange(len(texts)))


LONG = "the plot of this film is a long and winding road"
TEXTS = ["first row", "second row", LONG, LONG + " to nowhere", "A third one!", "a third one", "FIRST ROW", "other"]


def test_near_duplicates_of_rows_and_of_chosen_texts_are_left_out(tmp_path: Path) -> None:
    examples = written(tmp_path / "rows", TEXTS, 2)
    order = np.array([3, 2, 6, 5, 4, 7])
    found = Neighbours(order, np.zeros(6, np.int64), np.linspace(1, 0, 6, dtype=np.float32))
    kept = without_near_duplicates(examples, np.array([0, 1]), found, TASK)
    assert [TEXTS[place] for place in kept.positions] == [LONG + " to nowhere", "a third one", "other"]


def test_what_is_chosen_is_listed_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = written(tmp_path / "rows", TEXTS, 2)
    vectors = [np.zeros((8, 2), np.float16)]
    vectors[0][[0, 4]], vectors[0][[1, 7]] = (1, 0), (0, 1)
    first, listed = choose(examples, vectors, TASK, 1, 2, no_bar)
    assert first.positions.tolist() == [4, 7] and first.rows.tolist() == [0, 1]
    assert listed.read_text() == ("cosine\ttext\trow\n1.000\tA third one!\tfirst row\n1.000\tother\tsecond row\n")
    monkeypatch.setattr(nearest, "nearest", None)
    again, _ = choose(examples, vectors, TASK, 1, 2, no_bar)
    assert all(np.array_equal(*pair) for pair in zip(first, again, strict=True))
