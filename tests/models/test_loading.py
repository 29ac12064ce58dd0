"""Every command that takes a model, over folders that a stranger made: nothing runs, nobody is asked, exit 2, and what to do."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import potstill as package
from potstill.models.student import save_student
from tests.support.commands import potstill
from tests.support.faults import peak_memory
from tests.support.small_models import sentences, small_model, small_translator, write_csv
from tests.training.test_checkpoints import Payload

SOURCES = Path(package.__file__).parent
DOOR = {"models/loading.py", "models/student.py"}  # the second reads weights of folders that the first has let in


def test_configs_tokenizers_and_weights_are_loaded_at_one_place() -> None:
    """Each other way in would need the checks again, and one of them had forgotten them."""
    found = {}
    for file in sorted(SOURCES.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        names = {node.func.attr for node in calls if isinstance(node.func, ast.Attribute)}
        if names & {"from_pretrained", "snapshot_download", "pipeline"}:
            found[file.relative_to(SOURCES).as_posix()] = names
    assert found.keys() <= DOOR


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("made")
    save_student(small_model("bert", layers=1), home / "classifier")
    save_student(small_translator(1), home / "translator")
    write_csv(home / "rows.csv", sentences(8, seed=1))
    return home


COMMANDS: dict[str, list[str]] = {
    "predict": ["predict", "MODEL", "ROWS"],
    "predict lines": ["predict", "MODEL"],
    "translate": ["translate", "MODEL"],
    "measure": ["measure", "MODEL", "--data", "ROWS"],
    "measure, second": ["measure", "GOOD", "MODEL", "--data", "ROWS"],
    "export": ["export", "MODEL", "--to", "onnx", "--out", "OUT"],
    "finetune": ["finetune", "MODEL", "--train", "ROWS", "--dev", "ROWS", "--out", "OUT"],
    "teacher": ["distill", "--teacher", "MODEL", "--train", "ROWS", "--dev", "ROWS", "--out", "OUT"],
    "start": ["distill", "--teacher", "GOOD", "--start", "MODEL", "--train", "ROWS", "--dev", "ROWS", "--out", "OUT"],
    "plan": ["plan", "--teacher", "MODEL", "--train", "ROWS", "--dev", "ROWS", "--out", "OUT"],
    "study": ["study", "size-curve", "--teacher", "MODEL", "--train", "ROWS", "--dev", "ROWS", "--out", "OUT"],
    "recipe": ["distill", "RECIPE", "--out", "OUT"],
}
TOKENIZER = [
    "train",
    "--shape",
    "marian:1+1x16",
    "--set",
    "student.tokenizer=MODEL",
    "--train",
    "ROWS",
    "--dev",
    "ROWS",
]
TOKENIZER += ["--text", "text", "--pair", "label", "--task", "translate", "--out", "OUT"]


@pytest.fixture
def eager_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Someone who says yes to every question; called, what has not been asked for."""
    reading, writing = os.pipe()
    os.write(writing, b"yes\n" * 100)
    os.close(writing)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield stdin.read


def refused_by_all(model: str | Path, home: Path, tmp_path: Path, capsys: Any, names: Any = COMMANDS) -> set[str]:
    """Every command says no; returns the words of the refusals."""
    recipe = tmp_path / "theirs.toml"
    files = {"train": str(home / "rows.csv"), "dev": str(home / "rows.csv")}
    recipe.write_text(
        f"teacher = {json.dumps(str(model))}\n[data]\n" + "".join(f'{k} = "{v}"\n' for k, v in files.items())
    )
    stand_for = {"MODEL": str(model), "GOOD": str(home / "classifier"), "ROWS": str(home / "rows.csv")}
    stand_for |= {"OUT": str(tmp_path / "out"), "RECIPE": str(recipe)}
    said = set()
    for name, words in {**COMMANDS, "tokenizer": TOKENIZER}.items():
        if name not in names:
            continue
        given = [stand_for.get(word, word.replace("MODEL", str(model))) for word in words]
        code = potstill(*given)
        told = capsys.readouterr()
        assert code == 2, (name, code, told.err)
        last = told.err.strip().splitlines()[-1]
        assert last.startswith("potstill: ") and ";" in last and "Traceback" not in told.err, (name, told.err)
        assert "[y/N]" not in told.out + told.err, name
        said.add(last)
    return said


