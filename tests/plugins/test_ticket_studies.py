"""Studies of lottery tickets: what is trained for them, what is trained once, and what they conclude."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

from potstill.errors import InputError
from potstill.models.compression.masks import prunable, share_of_zeros
from potstill.models.compression.tickets import set_between
from potstill.models.student import load_student, save_student
from potstill.plugins.studies._tickets import Trials, barrier_of, error_barriers, trials_of
from potstill.plugins.studies.lottery import Lottery
from potstill.plugins.studies.ticket_transfer import DENSE, FIRST_WEIGHTS, TicketTransfer
from potstill.plugins.studies.tickets import Tickets, largest_matching, paper_cells
from potstill.recipe import short_forms
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Recipe
from tests.support.commands import command, potstill
from tests.support.small_models import (
    running_texts,
    sentences,
    small_images,
    small_model,
    small_teacher,
    write_csv,
    write_digits,
)

TICKET = {"build": "ticket", "removes": 0.5, "output": True}


def recipe_of(folder: Path, **change: Any) -> Recipe:
    (folder / "recipe.toml").write_text(tomli_w.dumps(change))
    return resolve(str(folder / "recipe.toml")).recipe


def small_lottery(folder: Path, **stage: Any) -> dict[str, Any]:
    optimizer = {"rate": 0.01, "warmup": 0.0, "decay": "constant"}
    first = {
        "method": "hard_labels",
        "reshape": [TICKET],
        "repeat": 2,
        "epochs": 3,
        "batch": 20,
        "optimizer": optimizer,
    }
    return {
        "student": {"build": "mlp", "hidden": [24, 16]},
        "data": {split: str(folder / f"{split}.npz") for split in ("train", "test")},
        "stage": [first | stage],
        "force": True,
        "precision": "float32",
    }


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_digits(tmp_path / "train.npz", 300, 0)
    write_digits(tmp_path / "test.npz", 200, 600)
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    return tmp_path


def test_the_runs_of_the_lottery_are_rounds_a_second_training_and_controls(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, **small_lottery(tmp_path, rewind=5))
    runs = Lottery(rounds=[1, 3, 5], controls=[3]).runs(recipe)
    assert set(runs) == {
        *("round-5", "round-5-again", "round-3", "round-3-again", "round-1", "round-1-again"),
        *("round-3-random_weights", "round-3-random_structure"),
    }
    for name, run in runs.items():
        assert run.stage[0] == recipe.stage[0].model_copy(update={"repeat": int(name.split("-")[1])})
        if name.count("-") == 1:
            assert len(run.stage) == 1
            continue
        assert run.stage[1].repeat == 1 and run.stage[1].rewind == 5
        control = name.split("-")[2].replace("again", "none")
        assert run.stage[1].reshape[0] | {"control": control} == recipe.stage[0].reshape[0] | {"control": control}
        assert run.stage[1].reshape[0].get("control", "none") == control
    assert not any(run.baseline for run in runs.values())


@pytest.mark.parametrize("fields", [{"rounds": [2, 3], "controls": []}, {"rounds": [1, 3], "controls": [2]}])
def test_a_lottery_without_its_dense_network_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write for example"):
        Lottery(**fields).runs(recipe_of(tmp_path, **small_lottery(tmp_path)))
    with pytest.raises(InputError, match='build = "ticket"'):
        Lottery().runs(recipe_of(tmp_path, **small_lottery(tmp_path, reshape=[])))


@pytest.mark.slow
def test_a_lottery_trains_each_round_once_and_its_second_call_trains_nothing(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (digits / "small.toml").write_text(tomli_w.dumps(small_lottery(digits)))
    words = ["study", "lottery", digits / "small.toml", "--seeds", "2", "--out", digits / "out", "--quiet"]
    words += ["--with", "rounds=[1, 2, 3]", "--with", "controls=[2]"]
    assert potstill(*words) == 0
    first = capsys.readouterr().out
    # two seeds of three rounds, of a second training for each, and of two controls
    assert len(list((digits / "cache/stages").iterdir())) == 2 * (3 + 3 + 2)
    page = (digits / "out/study.md").read_text()
    assert "| 100.0 % |" in page and "| 51.9 % |" in page and "Ticket of" in page
    assert (digits / "out/study.svg").is_file()
    assert potstill(*words) == 0
    assert capsys.readouterr().out == first
    assert len(list((digits / "cache/stages").iterdir())) == 2 * (3 + 3 + 2)
    trials = trials_of(digits / "out/round-2")
    assert trials.scores.shape == (2, 3) and trials.steps.tolist() == [14, 28, 42]
    logged = (digits / "out/round-2/seed-1/stages/1/epochs.csv").read_text().splitlines()
    assert 100 * float(logged[-1].split(",")[2]) == pytest.approx(trials.scores[1, -1])
    # the same network is at both ends of the line to itself
    assert error_barriers(digits / "out/round-2", digits / "out/round-2") == [0.0, 0.0]
    barriers = error_barriers(digits / "out/round-2", digits / "out/round-2-again")
    assert len(barriers) == 2 and min(barriers) >= 0
    one, two = (load_student(digits / f"out/round-2{more}/seed-0/student").model for more in ("", "-again"))
    assert any(not torch.equal(one.get_parameter(name), two.get_parameter(name)) for name, _ in one.named_parameters())
    for name, weight in one.named_parameters():  # another order of the rows, but the same ticket
        if weight.ndim == 2:
            assert torch.equal(weight == 0, two.get_parameter(name) == 0)


def test_weights_between_two_networks_are_on_their_line() -> None:
    one, other, between = (small_model("bert", layers=1, seed=seed).model for seed in (1, 2, 3))
    for share in (0.0, 0.25, 1.0):
        set_between(between, one, other, share)
        for name, weight in between.named_parameters():
            expected = (1 - share) * one.get_parameter(name) + share * other.get_parameter(name)
            torch.testing.assert_close(weight, expected)
    images = [small_images(seed=seed).model for seed in (1, 2)]
    set_between(images[0], images[1], images[1], 0.5)
    assert torch.equal(images[0].classifier.weight, images[1].classifier.weight)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=20))
def test_a_barrier_is_not_negative_and_zero_on_a_line_without_a_hill(errors: Sequence[float]) -> None:
    assert barrier_of(errors) >= -1e-9
    ends = (errors[0] + errors[-1]) / 2
    assert barrier_of([ends, *[ends] * len(errors), ends]) == pytest.approx(0)
    assert barrier_of([errors[0], 200.0, errors[-1]]) == pytest.approx(200 - ends)


def test_steps_are_counted_to_the_first_score_that_is_high_enough() -> None:
    trials = Trials(np.array([10, 20, 30]), np.array([[80.0, 95.0, 90.0], [50.0, 60.0, 70.0]]))
    assert trials.steps_to(90) == [20.0, np.inf]
    assert trials.steps_to(50) == [10.0, 10.0]
    assert trials.mean.tolist() == [65.0, 77.5, 80.0]


def test_a_seed_that_stopped_earlier_keeps_its_last_score(tmp_path: Path) -> None:
    for seed, scores in ((0, [0.5, 0.6, 0.7]), (1, [0.4, 0.9])):
        folder = tmp_path / f"seed-{seed}/stages/0"
        folder.mkdir(parents=True)
        (folder.parents[1] / "measurements.json").write_text(json.dumps({}))
        lines = ["epoch,step,dev", *(f"{n},{10 * n},{score}" for n, score in enumerate(scores, 1))]
        (folder / "epochs.csv").write_text("\n".join(lines))
    trials = trials_of(tmp_path)
    assert trials.steps.tolist() == [10, 20, 30]
    np.testing.assert_allclose(trials.scores, [[50, 60, 70], [40, 90, 90]])


# tasks of an encoder


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classifications and masked words, with an encoder that reads masked words, and a recipe for them."""
    for seed, (name, labels) in enumerate({"mood": ("bad", "good"), "rte": ("no", "yes")}.items()):
        rows = [(text, labels[label]) for text, label in sentences(60 + 16 * seed, seed)]
        for split, part in (("train", rows[:-36]), ("dev", rows[-36:-18]), ("test", rows[-18:])):
            write_csv(tmp_path / f"{name}-{split}.csv", part)
    for split, count in (("train", 60), ("dev", 12), ("test", 12)):
        texts = [str(row["text"]) for row in running_texts(count, len(split))]
        (tmp_path / f"words-{split}.txt").write_text("".join(f"{text}\n" for text in texts))
    save_student(small_teacher("mask"), tmp_path / "encoder")
    data = [
        {"name": name, **{split: str(tmp_path / f"{name}-{split}.csv") for split in ("train", "dev", "test")}}
        for name in ("mood", "rte")
    ]
    words = {split: str(tmp_path / f"words-{split}.txt") for split in ("train", "dev", "test")}
    stage = {"method": "hard_labels", "batch": 16, "epochs": 1, "optimizer": {"rate": 1e-3}}
    recipe = {
        "start": str(tmp_path / "encoder"),
        "student": [],
        "data": [*data, {"name": "words", "task": "mask", **words}],
        "stage": [{"on": ["mood", "rte"], **stage}, {"on": ["words"], **stage, "epochs": 2}],
        "length": 32,
        "force": True,
        "precision": "float32",
    }
    (tmp_path / "tasks.toml").write_text(tomli_w.dumps(recipe))
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    return tmp_path


