"""Which teacher layer teaches which student layer.

Layers are counted from 1, as in the papers. Index 0 of `hidden_states` in Hugging Face models is the embedding, so the
number of a layer is its index there. The last layer of the student is left to the logits, except by "uniform" and by lists
that are as long as the student.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from potstill.errors import InputError

if TYPE_CHECKING:  # recipes are checked without torch
    from torch import Tensor

LayerMap = Literal["skip", "last", "first", "uniform", "average"] | list[int]
"""A name, or a list with the teacher layer for student layers 1, 2, 3 …"""
WholeMap = Literal["uniform", "last", "first"] | list[int]
"""The same for methods that compare the last layer too."""


def skip(student_layers: int, teacher_layers: int) -> list[int]:
    """Every k-th teacher layer: 6 of 12 -> 2, 4, 6, 8, 10; 3 of 12 -> 4, 8 (Sun et al. 2019)."""
    return [layer * teacher_layers // student_layers for layer in range(1, student_layers)]


def last(student_layers: int, teacher_layers: int) -> list[int]:
    """The layers just below the last teacher layer: 6 of 12 -> 7, 8, 9, 10, 11; 3 of 12 -> 10, 11 (Sun et al. 2019)."""
    return [teacher_layers - student_layers + layer for layer in range(1, student_layers)]


def uniform(student_layers: int, teacher_layers: int) -> list[int]:
    """g(m) = m·N/M, rounded down: 4 of 12 -> 3, 6, 9, 12 (TinyBERT: Jiao et al. 2020)."""
    return [*skip(student_layers, teacher_layers), teacher_layers]


def pairs(
    layer_map: LayerMap, student_layers: int, teacher_layers: int, whole: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The student layers and their teacher layers; for `average`, all layers below the last on each side.

    `whole`: also the student's last layer.
    """
    if student_layers > teacher_layers and not isinstance(layer_map, list) and layer_map != "average":
        raise InputError(
            f"the student has {student_layers} layers and the teacher only {teacher_layers}, so map '{layer_map}' has too few; "
            "write the teacher layer for each student layer, as in map = [1, 1, 2]"
        )
    if layer_map == "skip":
        theirs = skip(student_layers, teacher_layers)
    elif layer_map == "uniform":
        theirs = uniform(student_layers, teacher_layers)
    elif layer_map == "last":
        theirs = last(student_layers, teacher_layers) + [teacher_layers] * whole
    elif layer_map == "first":
        theirs = list(range(1, student_layers + whole))
    elif layer_map == "average":
        theirs = list(range(1, teacher_layers)) if student_layers > 1 else []
    else:
        theirs = list(layer_map)
        if len(theirs) > student_layers:
            raise InputError(
                f"map {theirs} has {len(theirs)} layers, but the student has {student_layers}; write at most one for each"
            )
        if any(not 0 < layer <= teacher_layers for layer in theirs):
            raise InputError(
                f"map {theirs} names a layer that the teacher does not have; write numbers from 1 to {teacher_layers}"
            )
    if not theirs:
        raise InputError(
            "a student with one layer has no layer below its last to teach; write method = 'soft_targets', or map = [N] to teach the last"
        )
    ours = range(1, student_layers) if layer_map == "average" else range(1, len(theirs) + 1)
    return tuple(ours), tuple(theirs)


def compared(layer_map: LayerMap, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, layers, …) of both sides, layer by layer; for `average` one layer on each side, the mean of all."""
    if layer_map == "average":
        return student.mean(1, keepdim=True), teacher.mean(1, keepdim=True)
    return student, teacher
