"""A plan is compared with what happens: rows, steps and bytes exactly, operations nearly, hours about."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from potstill.data.batches import MicroBatch
from potstill.errors import InputError
from potstill.models.anatomy import without_effect
from potstill.models.builder import BuildContext
from potstill.models.hooks import listen
from potstill.models.student import save_student
from potstill.recipe import plugins
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from potstill.runs.distill import distill
from potstill.runs.planning.batches import Batches, epoch_batches, make_batches, parallel_seconds
from potstill.runs.planning.costs import Work
from potstill.runs.planning.flops import forward, training_step
from potstill.runs.planning.plan import cost_key, count_saves, plan
from potstill.runs.planning.timing import fit_law, time_training
from potstill.signals import View, Wants
from potstill.system import paths
from potstill.training.gradients import gradients
from potstill.training.setup import make_projections
from tests.support.commands import files, make_home, potstill
from tests.support.small_models import (
    ARCHITECTURES,
    GENERATED,
    WRITERS,
    sentences,
    small_model,
    small_teacher,
    small_writer,
    write_csv,
    write_task,
)
from tests.support.training_world import World, make_world

QUICK = ["batch=8", "dropout=0.0", "length=32", "timing=none", "optimizer.rate=0.003", "tokens=100"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"), 240, 80)


@pytest.fixture(autouse=True)
def short_trial_of_the_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr("potstill.runs.planning.plan.TRIAL_BYTES", 2**16)


def recipe_of(home: Path, *sets: str) -> Recipe:
    rows = [f"data.{split}={home}/{split}.csv" for split in ("train", "dev", "test")]
    plain = [f"teacher={home}/teacher/student", *rows, "student=keep_layers:2", "method=patient", *QUICK]
    return resolve(None, None, [*plain, *sets]).recipe


def lines_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["what"]: line for line in found["lines"]}


def logged(folder: Path) -> dict[str, int]:
    with (folder / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {"steps": len(rows), **{name: sum(int(row[name]) for row in rows) for name in ("examples", "tokens")}}


def slow(task: str, method: str) -> Any:
    return pytest.param(task, method, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("classify", "{ name = 'soft_targets', top = 3 }"),  # more than there are
        ("classify", "patient"),
        ("tag", "soft_targets"),
        ("tag", "patient"),
        slow("tag", "{ name = 'soft_targets', top = 3 }"),
        slow("answer", "patient"),
        ("answer", "hints"),
        slow("choose", "patient"),
        ("translate", "{ name = 'soft_targets', top = 3 }"),
        slow("translate", "soft_targets"),
        ("write", "{ name = 'soft_targets', top = 3 }"),
        slow("write", "hints"),
        ("mask", "patient"),
    ],
)
def test_rows_tokens_steps_and_bytes_of_memory_are_those_of_the_run(task: str, method: str, tmp_path: Path) -> None:
    """An epoch and a half, of which the half hangs on the order; some rows twice; dev and test are remembered as well."""
    for split, rows, seed in (("train", 90, 1), ("dev", 30, 2), ("test", 30, 3)):
        file = write_task(tmp_path / split, task, rows, seed)
    if task == "classify":
        train = tmp_path / "train.csv"
        train.write_text(train.read_text() + "\n".join(train.read_text().splitlines()[1:8]) + "\n")
    save_student(small_teacher(task), tmp_path / "teacher")
    data = [f"data.{split}={tmp_path / split}{file.suffix}" for split in ("train", "dev", "test")]
    shape = ["student=keep_layers:2", f"method={method}", "epochs=1.5", "force=true", "baseline=false"]
    shape.append(f"memory={tmp_path}/memory")
    recipe = resolve(None, None, [f"teacher={tmp_path}/teacher", *data, *shape, *QUICK]).recipe
    found = plan(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists() and not list((tmp_path / "memory").glob("*/*.arrow"))
    distill(recipe, tmp_path / "run")
    real, line = logged(tmp_path / "run/stages/0"), lines_of(found)["train distilled"]
    assert {name: line[name] for name in ("steps", "tokens")} == {name: real[name] for name in ("steps", "tokens")}
    assert line["rows"] == real["examples"]
    assert line["rows_per_epoch"] == 90 + 7 * (task == "classify")
    size = sum(one.stat().st_size for one in tmp_path.glob("memory/*/*"))
    assert found["disks"][0]["kept"] == size  # to the byte
    asked = lines_of(found)["remember the teacher"]["rows"]
    live = method == "hints" or task == "mask" or (task in GENERATED and "top" not in method)  # at every step
    # of dev and test every answer is remembered, but for whole vocabularies
    different = len({*(tmp_path / "train.jsonl").read_text().splitlines()}) if task in GENERATED else 90
    # before training the teacher is asked for the logits of all these rows, to say what it knows
    known = task not in (*GENERATED, "mask")
    assert asked == different * (not live and not (known and method == "soft_targets")) + (90 + 60) * known
    assert bool(size) == bool(asked)
    again = plan(recipe, tmp_path / "run")
    assert again["disks"][0]["kept"] == 0 and lines_of(again)["remember the teacher"]["rows"] == 0


@pytest.mark.slow
def test_another_layer_is_asked_for_all_rows_and_a_check_against_chance_before(home: Path, tmp_path: Path) -> None:
    """Memory that knows some columns of some rows; the teacher is checked on dev first, without --force."""
    shapes = ["student=keep_layers:2"], ["student=keep_layers:3", "stage.data=sample:100"], ["stage.data=augmented:2"]
    for sets in shapes:
        recipe = recipe_of(home, "baseline=false", "epochs=1", f"memory={tmp_path}/memory", *sets)
        before = sum(one.stat().st_size for one in tmp_path.glob("memory/*/*"))
        planned = plan(recipe, tmp_path / "run")
        distill(recipe, tmp_path / "run", overwrite=True)
        after = sum(one.stat().st_size for one in tmp_path.glob("memory/*/*"))
        # a manifest's checksums differ in nothing but their digits
        assert planned["disks"][0]["kept"] == after - before


def test_results_of_stages_are_those_of_the_run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every seed, cell and stage, and of the baselines; beside the weights there are only short files."""
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POTSTILL_STAGES_GB", "20")
    recipe = recipe_of(home, "seeds=2", "epochs=0.1", "grid={'method.beta'=[0.1,1.0,2.0]}")
    (planned,) = [one for one in plan(recipe, tmp_path / "run")["disks"] if one["what"] == "results of stages"]
    distill(recipe, tmp_path / "run")
    files = [one for one in (paths.cache() / "stages").rglob("*") if one.is_file()]
    weights = [one for one in files if one.suffix == ".safetensors"]
    assert len(weights) == 2 * 3 + 2
    size = sum(one.stat().st_size for one in weights)
    assert planned["kept"] == pytest.approx(size, rel=0.1)
    assert sum(one.stat().st_size for one in files) - size < 10_000 * len(weights)
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1e-6")
    assert [one["kept"] for one in plan(recipe, tmp_path / "run")["disks"]][-1] == 1000


