"""Which teacher layer teaches which student layer.

Layers are counted from 1, as in the papers; index 0 of Hugging Face's `hidden_states` is the embedding, so a layer's
number is its index there. The student's last layer is left to the logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from potstill.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

LayerMap = Literal["skip", "last", "average"] | list[int]
"""`"skip"`, `"last"`, `"average"`, or the teacher's layer for each of the student's layers 1, 2, 3 …"""


def skip(student_layers: int, teacher_layers: int) -> list[int]:
    """Every k-th teacher layer: 6 of 12 -> 2, 4, 6, 8, 10; 3 of 12 -> 4, 8 (Sun et al. 2019)."""
    return [layer * teacher_layers // student_layers for layer in range(1, student_layers)]


def last(student_layers: int, teacher_layers: int) -> list[int]:
    """The layers just below the teacher's last: 6 of 12 -> 7, 8, 9, 10, 11; 3 of 12 -> 10, 11 (Sun et al. 2019)."""
    return [teacher_layers - student_layers + layer for layer in range(1, student_layers)]


def pairs(layer_map: LayerMap, student_layers: int, teacher_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The student's layers and the teacher's, position by position; for `average`, all below the last on each side."""
    if student_layers > teacher_layers and layer_map in ("skip", "last"):
        raise InputError(
            f"a student of {student_layers} layers is deeper than its teacher of {teacher_layers}, so map '{layer_map}' has no layer "
            "for each; write the teacher's layer for each student layer, as in map = [1, 1, 2]"
        )
    if layer_map == "skip":
        theirs = skip(student_layers, teacher_layers)
    elif layer_map == "last":
        theirs = last(student_layers, teacher_layers)
    elif layer_map == "average":
        theirs = list(range(1, teacher_layers)) if student_layers > 1 else []
    else:
        theirs = list(layer_map)
        if len(theirs) > student_layers:
            raise InputError(
                f"map {theirs} names {len(theirs)} layers, but the student has {student_layers}; write at most one for each"
            )
        if any(not 0 < layer <= teacher_layers for layer in theirs):
            raise InputError(f"map {theirs} leaves the teacher's layers; write numbers from 1 to {teacher_layers}")
    if not theirs:
        raise InputError(
            "a student of one layer has none below its last to be taught; write method = 'soft_targets', or map = [N] to teach the last"
        )
    ours = range(1, student_layers) if layer_map == "average" else range(1, len(theirs) + 1)
    return tuple(ours), tuple(theirs)


def compared(layer_map: LayerMap, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, layers, …) of both sides, pair by pair: as they come, or for `average` one layer, the mean of all."""
    if layer_map == "average":
        return student.mean(1, keepdim=True), teacher.mean(1, keepdim=True)
    return student, teacher
