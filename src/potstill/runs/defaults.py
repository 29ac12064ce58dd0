"""Fill in the student and the methods that a recipe leaves open, by what the teacher's folder tells. Loads no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable

from potstill.errors import InputError
from potstill.models.folders import TRIMMABLE, UNNAMED, ConfigFile, read_config, tokenizer_kind
from potstill.models.heads import head_of
from potstill.recipe import short_forms
from potstill.recipe.defaults import BUILDERS, Facts, default_method, default_student, method_words
from potstill.recipe.pace import PACED, with_pace
from potstill.recipe.resolve import Resolved, leaves
from potstill.recipe.schema import Data, Recipe, Stage
from potstill.recipe.task_words import CLASSIFY, TASK_WORDS
from potstill.system.files import unseal
from potstill.system.paths import RunFolder

LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers")  # names in config.json
DECODER_LAYERS = ("decoder_layers", "num_decoder_layers")


def complete_recipe(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with a student, methods, rates and epochs, and a sentence for each choice. Nothing is read for a recipe
    that leaves nothing open."""
    said = []
    if recipe.chooses_student:
        choice = default_student(facts_of(recipe, recipe.stage[0]))
        said.append(choice.said("student"))
        recipe = recipe.model_copy(update={"student": short_forms.complete("students", choice.tables)})
    elif short_forms.is_open(recipe.student):
        recipe = recipe.model_copy(update={"student": []})
    stages = []
    for number, stage in enumerate(recipe.stage):
        if short_forms.is_open([stage.method]):
            choice = default_method(facts_of(recipe, stage))
            own = {field: value for field, value in stage.method.items() if field != "name"}
            method = short_forms.complete_method({**choice.tables[0], **own})
            if any(data.teacher for data in recipe.data_of(stage)):
                what = "method" if len(recipe.stage) == 1 else f"method of stage {number + 1}"
                mixed = f"{what}: {method_words(method)}; its {', '.join(own)} as the recipe says, the rest by default"
                said.append(mixed if own else choice.said(what))
            stage = stage.model_copy(update={"method": method})
        stages.append(stage)
    return with_pace(recipe.model_copy(update={"stage": stages})), said


def facts_of(recipe: Recipe, stage: Stage) -> Facts:
    """What is known of a stage; of several data sets the one with most classes decides."""
    facts = [data_facts(data) for data in recipe.data_of(stage)]
    return max(facts, key=lambda each: each.classes or 0)


def data_facts(data: Data) -> Facts:
    """What the recipe and the teacher's folder tell of a data set."""
    named = len(data.labels) if data.labels else None
    if not data.teacher:
        return Facts("the rows", data.task or "classify", named, None, 0)
    config = read_config(data.teacher)
    names = config.fields.get("id2label") or UNNAMED
    classes = len(names) if isinstance(names, dict) else None
    task = data.task or task_of_head(head_of(config), config.problem_type, classes)
    return Facts(
        data.teacher,
        task,
        named or (classes if TASK_WORDS[task].named_outputs else None),
        layers_of(config),
        number_in(config, ("vocab_size",)) or 0,
        why_whole(config, task),
    )


def task_of_head(head: str, problem: str | None, classes: int | None) -> str:
    """The task of a model with this head, if the rows do not tell another."""
    if head == CLASSIFY.head:
        several, value = problem == "multi_label_classification", problem == "regression" or classes == 1
        return "multilabel" if several else "regress" if value else "classify"
    return next((task for task, words in TASK_WORDS.items() if words.head == head), "classify")


def layers_of(config: ConfigFile) -> int | None:
    """The number of layers; of two stacks that of the smaller one; None if config.json names none."""
    stacks = (LAYERS, DECODER_LAYERS) if config.fields.get("is_encoder_decoder") else (LAYERS,)
    counts = [count for names in stacks if (count := number_in(config, names)) is not None]
    return min(counts, default=None)


def number_in(config: ConfigFile, names: Iterable[str]) -> int | None:
    """The first of these fields that holds a whole number; a folder of a stranger may hold anything there."""
    values = (config.fields.get(name) for name in names)
    return next((value for value in values if type(value) is int and value >= 0), None)


def why_whole(config: ConfigFile, task: str) -> str:
    """Why the vocabulary of this model is not trimmed; empty if it can be."""
    if TASK_WORDS[task].vocabulary:
        return "its tokens are what it predicts"
    if (kind := tokenizer_kind(config.folder)) not in TRIMMABLE:
        return f"a tokenizer of type {kind} cannot be trimmed"
    return ""


def as_chosen(recipe: Recipe, folder: RunFolder) -> Recipe:
    """With the student and the methods that were chosen when the run in this folder was begun. Without a run, as it is."""
    try:
        mark = unseal(folder.mark.read_bytes())
        before = Recipe.model_validate(tomllib.loads(folder.recipe.read_text(encoding="utf-8")))
    except (OSError, ValueError, InputError):
        return recipe
    same = len(before.stage) == len(recipe.stage) and before.teachers == recipe.teachers
    if mark.get("made_by") != "potstill" or not same:
        return recipe
    stages = []
    for stage, earlier in zip(recipe.stage, before.stage, strict=True):
        own = {field: value for field, value in stage.method.items() if field != "name"}
        kept = short_forms.is_open([stage.method]) and {**earlier.method, **own} == earlier.method
        stages.append(stage.model_copy(update={"method": earlier.method}) if kept else stage)
    # a student that could not have been chosen was named: without its name, this is another run
    was_chosen = {table["build"] for table in before.student} <= set(BUILDERS)
    student = before.student if recipe.chooses_student and was_chosen else recipe.student
    return recipe.model_copy(update={"student": student, "stage": stages})


def completed(resolved: Resolved) -> Resolved:
    """The same for a recipe with the source of each value: "teacher" for what follows from it, "student" for the pace."""
    recipe, _ = complete_recipe(resolved.recipe)
    before = dict(leaves(resolved.recipe.model_dump()))
    sources = {}
    for leaf, value in leaves(recipe.model_dump()):
        chosen = "student" if leaf.rpartition(".")[2] in PACED else "teacher"
        sources[leaf] = resolved.sources[leaf] if leaf in before and before[leaf] == value else chosen
    return Resolved(recipe, sources)