def test_seeds_cells_stages_and_baselines_are_counted(home: Path, tmp_path: Path) -> None:
    recipe = recipe_of(home, "seeds=2", "epochs=2", "grid={'optimizer.rate'=[1e-3,1e-4],'method.beta'=[0.1,1.0,2.0]}")
    lines = lines_of(plan(recipe, tmp_path / "run"))
    assert lines["train distilled"]["runs"] == 2 * 6 and lines["train distilled"]["steps"] == 2 * 6 * 2 * 30
    assert lines["train fine-tuned"]["runs"] == 2 * 2  # beta is none of its fields
    assert lines["score dev"]["runs"] == (12 + 4) * 2
    assert lines["measure at the end"]["runs"] == 4
    assert lines["measure at the end"]["rows"] == 4 * 160
    stages = [
        {"method": {"name": "hints"}, "epochs": 1.0},
        {"method": {"name": "soft_targets"}, "reshape": "keep_layers:1", "epochs": 4.0},
    ]
    several = Recipe.model_validate({**recipe.model_dump(exclude={"stage", "grid", "seeds"}), "stage": stages})
    lines = lines_of(plan(several, tmp_path / "run"))
    assert {"train distilled, stage 0", "train distilled, stage 1", "train fine-tuned"} <= lines.keys()
    per_row = [lines[f"train distilled, stage {one}"]["operations"] / (1 + 3 * one) for one in (0, 1)]
    assert per_row[0] > 2 * per_row[1]  # the teacher runs in it, and there are more layers


