"""Seeds, comparisons and studies: what several runs say together, by the commands, small."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load_file

from potstill.data.examples import Examples
from potstill.errors import InputError
from potstill.inference import onnx_forms
from potstill.measuring import comparisons as results
from potstill.measuring import speed as timing
from potstill.measuring.comparisons import Predictions, differences, write_predictions
from potstill.measuring.significance import NOT_TESTED, Difference
from potstill.models.student import save_student
from potstill.plugins.studies._differences import corrected, correction_notes, mean_difference
from potstill.plugins.studies.hinton_mnist import gap_closed
from potstill.recipe import plugins
from potstill.recipe.resolve import resolve
from potstill.system import paths
from potstill.tasks.classify import TextClassification
from tests.support.commands import FAST, files, make_home, measurements, potstill
from tests.support.generative_models import trained_marian
from tests.support.small_models import translations, write_digits

TWO = TextClassification(("no", "yes"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("several"), 120, 60)


def distilled(home: Path, out: Path, *more: str, method: str = "soft_targets") -> int:
    shape = ["--student", "keep_layers:2", "--method", method, "--epochs", "1"]
    return potstill("distill", "--teacher", home / "teacher/student", *files(home), *shape, "--out", out, *FAST, *more)


def test_seeds_give_mean_deviation_words_and_the_student_that_is_best_on_dev(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert distilled(home, out, "--seeds", "2") == 0
    each = [measurements(out / f"seed-{seed}") for seed in (0, 1)]
    found = measurements(out)
    assert found["seeds"] == [0, 1]
    for split in ("dev", "test"):
        for name in ("fine-tuned", "distilled"):
            both = [one["models"][name]["quality"]["task"][split]["accuracy"] for one in each]
            assert found["models"][name]["quality"]["task"][split]["accuracy"] == pytest.approx(np.mean(both))
            assert found["models"][name]["deviation"]["task"][split]["accuracy"] == pytest.approx(np.std(both, ddof=1))
    against = {one["against"]: one for one in found["differences"]}
    assert len(against["fine-tuned"]["mcnemar"]) == 2
    assert against["fine-tuned"]["words"] in capsys.readouterr().out
    best = max((0, 1), key=lambda seed: each[seed]["models"]["distilled"]["quality"]["task"]["dev"]["accuracy"])
    assert (out / "student/model.safetensors").read_bytes() == (
        out / f"seed-{best}/student/model.safetensors"
    ).read_bytes()
    assert (out / "report.html").exists() and (out / "student/README.md").exists()

    before = (out / "seed-0/measurements.json").stat().st_mtime_ns
    assert distilled(home, out, "--seeds", "3") == 0  # one more seed: the others are not run again
    assert measurements(out)["seeds"] == [0, 1, 2]
    assert (out / "seed-0/measurements.json").stat().st_mtime_ns == before
    assert "0, 1, 2" in (out / "report.html").read_text()
    assert distilled(home, out) == 2  # a run of one seed is another run
    assert "--overwrite" in capsys.readouterr().err


def test_answers_are_kept_with_their_targets(home: Path, tmp_path: Path) -> None:
    assert distilled(home, tmp_path / "run") == 0
    kept = load_file(tmp_path / "run/answers.safetensors")
    right = kept["distilled/task/test"].argmax(1) == kept["targets/task/test"]
    accuracy = measurements(tmp_path / "run")["models"]["distilled"]["quality"]["task"]["test"]["accuracy"]
    assert right.mean() == pytest.approx(accuracy)
    epochs = (tmp_path / "run/stages/0/epochs.csv").read_text().splitlines()
    assert epochs[0].startswith("epoch,step,dev,train,")


def test_the_curve_of_train_is_of_rows_that_were_learned_from(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = []
    sample = Examples.sample

    def watched_sample(examples: Examples, rows: int, seed: int) -> Examples:
        if rows == 200:  # the least that is scored of train
            watched.append(len(examples))
        return sample(examples, rows, seed)

    monkeypatch.setattr(Examples, "sample", watched_sample)
    assert distilled(home, tmp_path / "run", "--no-baseline", "--set", 'stage.0.data=["sample:40"]') == 0
    assert watched == [40]  # of 120


def test_runs_stand_side_by_side(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, method in (("kd", "soft_targets"), ("pkd", "patient")):
        assert distilled(home, tmp_path / name, "--set", f"name={name}", method=method) == 0
    capsys.readouterr()
    page = tmp_path / "both.html"
    assert potstill("report", tmp_path / "kd", tmp_path / "pkd", "--out", page) == 0
    told = capsys.readouterr().out
    assert "pkd against kd" in told and "kd against fine-tuned" in told
    assert "pkd" in page.read_text()
    assert potstill("report", tmp_path / "kd", home) == 2
    assert "is not a run of potstill" in capsys.readouterr().err


def made_run(folder: Path, name: str, right: Iterable[np.ndarray], seeds: int = 1) -> Path:
    """Answers and measurements of a run in which the student is right on given rows."""
    for seed, rows in enumerate(right):
        place = folder / f"seed-{seed}" if seeds > 1 else folder
        place.mkdir(parents=True)
        gold = np.zeros(len(rows), np.float32)
        logits = np.stack([rows * 2.0 - 1, 1 - rows * 2.0], 1).astype(np.float32)
        quality = {"task": {"test": {"accuracy": float(rows.mean())}}}
        told = {"name": name, "seeds": [seed], "metrics": {"task": ["accuracy"]}, "labels": {"task": ["no", "yes"]}}
        told |= {"tasks": {"task": "classify"}, "models": {"distilled": {"quality": quality}}}
        write_predictions(
            place / "answers.safetensors", {("distilled", "task", "test"): logits, ("targets", "task", "test"): gold}
        )
        (place / "measurements.json").write_text(json.dumps(told))
        (place / "recipe.toml").write_text("")
        (folder / "recipe.toml").write_text("")
        (folder / "measurements.json").write_text(json.dumps({**told, "seeds": list(range(seeds))}))
    return folder


def test_a_difference_between_runs_is_said_where_it_is_there(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    hard = random.random(1000)
    good = made_run(tmp_path / "good", "good", [(hard + 0.02 * random.normal(size=1000) < 0.92) for _ in range(3)], 3)
    bad = made_run(tmp_path / "bad", "bad", [(hard + 0.02 * random.normal(size=1000) < 0.85) for _ in range(3)], 3)
    same = made_run(tmp_path / "same", "same", [(hard + 0.02 * random.normal(size=1000) < 0.85) for _ in range(3)], 3)
    told = {(one.model, one.against): one for one in results.comparisons([good, bad, same])}
    assert told["bad", "good"].words.startswith("worse, p = ")
    assert told["same", "bad"].words.startswith("no difference shown")
    assert len(told["bad", "good"].mcnemar) == 3 and max(told["bad", "good"].mcnemar) < 0.001


def said_of(right: Iterable[np.ndarray], split: str = "test") -> Predictions:
    """Answers of a seed each, right on given rows."""
    logits = [np.stack([rows * 2.0 - 1, 1 - rows * 2.0], 1) for rows in right]
    return Predictions(TWO, "accuracy", np.zeros(len(logits[0])), logits, split)


def test_nothing_is_tested_on_the_rows_that_it_was_chosen_by() -> None:
    """However far apart two models are on dev: the best of many cells is above its worth there."""
    random = np.random.default_rng(0)
    models = {"distilled": 0.9, "fine-tuned": 0.7}
    by_split = {}
    for split in ("dev", "test"):
        right = {name: [random.random(500) < share for _ in range(3)] for name, share in models.items()}
        said = {(name, "task", split): said_of(rows, split) for name, rows in right.items()}
        (by_split[split],) = differences(said, [("distilled", "fine-tuned")])
        assert (mean_difference([said["distilled", "task", split]], [said["fine-tuned", "task", split]]) is None) == (
            split == "dev"
        )
    assert by_split["test"].words.startswith("better") and by_split["test"].seeds == 3
    assert by_split["dev"].words == NOT_TESTED and by_split["dev"].mean == pytest.approx(0.2, abs=0.05)
    assert not {"p", "low", "high", "mcnemar"} & by_split["dev"].to_json().keys()


def test_runs_of_other_conditions_are_no_seeds() -> None:
    """Two maps whose scores are far apart: within each the gain is the same, and it is shown."""
    random = np.random.default_rng(1)
    hard = random.random(1800)

    def runs(bound: float) -> Predictions:
        return said_of([hard + 0.02 * random.normal(size=1800) < bound for _ in range(3)])

    found = mean_difference([runs(0.93), runs(0.73)], [runs(0.90), runs(0.70)])
    assert found is not None and found.mean == pytest.approx(0.03, abs=0.01) and found.words.startswith("better")
    assert found.high - found.low < 0.03


def test_an_answer_of_several_comparisons_says_that_it_is_corrected() -> None:
    found = corrected({"a": Difference(0.1, 0.0, 0.2, 0.03, 3), "b": Difference(0.1, 0.0, 0.2, 0.04, 3), "c": None})
    assert [one.p for one in found.values()] == [0.06, 0.06]
    assert correction_notes(found) == ["Each p is corrected for 2 comparisons (Holm); intervals are not corrected."]
    assert "dev was used for selection" in correction_notes({})[0]


def test_a_share_of_a_gap_has_an_interval_over_rows_and_seeds() -> None:
    random = np.random.default_rng(2)
    hard = random.random(4000)
    alone, taught = ([hard + 0.02 * random.normal(size=4000) < bound for _ in range(3)] for bound in (0.80, 0.86))
    share, low, high = gap_closed(said_of(alone), said_of(taught), said_of([hard < 0.90] * 3))
    assert share == pytest.approx(0.6, abs=0.05) and 0.4 < low < share < high < 0.8


def test_other_rows_are_not_compared() -> None:
    said = {
        ("a", "task", "test"): Predictions(TWO, "accuracy", np.zeros(5), [np.zeros((5, 2))]),
        ("b", "task", "test"): Predictions(TWO, "accuracy", np.ones(5), [np.zeros((5, 2))]),
    }
    assert differences(said, [("a", "b")]) == []


def digits_recipe(folder: Path) -> dict[str, Any]:
    """Digits, with a teacher that was trained on them."""
    data = {
        "train": str(write_digits(folder / "train.npz", 400)),
        "test": str(write_digits(folder / "test.npz", 200, 400)),
    }
    words = [
        "--train",
        data["train"],
        "--test",
        data["test"],
        "--epochs",
        "6",
        *FAST,
        "--set",
        "batch=32",
        "--set",
        "optimizer.rate=0.01",
    ]
    assert potstill("finetune", "--student", "mlp", *words, "--out", folder / "teacher") == 0
    stage = {"method": {"name": "soft_targets", "temperature": 5.0, "alpha": 1.0}, "epochs": 1, "batch": 32}
    stage["optimizer"] = {"name": "sgd", "rate": 0.1, "weight_decay": 0.0}
    shape = {"build": "mlp", "hidden": [16]}
    found = {"teacher": f"{folder}/teacher/student", "student": shape, "baseline": True, "data": data, "stage": [stage]}
    return {**found, "seeds": 2}


def translators_recipe(folder: Path) -> dict[str, Any]:
    """A translator of two layers, which was trained to end, teaches one of one."""
    save_student(trained_marian(), folder / "teacher")
    data = {"task": "translate"}
    for seed, split in enumerate(("train", "dev", "test")):
        path = folder / f"{split}.jsonl"
        path.write_text("\n".join(map(json.dumps, translations(24, seed))))
        data[split] = str(path)
    stage = {"method": {"name": "hard_labels", "smoothing": 0.1}, "epochs": 1, "batch": 8, "reshape": "keep_layers:1"}
    return {"teacher": f"{folder}/teacher", "student": "keep_layers:1", "data": data, "stage": [stage]}


def test_sequence_kd_learns_words_or_sequences_and_goes_on_from_them(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(tomli_w.dumps(translators_recipe(tmp_path)))
    recipe = resolve(str(tmp_path / "small.toml")).recipe
    runs = plugins.make("studies", "sequence_kd", {"top": 4, "epochs_after": 0.25}).runs(recipe)
    stages = {name: run.stage for name, run in runs.items()}
    assert [len(one) for one in stages.values()] == [1, 1, 1, 2]
    methods = {name: one[0].method for name, one in stages.items()}
    assert {one["smoothing"] for one in methods.values()} == {0.1}
    assert methods["word-kd"]["top"] == 4 and methods["word-kd"]["temperature"] == 1.0
    assert [sum(stage.epochs for stage in one) for one in stages.values()] == [1.0] * 4  # none is taught for longer
    assert stages["seq-inter"][0].model_copy(update={"epochs": 1.0}) == stages["seq-kd"][0]
    with pytest.raises(InputError, match="epochs_after"):
        plugins.make("studies", "sequence_kd", {"epochs_after": 1.0}).runs(recipe)
    made = [[maker["closest"] for maker in one.data] for one in (*stages["word-kd"], *stages["seq-inter"])]
    assert made == [[], [False], [True]]
    assert [len(one.reshape) for one in stages["seq-inter"]] == [1, 0]  # what goes on has its shape
    assert stages["seq-inter"][1].optimizer.rate == 0.5 * stages["seq-kd"][0].optimizer.rate


def test_kd_or_augmentation_carries_gold_labels_to_copies_where_it_asks_for_them(home: Path, tmp_path: Path) -> None:
    stage = {"method": "soft_targets", "data": ["augmented:2"]}
    data = {"train": f"{home}/train.csv"}
    recipe = {"teacher": f"{home}/teacher/student", "student": "keep_layers:2", "data": data, "stage": [stage]}
    (tmp_path / "small.toml").write_text(tomli_w.dumps(recipe))
    study = plugins.make("studies", "kd_or_augmentation", {"further": True})
    runs = study.runs(resolve(str(tmp_path / "small.toml")).recipe)
    copied = {name: run.stage[0].data[0]["labels"] for name, run in runs.items() if run.stage[0].data}
    assert {name for name, labels in copied.items() if labels == "kept"} == {"gold-copies", "half-gold"}
    assert len(copied) == 8 and {labels for labels in copied.values() if labels != "kept"} == {None}


LONG = ("hinton_mnist", "better_teacher", "size_curve", "kd_or_augmentation", "lottery", "tickets", "ticket_transfer")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in plugins.names("studies")]
)
def test_every_study_answers(name: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Small, by its command; the second call reads what the first one ran."""
    fields: dict[str, list[str]] = {
        "size_curve": ["layers=[1, 2]", "tiny=[1, 16]", "rate=0.004"],
        "better_teacher": [
            f'teachers={{first="{home}/teacher/student", second="{home}/encoder"}}',
            f"one={home}/encoder",
            "layers=2",
        ],
        "kd_or_augmentation": [],
        "hinton_mnist": ["rates=[0.05, 0.2, 1e30]", "temperatures=[1, 5]", "epochs=1"],
        "lottery": ["rounds=[1, 2]", "controls=[2]"],
        "tickets": ["removes=0.5", "most=0.5", "again=[0.5]"],
        "ticket_transfer": ["sparsity=0.5", "removes=0.5"],
        "ingredients": ["parts=['temperature', 'answers']"],
        "sequence_kd": ["beam=2", "top=4", "epochs_after=0.5"],
    }
    recipe: dict[str, Any] = {"teacher": f"{home}/teacher/student", "dropout": 0.0, "length": 32, "timing": "none"}
    recipe |= {"baseline": name == "size_curve", "force": True, "seeds": 1}
    recipe["data"] = {split: f"{home}/{split}.csv" for split in ("train", "dev", "test")}
    recipe["stage"] = [{"method": "patient" if name == "better_teacher" else "soft_targets", "epochs": 1, "batch": 16}]
    if name == "kd_or_augmentation":
        recipe["stage"][0]["data"] = [{"make": "augmented", "copies": 2}]
    if name == "sequence_kd":
        recipe |= translators_recipe(tmp_path)
    if name in ("hinton_mnist", "lottery"):
        recipe |= digits_recipe(tmp_path)
        capsys.readouterr()
    if name == "lottery":
        recipe["stage"][0]["reshape"] = [{"build": "ticket"}]
    teacher = recipe.pop("teacher")
    (tmp_path / "small.toml").write_text(tomli_w.dumps(recipe))
    words = ["study", name.replace("_", "-"), tmp_path / "small.toml", "--out", tmp_path / "out", "--quiet"]
    words += ["--teacher", teacher]
    for one in fields[name]:
        words += ["--with", one]
    assert potstill(*words) == 0
    first = capsys.readouterr().out
    page = (tmp_path / "out/study.md").read_text()
    assert page.count("\n| ") >= 3 and page.count("\n- ") >= 2
    assert (tmp_path / "out/study.svg").read_text().startswith("<svg xmlns")
    assert name != "hinton_mnist" or "| errors at rate 1e+30 | diverged | diverged |" in page
    assert potstill(*words) == 0
    assert capsys.readouterr().out == first


