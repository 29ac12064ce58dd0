"""Weight sharing: few values for each matrix, by k-means with linear initialisation (Han et al., 2016, arXiv:1510.00149)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_ROUNDS = 10_000  # Lloyd's algorithm ends by itself, mostly within hundreds of rounds


class Clusters(NamedTuple):
    centroids: np.ndarray  # (k,) float64, in increasing order
    codes: np.ndarray  # of the shape of the values: which centroid is nearest; of two as near, the lower one
    rounds: int  # how often the centroids moved


def linear_centroids(values: np.ndarray, count: int) -> np.ndarray:
    """The first centroids: evenly spaced from the smallest value to the largest, so that rare large weights have some too."""
    return np.linspace(values.min(), values.max(), count, dtype=np.float64)


def k_means(values: np.ndarray, count: int) -> Clusters:
    """Lloyd's algorithm until no value changes its centroid; a centroid without values stays where it is.

    Numbers on a line are sorted once; a cluster is then a range of them, and its sum a difference of two prefix sums.
    """
    ordered = np.sort(values, axis=None).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    centroids = linear_centroids(ordered, count)
    ends = _ends(ordered, centroids)
    rounds = 0
    while rounds < MOST_ROUNDS:
        sizes = np.diff(ends)
        centroids = np.where(sizes > 0, np.diff(sums[ends]) / np.maximum(sizes, 1), centroids)
        rounds += 1
        moved = _ends(ordered, centroids)
        if np.array_equal(moved, ends):
            break
        ends = moved
    codes = np.searchsorted(_between(centroids), values.astype(np.float64), side="left")
    return Clusters(centroids, codes, rounds)


def _ends(ordered: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Where in the sorted values the clusters begin and end: (k + 1,)."""
    inner = np.searchsorted(ordered, _between(centroids), side="right")
    return np.concatenate([[0], inner, [len(ordered)]])


def _between(centroids: np.ndarray) -> np.ndarray:
    """A value up to the middle between two centroids belongs to the lower one."""
    return (centroids[:-1] + centroids[1:]) / 2
