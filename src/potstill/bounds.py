"""Bounds of numbers in recipes, methods and builders; what lies outside is refused before anything runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Above = Annotated[float, Field(gt=0)]
Drawn = Annotated[int, Field(ge=0, lt=2**63)]  # what decides a draw
NotBelow = Annotated[float, Field(ge=0)]