def test_recipes_that_cost_the_same_are_timed_once(home: Path) -> None:
    plain = cost_key(recipe_of(home))
    assert plain == cost_key(recipe_of(home, "seed=3", "optimizer.rate=1.0", "method.beta=7.0", "epochs=9"))
    for other in ("batch=16", "tokens=50", "student=keep_layers:1", "method=hints", "stage.data=sample:10"):
        assert plain != cost_key(recipe_of(home, other))


def view_of(architecture: str, head: str) -> tuple[Any, View, Batches]:
    model = small_model(architecture, head=head, width=64)
    texts = [text for text, _ in sentences(24, 1)]
    inputs = dict(model.tokenizer(texts, padding=True, return_tensors="pt"))
    rows, length = inputs["input_ids"].shape
    model.model.config._attn_implementation = "eager"  # of fused kernels the counter knows some only
    places = torch.stack([torch.arange(rows), torch.zeros(rows, dtype=torch.long)], 1)
    one = np.zeros(1, np.int64)
    return (
        model.model,
        View(inputs, inputs["attention_mask"].bool(), places),
        Batches([one], one + rows, one + length, one, one, one),
    )


def test_ends_of_epochs_and_saves_are_counted_as_if_one_by_one() -> None:
    for per_epoch in (1, 2, 3, 7, 12):
        for steps in range(1, 60):
            for save_every in (1, 4, 6, 12, 200):
                ends = {*range(per_epoch, steps + 1, per_epoch), steps}
                saves = ends | set(range(save_every, steps + 1, save_every))
                assert count_saves(per_epoch, steps, save_every) == (len(ends), len(saves))


def test_huge_numbers_are_planned_without_counting_to_them(home: Path, tmp_path: Path) -> None:
    """Neither steps nor devices are gone through one by one."""
    huge = recipe_of(home, "epochs=1e9", "seeds=50")
    told = lines_of(plan(huge, tmp_path / "run", devices=10**9, peak=1e9))["train distilled"]
    assert told["runs"] == 50 and told["steps"] == 50 * 30 * 10**9 and told["rows"] == 50 * 240 * 10**9
    for wrong, most in (("epochs=1e10", "1000000000"), ("seeds=1000000000", "1000")):
        with pytest.raises(InputError, match=most):
            recipe_of(home, wrong)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_operations_are_those_that_torch_counts(architecture: str, head: str) -> None:
    model, view, shapes = view_of(architecture, head)
    wants = Wants(logits=True, hidden=(1,)), Wants(logits=True, cls=(1,))
    for wanted in wants:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            listen(model, view, wanted)
        assert forward(model, shapes, wanted)[0] == pytest.approx(counter.get_total_flops(), rel=0.03)
    shortened = architecture in ("bert", "roberta", "electra") and head == "SequenceClassification"
    assert (forward(model, shapes, wants[1])[0] < 0.9 * forward(model, shapes, wants[0])[0]) == shortened


@pytest.mark.parametrize("architecture", WRITERS)
def test_operations_of_models_that_write_are_those_that_torch_counts(architecture: str, tmp_path: Path) -> None:
    """Source and target are padded apart, and each counts in its own stack; logits of every token of a target count."""
    task = "write" if architecture in ("llama", "gpt2") else "translate"
    world = make_world(tmp_path, task=task)
    world.student = world.teacher = small_writer(architecture, width=64)
    for module in world.student.model.modules():  # T5's stacks have configs of their own
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    source = world.source()
    positions = np.arange(7, 17)
    batch = source.batch(positions, source.count(positions))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        listen(world.student.model, batch.student, Wants(logits=True))
    shapes = make_batches([source], [(0, 0, positions)])
    planned = forward(world.student.model, shapes, Wants(logits=True))
    assert planned[0] == pytest.approx(counter.get_total_flops(), rel=0.03)


