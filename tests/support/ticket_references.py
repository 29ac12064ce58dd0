"""Checks against the reference file of the transfer of tickets between tasks."""

from __future__ import annotations

import numpy as np

from potstill.plugins.studies._transfer import Transfer
from tests.support.references import Case, Checks, close


def check_transfer(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    sources, targets, scores = inputs["sources"], inputs["targets"], np.array(inputs["transfer"], float)
    moved = Transfer.of(sources, targets, scores)
    own = [scores[sources.index(target), place] for place, target in enumerate(targets)]
    close(own, expected["same_task"])
    close(moved.differences, expected["difference_to_same_task"])
    assert moved.dark.astype(int).tolist() == expected["dark"]
    assert moved.dark_cells == expected["dark_cells_per_row_without_the_diagonal"]
    assert moved.dark.sum(1).tolist() == expected["dark_cells_per_row_with_the_diagonal"]
    assert moved.best == expected["best_source_per_target"]
    if (full := inputs["full_network"]) is not None:
        close(scores - np.array(full), expected["figure_cells_transfer_minus_full_network"])
        # what the figure prints is relative to the dense network: which cells are dark is the same
        assert np.array_equal(Transfer.of(sources, targets, np.round(scores - np.array(full), 9)).dark, moved.dark)
    if "count_printed_in_the_paper" in expected:  # one cell of the rounded figure is a tie that the paper could decide
        apart = np.subtract(moved.dark_cells, expected["count_printed_in_the_paper"])
        assert np.abs(apart).sum() == 1 and sources[int(np.abs(apart).argmax())] == "pruning_theta_0"


TICKETS: Checks = {"tickets_transfer": {None: check_transfer}}