@pytest.mark.slow
def test_a_run_is_measured_in_onnx_and_in_eight_bits_too(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    quiet_no_more = [word for word in FAST if word != "--quiet"]
    shape = ["--student", "keep_layers:2", "--method", "patient", "--epochs", "1", "--set", "timing=all"]
    words = ["distill", "--teacher", home / "teacher/student", *files(home), *quiet_no_more, *shape]
    assert potstill(*words, "--out", tmp_path / "run") == 0
    models = measurements(tmp_path / "run")["models"]
    assert list(models) == ["teacher", "teacher int8", "fine-tuned", "distilled", "distilled int8"]
    assert {name: list(model["speed"]) for name, model in models.items()} == {
        "teacher": ["pytorch", "onnx"],
        "teacher int8": ["onnx"],
        "fine-tuned": ["pytorch"],
        "distilled": ["pytorch", "onnx"],
        "distilled int8": ["onnx"],
    }
    assert models["teacher int8"]["quality"]["task"]["test"]["agreement"] > 0.9
    assert models["teacher"]["times_faster"] == 1
    for model in models.values():
        assert sum(model["parts"].values()) == model["parameters"]
    whole, small = (tmp_path / "run/student/model.safetensors", models["distilled"])
    assert small["bytes"] == whole.stat().st_size
    assert measurements(tmp_path / "run")["layer_map"][0]["kept"] == [1, 2]
    kept = list((paths.cache() / "exports").glob("*/whole"))
    assert len(kept) == 1  # the teacher's, for the next run

    monkeypatch.setattr(onnx_forms, "find_spec", lambda name: None)
    capsys.readouterr()
    assert potstill(*words, "--out", tmp_path / "plain") == 0
    assert list(measurements(tmp_path / "plain")["models"]) == ["teacher", "fine-tuned", "distilled"]
    assert "potstill[onnx]" in capsys.readouterr().err
