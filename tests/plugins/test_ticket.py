"""Lottery tickets: counts, rewinding, heads and controls; and what goes wrong in other programs does not go wrong in a run."""

from __future__ import annotations

import copy
import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.data.pixel_reader import PixelReader
from potstill.models.architectures.mlp import MlpConfig
from potstill.models.builder import BuildContext, Student
from potstill.models.compression import masks, tickets
from potstill.models.compression.held import HeldWeights
from potstill.models.student import load_student, new_model, save_student
from potstill.plugins.students.pruned_weights import PrunedWeights
from potstill.plugins.students.ticket import Ticket
from potstill.recipe.resolve import resolve
from potstill.runs import build as build_module
from potstill.runs.distill import distill
from potstill.system.display import Display
from tests.support.commands import potstill
from tests.support.small_models import same_weights, sentences, small_images, small_model, small_teacher, write_csv

HEAD = "classifier."


def moved(student: Student, seed: int = 1) -> Student:
    """As after training: every weight that is not zero is another one."""
    after = copy.deepcopy(student)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in after.model.parameters():
            parameter.mul_(1 + torch.rand(parameter.shape, generator=generator))
    return after


def build(ticket: Ticket, current: Student, start: Student, round_: int) -> Student:
    return ticket.build(current, BuildContext(start, 0, lambda: iter(()), round=round_))


def zeros(student: Student, output: bool = False) -> dict[str, torch.Tensor]:
    return {name: weight.detach() == 0 for name, weight in masks.prunable(student.model, output).items()}


def left(student: Student, output: bool = False) -> float:
    return 1 - masks.share_of_zeros(masks.prunable(student.model, output))


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_each_round_removes_a_share_of_what_remains_and_rewinds_the_rest(scope: Any) -> None:
    start = student = small_model("bert", layers=2)
    ticket, total = Ticket(0.2, scope=scope), sum(w.numel() for w in masks.prunable(start.model).values())
    for round_ in range(1, 5):
        trained = student if round_ == 1 else moved(student, round_)
        before, student = zeros(trained), build(ticket, trained, start, round_)
        after = zeros(student)
        sizes = [after] if scope == "global" else [{name: mask} for name, mask in after.items()]
        for group in sizes:
            remaining = sum(int((~before[name]).sum()) for name in group)
            removed = math.ceil(0.2 * remaining) if round_ > 1 else 0
            assert sum(int((~mask).sum()) for mask in group.values()) == remaining - removed
        for name, weight in student.model.named_parameters():
            kept = ~after[name] if name in after else torch.ones_like(weight, dtype=torch.bool)
            assert torch.equal(weight[kept], start.model.get_parameter(name)[kept]), name
            assert name not in before or bool(after[name][before[name]].all())
        if scope == "global" and round_ > 1:  # the smallest of the trained magnitudes, not of the first ones
            theirs = {name: weight.detach().abs() for name, weight in masks.prunable(trained.model).items()}
            gone = max(float(theirs[name][after[name]].max()) for name in after if after[name].any())
            assert gone <= min(float(theirs[name][~after[name]].min()) for name in after)
    assert left(student) == pytest.approx(0.8**3, abs=10 * len(after) / total)


def test_a_share_of_all_weights_is_what_the_encoder_s_paper_removes() -> None:
    """10, 20, … 90 percent of the weights of all layers and the pooler (Chen et al., 2020)."""
    start = student = small_model("bert", layers=2)
    for round_ in range(1, 11):
        student = build(Ticket(0.1, "all", head="trained"), moved(student, round_), start, round_)
        assert 1 - left(student) == pytest.approx(0.1 * (round_ - 1), abs=1e-3)
    assert not zeros(build(Ticket(1.0, "all"), start, start, 2))["bert.pooler.dense.weight"].logical_not().any()


