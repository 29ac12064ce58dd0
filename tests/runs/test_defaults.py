"""A recipe that names no student or no method gets them by facts of the teacher, says why, and keeps them."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from potstill.errors import InputError
from potstill.models.student import save_student
from potstill.recipe import defaults
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe, to_toml
from potstill.runs import defaults as run_defaults
from potstill.runs.defaults import as_chosen, complete_recipe
from potstill.system.files import seal
from potstill.system.paths import RunFolder
from tests.support.commands import files, make_home, measurements, potstill
from tests.support.small_models import small_model, small_translator

HALF = {"build": "keep_layers", "layers": 2}  # of the four of a small model
LOUD = [
    "--set",
    "batch=8",
    "--set",
    "dropout=0",
    "--length",
    "32",
    "--set",
    "timing=none",
    "--set",
    "precision=float32",
]


def folder(place: Path, tokenizer: str = "WordPiece", **fields: Any) -> Path:
    """A teacher's folder without weights that could be loaded: only what is read before."""
    place.mkdir()
    config = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "num_hidden_layers": 12}
    config |= {"vocab_size": 30_522, "id2label": {"0": "no", "1": "yes"}, **fields}
    (place / "config.json").write_text(json.dumps(config))
    (place / "tokenizer.json").write_text(json.dumps({"model": {"type": tokenizer}}))
    (place / "model.safetensors").write_bytes(b"")
    return place


def completed(teacher: Path, **fields: Any) -> tuple[Recipe, list[str]]:
    return complete_recipe(Recipe.model_validate({"teacher": str(teacher), "data": {"train": "a.csv"}, **fields}))


def chosen(teacher: Path, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    recipe, _ = completed(teacher, **fields)
    return recipe.student, recipe.stage[0].method


@pytest.mark.parametrize(
    ("fields", "student", "temperature"),
    [
        ({}, "keep_layers 6 trim_vocabulary", "auto"),
        ({"num_hidden_layers": 6}, "keep_layers 3 trim_vocabulary", "auto"),
        ({"id2label": {str(number): f"c{number}" for number in range(77)}}, "keep_layers 6 trim_vocabulary", "auto"),
        ({"vocab_size": 8000}, "keep_layers 6", "auto"),
        ({"tokenizer": "WordLevel"}, "keep_layers 6", "auto"),
        ({"problem_type": "regression"}, "keep_layers 6 trim_vocabulary", None),
        ({"problem_type": "multi_label_classification"}, "keep_layers 6 trim_vocabulary", "auto"),
        ({"architectures": ["BertForTokenClassification"]}, "keep_layers 6 trim_vocabulary", "auto"),
        ({"architectures": ["BertForMaskedLM"]}, "keep_layers 6", 1.0),
        ({"num_hidden_layers": None, "n_layer": 8}, "keep_layers 4 trim_vocabulary", "auto"),
        (
            {"architectures": ["MarianMTModel"], "is_encoder_decoder": True, "decoder_layers": 3},
            "keep_layers 2",
            1.0,
        ),
    ],
)
def test_each_fact_of_the_folder_changes_the_choice(
    tmp_path: Path, fields: dict[str, Any], student: str, temperature: float | str | None
) -> None:
    builders, method = chosen(folder(tmp_path / "teacher", **fields))
    first, *others = builders
    assert " ".join([first["build"], str(first["layers"]), *(each["build"] for each in others)]) == student
    assert (method["name"], method["temperature"], method["alpha"]) == ("soft_targets", temperature, 0.9)


def test_each_choice_is_said_with_its_reason_and_overriding_one_keeps_the_others(tmp_path: Path) -> None:
    teacher = folder(tmp_path / "teacher")
    recipe, said = completed(teacher)
    student, method = said
    assert student.startswith("student: 6 of 12 layers, and the 11,000 most frequent of 30,522 tokens, chosen because ")
    assert method.startswith("method: soft_targets at the teacher's temperature, α = 0.9, chosen because the answers")
    assert (recipe.stage[0].optimizer.rate, recipe.stage[0].epochs) == (1e-4, 4.0)  # those of six layers

    other, said = completed(teacher, student="keep_layers:1")
    assert other.stage[0].method == recipe.stage[0].method and said == [method]
    other, said = completed(teacher, stage=[{"method": "patient"}])
    assert other.student == recipe.student and other.stage[0].method["name"] == "patient" and said == [student]
    other, said = completed(teacher, stage=[{"method": {"temperature": 4.0}}])
    assert (other.stage[0].method["temperature"], other.stage[0].method["alpha"]) == (4.0, 0.9)
    assert said == [
        student,
        "method: soft_targets at T = 4, α = 0.9; its temperature as the recipe says, the rest by default",
    ]
    for rate in ({"rate": 3e-4}, {"rate": 3e-4, "warmup": 0.0}):
        other, _ = completed(teacher, stage=[{"optimizer": rate}])
        assert other.student == recipe.student and other.stage[0].optimizer.rate == 3e-4


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": "12"},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": True},
        {"vocab_size": "many", "num_hidden_layers": []},
        {"id2label": [1, 2], "num_hidden_layers": None},
    ],
)
def test_a_config_that_does_not_count_its_layers_is_told_what_to_write(tmp_path: Path, fields: dict[str, Any]) -> None:
    teacher = folder(tmp_path / "teacher", **fields)
    with pytest.raises(InputError, match=r"does not say how many layers the teacher has; name the student: --student"):
        completed(teacher)
    assert completed(teacher, student="keep_layers:3")[0].stage[0].method["name"] == "soft_targets"


