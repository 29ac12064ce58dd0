"""Stages with rows, tasks, teachers and trained parts of their own: stopped and resumed to the same bits, their results shared."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from potstill.data.rows import Table
from potstill.errors import InputError
from potstill.inference.predict import predict
from potstill.models.compression.masks import prunable, share_of_zeros
from potstill.models.student import load_student, save_student
from potstill.plugins.students.keep_layers import KeepLayers
from potstill.recipe.resolve import resolve
from potstill.runs import stage_cache
from potstill.runs.distill import distill
from potstill.runs.stage_cache import StageCache, size_of
from potstill.system.display import Display
from potstill.training.logs import Follower
from potstill.training.loop import Step
from tests.support.commands import command, potstill
from tests.support.faults import flip
from tests.support.small_models import sentences, small_model, small_teacher, write_csv

REWOUND = '''"""Zero the smallest weights of the student, more in every round; the others get the values of the start."""
import copy
from dataclasses import dataclass
from potstill.api import Builder, torch

@dataclass(frozen=True)
class Rewound(Builder):
    share: float = 0.2

    def build(self, current, context):
        model, now = copy.deepcopy(context.start.model), dict(current.model.named_parameters())
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 2 and weight.numel() < 100_000:
                    small = now[name].abs() < now[name].abs().quantile(self.share * (context.round - 1))
                    weight.masked_fill_(small, 0.0)
        return type(current)(model, current.tokenizer)
'''
HEADER = """force = true
timing = "none"
save_every = 1
dropout = 0.1
"""
REVIEWS = """
[[data]]
name = "reviews"
train = "train.csv"
dev = "dev.csv"
test = "test.csv"
"""
STAGE = '\n[[stage]]\nmethod = "{}"\nbatch = 16\noptimizer.rate = 1e-3\nepochs = {}\n{}'
TEXT = '\n[[data]]\nname = "text"\ntrain = "text.txt"\ntask = "write"\n'
RECIPES = {
    "tasks": 'start = "writer"\n'
    + HEADER
    + TEXT
    + REVIEWS
    + STAGE.format("hard_labels", 2, 'on = ["text"]')
    + STAGE.format("hard_labels", 2, 'on = ["reviews"]\ntask = "classify"'),
    "teachers": 'student = "keep_layers:2"\nbaseline = false\n'
    + HEADER
    + REVIEWS
    + STAGE.format("patient", 2, 'teacher = "one"')
    + STAGE.format("soft_targets", 1, 'teacher = "two"'),
    "layers": 'student = "keep_layers:2"\nteacher = "one"\nbaseline = false\n'
    + HEADER
    + REVIEWS
    + STAGE.format("soft_targets", 1, 'trains = ["round"]\nrepeat = 2')
    + STAGE.format("soft_targets", 1, 'trains = "head"'),
    "rounds": 'student = "keep_layers:2"\nteacher = "one"\nbaseline = false\n'
    + HEADER
    + REVIEWS
    + STAGE.format("soft_targets", 1, 'reshape = "rewound"\nrepeat = 3\nrewind = 2'),
    "smaller": 'student = "keep_layers:2"\nteacher = "one"\nbaseline = false\n'
    + HEADER
    + REVIEWS
    + STAGE.format("soft_targets", 1, 'reshape = [{ build = "pruned_weights", sparsity = [0.3, 0.6] }]\nrepeat = 2')
    + STAGE.format("soft_targets", 1, 'reshape = [{ build = "clustered", values = 8, embeddings = 16 }]'),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    rows = [(text, ("negative", "positive")[label]) for text, label in sentences(150, 0)]
    for name, part in (("train", rows[:90]), ("dev", rows[90:120]), ("test", rows[120:])):
        write_csv(home / f"{name}.csv", part)
    (home / "text.txt").write_text("".join(f"{text}\n" for text, _ in sentences(60, 7)))
    save_student(small_teacher("write"), home / "writer")
    save_student(small_model("bert"), home / "one")
    save_student(small_model("bert", layers=3, seed=3), home / "two")
    (home / "plugins/students").mkdir(parents=True)
    (home / "plugins/students/rewound.py").write_text(REWOUND)
    for name, text in RECIPES.items():
        (home / f"{name}.toml").write_text(text)
    return home


@pytest.fixture(autouse=True)
def inside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("POTSTILL_PLUGINS", str(home / "plugins"))


class Told(Display):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.words: list[str] = []

    def say(self, text: str) -> None:
        self.words.append(text)


class Stopped(Exception):
    pass


def train(name: str, out: Path) -> list[str]:
    told = Told()
    distill(resolve(f"{name}.toml").recipe, out, show=told)
    return told.words


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "student/model.safetensors")


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def steps(run: Path) -> list[dict[str, str]]:
    every: list[dict[str, str]] = []
    for stage in sorted((run / "stages").iterdir(), key=lambda folder: int(folder.name)):
        with (stage / "steps.csv").open() as file:
            every += [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]
    return every


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of steps after which a run ends as if it had been killed, from the last to the first."""
    after: list[int] = []
    note, taken = Follower.note, [0]

    def counted(self: Follower, step: Step) -> None:
        note(self, step)
        taken[0] += bool(after)
        if after and taken[0] >= after[-1]:
            taken[0] = 0
            after.pop()
            raise Stopped

    monkeypatch.setattr(Follower, "note", counted)
    yield after


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_of_several_stages_resumes_to_the_same_bits(name: str, tmp_path: Path, stops: list[int]) -> None:
    train(name, tmp_path / "whole")
    total = len(steps(tmp_path / "whole"))
    draw = random.Random(name)
    stops += [draw.randint(1, total // 2) for _ in range(3)]
    while stops:
        with pytest.raises(Stopped):
            train(name, tmp_path / "run")
    train(name, tmp_path / "run")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert steps(tmp_path / "run") == steps(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_of_several_stages_is_killed_at_random_and_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    train(name, tmp_path / "whole")
    draw, words = random.Random(name), ["distill", f"{name}.toml", "--out", tmp_path / "run"]
    killed = 0
    for _ in range(6):
        with command(*words) as running:
            time.sleep(3 + 6 * draw.random())
            running.send_signal(signal.SIGKILL)
            running.communicate()
            killed += running.returncode == -signal.SIGKILL
    with command(*words) as running:
        _, told = running.communicate()
    assert running.returncode == 0, told
    assert killed >= 3 and same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_train_several_stages_as_one_process(name: str, tmp_path: Path) -> None:
    train(name, tmp_path / "one")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "potstill"]
    words = ["distill", f"{name}.toml", "--out", str(tmp_path / "two")]
    ended = subprocess.run([*launch, *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    ours, theirs = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) <= 1e-6


def test_pruned_and_clustered_it_is_so_at_the_end_and_its_codes_answer_the_same(tmp_path: Path) -> None:
    train("smaller", tmp_path / "run")
    student = load_student(tmp_path / "run/student")
    for weight in prunable(student.model).values():
        assert len(weight[weight != 0].unique()) <= 8
    assert share_of_zeros(prunable(student.model)) == pytest.approx(0.6, abs=1e-4)
    assert potstill("export", tmp_path / "run/student", "--to", "huffman", "--out", tmp_path / "coded") == 0
    plain, coded = (
        list(predict(place, ["a good film", "bad"])) for place in (tmp_path / "run/student", tmp_path / "coded")
    )
    assert plain == coded


def test_only_the_chosen_parts_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1 trains layer 1, round 2 layer 2, and the last stage the head."""
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    train("layers", tmp_path / "run")
    after = [result(tmp_path / "run", number) for number in range(3)]
    start = {f"{name}": tensor for name, tensor in small_model("bert").model.state_dict().items()}
    changed = [
        {name for name in ours if name in before and not torch.equal(ours[name], before[name])}
        for before, ours in zip([start, *after], after, strict=False)
    ]
    assert changed[0] and all("encoder.layer.0." in name for name in changed[0])
    assert changed[1] and all("encoder.layer.1." in name for name in changed[1])
    assert changed[2] and all(name.startswith(("classifier.", "bert.pooler.")) for name in changed[2])


def result(run: Path, stage: int) -> dict[str, torch.Tensor]:
    key = json.loads((run / f"stages/{stage}/result.json").read_text())["key"]
    found = StageCache().find(key)
    assert found is not None
    return found.tensors("0")


def test_rounds_rewind_to_the_weights_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]
) -> None:
    """After two steps of the first round, the second begins from exactly these, but for the smallest."""
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    train("rounds", tmp_path / "run")
    key = json.loads((tmp_path / "run/stages/0/result.json").read_text())["key"]
    found = StageCache().find(key)
    assert found is not None
    rewound, end = found.tensors("rewind-0"), found.tensors("0")
    assert any(not torch.equal(rewound[name], end[name]) for name in end)
    stops.append(2)
    with pytest.raises(Stopped):  # the same recipe, stopped at that step
        monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "other"))
        train("rounds", tmp_path / "stopped")
    at_two = load_file(tmp_path / "stopped/stages/0/rewind/step-00000002/weights.safetensors")
    assert all(torch.equal(at_two[f"0.{name}"], rewound[name]) for name in rewound if f"0.{name}" in at_two)
    with pytest.raises(InputError, match="rewind = 99: the stage has 6 steps; write a smaller number"):
        distill(resolve("rounds.toml", sets=["stage.rewind=99"]).recipe, tmp_path / "long")


def test_runs_that_begin_alike_train_their_first_stage_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    first = train("teachers", tmp_path / "first")
    assert not any("was trained before" in words for words in first)
    told = Told()
    changed = resolve("teachers.toml", sets=["stage.1.method.temperature=2.0"]).recipe
    distill(changed, tmp_path / "second", show=told)
    assert [words for words in told.words if "trained before" in words] == [
        "stage 0 was trained before; its result is used"
    ]
    assert (tmp_path / "second/stages/0/steps.csv").read_text() == (tmp_path / "first/stages/0/steps.csv").read_text()
    monkeypatch.setenv("POTSTILL_STAGES_GB", "0")
    distill(changed, tmp_path / "alone")
    assert same(weights(tmp_path / "second"), weights(tmp_path / "alone"))


def test_a_damaged_result_is_noticed_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    train("teachers", tmp_path / "first")
    for file in sorted((tmp_path / "cache/stages").glob("*/step-*/0.safetensors")):
        flip(file, 8 * (file.stat().st_size - 5))
    told = train("teachers", tmp_path / "second")
    assert not any("was trained before" in words for words in told)
    assert same(weights(tmp_path / "second"), weights(tmp_path / "first"))
    assert any("was trained before" in words for words in train("teachers", tmp_path / "third"))


def test_results_that_were_not_used_for_longest_are_removed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    cache = StageCache()
    with cache.held("x", print):
        cache.store("x", {"0": {"weight": torch.zeros(100)}}, {"dev": 0.0, "rows": 1}, tmp_path)
    monkeypatch.setenv("POTSTILL_STAGES_GB", str(2.5e-9 * size_of(cache.root / "x")))  # two of them fit
    for number, key in enumerate("abc"):
        with cache.held(key, print):
            cache.store(key, {"0": {"weight": torch.zeros(100)}}, {"dev": 0.0, "rows": 1}, tmp_path)
        time.sleep(0.02)
        if number == 1:
            assert cache.find("a") is not None  # "b" is now the one that was not used for longest
        time.sleep(0.02)
    assert [cache.find(key) is not None for key in "xabc"] == [False, True, False, True]


def test_seeds_and_methods_ask_the_teacher_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from potstill.training.teacher.teacher import Teacher

    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    asked: list[int] = []
    remember = Teacher.remember

    def counted(self: Teacher, *arguments: Any, **named: Any) -> int:
        asked.append(remember(self, *arguments, **named))
        return asked[-1]

    monkeypatch.setattr(Teacher, "remember", counted)
    for method in ("soft_targets", "logit_regression"):
        sets = [f"stage.method={method}", "seeds=5", "stage.trains=all", "stage.repeat=1", "stage.epochs=1"]
        recipe = resolve("rounds.toml", sets=[*sets, "stage.reshape=[]", "stage.rewind=none"]).recipe
        distill(recipe, tmp_path / method)
    assert sum(asked) == 150  # each row of train, dev and test


def test_a_named_cell_is_trained_alone_and_the_rest_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.support.commands import potstill

    words = ["distill", "layers.toml", "--seeds", "2", "--set", 'grid={"stage.0.optimizer.rate" = [1e-3, 2e-3]}']
    assert potstill("cells", *words[1:]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert [name.rpartition("-")[0] for name in names] == [
        f"seed-{s}/grid/{n}" for s in (0, 1) for n in ("0000", "0001")
    ]
    assert potstill(*words, "--out", tmp_path / "run", "--cell", names[2]) == 0
    assert not (tmp_path / "run/measurements.json").exists() and not (tmp_path / "run/seed-0/grid").exists()
    note = tmp_path / "run" / names[2] / "cell.json"
    before = note.stat().st_mtime_ns
    assert potstill(*words, "--out", tmp_path / "run", "--cell", "seed-7") == 2
    assert "the recipe has no cell 'seed-7'" in capsys.readouterr().err
    assert potstill(*words, "--out", tmp_path / "run", "--quiet") == 0
    assert note.stat().st_mtime_ns == before and (tmp_path / "run/measurements.json").exists()
    whole = tmp_path / "whole"
    assert potstill(*words, "--out", whole, "--quiet") == 0
    assert same(weights(tmp_path / "run"), weights(whole))


@pytest.mark.slow
def test_two_processes_share_the_seeds_of_a_run(tmp_path: Path) -> None:
    words = ["distill", "teachers.toml", "--seeds", "4", "--out", tmp_path / "run"]
    with command(*words) as first, command(*words) as second:
        said = [running.communicate()[1] for running in (first, second)]
    assert first.returncode == 0 and second.returncode == 0, said
    trained = [sum(f"seed {seed}, " in text for text in said) for seed in range(4)]
    assert trained == [1, 1, 1, 1]
    train_all = resolve("teachers.toml", sets=["seeds=4"]).recipe
    distill(train_all, tmp_path / "alone")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "alone"))


def test_wrong_stages_are_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(
        Exception, match=r"stage.0 names a data set 'reviwes', which does not exist; write one of reviews"
    ):
        resolve("layers.toml", sets=['stage.0.on=["reviwes"]'])
    with pytest.raises(InputError, match="trains names layer 9, but the student has 2; write numbers from 1 to 2"):
        distill(resolve("layers.toml", sets=["stage.0.trains=[9]"]).recipe, tmp_path / "nine")
    with pytest.raises(InputError, match="trains names 'middle', but no parameter of the student lies there"):
        distill(resolve("layers.toml", sets=['stage.0.trains=["middle"]']).recipe, tmp_path / "middle")


def test_a_run_builds_its_student_once_and_reads_its_rows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a baseline, which is the same student before its first stage."""
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    read: list[str] = []
    built: list[str] = []
    rows, build = Table._rows, KeepLayers.build

    def counted_rows(self: Table) -> Iterator[Any]:
        read.append(self.source)
        return rows(self)

    def counted_build(self: KeepLayers, *arguments: Any) -> Any:
        built.append("keep_layers")
        return build(self, *arguments)

    monkeypatch.setattr(Table, "_rows", counted_rows)
    monkeypatch.setattr(KeepLayers, "build", counted_build)
    recipe = resolve("layers.toml", sets=["baseline=true"]).recipe
    distill(recipe, tmp_path / "run")
    assert (tmp_path / "run/baseline/model.safetensors").exists()
    assert built == ["keep_layers"] and sorted(read) == ["dev.csv", "test.csv", "train.csv"]


def test_a_stage_with_other_masks_or_another_positive_class_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and labels are the same, and what is predicted or chosen by is not."""
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    save_student(small_model("bert", head="MaskedLM"), tmp_path / "masked")
    plain = ["method=hard_labels", "epochs=1", "optimizer.rate=1e-3", "batch=16", "timing=none", "precision=float32"]
    text = [f"start={tmp_path}/masked", "data.train=text.txt", "data.task=mask", *plain]
    rows = ["start=one", "data.train=train.csv", "data.dev=dev.csv", "metric=f1", *plain]

    def is_reused(*sets: str) -> bool:
        told = Told()
        distill(resolve(None, None, sets).recipe, tmp_path / str(len(list(tmp_path.iterdir()))), show=told)
        return any("was trained before" in words for words in told.words)

    assert not is_reused(*text) and is_reused(*text)
    assert not is_reused(*text, "data.whole_words=true")
    assert not is_reused(*text, "data.masks=1")
    assert not is_reused(*rows, "data.positive=positive") and is_reused(*rows, "data.positive=positive")
    assert not is_reused(*rows, "data.positive=negative")


def test_what_decides_which_rate_is_taken_is_part_of_the_code_that_decides_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "potstill"
    for file in ("measuring/calibration.py", "training/loop.py", "reporting/card.py"):
        (package / file).parent.mkdir(parents=True)
        (package / file).write_text("")
    monkeypatch.setattr(stage_cache.potstill, "__file__", str(package / "__init__.py"))
    digests = [stage_cache.code_digest.__wrapped__()]
    for file in ("measuring/calibration.py", "training/loop.py", "reporting/card.py"):
        (package / file).write_text("changed")
        digests.append(stage_cache.code_digest.__wrapped__())
    assert len(set(digests)) == 3 and digests[2] == digests[3]
