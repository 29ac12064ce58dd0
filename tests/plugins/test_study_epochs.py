"""The runs of a study are read for the epochs that it says, however few rows there are."""

from __future__ import annotations

from potstill.plugins.studies.hinton_mnist import HintonMnist
from potstill.plugins.studies.sequence_kd import SequenceKd
from potstill.recipe.resolve import resolve

SETS = ["teacher=t", "data.train=a.csv"]


def test_seq_inter_divides_the_epochs_of_the_other_runs() -> None:
    """A least number of steps would lengthen the others alone."""
    recipe = resolve(None, None, [*SETS, "student=marian:2+2x32", "data.task=translate"]).recipe
    assert recipe.stage[0].min_steps == 3000
    runs = SequenceKd().runs(recipe)
    read = {name: sum(stage.epochs_over(100) for stage in run.stage) for name, run in runs.items()}
    assert set(read) == {"no-kd", "word-kd", "seq-kd", "seq-inter"} and set(read.values()) == {10.0}


def test_rates_are_compared_after_the_epochs_of_the_study() -> None:
    recipe = resolve(None, None, [*SETS, "student=mlp", "method=soft_targets"]).recipe
    runs = HintonMnist(epochs=3.0).runs(recipe)
    compared = [run.stage[0].epochs_over(100) for name, run in runs.items() if name.startswith(("soft-", "hard-"))]
    assert compared and set(compared) == {3.0}
