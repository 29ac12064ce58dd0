"""What a reader must know before believing a run's figures; said in the terminal, on the page and on the card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from potstill.reporting.wording import clean, inside, named, within


def caveats(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each: inputs that changed, rows in two splits, students at chance."""
    told = []
    changed = found.get("changed_inputs")
    if isinstance(changed, list) and changed:
        told.append(f"Inputs changed while the run went on: {clean(', '.join(map(str, changed)), 300)}.")
    for data, leaks in within(found, "leaks").items():
        of = f" of {named(data)}" if len(within(found, "tasks")) > 1 else ""
        for leak in leaks if isinstance(leaks, list) else ():
            rows, split, other = (inside(leak, key) for key in ("rows", "split", "also_in"))
            told.append(
                f"{clean(rows)} of {clean(inside(leak, 'of'))} rows of {named(split)}{of} are in {named(other)} too."
            )
    for name, model in within(found, "models").items():
        if inside(model, "learned") is False:
            told.append(f"{named(name)} did not learn: on dev it is no better than chance.")
    return told