def settings(folder: Path, file: str, **fields: Any) -> None:
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | fields))


def with_code(folder: Path, file: str, mark: Path) -> None:
    (folder / "theirs.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass Theirs: pass\n")
    auto = {"AutoConfig": "theirs.Theirs", "AutoModelForSequenceClassification": "theirs.Theirs"}
    settings(folder, file, auto_map={**auto, "AutoTokenizer": ["theirs.Theirs", "theirs.Theirs"]})
    settings(folder, file, **({"model_type": "theirs"} if file == "config.json" else {"tokenizer_class": "Theirs"}))


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_never_runs(
    file: str, made: Path, tmp_path: Path, eager_user: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "it-ran"
    folder = Path(shutil.copytree(made / "classifier", tmp_path / "model"))
    with_code(folder, file, mark)
    names = [*COMMANDS, *(["tokenizer"] if file == "tokenizer_config.json" else [])]
    said = refused_by_all(folder, made, tmp_path, capsys, names)
    assert all("own code (auto_map), which is never run" in one for one in said)
    assert eager_user() == "yes\n" * 100 and not mark.exists()


def only_pickles(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))


def a_pickle_by_another_name(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Payload(mark)))


def config(**fields: Any) -> Callable[[Path, Path], object]:
    return lambda folder, mark: settings(folder, "config.json", **fields)


FOLDERS: dict[str, Callable[[Path, Path], object]] = {
    "pickles": only_pickles,
    "a pickle by another name": a_pickle_by_another_name,
    "kernels in a table": config(attn_implementation={"": "somebody/kernels"}),
    "kernels further inside": config(text_config={"_attn_implementation": {"x": ["somebody/kernels"]}}),
    "an adapter": lambda folder, mark: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/"}'),
    "another config": config(configuration_files=["config.1.0.0.json"]),
    "an unknown type": config(model_type="theirs"),
    "no type": config(model_type=None),
    "a type that is a list": config(model_type=["bert"]),
    "architectures that are none": config(architectures={"a": 1}),
    "labels that are no table": config(id2label=7),
    "labels without end": config(num_labels=5_000_000),
    "labels without end further inside": config(text_config={"num_labels": 5_000_000}),
    "no layers": config(num_hidden_layers=-3),
    "layers that are a text": config(num_hidden_layers="many"),
    "no heads": config(num_attention_heads=0),
    "a nested config": lambda folder, mark: (folder / "config.json").write_bytes(b'{"a":' * 50_000),
    "no config": lambda folder, mark: (folder / "config.json").unlink(),
    "an empty config": lambda folder, mark: (folder / "config.json").write_text("{}"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_of_strangers_are_refused_by_every_command(
    case: str, made: Path, tmp_path: Path, eager_user: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made / "classifier", tmp_path / "model"))
    FOLDERS[case](folder, tmp_path / "it-ran")
    said = refused_by_all(folder, made, tmp_path, capsys)
    assert all(str(folder) in one or "is not supported" in one for one in said), said
    assert eager_user() == "yes\n" * 100 and not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("case", ["missing", "./nosuch", "file", "empty", "other files", "", "\x00", "a" * 5000])
def test_what_is_no_model_s_folder_is_told(
    case: str, made: Path, tmp_path: Path, eager_user: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other files").mkdir()
    (tmp_path / "other files/thesis.md").write_text("hello")
    there = case in ("missing", "file", "empty", "other files")
    names = [name for name in COMMANDS if case or name not in ("finetune", "start")]  # an empty name is none
    said = refused_by_all(tmp_path / case if there else case, made, tmp_path, capsys, names)
    assert all("there is no folder" in one or "has no weights" in one for one in said), said
    assert eager_user() == "yes\n" * 100


def test_a_head_without_end_costs_no_memory(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "classifier", tmp_path / "model"))
    settings(folder, "config.json", num_labels=5_000_000)
    potstill("measure", made / "classifier", "--data", tmp_path / "nothing.csv")  # all is imported
    with peak_memory() as most:
        assert potstill("measure", folder, "--data", made / "rows.csv") == 2
    assert most[0] < 50