def test_lenet_has_the_paper_s_shares_of_weights() -> None:
    """P_m of Frankle and Carbin's figure: 20 % of each layer a round, and of the output half of that."""
    config = MlpConfig(hidden_sizes=[300, 100], id2label={n: str(n) for n in range(10)})
    start = student = Student(new_model(config, "ImageClassification", 0), PixelReader((1, 28, 28)))
    found = [100 * left(start, output=True)]
    for round_ in range(2, 20):
        student = build(Ticket(0.2, scope="layer", output=True), moved(student, round_), start, round_)
        found.append(100 * left(student, output=True))
    assert sum(w.numel() for w in masks.prunable(start.model, True).values()) == 266_200
    for round_, share in ((1, 100.0), (4, 51.3), (8, 21.1), (13, 7.0), (16, 3.6), (19, 1.9)):
        assert found[round_ - 1] == pytest.approx(share, abs=0.06)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.floats(0, 1), st.booleans(), st.integers(0, 3))
def test_ties_at_the_threshold_do_not_change_the_count(size: int, share: float, of_remaining: bool, gone: int) -> None:
    """All magnitudes are equal, with both signs."""
    weight = torch.full((2, size), 0.5)
    weight[1] *= -1
    weight[0, :gone] = 0
    remaining = int((weight != 0).sum())
    mask = tickets.pruned_further({"a": weight}, share, of_remaining, False)["a"]
    removed = math.ceil(share * remaining) if of_remaining else min(remaining, round(share * 2 * size))
    assert int(mask.sum()) == remaining - removed and not mask[weight == 0].any()


def test_heads_are_rewound_or_go_on_or_are_new() -> None:
    start = small_model("bert", layers=1)
    trained = moved(start)
    heads = {
        head: build(Ticket(head=head), trained, start, 2).model.classifier.weight
        for head in ("rewound", "trained", "fresh")
    }  # type: ignore[arg-type]
    assert torch.equal(heads["rewound"], start.model.classifier.weight)
    assert torch.equal(heads["trained"], trained.model.classifier.weight)
    for known in (start, trained):
        assert not torch.equal(heads["fresh"], known.model.classifier.weight)
    again = build(Ticket(head="fresh"), trained, start, 2)
    assert torch.equal(heads["fresh"], again.model.classifier.weight)
    # the pooler is pre-trained: it is pruned and rewound with the layers
    pooler, first = (each.model.bert.pooler.dense.weight for each in (again, start))
    assert torch.equal(pooler[pooler != 0], first[pooler != 0]) and (pooler == 0).any()


def test_the_mask_of_another_task_is_put_on_the_first_weights() -> None:
    """After masked words a classifier: its head is of the present task, its encoder has the mask, and the first weights."""
    start, source = small_teacher("mask"), small_model("bert", seed=2)
    with torch.no_grad():
        for name, parameter in source.model.named_parameters():
            if name.startswith("bert.encoder"):
                parameter.copy_(start.model.get_parameter(name))
    source = PrunedWeights(0.6).build(source, BuildContext(source, 0, lambda: iter(())))
    built = build(Ticket(), moved(source), start, 1)
    assert all(torch.equal(mask, zeros(source)[name]) for name, mask in zeros(built).items())
    for name, weight in built.model.named_parameters():
        if name.startswith(("bert.encoder", "bert.embeddings")):
            theirs = start.model.get_parameter(name)
            assert torch.equal(weight[weight != 0], theirs[weight != 0]), name


def test_controls_keep_the_mask_or_the_number_of_weights() -> None:
    start = small_images((24, 16))
    ticket = build(Ticket(0.5), moved(start), start, 2)
    other = build(Ticket(control="random_weights"), moved(ticket), start, 1)
    for name, mask in zeros(ticket).items():
        assert torch.equal(zeros(other)[name], mask)
        weight, first = (each.model.get_parameter(name)[~mask] for each in (other, start))
        assert (weight != first).all()  # also of the seed that the first weights were drawn from
    drawn = build(Ticket(control="random_structure"), moved(ticket), start, 1)
    for name, mask in zeros(ticket).items():
        places = zeros(drawn)[name]
        assert int(places.sum()) == int(mask.sum()) and not torch.equal(places, mask)
        assert torch.equal(drawn.model.get_parameter(name)[~places], start.model.get_parameter(name)[~places])
    assert same_weights(drawn, build(Ticket(control="random_structure"), moved(ticket), start, 1))


