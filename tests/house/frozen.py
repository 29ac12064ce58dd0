"""What a rebuilding must not change, written down: python tests/house/frozen.py INPUTS OUT.json | --words frozen.json

Words: public names, commands with their options, what can be named in recipes, tasks. A page: its bytes, of a made-up run. Runs: one tiny
distillation for each task; losses, gradient norms, quality, keys of measurements.json, and hashes of the weights.
INPUTS holds the teachers and rows; they are made where there are none. Run before
and after with the same INPUTS on one machine, both files are the same, byte for byte.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
SPLITS = ("train", "dev", "test")
TASKS = ("classify", "tag", "answer", "choose", "translate", "write", "regress")
FAST = ["--set", "optimizer.rate=0.003", "--set", "batch=8", "--length", "32", "--quiet", "--set", "timing=none"]
FAST += ["--epochs", "2", "--force", "--set", "precision=float32"]


def words() -> dict[str, Any]:
    from typer.main import get_command

    import potstill
    from potstill.app.cli import app
    from potstill.recipe import plugins
    from potstill.recipe.resolve import shipped
    from potstill.recipe.schema import Data, Optimizer, Recipe, Stage

    group: Any = get_command(app)
    commands = {
        name: sorted(
            word for option in command.params for word in option.opts if word.startswith("-") or word == option.name
        )
        for name, command in group.commands.items()
    }
    kinds: tuple[plugins.Kind, ...] = ("methods", "students", "data", "exports", "studies")
    fields = {one.__name__: sorted(one.model_fields) for one in (Recipe, Data, Stage, Optimizer)}
    named = {kind: {name: sorted(plugins.annotations_of(kind, name)) for name in plugins.names(kind)} for kind in kinds}
    task = str(Data.model_fields["task"].annotation)
    return {
        "public names": sorted(potstill.__all__),
        "commands": commands,
        "recipe": fields,
        "plug-ins": named,
        "recipes": shipped(),
        "tasks": sorted(word.strip("' ") for word in task[task.index("[") + 1 : task.index("]")].split(",")),
    }


def page(folder: Path) -> dict[str, str]:
    """Hashes of all its bytes, and of those outside figures, whose coordinates another processor may round otherwise."""
    from potstill.reporting.page import write_report
    from tests.support.run_folders import measurements, write_run

    made = write_report([write_run(folder / "run", measurements(seeds=3))], folder / "page.html")
    whole = made.read_bytes()
    text = re.sub(rb"<svg.*?</svg>", b"", whole, flags=re.DOTALL)
    return {"bytes": hashlib.sha256(whole).hexdigest(), "text": hashlib.sha256(text).hexdigest()}


def make_inputs(task: str, home: Path) -> None:
    from potstill.models.student import save_student
    from tests.support.small_models import sentences, small_model, small_teacher, write_csv, write_task

    home.mkdir(parents=True)
    for split, count, seed in zip(SPLITS, (48, 24, 24), (1, 2, 3), strict=True):
        if task == "regress":
            scored = [(text, label + len(text.split()) / 10) for text, label in sentences(count, seed)]
            write_csv(home / f"{split}.csv", scored, ("text", "score"))
        else:
            write_task(home / split, task, count, seed)
    teacher = small_model("bert", labels=("value",)) if task == "regress" else small_teacher(task)
    if task == "regress":
        teacher.model.config.problem_type = "regression"
    save_student(teacher, home / "teacher")


def run(task: str, home: Path, out: Path) -> dict[str, Any]:
    from tests.support.commands import potstill

    if not home.exists():
        make_inputs(task, home)
    files = [word for split in SPLITS for word in (f"--{split}", next(home.glob(f"{split}.*")))]
    method = "soft_targets" if task in ("translate", "write") else "patient"
    told = ["--task", task] if task in ("translate", "write") else []
    given = ["distill", "--teacher", home / "teacher", *files, "--student", "keep_layers:2", "--method", method, *told]
    assert potstill(*given, *FAST, "--out", out) == 0
    with (out / "stages/0/steps.csv").open() as log:
        steps = list(csv.DictReader(log))
    found = json.loads((out / "measurements.json").read_text())
    return {
        "loss": [float(step["loss"]) for step in steps],
        "gradient_norm": [float(step["gradient_norm"]) for step in steps],
        "quality": {name: model["quality"] for name, model in found["models"].items()},
        "keys": sorted(set(keys(found))),
        "weights": {
            name: hashlib.sha256((out / name / "model.safetensors").read_bytes()).hexdigest()
            for name in ("student", "baseline")
        },
    }


def keys(value: Any, path: str = "") -> list[str]:
    """Paths to all plain values; of a list of tables, those of the first."""
    if isinstance(value, dict):
        return [inner for key, below in value.items() for inner in keys(below, f"{path}.{key}")]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return keys(value[0], f"{path}[]")
    return [path]


if __name__ == "__main__":
    import os
    import tempfile

    inputs, target = map(Path, sys.argv[1:])
    only_words = inputs == Path("--words")  # what stands in the repository: no numbers, which differ between processors
    with tempfile.TemporaryDirectory() as place:
        os.environ["POTSTILL_CACHE"] = f"{place}/cache"
        teachers = Path(place) / "inputs" if only_words else inputs
        runs = {task: run(task, teachers / task, Path(place) / task) for task in TASKS}
        found = {"words": words(), "page": page(Path(place)), "keys": {task: one["keys"] for task, one in runs.items()}}
        if only_words:
            del found["page"]["bytes"]
        else:
            found["runs"] = runs
    target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
