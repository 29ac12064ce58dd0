"""What a run says of its own learning: the epoch's mean loss, the best epoch, and that nothing was learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from potstill.measuring.measurements import TriedRate
from potstill.recipe.resolve import resolve
from potstill.recipe.schema import Optimizer
from potstill.runs.data_set import DataSet
from potstill.runs.measure import has_learned
from potstill.runs.stages import Trained, still_rising
from potstill.system.display import Display
from potstill.training.logs import EpochLoss, Follower, _rows_until, dev_scores
from potstill.training.loop import Progress, train
from tests.support.training_world import make_world


def test_of_equal_scores_the_later_epoch_is_kept_and_is_no_gain() -> None:
    progress = Progress()
    kept = []
    for step, score in enumerate((0.95, 0.95, 0.94, 0.95, 0.95)):
        progress.step = step + 1
        kept.append(progress.note(score, 4))
    assert kept == [True, True, False, True, True] and progress.best_step == 5
    assert progress.epochs_without_gain == 4 and progress.stopped


class Told(Display):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def say(self, text: str) -> None:
        self.words.append(text)


def test_an_epochs_loss_is_its_mean_also_after_a_stop(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    steps = list(train(world.training("soft_targets", world.remembering(), epochs=2.0, keep="last")))
    second = [step for step in steps if step.epoch == 2]
    mean = np.average([step.loss for step in second], weights=[step.examples for step in second])
    show = Told()
    with Follower(tmp_path / "log", None, "none", show) as follower:
        for step in steps:
            follower.note(step)
    assert show.words[-1] == f"epoch 2: loss {mean:.4f}, dev 0.00" and f"{mean:.4f}" != f"{steps[-1].loss:.4f}"
    losses = EpochLoss([{"epoch": str(step.epoch), "loss": str(step.loss), "examples": "8"} for step in steps[:-2]])
    for step in steps[-2:]:
        losses.add({"epoch": step.epoch, "loss": step.loss, "examples": step.examples})
    assert losses.mean == pytest.approx(mean)
    assert dev_scores(tmp_path / "log") == [0.0, 0.0]


@pytest.mark.parametrize(("says", "expected"), [("the right class", True), ("one class", False), ("anything", False)])
def test_a_student_that_did_not_leave_chance_is_told_so_with_what_to_try(
    tmp_path: Path, says: str, expected: bool
) -> None:
    world = make_world(tmp_path, rows=200)
    data = DataSet("task", world.task, world.examples, world.examples, {}, world.live(), world.teacher, None, 64)
    gold = world.task.golds(world.examples).astype(int)
    random = np.random.default_rng(0).normal(size=(len(gold), 2))
    said = {"the right class": np.eye(2)[gold], "one class": np.tile([[0.0, 1.0]], (len(gold), 1)), "anything": random}
    show = Told()
    recipe = resolve(None, None, ["teacher=t", "data.train=a.csv", "student=bag", "optimizer.rate=5e-5"]).recipe
    assert has_learned(recipe.stage[0], data, "distilled", said[says], show.say) is expected
    advice = (
        "distilled did not learn task: on dev it is no better than chance. Its rate was 5e-05 for 10 epochs; "
        "try --rate 0.0002, then --epochs 20, or give more rows"
    )
    assert show.words == ([] if expected else [advice])


def test_the_rate_and_epochs_that_are_said_are_those_of_the_training() -> None:
    """Not the usual rate, where others were tried; and few rows are read for more epochs than the recipe says."""
    tried = [(5e-5, 62, 0.1), (1e-3, 62, None), (2e-4, 62, 0.2), (5e-5, 125, 0.3), (2e-4, 125, 0.2)]
    rates = tuple(TriedRate(rate=rate, steps=steps, loss=loss) for rate, steps, loss in tried)
    student = Trained({}, (), None, dev=0.5, rows=(320,), rates=rates)  # type: ignore[arg-type]
    (stage,) = resolve(None, None, ["teacher=t", "data.train=a.csv", "student=keep_layers:3"]).recipe.stage
    as_trained = student.as_trained(stage)
    assert (as_trained.optimizer.rate, as_trained.passes) == (2e-4, 150)  # 1,500 steps of 10
    given = stage.model_copy(update={"optimizer": Optimizer(rate=3e-4, rates=[])})
    assert student.as_trained(given).optimizer.rate == 3e-4


def test_a_training_that_ends_while_dev_rises_says_so() -> None:
    assert still_rising([0.1, 0.2, 0.31], 5e-5, 4.0) == (
        "dev was still rising in the last epoch, from 20.0 to 31.0: the student could learn more; "
        "try --epochs 8, or --rate 0.0001"
    )
    assert still_rising([0.1, 0.31, 0.31], 5e-5, 4.0) is None and still_rising([0.5], 5e-5, 4.0) is None


def test_damaged_lines_of_a_log_are_left_out_when_a_run_goes_on(tmp_path: Path) -> None:
    lines = [
        "step,epoch,loss,examples",
        "1,1,0.5,8",
        "2,\x13,0.4,8",
        "3,1,oops,8",
        "4,1,0.3,8,9",
        "5,1,0.2",
        "6,1,0.1,8",
        "7,1,0.1,8",
    ]
    (tmp_path / "steps.csv").write_text("\n".join(lines))
    assert [row["step"] for row in _rows_until(tmp_path / "steps.csv", 6)] == ["1", "6"]
    (tmp_path / "steps.csv").write_bytes(b"\xff\xfe\x00")
    assert _rows_until(tmp_path / "steps.csv", 6) == []
