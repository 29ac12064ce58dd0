"""Ways to make examples. One file is one data maker; its name is the word that recipes use.

A data maker is a frozen dataclass with `make(examples, context)`, which returns examples; a stage lists the makers it
wants as `data = [{ make = "sample", rows = 640 }]`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Context:
    """What a data maker may look at beside the examples."""

    seed: int
