"""Word-level and sequence-level distillation of a translation model (Kim and Rush, 2016, arXiv:1606.07947)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potstill.api import Above, Answer, Count, InputError, Recipe, Share, Study, StudyRun
from potstill.measuring.measurements import TEACHER, MeasuredModel, Place
from potstill.plugins.studies._differences import corrected, differences_text, forest_figure, mean_difference
from potstill.recipe import short_forms
from potstill.recipe.schema import Stage
from potstill.reporting.numbers import metric_title, score_text

TITLES = {"no-kd": "no KD", "word-kd": "Word-KD", "seq-kd": "Seq-KD", "seq-inter": "Seq-KD, then Seq-Inter"}
COLUMNS = {name: metric_title(name) for name in ("bleu", "bleu_beam")}
COLUMNS |= {"perplexity": "PPL", "mode": f"{metric_title('mode')}, %"}


@dataclass(frozen=True)
class SequenceKd(Study):
    """Four runs of the recipe's student, each with the epochs of the recipe's last stage. The last epochs of Seq-Inter
    continue from Seq-KD at a lower rate.

    alpha: the weight of the teacher in Word-KD.
    top: how many of the teacher's most probable tokens are stored for Word-KD. None: all, asked live.
    beam: of the teacher's search.
    epochs_after: of Seq-Inter, after Seq-KD.
    rate_after: times the rate of Seq-KD.
    """

    alpha: Share = 0.5
    top: Count | None = 16
    beam: Count = 5
    epochs_after: Above = 2.0
    rate_after: Above = 0.5

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        if recipe.teacher is None and not all(data.teacher for data in recipe.data):
            raise InputError("study sequence_kd needs a teacher that translates; give its folder with --teacher")
        if self.epochs_after >= recipe.stage[-1].passes:
            raise InputError(
                f"study sequence_kd gives {self.epochs_after:g} of {recipe.stage[-1].passes:g} epochs to Seq-Inter; "
                "write fewer with --with epochs_after=N, or more with --set epochs=N"
            )
        smoothing = recipe.stage[-1].method.get("smoothing", 0.0)
        plain = short_forms.complete_method({"name": "hard_labels", "smoothing": smoothing})
        soft = {"name": "soft_targets", "temperature": 1.0, "alpha": self.alpha, "top": self.top}
        word = short_forms.complete_method({**soft, "smoothing": smoothing})
        outputs = {"make": "teacher_outputs", "beam": self.beam}
        best, closest = short_forms.complete("data", [outputs, {**outputs, "closest": True}])
        # no least number of steps: Seq-Inter divides the epochs, and the others have as many
        alone: dict[str, Any] = {"data": [], "method": plain, "stop_teaching": None, "min_steps": 0}
        stage = recipe.stage[-1].model_copy(update=alone)
        seq = stage.model_copy(update={"data": [best]})
        rate = stage.optimizer.model_copy(update={"rate": self.rate_after * stage.optimizer.full_rate, "rates": []})
        after = {"epochs": self.epochs_after, "optimizer": rate, "reshape": []}  # the student is reshaped already
        inter = stage.model_copy(update={"data": [closest], **after})
        stages: dict[str, list[Stage]] = {
            "no-kd": [stage],
            "word-kd": [stage.model_copy(update={"method": word})],
            "seq-kd": [seq],
            "seq-inter": [seq.model_copy(update={"epochs": stage.passes - self.epochs_after}), inter],
        }
        return {
            name: recipe.model_copy(update={"name": name, "baseline": False, "stage": listed})
            for name, listed in stages.items()
        }

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        data, split, metric = runs["no-kd"].measurements.quoted()[0]

        def row(title: str, model: MeasuredModel) -> list[str]:
            return [title, *(score_text(model, Place(data, split, column)) for column in COLUMNS)]

        rows = [row("teacher", runs["seq-kd"].measurements.models.get(TEACHER, MeasuredModel()))]
        rows += [
            row(TITLES[name], run.measurements.models[run.measurements.student_name]) for name, run in runs.items()
        ]
        plain, *others = runs
        gains = {
            TITLES[name]: mean_difference([runs[name].predictions()], [runs[plain].predictions()]) for name in others
        }
        title, tested = metric_title(metric), corrected(gains)
        figure = forest_figure("sequence-kd", f"{title} above no KD", tested)
        sentences = differences_text({f"{name} against no KD": gain for name, gain in tested.items()}, title)
        return Answer("Sequence-level distillation", sentences, ["", *COLUMNS.values()], rows, figure)