@pytest.mark.parametrize("width", [None, 48])
@pytest.mark.parametrize(
    ("method", "task"),
    [
        ("patient", "classify"),
        ("hints", "classify"),
        ("hard_labels", "classify"),
        ("soft_targets", "translate"),
        ("hints", "write"),
    ],
)
def test_operations_of_training_are_three_times_those_of_a_forward_pass(
    method: str, task: str, width: int | None, tmp_path: Path
) -> None:
    """And the teacher's pass where it is asked live."""
    world = make_world(tmp_path, width=width, task=task)
    for model in (world.student.model, world.teacher.model):
        model.config._attn_implementation = "eager"
    training = world.training(method, world.remembering())
    batches = epoch_batches(training).take(np.array([0]))
    owner, positions = int(batches.data[0]), batches.positions[0]
    source = training.sources[owner]
    batch = source.batch(positions, source.count(positions))
    with FlopCounterMode(display=False) as counter:
        gradients(training, make_projections(training), [MicroBatch(0, owner, batch)], 0)
    planned = training_step(training, batches)
    assert planned[0] == pytest.approx(counter.get_total_flops(), rel=0.05)


def weights(world: World) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in world.student.model.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["adamw", "adadelta", "sgd"])
def test_timing_changes_no_weight(optimizer: str, tmp_path: Path) -> None:
    world = make_world(tmp_path)
    before = weights(world)
    training = world.training("patient", world.remembering(), optimizer={"name": optimizer, "rate": 0.1})
    batches = epoch_batches(training)
    cost = time_training(training, batches, turns=1, memory=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(world).items())
    assert cost.step > 0 and (cost.batch.of(batches) > 0).all()
    assert cost.activations is not None
    assert cost.activations.per_token > 0
    frozen = {id(one) for one in without_effect([world.student.model])}
    whole = sum(one.numel() for one in world.student.model.parameters() if id(one) not in frozen)
    assert (cost.trained < whole) == (cost.copied > 0) == (optimizer == "adamw")


