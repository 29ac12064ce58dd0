"""A student's heads share its encoder: a head that is made later, or moved, changes nothing that was trained before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potstill.models.architectures.reshaped import ReshapedModel
from potstill.models.student import Student, load_student, save_student
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from potstill.runs.build import StudentModels, build, reshape, with_heads
from potstill.runs.prepare import DataSets
from tests.support.prepared import prepared_sets
from tests.support.small_models import same_weights, sentences, small_model, write_csv

RECIPE = """teacher = "teacher"
start = "start"
student = []
force = true
{}
[[stage]]
on = ["text"]
[[stage]]
on = ["first"]
[[stage]]
on = ["second"]
reshape = "keep_layers:2"
"""
DATA = """[[data]]
name = "{}"
train = "train.{}"
dev = "train.{}"
"""
POOLER = "bert.pooler.dense.weight"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recipe, DataSets, StudentModels]:
    """A BERT with a head for masked tokens, which has no pooler, and one that classifies."""
    monkeypatch.chdir(tmp_path)
    write_csv(Path("train.csv"), sentences(40, 0))
    Path("train.txt").write_text("".join(f"{text}\n" for text, _ in sentences(40, 1)))
    save_student(small_model("bert", labels=("0", "1"), seed=1), Path("teacher"))
    save_student(small_model("bert", labels=("0", "1"), seed=2), Path("start"))
    text = DATA.format("text", "txt", "txt") + 'task = "mask"\nteacher = false\n'
    Path("recipe.toml").write_text(
        RECIPE.format(text + DATA.format("first", "csv", "csv") + DATA.format("second", "csv", "csv"))
    )
    recipe = resolve("recipe.toml").recipe
    sets = prepared_sets(recipe)
    student = build(recipe, sets.of(recipe.stage[0]), sets.take_start(recipe))
    return recipe, sets, with_heads(student, sets.of(recipe.stage[1], student.students[0]), 0, by_teacher=True)


def test_the_first_head_of_its_kind_begins_as_the_teachers(made: tuple[Recipe, DataSets, StudentModels]) -> None:
    _, sets, student = made
    teacher = sets.of(made[0].stage[1])[0].loaded_teacher
    assert teacher is not None
    for name in (POOLER, "classifier.weight"):
        assert torch.equal(student.models[0].get_parameter(name), teacher.model.get_parameter(name))


def test_a_later_head_leaves_the_pooler_that_another_one_has_trained(
    made: tuple[Recipe, DataSets, StudentModels],
) -> None:
    recipe, sets, student = made
    with torch.no_grad():
        student.models[0].get_parameter(POOLER).fill_(0.5)  # as if the first stage had trained it
    later = with_heads(student, sets.of(recipe.stage[2], student.students[0]), 0, by_teacher=True)
    assert later.models[0].get_parameter(POOLER) is student.models[0].get_parameter(POOLER)
    assert bool((later.models[0].get_parameter(POOLER) == 0.5).all())
    teacher = sets.of(recipe.stage[2])[0].loaded_teacher
    assert teacher is not None
    ours, theirs = (model.get_parameter("classifier.weight") for model in (later.models[0], teacher.model))
    assert torch.equal(ours, theirs)


def test_moved_heads_keep_their_weights_and_share_what_they_shared(
    made: tuple[Recipe, DataSets, StudentModels],
) -> None:
    recipe, sets, student = made
    data_sets = sets.of(recipe.stage[2], student.students[0])
    student = with_heads(student, data_sets, 0)
    before = {name: model.state_dict() for name, model in student.clone().heads.items()}
    reshaped = reshape(recipe.rounds[2], recipe, student, student.clone(), data_sets)
    assert list(reshaped.trained) == ["second.classify"] and reshaped.models[0].config.num_hidden_layers == 2
    for name, model in reshaped.heads.items():
        now = model.state_dict()
        assert now.keys() < before[name].keys()  # without the layers that were dropped
        assert all(torch.equal(tensor, before[name][weight]) for weight, tensor in now.items())
    first, second, text = (reshaped.heads[name] for name in ("first.classify", "second.classify", "text.mask"))
    assert first.get_parameter(POOLER) is second.get_parameter(POOLER)
    assert first.base_model.embeddings is second.base_model.embeddings is text.base_model.embeddings


def test_heads_move_to_an_encoder_with_layers_of_other_shapes(
    made: tuple[Recipe, DataSets, StudentModels], tmp_path: Path
) -> None:
    """All of them are networks that are saved and loaded with these shapes, those made before and after."""
    recipe, sets, student = made
    data_sets = sets.of(recipe.stage[1], student.students[0])
    stage = recipe.stage[1].model_copy(update={"reshape": [{"build": "low_rank", "share": 0.5}]})
    round_ = recipe.rounds[1]._replace(stage=stage)
    reshaped = reshape(round_, recipe, student, student.clone(), data_sets)
    reshaped = with_heads(reshaped, sets.of(recipe.stage[2], reshaped.students[0]), 0)
    assert set(reshaped.heads) == {"first.classify", "second.classify", "text.mask"}
    for name, model in reshaped.heads.items():
        assert isinstance(model, ReshapedModel), name
        save_student(Student(model, reshaped.tokenizer), tmp_path / name)
        assert same_weights(load_student(tmp_path / name), Student(model, reshaped.tokenizer))
        query = "encoder.layer.0.attention.self.query.0.weight"
        assert model.base_model.get_parameter(query) is reshaped.models[0].base_model.get_parameter(query)