def test_where_weights_or_builders_are_named_the_student_has_the_shape_of_its_start(tmp_path: Path) -> None:
    teacher = folder(tmp_path / "teacher")
    tried = {"grid": {"student": ["keep_layers:1", "bilstm"]}}
    for fields in (tried, {"start": "weights"}, {"stage": [{"reshape": "keep_layers:1"}]}, {"student": []}):
        recipe, said = completed(teacher, **fields)
        assert recipe.student == [] and not any(sentence.startswith("student") for sentence in said), fields
    recipe, said = complete_recipe(Recipe.model_validate({"start": "weights", "data": {"train": "a.csv"}}))
    assert recipe.student == [] and recipe.stage[0].optimizer.rate == 5e-5 and not said  # nobody teaches


def test_a_recipe_that_names_both_reads_no_folder(tmp_path: Path) -> None:
    recipe = resolve(
        None, {}, ["teacher=nowhere", "data.train=a.csv", "student=keep_layers:3", "method=patient"]
    ).recipe
    assert complete_recipe(recipe) == (recipe, [])
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        completed(tmp_path / "nowhere")


def test_of_several_data_sets_the_one_with_most_classes_decides(tmp_path: Path) -> None:
    few = folder(tmp_path / "few", problem_type="regression", id2label={"0": "score"})
    many = folder(tmp_path / "many", id2label={str(number): f"c{number}" for number in range(9)})
    data = [{"name": "a", "train": "a.csv"}, {"name": "b", "train": "b.csv", "teacher": str(many)}]
    _, method = chosen(few, data=data)
    assert method["temperature"] == "auto"
    recipe, said = completed(few, data=data, stage=[{"on": ["b"]}, {"on": ["a"]}])
    assert [stage.method["temperature"] for stage in recipe.stage] == ["auto", None]
    assert said[1].startswith("method of stage 1:") and said[2].startswith("method of stage 2:")


