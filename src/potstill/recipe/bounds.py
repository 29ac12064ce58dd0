"""Bounds of numbers in recipes, methods and builders; what lies outside is refused before anything runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Layers = Annotated[
    int, Field(ge=1, le=1000)
]  # of a network that is made; to count the numbers of more would take for ever
Width = Annotated[int, Field(ge=1, le=2**20)]  # of one of its layers
Rows = Annotated[int, Field(ge=1, le=2**24)]  # of its table of words
Share = Annotated[float, Field(ge=0, le=1)]
Above = Annotated[float, Field(gt=0)]
Drawn = Annotated[int, Field(ge=0, lt=2**63)]  # what decides a draw
NotBelow = Annotated[float, Field(ge=0)]
