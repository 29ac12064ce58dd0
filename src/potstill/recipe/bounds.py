"""Bounded numbers for the fields of recipes and plug-ins."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Layers = Annotated[int, Field(ge=1, le=1000)]  # of a new network: counting the parameters of more takes too long
Width = Annotated[int, Field(ge=1, le=2**20)]  # of a layer
Rows = Annotated[int, Field(ge=1, le=2**24)]  # of a table of word vectors
Share = Annotated[float, Field(ge=0, le=1)]
Above = Annotated[float, Field(gt=0)]
Drawn = Annotated[int, Field(ge=0, lt=2**63)]  # a seed
NotBelow = Annotated[float, Field(ge=0)]
