"""A task is its file and its words; everything else follows from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from potstill.models.heads import DESCRIPTIONS, auto_class, head_of_class
from potstill.recipe.schema import TASK_HELP, Data
from potstill.recipe.task_words import IMAGES, TASK_WORDS, words_of_run
from potstill.tasks.registry import EVERY, TASKS

TASKS_ROOM = Path(__file__).parents[2] / "src/potstill/tasks"


@pytest.mark.parametrize("name", TASK_WORDS)
def test_a_task_has_the_name_of_its_file_and_follows_its_words(name: str) -> None:
    task, words = TASKS[name], TASK_WORDS[name]
    assert task.__module__ == f"potstill.tasks.{name}" and (TASKS_ROOM / f"{name}.py").exists()
    assert (task.form, task.head, task.names_outputs, task.vocabulary) == (
        words.form,
        words.head,
        words.named_outputs,
        words.vocabulary,
    )
    assert DESCRIPTIONS[task.head] == words.model and auto_class(task.head) is not None
    assert words_of_run([name], [words.form]) == words and name in TASK_HELP


def test_recipes_take_the_words_and_no_others() -> None:
    (literal, _) = get_args(Data.model_fields["task"].annotation)
    assert get_args(literal) == tuple(TASK_WORDS) == tuple(TASKS)
    assert [task for task in EVERY if task not in TASKS.values() and task.words is not IMAGES] == []


@pytest.mark.parametrize(
    ("architecture", "head"),
    [
        ("BertForMaskedLM", "MaskedLM"),
        ("RobertaForMaskedLM", "MaskedLM"),
        ("MarianMTModel", "Seq2SeqLM"),
        ("GPT2LMHeadModel", "CausalLM"),
        ("BertForSequenceClassification", "SequenceClassification"),
        ("BertModel", None),
    ],
)
def test_a_model_says_its_head(architecture: str, head: str | None) -> None:
    assert head_of_class(architecture) == head


def test_checking_a_recipe_loads_no_task() -> None:
    code = "import sys, potstill.recipe.schema; print(*(name for name in sys.modules if name in ('torch', 'numpy') "
    code += "or name.startswith(('potstill.tasks', 'potstill.data'))))"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == []
