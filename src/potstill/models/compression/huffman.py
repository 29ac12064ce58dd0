"""Huffman codes of symbols: optimal code lengths, canonical codes, and streams that are read in many lanes at once.

Only code lengths are stored; the codes follow from them. A stream is cut into lanes of LANE symbols, and the bits of every
lane are counted beside it, so that NumPy decodes one symbol of all lanes in a step. All input may be hostile: code lengths
must be those of a complete code, and every lane must end where it says.
"""

from __future__ import annotations

import heapq

import numpy as np

LONGEST = 16  # bits of a code: decoding looks every code up in one table
LANE = 4096  # symbols of a lane
STEP = 1 << 19  # symbols that are encoded at once


def code_lengths(counts: np.ndarray, longest: int = LONGEST) -> np.ndarray:
    """The bits of each symbol's code that make the text shortest, none above `longest`; 0 for symbols that do not occur.

    A single symbol takes one bit. Package-merge (Larmore and Hirschberg, 1990); without the limit it is Huffman's code.
    """
    lengths = np.zeros(len(counts), np.uint8)
    present = np.flatnonzero(counts)
    if len(present) > 2**longest:
        raise ValueError(f"{len(present)} symbols have no code of at most {longest} bits")
    if len(present) == 1:
        lengths[present] = 1
    if len(present) < 2:
        return lengths
    weights = [int(counts[symbol]) for symbol in present]
    plain = _plain_lengths(weights)
    lengths[present] = plain if max(plain) <= longest else _limited_lengths(weights, longest)
    return lengths


def _plain_lengths(weights: list[int]) -> list[int]:
    """Huffman's algorithm: the two rarest trees become one."""
    heap = [(weight, place) for place, weight in enumerate(weights)]
    heapq.heapify(heap)
    parents = [0] * (2 * len(weights) - 1)
    for made in range(len(weights), len(parents)):
        (first, one), (second, other) = heapq.heappop(heap), heapq.heappop(heap)
        parents[one] = parents[other] = made
        heapq.heappush(heap, (first + second, made))
    depths = [0] * len(parents)
    for node in reversed(range(len(parents) - 1)):
        depths[node] = depths[parents[node]] + 1
    return depths[: len(weights)]


def _limited_lengths(weights: list[int], longest: int) -> list[int]:
    """Package-merge: the length of a symbol is how many of the cheapest 2·n − 2 packages hold it."""
    order = sorted(range(len(weights)), key=weights.__getitem__)
    single = [(weights[symbol], place) for place, symbol in enumerate(order)]
    level: list[tuple[int, int]] = list(single)  # (weight, place of a symbol, or −1 for a pair of the level below)
    levels = [level]
    for _ in range(longest - 1):
        pairs = [(level[at][0] + level[at + 1][0], -1) for at in range(0, len(level) - 1, 2)]
        level = sorted([*single, *pairs], key=lambda one: one[0])
        levels.append(level)
    lengths, taken = [0] * len(weights), 2 * len(weights) - 2
    for level in reversed(levels):
        pairs_taken = 0
        for _, place in level[:taken]:
            if place < 0:
                pairs_taken += 1
            else:
                lengths[order[place]] += 1
        taken = 2 * pairs_taken
    return lengths


def canonical_codes(lengths: np.ndarray) -> np.ndarray:
    """The code of each symbol, as a number of so many bits: shorter codes first, of equal length in the order of symbols."""
    codes = np.zeros(len(lengths), np.uint32)
    code, before = 0, 0
    for symbol in np.lexsort((np.arange(len(lengths)), lengths)):
        if length := int(lengths[symbol]):
            code <<= length - before
            codes[symbol], before = code, length
            code += 1
    return codes


def refuse_bad_lengths(lengths: np.ndarray) -> None:
    """ValueError unless these are the code lengths of a complete code, or of a single symbol."""
    used = lengths[lengths > 0].astype(np.int64)
    if len(used) == 0 or used.max() > LONGEST:
        raise ValueError("code lengths are missing or too long")
    filled = int((1 << (LONGEST - used)).sum())
    if filled != 1 << LONGEST and not (len(used) == 1 and used[0] == 1):
        raise ValueError("code lengths are not those of a Huffman code")


def encode(symbols: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the stream (bytes,) uint8 and the number of bits of each lane (lanes,) uint32; `symbols` is flat, not empty."""
    codes, parts, lanes, carry = canonical_codes(lengths), [], [], np.zeros(0, np.uint8)
    for start in range(0, len(symbols), STEP):
        some = symbols[start : start + STEP]
        sizes = lengths[some].astype(np.int64)
        lanes.append(np.add.reduceat(sizes, np.arange(0, len(some), LANE)))
        ends = sizes.cumsum()
        # bit number i of the stream is bit (end of its code − 1 − i) of its code
        owner = np.repeat(np.arange(len(some)), sizes)
        shift = ends[owner] - 1 - np.arange(int(ends[-1]))
        bits = ((codes[some][owner] >> shift.astype(np.uint32)) & 1).astype(np.uint8)
        bits = np.concatenate([carry, bits])
        whole = len(bits) // 8 * 8
        parts.append(np.packbits(bits[:whole]))
        carry = bits[whole:]
    parts.append(np.packbits(carry))
    return np.concatenate(parts), np.concatenate(lanes).astype(np.uint32)


def decode(stream: np.ndarray, lane_bits: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    """The inverse of `encode`: (count,) symbols as int32; ValueError if the stream is not one of so many symbols."""
    refuse_bad_lengths(lengths)
    if count < 1 or len(lane_bits) != -(-count // LANE):
        raise ValueError("the lanes do not fit the number of symbols")
    bits = lane_bits.astype(np.int64)
    sizes = np.full(len(bits), LANE)
    sizes[-1] = count - LANE * (len(bits) - 1)
    if ((bits < sizes) | (bits > LONGEST * sizes)).any():  # so that a short stream cannot ask for much memory
        raise ValueError("a lane has too few or too many bits for its symbols")
    ends = bits.cumsum()
    if -(-int(ends[-1]) // 8) != len(stream):
        raise ValueError("the stream is shorter or longer than its lanes")
    symbol_at, length_at = _table(lengths)
    # three bytes hold any code, wherever in the first of them it begins
    padded = np.concatenate([stream, np.zeros(3, np.uint8)])
    at = ends - bits
    symbols = np.zeros((len(bits), sizes[0]), np.int32)
    for place in range(symbols.shape[1]):
        lanes = slice(None) if place < sizes[-1] else slice(0, -1)  # only the last lane may be shorter
        now = at[lanes]
        byte = now >> 3
        if (byte >= len(stream)).any():
            raise ValueError("a lane runs beyond the stream")
        window = (padded[byte].astype(np.int64) << 16) | (padded[byte + 1].astype(np.int64) << 8) | padded[byte + 2]
        window = (window >> (8 - (now & 7))) & 0xFFFF
        symbols[lanes, place] = symbol_at[window]
        at[lanes] = now + length_at[window]
    if not np.array_equal(at, ends):
        raise ValueError("a lane does not end where it should")
    return symbols.reshape(-1)[:count]


def _table(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For any LONGEST bits, the symbol whose code they begin with, and the length of that code."""
    order = np.lexsort((np.arange(len(lengths)), lengths))
    order = order[lengths[order] > 0]
    spans = 1 << (LONGEST - lengths[order].astype(np.int64))
    symbols = np.repeat(order, spans)
    if len(symbols) < 1 << LONGEST:  # a single symbol: its code is 0, and a 1 is an error that moves the lane's end
        rest = (1 << LONGEST) - len(symbols)
        missing = np.full(rest, order[0])
        return np.concatenate([symbols, missing]).astype(np.int32), np.concatenate(
            [lengths[symbols], np.full(rest, LONGEST, np.uint8)]
        ).astype(np.int64)
    return symbols.astype(np.int32), lengths[symbols].astype(np.int64)
