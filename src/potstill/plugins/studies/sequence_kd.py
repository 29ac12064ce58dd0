"""What a small translator gains by words, by sequences, and by both: the table of Kim and Rush (2016, arXiv:1606.07947)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potstill.errors import InputError
from potstill.measuring.measurements import BASELINE, TEACHER, MeasuredModel, Place
from potstill.recipe import plugins
from potstill.recipe.bounds import Above, Count, Share
from potstill.recipe.schema import Recipe, Stage
from potstill.reporting.figures import forest
from potstill.reporting.numbers import metric_title, points, score_text
from potstill.runs.study_types import Answer, Found, Study, compared, how_tested, told_together

WORDS = {
    "no-kd": "no KD",
    "word-kd": "Word-KD",
    "seq-kd": "Seq-KD",
    "seq-inter": "Seq-KD, then Seq-Inter",
}
COLUMNS = {
    "bleu": metric_title("bleu"),
    "bleu_beam": metric_title("bleu_beam"),
    "perplexity": "PPL",
    "mode": f"{metric_title('mode')}, %",
}


@dataclass(frozen=True)
class SequenceKd(Study):
    """Four runs of the recipe's student with the epochs of the recipe's last stage each. Of Seq-Inter's the last
    `epochs_after` go on from what Seq-KD made, at `rate_after` times its rate."""

    alpha: Share = 0.5  # of Word-KD
    top: Count | None = (
        16  # of the teacher's words for Word-KD, remembered with the mass of the rest; none: all, asked live
    )
    beam: Count = 5
    epochs_after: Above = 2.0
    rate_after: Above = 0.5

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        if recipe.teacher is None and not all(data.teacher for data in recipe.data):
            raise InputError("study sequence_kd needs a teacher that translates; give its folder with --teacher")
        if self.epochs_after >= recipe.stage[-1].passes:
            raise InputError(
                f"study sequence_kd gives Seq-Inter {self.epochs_after:g} of the recipe's {recipe.stage[-1].passes:g} epochs, "
                "so that all runs have as many; write fewer with --with epochs_after=N, or more --epochs"
            )
        smoothing = recipe.stage[-1].method.get("smoothing", 0.0)
        plain = _method("hard_labels", smoothing=smoothing)
        stage = recipe.stage[-1].model_copy(update={"data": [], "method": plain, "stop_teaching": None})
        word = _method("soft_targets", temperature=1.0, alpha=self.alpha, top=self.top, smoothing=smoothing)
        outputs = _maker("teacher_outputs", beam=self.beam)
        seq = stage.model_copy(update={"data": [outputs]})
        rate = stage.optimizer.model_copy(update={"rate": self.rate_after * stage.optimizer.full_rate})
        closest = _maker("teacher_outputs", beam=self.beam, closest=True)
        after = {"epochs": self.epochs_after, "optimizer": rate, "reshape": []}  # the student has its shape by then
        inter = stage.model_copy(update={"data": [closest], **after})
        stages: dict[str, list[Stage]] = {
            "no-kd": [stage],
            "word-kd": [stage.model_copy(update={"method": word})],
            "seq-kd": [seq],
            "seq-inter": [seq.model_copy(update={"epochs": stage.passes - self.epochs_after}), inter],
        }
        return {
            name: recipe.model_copy(update={"name": name, "baseline": False, "stage": made})
            for name, made in stages.items()
        }

    def answer(self, found: Mapping[str, Found]) -> Answer:
        data, split, chosen_by = found["no-kd"].measurements.quoted()[0]

        def row(words: str, model: MeasuredModel) -> list[str]:
            return [words, *(score_text(model, Place(data, split, metric)) for metric in COLUMNS)]

        models = {name: _student(one) for name, one in found.items()}
        rows = [row("teacher", found["seq-kd"].measurements.models.get(TEACHER, MeasuredModel()))]
        rows += [row(WORDS[name], model) for name, model in models.items()]
        plain = found["no-kd"].said(BASELINE)
        said = {name: found[name].said() or found[name].said(BASELINE) for name in ("word-kd", "seq-kd", "seq-inter")}
        gains = told_together({WORDS[name]: compared([one], [plain]) for name, one in said.items()})
        sentences = [
            f"{name} against no KD: {points(gain.mean)} {metric_title(chosen_by)}, {points(gain.low)} to {points(gain.high)}; {gain.words}."
            for name, gain in gains.items()
        ] + how_tested(gains)
        ranges = [(100 * gain.mean, 100 * gain.low, 100 * gain.high, gain.is_shown) for gain in gains.values()]
        figure = forest(
            "sequence-kd", f"{metric_title(chosen_by)} above no KD, with 95 % intervals", list(gains), ranges
        )
        return Answer("Sequence-level distillation", sentences, ["", *COLUMNS.values()], rows, figure)


def _student(one: Found) -> MeasuredModel:
    return one.measurements.models[one.measurements.student_name]


def _method(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, **plugins.complete("methods", name, fields)}


def _maker(name: str, **fields: Any) -> dict[str, Any]:
    return {"make": name, **plugins.complete("data", name, fields)}
