"""A module that can be imported where the attacks run: it leaves a mark as soon as anybody does."""

from __future__ import annotations

import os

if mark := os.environ.get("STRANGERS_MARK"):
    os.makedirs(mark, exist_ok=True)


def run(texts: object) -> object:
    return texts