def test_the_runs_of_the_transfer_find_a_mask_and_train_it_on_the_target(tasks: Path) -> None:
    recipe = resolve(str(tasks / "tasks.toml")).recipe
    runs = TicketTransfer(targets=["mood", "rte"]).runs(recipe)
    assert set(runs) == {
        f"{source}-to-{target}"
        for source in ("mood", "rte", "words", FIRST_WEIGHTS, DENSE)
        for target in ("mood", "rte")
    }
    found, then = runs["words-to-rte"].stage
    assert (found.on, found.repeat, found.epochs) == (["words"], 8, 2.0)
    searched = found.reshape[0]
    assert [searched[field] for field in ("build", "removes", "of", "head")] == ["ticket", 0.1, "all", "trained"]
    assert (then.on, then.repeat, then.epochs) == (["rte"], 1, 1.0)
    assert [(fields["build"], fields["head"]) for fields in then.reshape] == [("ticket", "fresh")]
    assert [data.name for data in runs["words-to-rte"].data] == ["rte", "words"]
    assert [data.name for data in runs["rte-to-rte"].data] == ["rte"] and len(runs["rte-to-rte"].stage) == 2
    assert runs[f"{FIRST_WEIGHTS}-to-rte"].student == short_forms.complete("students", "pruned_weights:0.7")
    assert runs[f"{DENSE}-to-rte"].student == [] and len(runs[f"{DENSE}-to-rte"].stage) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sources": ["nosuch"]}, "write names of mood, rte, words"),
        ({"sources": ["mood"], "targets": ["rte"]}, "write 'rte' under sources too"),
        ({"sparsity": 0.75}, "write removes = "),
        ({"removes": 0.0}, "write removes = "),
    ],
)
def test_a_transfer_that_cannot_be_compared_is_refused(fields: dict[str, Any], message: str, tasks: Path) -> None:
    with pytest.raises(InputError, match=message):
        TicketTransfer(**fields).runs(resolve(str(tasks / "tasks.toml")).recipe)