def test_zeros_of_a_pruned_output_are_kept_too() -> None:
    start = small_images((24, 16))
    both, inner = (build(Ticket(0.5, output=output), moved(start), start, 2) for output in (True, False))
    assert "0.classifier.weight" in HeldWeights([both.model]).weights
    assert "0.classifier.weight" not in HeldWeights([inner.model]).weights
    assert not zeros(inner, output=True)["classifier.weight"].any()


# in a run

STAGE = """
start = "one"
student = []
timing = "none"
save_every = 3
seeds = 1
force = true
dropout = 0.1
data = { train = "train.csv", dev = "dev.csv", test = "test.csv" }

[[stage]]
method = "hard_labels"
reshape = [{ build = "ticket", removes = 0.4 }]
repeat = 3
epochs = 1
batch = 16
keep = "last"
optimizer = { rate = 1e-3, warmup = 0.5, weight_decay = 0.1, clip = "none" }
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [(text, ("negative", "positive")[label]) for text, label in sentences(120, 0)]
    for name, part in (("train", rows[:80]), ("dev", rows[80:100]), ("test", rows[100:])):
        write_csv(tmp_path / f"{name}.csv", part)
    save_student(small_model("bert", layers=2), tmp_path / "one")
    (tmp_path / "run.toml").write_text(STAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POTSTILL_STAGES_GB", "1")
    return tmp_path


def spy(monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """The weights that each round begins with, and `context.start` of each."""
    begun: list[dict[str, torch.Tensor]] = []
    starts: list[dict[str, torch.Tensor]] = []
    known = Ticket.build

    def watched(self: Ticket, current: Student, context: BuildContext) -> Student:
        built = known(self, current, context)
        begun.append({name: weight.detach().clone() for name, weight in built.model.named_parameters()})
        starts.append({name: w.detach().clone() for name, w in context.start.model.named_parameters()})
        return built

    monkeypatch.setattr(Ticket, "build", watched)
    return begun, starts


def run(out: Path, *sets: str) -> None:
    distill(resolve("run.toml", sets=list(sets)).recipe, out, show=Display(quiet=True))


def column(stage: Path, name: str) -> list[str]:
    with (stage / "steps.csv").open() as file:
        return [row[name] for row in csv.DictReader(file)]


def test_rounds_of_a_run_begin_from_the_first_weights_and_no_step_moves_what_is_pruned(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever rewinds to a state_dict that was not copied rewinds to the trained weights; whoever keeps Adam's momentum, or
    decays weights, moves pruned ones."""
    begun, starts = spy(monkeypatch)
    run(home / "run")
    assert len(begun) == 3 and len(column(home / "run/stages/2", "step")) == 5
    first = begun[0]
    for number, (weights, start) in enumerate(zip(begun, starts, strict=True)):
        for name, weight in weights.items():
            assert torch.equal(start[name], first[name]), name
            assert torch.equal(weight[weight != 0], first[name][weight != 0])
        pruned = {name: weight for name, weight in weights.items() if "encoder" in name and weight.ndim == 2}
        assert masks.share_of_zeros(pruned) == pytest.approx(1 - 0.6**number, abs=0.05)
    student = load_student(home / "run/student").model
    for name, weight in masks.prunable(student).items():
        assert torch.equal(weight == 0, begun[2][name] == 0)
        assert (weight != begun[2][name])[begun[2][name] != 0].float().mean() > 0.9