def test_timing_leaves_rounded_weights_as_they_are(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    quantized = plugins.make("students", "fake_quantized", {"bits": 3})
    world.student = quantized.build(world.student, BuildContext(world.teacher, 0, lambda: iter(())))
    before = weights(world)
    training = world.training("soft_targets", world.remembering(), optimizer={"name": "adamw", "rate": 0.1})
    time_training(training, epoch_batches(training), turns=1, memory=False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(world).items())


def test_a_law_is_found_again() -> None:
    sequences, lengths = np.array([1, 4, 8, 32, 32]), np.array([12, 8, 100, 20, 64])
    shapes = Batches([lengths] * 5, sequences, lengths, 0 * lengths, 0 * lengths, np.arange(5))
    seconds = 0.002 + 1e-5 * sequences * lengths + 3e-7 * sequences * lengths**2
    law = fit_law(shapes, seconds)
    assert [law.per_token, law.per_pair, law.per_batch] == pytest.approx([1e-5, 3e-7, 0.002], rel=1e-6)
    alone = fit_law(shapes.take(np.array([2])), seconds[2:3])
    assert alone.of(shapes.take(np.array([2]))) == pytest.approx(seconds[2:3])


def test_devices_help_as_far_as_a_step_has_micro_batches() -> None:
    steps = np.array([0, 0, 0, 1, 2, 2])
    seconds = np.array([5.0, 4.0, 3.0, 7.0, 2.0, 1.0])
    assert [parallel_seconds(seconds, steps, devices) for devices in (1, 2, 3, 8)] == [22, 8 + 7 + 2, 5 + 7 + 2, 14]
    work = Work(rows=9, operations=9.0, seconds=12.0)
    assert [work.shared(devices, 2.0).seconds for devices in (1, 4, 100)] == [12, 3, 2]
    assert work.shared(4, 2.0).faster(10.0).seconds == pytest.approx(0.3)
    assert work.faster(10.0).seconds == pytest.approx(1.2)  # what the first does alone


def test_what_does_not_fit_is_named_and_what_comes_first_is(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(home, f"memory={tmp_path}/memory")
    found = plan(recipe, tmp_path / "run")
    assert found["will_not_fit"] is None
    needed = found["device_memory"]
    between = (needed["program"] + needed["weights"] + needed["peak"]) / 2e9
    monkeypatch.setattr("potstill.runs.planning.plan.private_bytes", lambda: needed["program"])
    for memory, told in ((0.0001, "the weights of teacher and student need"), (between, "training needs")):
        assert plan(recipe, tmp_path / "run", memory=memory)["will_not_fit"].startswith(told)
    free = {"total": 1, "used": 1}

    def usage(room: int) -> Any:
        return lambda _: type("Usage", (), {**free, "free": room})

    for room, told in ((1000, "the teacher's memory in "), (10**6, "students and checkpoints in ")):
        monkeypatch.setattr("shutil.disk_usage", usage(room))
        sentence = plan(recipe, tmp_path / "run", memory=100)["will_not_fit"]
        assert sentence.startswith(told) and sentence.endswith("give a folder on another disk")


def words(home: Path) -> list[str | Path]:
    rows = ["--teacher", home / "teacher/student", *files(home)]
    return ["plan", *rows, "--student", "keep_layers:2", "--length", "32", "--quiet"]


def test_the_command_prints_a_table_or_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert potstill(*words(home)) == 0
    printed = capsys.readouterr().out
    assert "train distilled" in printed and "everything fits" in printed
    assert potstill(*words(home), "--memory", "0.001", "--peak", "19500", "--devices", "8") == 0
    printed = capsys.readouterr().out
    assert "will not fit: the weights" in printed and "19,500 GFLOPS at best, 8 devices" in printed
    assert potstill(*words(home), "--json", "--no-baseline", "--epochs", "1") == 0
    found = json.loads(capsys.readouterr().out)
    assert [line["what"] for line in found["lines"]] == [
        "remember the teacher",
        "train distilled",
        "score dev",
        "measure at the end",
        "save checkpoints",
    ]
    assert found["seconds"] == pytest.approx(sum(line["seconds"] for line in found["lines"]))


@pytest.mark.parametrize(
    "wrong",
    [
        ["--peak", "0"],
        ["--devices", "0"],
        ["--memory", "-1"],
        ["--method", "patent"],
        ["--train", "nowhere.csv"],
        ["--set", "grid={teacher=['a','b']}"],
        ["--set", "student=keep_layers:9"],
        ["--set", "metric=blue"],
    ],
)
def test_wrong_input_is_refused(home: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert potstill(*words(home), *wrong) == 2
    assert "potstill: " in capsys.readouterr().err


def test_a_model_without_a_teacher_is_planned_too(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["plan", "--start", home / "encoder", *files(home), "--method", "hard_labels", "--length", "32", "--json"]
    assert potstill(*told) == 0
    found = json.loads(capsys.readouterr().out)
    assert [line["what"] for line in found["lines"]][:2] == [
        "remember the teacher",
        "find the rate of fine-tuned",
    ]
    assert [one["what"] for one in found["disks"]] == ["students and checkpoints", "results of stages"]


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; sys.argv = ['potstill', 'plan', '--help']\nfrom potstill.app.cli import app\n"
    code += "try: app()\nexcept SystemExit: print('torch' in sys.modules, 'transformers' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1] == "False False" and "--peak" in ran.stdout


@pytest.mark.slow
def test_the_time_of_a_run_ten_times_larger_is_foretold(tmp_path: Path) -> None:
    """Within a quarter, for asking and for training, on a machine that does nothing else meanwhile."""
    save_student(small_model("bert", layers=6, width=128), tmp_path / "teacher")
    for split, rows in (("train", 4000), ("dev", 100), ("test", 100)):
        write_csv(tmp_path / f"{split}.csv", sentences(rows, len(split)))
    data = [f"data.{split}={tmp_path}/{split}.csv" for split in ("train", "dev", "test")]
    shape = ["student=keep_layers:3", "method=patient", "epochs=2", "force=true", "baseline=false", "timing=none"]
    recipe = resolve(None, None, [f"teacher={tmp_path}/teacher", *data, *shape, f"memory={tmp_path}/memory"]).recipe
    found = lines_of(plan(recipe, tmp_path / "run"))
    begun = time.perf_counter()
    distill(recipe, tmp_path / "run")
    whole = time.perf_counter() - begun
    with (tmp_path / "run/stages/0/steps.csv").open(newline="") as file:
        trained = sum(float(row["seconds"]) for row in csv.DictReader(file))
    asked = json.loads((tmp_path / "run/measurements.json").read_text())["teacher_seconds"]
    told = {"trained": trained, "asked": asked, "whole": whole, **{name: one["seconds"] for name, one in found.items()}}
    print(f"foretold and taken: {told}")
    assert found["train distilled"]["steps"] == 250
    assert found["train distilled"]["seconds"] == pytest.approx(trained, rel=0.25), told
    assert found["remember the teacher"]["seconds"] == pytest.approx(asked, rel=0.25), told
    assert sum(one["seconds"] for one in found.values()) == pytest.approx(whole, rel=0.25), told