def test_the_runs_of_tickets_are_every_sparsity_of_every_task(tasks: Path) -> None:
    recipe = resolve(str(tasks / "tasks.toml")).recipe
    runs = Tickets(removes=0.2, most=0.6, again=[0.4]).runs(recipe)
    of_one = ["@0", "@20", "@40", "@60", "@40-once", "@40-twice"]
    assert set(runs) == {f"{task}{name}" for task in ("mood", "rte", "words") for name in of_one}
    assert [runs[f"words{name}"].stage[0].repeat for name in of_one] == [1, 2, 3, 4, 3, 3]
    assert [len(runs[f"words{name}"].stage) for name in of_one] == [1, 1, 1, 1, 2, 3]
    assert all(run.stage[0].epochs == (2.0 if name.startswith("words") else 1.0) for name, run in runs.items())
    heads = [stage.reshape[0]["head"] for stage in runs["rte@40-twice"].stage]
    assert heads == ["trained", "fresh", "fresh"]
    with pytest.raises(InputError, match="write smaller sparsities"):
        Tickets(again=[0.9], most=0.8).runs(recipe)


@given(st.dictionaries(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.floats(0, 100)), st.floats(0, 100))
def test_the_largest_matching_sparsity_matches_and_no_larger_one_does(means: dict[float, float], bar: float) -> None:
    best = largest_matching({0.0: bar, **means}, bar)
    assert best == 0.0 or means[best] >= bar
    assert all(mean < bar for sparsity, mean in means.items() if sparsity > best)