def test_every_round_has_a_new_optimizer_and_the_whole_schedule_of_the_rate(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one step of a new Adam, no weight has moved by more than the rate; with the momentum of an earlier round, most have
    moved in another direction or by another size."""
    begun, _ = spy(monkeypatch)
    run(home / "run")
    rates = [column(home / f"run/stages/{number}", "rate") for number in range(3)]
    assert rates[0] == rates[1] == rates[2] and len(set(rates[0])) > 2
    begun.clear()
    quick = ["stage.epochs=0.2", "stage.optimizer.warmup=0", "stage.optimizer.decay=constant", "baseline=false"]
    run(home / "quick", *quick, "stage.optimizer.weight_decay=0", "stage.repeat=2")
    student = dict(load_student(home / "quick/student").model.named_parameters())
    name = "bert.encoder.layer.0.output.dense.weight"
    change = (student[name].detach() - begun[1][name])[begun[1][name] != 0].abs()
    assert len(column(home / "quick/stages/1", "rate")) == 1
    assert float(change.max()) <= 1.001e-3 and float((change > 0.9e-3).float().mean()) > 0.9


def test_a_later_stage_trains_controls_from_the_step_that_was_rewound_to(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, starts = spy(monkeypatch)
    stages = (home / "run.toml").read_text() + "rewind = 2\n"
    control = (
        STAGE.partition("[[stage]]")[2]
        .replace("repeat = 3", "rewind = 2")
        .replace("removes = 0.4", 'control = "random_structure"')
    )
    (home / "run.toml").write_text(f"{stages}\n[[stage]]{control}")
    run(home / "run")
    same = [all(torch.equal(start[name], starts[1][name]) for name in start) for start in starts]
    assert same == [False, True, True, True]


def test_a_ticket_that_was_found_without_rewinding_serves_no_stage_that_rewinds(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of a single round has no weights of an early step."""
    run(home / "single", "stage.repeat=1", "stage.rewind=2", "baseline=false")
    run(home / "rounds", "stage.repeat=2", "stage.rewind=2", "baseline=false")
    with monkeypatch.context() as alone:
        alone.setenv("POTSTILL_STAGES_GB", "0")
        run(home / "alone", "stage.repeat=2", "stage.rewind=2", "baseline=false")
    assert same_weights(load_student(home / "rounds/student"), load_student(home / "alone/student"))


def test_rounds_are_trained_once_however_many_runs_go_through_them(home: Path) -> None:
    said: list[str] = []

    class Told(Display):
        def say(self, text: str) -> None:
            said.append(text)

    run(home / "two", "stage.repeat=2", "baseline=false")
    distill(resolve("run.toml", sets=["baseline=false"]).recipe, home / "three", show=Told(quiet=True))
    assert [words for words in said if "trained before" in words] == [
        f"stage 0, round {number} of 3 was trained before; its result is used" for number in (1, 2)
    ]


@pytest.mark.parametrize(("head", "scaled"), [("rewound", 1), ("trained", 1), ("fresh", 4)])
def test_only_new_heads_of_a_regression_get_the_scale_of_the_labels(
    head: str, scaled: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that is rewound has it already: it would be multiplied by the deviation of the labels in every round."""
    for name in ("train", "dev", "test"):
        rows = [(text, f"{100 + 7 * label}.5") for text, label in sentences(40, len(name))]
        write_csv(home / f"{name}.csv", rows)
    times: list[str] = []
    known = build_module.scale_new_head

    def counted(model: Any, data: Any) -> None:
        times.append(data.name)
        known(model, data)

    monkeypatch.setattr(build_module, "scale_new_head", counted)
    run(home / "run", "data.task=regress", f"stage.reshape.0.head={head}", "baseline=false")
    assert len(times) == scaled


def test_an_image_ticket_is_found_and_used_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = small_images((24, 16))
    student = build(Ticket(0.5, output=True), moved(start), start, 2)
    save_student(student, tmp_path / "ticket")
    again = load_student(tmp_path / "ticket")
    assert (
        same_weights(again, student)
        and HeldWeights([again.model]).weights.keys() == HeldWeights([student.model]).weights.keys()
    )
    assert potstill("export", tmp_path / "ticket", "--to", "huffman", "--out", tmp_path / "coded") == 0
    assert same_weights(load_student(tmp_path / "coded"), again)


def test_round_one_removes_nothing_but_keeps_what_was_removed_before() -> None:
    start = small_model("bert", layers=1)
    pruned = PrunedWeights(0.3).build(start, BuildContext(start, 0, lambda: iter(())))
    assert left(build(Ticket(0.9), start, start, 1)) == 1.0
    assert left(build(Ticket(0.9), pruned, start, 1)) == left(pruned)
