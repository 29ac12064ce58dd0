"""What is each part of a recipe worth? The same run with one part left out at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from potstill.api import Answer, InputError, Recipe, Study, StudyRun
from potstill.measuring.measurements import BASELINE, TEACHER
from potstill.measuring.significance import ONE_SEED
from potstill.plugins.studies._differences import corrected, differences_text, forest_figure, mean_difference
from potstill.recipe.schema import Stage

WHOLE = "whole"


@dataclass(frozen=True)
class Ingredients(Study):
    """Each run leaves one part out; a part that the recipe does not have is passed over.

    parts: those that are left out, each by itself. text: the texts without a label. search: the usual learning rate is taken.
    steps: no least number of steps. temperature: T = 5 and α = 0.5 instead. fitted: T = 1 instead of the teacher's
    temperature. answers: the teacher's most probable class instead of its probabilities. first: the last layers are kept
    instead. trimming: all tokens are kept. makers: no data makers.
    """

    parts: list[str] = field(default_factory=lambda: list(LEFT_OUT))

    def runs(self, recipe: Recipe) -> dict[str, Recipe]:
        if unknown := [part for part in self.parts if part not in LEFT_OUT]:
            raise InputError(f"study ingredients knows no part '{unknown[0]}'; write some of {', '.join(LEFT_OUT)}")
        changed = {f"no-{part}": LEFT_OUT[part](recipe) for part in self.parts}
        left = {name: other for name, other in changed.items() if other != recipe}
        if not left:
            raise InputError("study ingredients: the recipe has none of these parts; name others with --with parts=[…]")
        runs = {WHOLE: recipe, **{name: other.model_copy(update={"baseline": False}) for name, other in left.items()}}
        return {name: run.model_copy(update={"name": name}) for name, run in runs.items()}

    def answer(self, runs: Mapping[str, StudyRun]) -> Answer:
        whole = runs[WHOLE]
        others = {name: run for name, run in runs.items() if name != WHOLE}
        tested = corrected(
            {
                f"{name} against {WHOLE}": mean_difference([run.predictions()], [whole.predictions()])
                for name, run in others.items()
            }
        )
        rows = [["teacher", whole.score_text(TEACHER), ""], ["fine-tuned", whole.score_text(BASELINE), ""]]
        rows.append([WHOLE, whole.score_text(), ""])
        for name, run in others.items():
            difference = tested.get(f"{name} against {WHOLE}")
            rows.append([name, run.score_text(), difference.words if difference else "–"])
        sentences = differences_text(tested)
        if any(difference.seeds < 2 for difference in tested.values()):
            sentences.insert(0, f"Each run has one seed, and {ONE_SEED}: write --seeds 3 to compare parts.")
        figure = forest_figure("ingredients", "What is lost without each part", tested) if tested else ""
        return Answer("Ingredients", sentences, ["run", "score", f"against {WHOLE}"], rows, figure)


def _stages(recipe: Recipe, change: Callable[[Stage], Stage]) -> Recipe:
    return recipe.model_copy(update={"stage": [change(stage) for stage in recipe.stage]})


def _without_text(recipe: Recipe) -> Recipe:
    data = [each.model_copy(update={"unlabelled": None}) if each.train else each for each in recipe.data]
    return recipe.model_copy(update={"data": data})


def _usual_rate(stage: Stage) -> Stage:
    return stage.model_copy(update={"optimizer": stage.optimizer.model_copy(update={"rates": []})})


def _old_temperature(stage: Stage) -> Stage:
    many = {"temperature": 5.0, "alpha": 0.5}
    return stage.model_copy(update={"method": stage.method | many}) if many.keys() <= stage.method.keys() else stage


def _as_sure_as_the_teacher(stage: Stage) -> Stage:
    fitted = stage.method.get("temperature") == "auto"
    return stage.model_copy(update={"method": stage.method | {"temperature": 1.0}}) if fitted else stage


def _hard_answers(stage: Stage) -> Stage:
    teaches = stage.method["name"] == "soft_targets"
    return stage.model_copy(update={"method": {"name": "teacher_labels"}}) if teaches else stage


def _last_layers(recipe: Recipe) -> Recipe:
    first = [
        {**table, "layers": f"last:{table['layers']}"} if _keeps_first(table) else table for table in recipe.student
    ]
    return recipe.model_copy(update={"student": first})


def _keeps_first(table: Mapping[str, object]) -> bool:
    return table["build"] == "keep_layers" and isinstance(table.get("layers"), int)


def _whole_vocabulary(recipe: Recipe) -> Recipe:
    kept = [table for table in recipe.student if table["build"] != "trim_vocabulary"]
    return recipe.model_copy(update={"student": kept})


LEFT_OUT: dict[str, Callable[[Recipe], Recipe]] = {
    "text": _without_text,
    "search": lambda recipe: _stages(recipe, _usual_rate),
    "steps": lambda recipe: _stages(recipe, lambda stage: stage.model_copy(update={"min_steps": 0})),
    "temperature": lambda recipe: _stages(recipe, _old_temperature),
    "fitted": lambda recipe: _stages(recipe, _as_sure_as_the_teacher),
    "answers": lambda recipe: _stages(recipe, _hard_answers),
    "first": _last_layers,
    "trimming": _whole_vocabulary,
    "makers": lambda recipe: _stages(recipe, lambda stage: stage.model_copy(update={"data": []})),
}