def test_rows_of_the_paper_stand_beside_data_sets_of_their_names() -> None:
    assert paper_cells("sst2_sentence", "classify") == ["60 %", "92.1", "91.9"]
    assert paper_cells("CoLA", "classify") == ["50 %", "54.5", "53.8"]
    assert paper_cells("text", "mask") == ["70 %", "63.5", "63.2"]
    assert paper_cells("snips", "classify") == ["", "", ""]


TRANSFER = ["--with", "sparsity=0.5", "--with", "removes=0.25", "--with", "targets=['mood', 'rte']", "--quiet"]


def table(out: Path) -> str:
    return (out / "study.md").read_text()


@pytest.mark.slow
def test_a_killed_transfer_loses_no_finished_cell_and_two_workers_end_in_one_table(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["study", "ticket-transfer", str(tasks / "tasks.toml"), *TRANSFER]
    # killed in its fourth run, and then continued by two workers
    out = tasks / "shared"
    with command(*words, "--out", str(out)) as first:
        deadline = time.monotonic() + 300
        while len(list(out.glob("*/measurements.json"))) < 3 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert first.returncode == -signal.SIGKILL
    finished = {file: file.stat().st_mtime_ns for file in out.glob("*/measurements.json")}
    assert 3 <= len(finished) < 10
    with command(*words, "--out", str(out)) as one, command(*words, "--out", str(out)) as other:
        said = [worker.communicate()[1] for worker in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), said
    assert all(file.stat().st_mtime_ns == before for file, before in finished.items())
    # the same as one process that was never stopped, whose stages nobody trained before
    monkeypatch.setenv("POTSTILL_CACHE", str(tasks / "other cache"))
    assert potstill(*words, "--out", tasks / "whole") == 0
    assert table(out) == table(tasks / "whole")
    # each mask is found once: three rounds of three tasks, and then ten trainings
    assert len(list((tasks / "other cache/stages").iterdir())) == 3 * 3 + 10
    for target in ("mood", "rte"):
        student = load_student(tasks / f"whole/words-to-{target}/student").model
        assert 0.45 < share_of_zeros({n: w for n, w in prunable(student).items() if "encoder" in n}) < 0.55


@pytest.mark.slow
def test_tickets_of_two_tasks_have_their_largest_matching_sparsity(
    tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "tickets", str(tasks / "tasks.toml"), "--seeds", "2", "--out", tasks / "out", "--quiet"]
    words += ["--with", "removes=0.4", "--with", "most=0.8", "--with", "again=[0.4]"]
    assert potstill(*words) == 0
    page = table(tasks / "out")
    rows = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line.startswith("| ")}
    assert set(rows) >= {"mood", "rte", "words"}
    assert "| 60 % | 66.2 | 66.0 |" in page and "| 70 % | 63.5 | 63.2 |" in page
    capsys.readouterr()
    assert potstill(*words) == 0 and table(tasks / "out") == page