def test_show_names_the_teacher_as_the_source_and_loads_no_torch(tmp_path: Path) -> None:
    folder(tmp_path / "teacher")
    (tmp_path / "my.toml").write_text('teacher = "teacher"\n[data]\ntrain = "a.csv"\n')
    code = (
        "import sys; sys.argv = ['potstill', 'show', 'my.toml']\nfrom potstill.app import cli\ntry: cli.main()\n"
        "except SystemExit: pass\nprint('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = dict(line.split(" = ", 1) for line in ran.stdout.splitlines()[:-1])
    for leaf, value, source in (
        ("student.0.layers", "6", "teacher"),
        ("student.1.tokens", "11000", "teacher"),
        ("stage.0.method.alpha", "0.9", "teacher"),
        ("stage.0.optimizer.rate", "0.0001", "student"),
        ("stage.0.batch", "32", "default"),
        ("teacher", '"teacher"', "my.toml"),
    ):
        assert lines[leaf].split() == [value, "#", source]
    assert ran.stdout.splitlines()[-1] == "False"


# runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), 96, 40)


def test_a_run_says_its_choices_writes_them_and_keeps_them(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(defaults, "KEPT_TOKENS", 20)
    out = tmp_path / "run"
    run = ["distill", "--teacher", home / "teacher/student", *files(home), *LOUD, "--epochs", "1", "--out", out]
    assert potstill(*run) == 0
    said = capsys.readouterr().err
    assert (
        "student: 2 of 4 layers, and the 20 most frequent of" in said
        and "method: soft_targets at the teacher's temperature" in said
    )
    assert "temperature of the teacher: 1.00, since fewer than 50 rows of dev have labels" in said
    written = tomllib.loads((out / "recipe.toml").read_text())
    assert written["student"] == [HALF, {"build": "trim_vocabulary", "minimum": 1, "tokens": 20}]
    assert written["stage"][0]["method"]["temperature"] == "auto"
    assert written["stage"][0]["optimizer"]["rate"] == pytest.approx(3e-4)  # of two layers
    assert measurements(out)["layer_map"][0]["kept"] == [1, 2]
    first = (out / "student/model.safetensors").read_bytes()

    monkeypatch.setattr(defaults, "KEPT_TOKENS", 30)  # as in a later version
    later = defaults.MethodRule(lambda facts: True, {"name": "hard_labels"}, "of another reason")
    monkeypatch.setattr(defaults, "METHOD_RULES", (later,))
    (out / "measurements.json").unlink()
    assert potstill(*run) == 0
    assert "20 most frequent" not in capsys.readouterr().err  # nothing was chosen anew
    assert tomllib.loads((out / "recipe.toml").read_text()) == written
    assert (out / "student/model.safetensors").read_bytes() == first
    assert potstill("distill", out / "recipe.toml", "--out", tmp_path / "again", "--quiet") == 0
    assert (tmp_path / "again/student/model.safetensors").read_bytes() == first
    assert potstill(*run, "--overwrite") == 0
    assert tomllib.loads((out / "recipe.toml").read_text())["student"][1]["tokens"] == 30


def test_a_student_that_was_named_is_not_taken_for_a_choice(home: Path, tmp_path: Path) -> None:
    """Without its name the recipe asks for another student than the run in the folder has."""
    recipe = resolve(None, None, [f"teacher={home}/teacher/student", f"data.train={home}/train.csv"]).recipe
    run = RunFolder(tmp_path / "run")
    run.root.mkdir()
    run.mark.write_bytes(seal({"made_by": "potstill", "recipe": ""}))
    for student, taken in (([{"build": "bag"}], False), ([{"build": "keep_layers", "layers": 1}], True)):
        run.recipe.write_text(to_toml(complete_recipe(recipe.model_copy(update={"student": student}))[0]))
        assert (as_chosen(recipe, run).student == recipe.student) is not taken


def test_plan_says_the_same(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert potstill("plan", "--teacher", home / "teacher/student", *files(home), "--quiet", "--json") == 0
    student, method = json.loads(capsys.readouterr().out)["chosen"]
    assert student.startswith("student: 2 of 4 layers and all tokens, chosen because")
    assert method.startswith("method: soft_targets at the teacher's temperature, α = 0.9, chosen because the answers")


def test_teachers_without_layers_and_translators(tmp_path: Path) -> None:
    save_student(small_translator(), tmp_path / "translator")
    student, method = chosen(tmp_path / "translator")
    assert student == [{"build": "keep_layers", "layers": 1}] and method["temperature"] == 1.0
    network = folder(tmp_path / "network", model_type="potstill-bilstm", num_hidden_layers=0)
    with pytest.raises(
        InputError, match=r"has no layers of which half could be kept; name the student: --student bilstm"
    ):
        completed(network)
    save_student(small_model("modernbert"), tmp_path / "modern")
    assert chosen(tmp_path / "modern")[0] == [HALF]


def test_what_follows_from_a_chosen_student_has_the_student_as_its_source(tmp_path: Path) -> None:
    resolved = resolve(None, None, [f"teacher={folder(tmp_path / 'teacher')}", "data.train=a.csv"])
    sources = run_defaults.completed(resolved).sources
    found = {leaf: source for leaf, source in sources.items() if leaf.startswith("stage.0.")}
    of_student = ("optimizer.rate", "optimizer.rates", "epochs", "min_steps")
    assert {found[f"stage.0.{field}"] for field in of_student} == {"student"}
    assert found["stage.0.method.name"] == "teacher" and found["stage.0.batch"] == "default"
