"""Whatever a stranger puts into a model's folder, a checkpoint or a memory: nothing of it is run, nothing elsewhere is read."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from potstill.errors import InputError
from potstill.models.student import load_student, save_student
from potstill.system.files import seal, unseal, write_atomically
from potstill.training.teacher.memory import Memory
from tests.support.commands import potstill
from tests.support.small_models import same_weights, small_model, write_csv
from tests.training import test_checkpoints
from tests.training.teacher.test_memory import SHARDS, block, remember
from tests.training.test_checkpoints import Payload


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    save_student(small_model("bert"), folder)
    return folder


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def index(model: Path, name: str) -> None:
    """Say that all weights lie in this file."""
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").rename(model / "part.safetensors")
    listed = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (model / "model.safetensors.index.json").write_text(json.dumps(listed))


# 16: pickles


def only_pickled_weights(model: Path, payload: bytes) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(payload)


def a_pickle_called_safetensors(model: Path, payload: bytes) -> None:
    (model / "model.safetensors").write_bytes(payload)


def an_index_that_names_a_pickle(model: Path, payload: bytes) -> None:
    index(model, "pytorch_model.bin")
    (model / "pytorch_model.bin").write_bytes(payload)


IN_MODELS = [only_pickled_weights, a_pickle_called_safetensors, an_index_that_names_a_pickle]


def test_16_pickles_in_models_checkpoints_and_optimizers_never_run(
    made: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    mark = tmp_path / "it-ran"
    payloads = {"plain": pickle.dumps(Payload(mark))}
    torch.save(Payload(mark), tmp_path / "payload")
    payloads["by torch"] = (tmp_path / "payload").read_bytes()
    for kind, payload in payloads.items():
        for put in IN_MODELS:
            folder = Path(shutil.copytree(made, tmp_path / kind / put.__name__))
            put(folder, payload)
            with pytest.raises(InputError, match="safetensors"):
                load_student(folder)
            assert not mark.exists(), put.__name__
    test_checkpoints.test_pickles_never_run(tmp_path / "checkpoint")  # beside the files, and as the optimizer's
    (tmp_path / "train.tsv").write_bytes(payloads["plain"])
    assert potstill("distill", "--teacher", made, "--train", tmp_path / "train.tsv", "--out", tmp_path / "run") == 2
    assert not mark.exists()
    pickle.loads(payloads["plain"])
    assert mark.exists(), "the payload would have worked"
    figure(16, f"{len(IN_MODELS) + 2} of {len(IN_MODELS) + 2}, and none among the rows")


# 17: code of the model's own


@pytest.fixture
def eager_user() -> Iterator[Callable[[], str]]:
    """Someone who says yes to every question; called, what has not been asked for."""
    reading, writing = os.pipe()
    os.write(writing, b"y\n" * 8)
    before = sys.stdin
    sys.stdin = os.fdopen(reading)

    def left() -> str:
        os.close(writing)
        return sys.stdin.read()

    yield left
    sys.stdin.close()
    sys.stdin = before


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_17_models_with_code_of_their_own_are_refused_without_a_question(
    file: str,
    form: str,
    model: Path,
    tmp_path: Path,
    eager_user: Callable[[], str],
    capsys: pytest.CaptureFixture[str],
    figure: Callable[..., None],
) -> None:
    mark = tmp_path / "it-ran"
    (model / "theirs.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass Theirs: pass\n")
    settings = json.loads((model / file).read_text())
    settings["auto_map"] = {name: "theirs.Theirs" for name in ("AutoConfig", "AutoModelForSequenceClassification")}
    settings["auto_map"]["AutoTokenizer"] = ["theirs.Theirs", "theirs.Theirs"]
    if file == "config.json":
        settings["model_type"] = "theirs"
    else:
        settings["tokenizer_class"] = "Theirs"
    (model / file).write_text(json.dumps(settings))
    if form == "onnx":
        (model / "model.safetensors").rename(model / "model.onnx")
    write_csv(tmp_path / "rows.csv", [("a", "0")])
    assert potstill("predict", model, tmp_path / "rows.csv") == 2
    assert "own code" in capsys.readouterr().err
    assert eager_user() == "y\n" * 8, "nobody was asked"
    assert not mark.exists()
    figure(17, "refused without a question, also beside ONNX files")


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_17_kernels_of_others_are_code_too(key: str, model: Path) -> None:
    settings = json.loads((model / "config.json").read_text()) | {key: "somebody/kernels"}
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=rf"never run; remove {key} from"):
        load_student(model)


# 18: names that lead elsewhere

PLACES = {
    "up": "../outside.safetensors",
    "absolute": "{outside}/outside.safetensors",
    "up inside": "model/../../outside.safetensors",
    "home": "~/outside.safetensors",
    "empty": "",
}


def linked(path: Path, target: Path) -> None:
    path.rename(target)
    path.symlink_to(target)


def test_18_names_that_lead_out_of_a_model_are_refused(made: Path, tmp_path: Path, figure: Callable[..., None]) -> None:
    refused = 0
    for kind, name in PLACES.items():
        model = Path(shutil.copytree(made, tmp_path / kind / "model"))
        shutil.copy(made / "model.safetensors", model.parent / "outside.safetensors")
        index(model, name.format(outside=model.parent))
        with pytest.raises(InputError, match="not a safetensors file there"):
            load_student(model)
        refused += 1
    for file in ("model.safetensors", "config.json"):
        model = Path(shutil.copytree(made, tmp_path / f"linked {file}"))
        linked(model / file, tmp_path / file)
        with pytest.raises(InputError, match="link that leads out"):
            load_student(model)
        refused += 1
    figure(18, f"model folders {refused} of {len(PLACES) + 2}")


def test_18_links_within_a_model_and_those_of_the_hub_s_cache_are_followed(made: Path, tmp_path: Path) -> None:
    """The cache of the hub is nothing but links: to refuse them would refuse every model that was ever downloaded."""
    snapshot = tmp_path / "models--owner--name/snapshots/0123abcd"
    shutil.copytree(made, snapshot)
    (snapshot.parents[1] / "blobs").mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(snapshot.parents[1] / f"blobs/{number}")
        path.symlink_to(f"../../blobs/{number}")
    assert same_weights(load_student(snapshot), load_student(made))
    model = Path(shutil.copytree(made, tmp_path / "model"))
    linked(model / "model.safetensors", model / "the one.safetensors")
    assert same_weights(load_student(model), load_student(made))


def test_18_names_that_lead_out_of_a_checkpoint_are_refused(tmp_path: Path, figure: Callable[..., None]) -> None:
    names = ["../secret", "{outside}/secret", "x/../../secret", ".hidden"]
    for number, name in enumerate(names):
        test_checkpoints.test_names_that_lead_elsewhere_are_refused(
            tmp_path / str(number), name.format(outside=tmp_path / str(number))
        )
    for number, name in enumerate(["weights.safetensors", "state.json", "manifest.json"]):
        test_checkpoints.test_links_are_refused(tmp_path / f"link {number}", name)
    figure(18, f"checkpoints {len(names) + 3} of 7")


def test_18_names_that_lead_out_of_a_memory_are_refused(tmp_path: Path, figure: Callable[..., None]) -> None:
    memory = tmp_path / "memory"
    remember(memory)
    outside = tmp_path / "shard-00000.arrow"
    shutil.copy(memory / "shard-00000.arrow", outside)
    whole = (memory / "manifest.json").read_bytes()
    refused = 0
    for name in ["../shard-00000.arrow", str(outside), "x/../shard-00000.arrow", "shard-00000.arrow\n", ".hidden"]:
        manifest = unseal(whole)
        manifest["shards"][0]["name"] = name
        write_atomically(memory / "manifest.json", seal(manifest))
        refused += bool(Memory(memory).missing(block(0)[0], ["logits"]).all())
    (memory / "manifest.json").write_bytes(whole)
    for name in ("shard-00000.arrow", "manifest.json"):
        linked(memory / name, tmp_path / "elsewhere")
        refused += bool(Memory(memory).missing(block(0)[0], ["logits"]).all())
        (tmp_path / "elsewhere").replace(memory / name)
    assert refused == 7
    assert not any(Memory(memory).missing(block(number)[0], ["logits"]).any() for number in range(SHARDS))
    figure(18, f"memory {refused} of 7")
