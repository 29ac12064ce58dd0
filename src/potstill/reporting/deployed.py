"""What a user got at the end of a run: the deployed form of the student beside its teacher, in plain words."""

from __future__ import annotations

from potstill.measuring.measurements import STUDENT, TEACHER, Measurements, Place, short_name
from potstill.reporting.numbers import megabytes, metric_format, metric_title, ratio

FORMS = {"int8": "ONNX in eight bits", "onnx": "ONNX in float32"}


def deployed_sentence(measurements: Measurements) -> str:
    """Return quality, speed and size of the deployed form beside the teacher in PyTorch and float32; empty without one."""
    deployed = measurements.deployed
    if deployed is None:
        return ""
    model = measurements.models.get(deployed.model_name) or measurements.models.get(STUDENT)
    teacher = measurements.models.get(TEACHER)
    said = []
    for place in measurements.quoted()[:1]:
        ours, theirs = (each.score(place) if each is not None else None for each in (model, teacher))
        if ours is not None:
            beside = "" if theirs is None else f" (teacher {metric_format(place.metric)(theirs)})"
            said.append(f"{_score(ours, place)}{beside}")
    if deployed.times_faster is not None:
        said.append(f"{ratio(deployed.times_faster).rstrip('×')} times faster")
    if deployed.bytes is not None:
        of = f" instead of {megabytes(deployed.teacher_bytes)}" if deployed.teacher_bytes else ""
        said.append(f"{megabytes(deployed.bytes)} MB{of}")
    compared = "; compared with the teacher in PyTorch, float32" if teacher is not None else ""
    return f"{FORMS.get(deployed.form, short_name(deployed.form))}: {', '.join(said)}{compared}"


def _score(value: float, place: Place) -> str:
    written = metric_format(place.metric)(value)
    if place.metric == "accuracy":
        return f"{written} % of the {short_name(place.split)} rows right"
    return f"{metric_title(place.metric)} of {written} on {short_name(place.split)}"
