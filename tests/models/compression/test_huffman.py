"""Huffman codes: the shortest within their limit, the same symbols again, and no answer for a stream that was changed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from potstill.models.compression import huffman


@pytest.mark.parametrize("counts", [[1, 1, 2, 3, 5, 8, 13], [7, 7, 7, 7, 7], [0, 4, 0, 1, 90, 2]])
@pytest.mark.parametrize("longest", [3, 4])
def test_no_code_within_the_limit_is_shorter(counts: list[int], longest: int) -> None:
    """Against all code lengths that satisfy Kraft's inequality."""
    used = [count for count in counts if count]
    shortest = min(
        sum(np.multiply(lengths, used))
        for lengths in itertools.product(range(1, longest + 1), repeat=len(used))
        if sum(2.0**-length for length in lengths) <= 1
    )
    lengths = huffman.code_lengths(np.array(counts), longest)
    assert lengths.max() <= longest
    assert (lengths * np.array(counts)).sum() == shortest
    assert [bool(length) for length in lengths] == [bool(count) for count in counts]
    huffman.refuse_bad_lengths(lengths)


def test_counts_that_grow_like_fibonacci_s_numbers_stay_within_sixteen_bits() -> None:
    counts = [1, 1]
    while len(counts) < 30:
        counts.append(counts[-1] + counts[-2])
    lengths = huffman.code_lengths(np.array(counts))
    assert lengths.max() == huffman.LONGEST
    huffman.refuse_bad_lengths(lengths)


def test_codes_of_a_canonical_code_are_prefixes_of_no_other() -> None:
    lengths = huffman.code_lengths(np.array([45, 13, 12, 16, 9, 5]))
    codes = [f"{code:0{length}b}" for code, length in zip(huffman.canonical_codes(lengths), lengths, strict=True)]
    assert codes == ["0", "100", "101", "110", "1110", "1111"]


@pytest.mark.parametrize("number", [1, 7, huffman.LANE, huffman.LANE + 1, huffman.STEP + 3 * huffman.LANE + 5])
@pytest.mark.parametrize("kinds", [1, 2, 300])
def test_what_is_encoded_is_decoded(number: int, kinds: int) -> None:
    """Also over the borders of lanes and of what is encoded at once."""
    symbols = np.minimum(np.random.default_rng(number).geometric(0.2, number) - 1, kinds - 1)
    lengths = huffman.code_lengths(np.bincount(symbols, minlength=kinds))
    stream, lanes = huffman.encode(symbols, lengths)
    assert len(stream) == -(-int(lengths[symbols].sum()) // 8)
    assert np.array_equal(huffman.decode(stream, lanes, lengths, number), symbols)


def test_hostile_streams_are_refused_before_memory_is_taken() -> None:
    symbols = np.random.default_rng(0).integers(0, 6, 10_000)
    lengths = huffman.code_lengths(np.bincount(symbols))
    stream, lanes = huffman.encode(symbols, lengths)

    def refused(stream=stream, lanes=lanes, lengths=lengths, number=10_000) -> str:  # type: ignore[no-untyped-def]
        with pytest.raises(ValueError, match=r"\w") as error:
            huffman.decode(stream, np.asarray(lanes), np.asarray(lengths, np.uint8), number)
        return str(error.value)

    assert "lane" in refused(number=12_000)
    assert "too few" in refused(lanes=[100, *lanes[1:]])
    assert "do not fit" in refused(number=10**15)
    assert "do not fit" in refused(number=0)
    assert "shorter or longer" in refused(stream=stream[:-1])
    assert "too many bits" in refused(lanes=[-1, *lanes[1:]])
    assert "Huffman code" in refused(lengths=[1] * 6)
    assert "missing or too long" in refused(lengths=[0] * 6)
    assert "missing or too long" in refused(lengths=[17] * 6)
    shifted = lanes.astype(np.int64) + np.array([8, -8, 0])
    assert "where it should" in refused(lanes=shifted)


def test_a_single_symbol_takes_a_bit_and_nothing_else_may_stand_there() -> None:
    lengths = huffman.code_lengths(np.array([0, 9, 0]))
    stream, lanes = huffman.encode(np.full(9, 1), lengths)
    assert (lengths.tolist(), stream.tolist(), lanes.tolist()) == ([0, 1, 0], [0, 0], [9])
    with pytest.raises(ValueError, match=r"lane"):
        huffman.decode(np.array([0, 128], np.uint8), lanes, lengths, 9)
