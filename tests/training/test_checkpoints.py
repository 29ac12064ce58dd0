"""Checkpoints: whole or passed over, whatever happens to the process, the disk or a bit."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from potstill.errors import InputError
from potstill.system.files import file_xxh3, seal, unseal, write_atomically
from potstill.training import checkpoints
from tests.support.faults import file_size_limit, flip


def groups(step: int) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(step)
    return {
        "weights": {"a": torch.randn(7, 5, generator=generator), "b": torch.randn(3, generator=generator)},
        "optimizer": {"0.exp_avg": torch.randn(7, 5, generator=generator), "0.step": torch.tensor(float(step))},
    }


def save(folder: Path, step: int) -> checkpoints.Checkpoint:
    return checkpoints.save(folder, step, groups(step), {"epoch": step // 2, "best": 0.1 + step})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def steps(folder: Path) -> list[int]:
    return [int(name.removeprefix("step-")) for name in names(folder)]


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    saved = save(tmp_path / "deep" / "folder", 3)
    assert saved.folder.name == "step-00000003"
    for found in (checkpoints.load(saved.folder), checkpoints.newest(tmp_path / "deep" / "folder")):
        assert found == saved
        assert found is not None and found.state == {"epoch": 1, "best": 3.1}
        for name, tensors in groups(3).items():
            assert same(found.tensors(name), tensors)
    assert names(saved.folder) == ["manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors"]
    assert names(saved.folder.parent) == ["step-00000003"]
    assert checkpoints.newest(tmp_path / "nowhere") is None


def test_every_kind_of_tensor_comes_back(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "tied": base,
        "tied.too": base,
        "turned": base.T,
        "row": base[1],
        "strided": base[:, ::2],
        "parameter": nn.Parameter(torch.ones(2)),
        "half": torch.ones(3, dtype=torch.bfloat16) / 3,
        "count": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
    }
    found = checkpoints.save(tmp_path, 1, {"weights": tensors, "nothing": {}}, {})
    assert same(found.tensors("weights"), {name: tensor.detach() for name, tensor in tensors.items()})
    assert found.tensors("nothing") == {}
    assert all(found.tensors("weights")[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(ValueError):
        checkpoints.save(tmp_path, 2, {}, {"loss": float("nan")})
    assert names(tmp_path) == ["step-00000001"]


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 5)
    again = checkpoints.save(tmp_path, 5, groups(6), {"second": True})
    assert names(tmp_path) == ["step-00000005"]
    assert checkpoints.newest(tmp_path) == again
    assert same(again.tensors("weights"), groups(6)["weights"])


def test_loading_and_saving_onto_the_same_place_is_bit_equal(tmp_path: Path) -> None:
    first = save(tmp_path, 5)
    before = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    loaded = checkpoints.load(first.folder)
    tensors = {name: loaded.tensors(name) for name in ("weights", "optimizer")}
    checkpoints.save(tmp_path, 5, tensors, loaded.state)
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == before


def test_every_flipped_bit_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    folder = save(tmp_path, 2).folder
    chance = random.Random(0)
    for trial in range(100):
        path = sorted(folder.iterdir())[trial % 4]
        whole = path.read_bytes()
        bit = chance.randrange(8 * len(whole))
        flip(path, bit)
        with pytest.raises(InputError, match="damaged"):
            checkpoints.load(folder)
        caplog.clear()
        newest = checkpoints.newest(tmp_path)
        assert newest is not None and newest.step == 1, (path.name, bit)
        assert "skipped" in caplog.text and folder.name in caplog.text
        path.write_bytes(whole)
    assert checkpoints.load(folder).step == 2


def test_every_truncation_falls_back_to_the_last_whole_one(tmp_path: Path) -> None:
    save(tmp_path, 1)
    folder = save(tmp_path, 2).folder
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for cut in np.linspace(0, len(whole) - 1, 13, dtype=int):
            path.write_bytes(whole[:cut])
            newest = checkpoints.newest(tmp_path)
            assert newest is not None and newest.step == 1, (path.name, cut)
        path.unlink()
        newest = checkpoints.newest(tmp_path)
        assert newest is not None and newest.step == 1, path.name
        path.write_bytes(whole)


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path, keep: int) -> None:
    for step in range(1, 8):
        save(tmp_path, step)
        checkpoints.rotate(tmp_path, keep=keep, best=2 if step >= 2 else None)
        newest = list(range(max(1, step - keep + 1), step + 1))
        assert steps(tmp_path) == sorted({*newest, *([2] if step >= 2 else [])})
    for step in steps(tmp_path):
        assert checkpoints.load(tmp_path / f"step-{step:08d}").step == step


def damage(folder: Path, step: int) -> None:
    (folder / f"step-{step:08d}" / "weights.safetensors").write_bytes(b"")


def test_rotation_counts_whole_ones_only(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    damage(tmp_path, 3)
    damage(tmp_path, 4)
    checkpoints.rotate(tmp_path, keep=1)
    assert steps(tmp_path) == [2]
    damage(tmp_path, 2)
    checkpoints.rotate(tmp_path, keep=1)
    assert steps(tmp_path) == [2]  # nothing whole: nothing is deleted
    with pytest.raises(ValueError, match="1 or more"):
        checkpoints.rotate(tmp_path, keep=0)


def test_what_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "manifest.json").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file", tmp_path / "odd"):
        with pytest.raises(InputError, match="step-00001000"):
            checkpoints.load(path)
    found = save(tmp_path, 1)
    for name in ("teacher", "../step-00000001/weights", "", "."):
        with pytest.raises(InputError, match="choose one of: optimizer, weights"):
            found.tensors(name)


def reseal(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = unseal((folder / "manifest.json").read_bytes())
    change(manifest)
    write_atomically(folder / "manifest.json", seal(manifest))


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "x/../../secret", "..", ".hidden", "a\nb", ""])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1).folder
    (tmp_path / "secret").write_text("x")
    good = {"size": 1, "xxh3": file_xxh3(tmp_path / "secret")}
    reseal(folder, lambda manifest: manifest["files"].update({name: good}))
    with pytest.raises(InputError, match="not a regular file"):
        checkpoints.load(folder)


@pytest.mark.parametrize("name", ["weights.safetensors", "state.json", "manifest.json"])
def test_links_are_refused(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 1).folder
    os.rename(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(InputError, match=name):
        checkpoints.load(folder)
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert checkpoints.newest(tmp_path) is None


@pytest.mark.parametrize("content", [[], {}, {"files": []}, {"files": {"state.json": 3}}, {"files": {}, "step": "x"}])
def test_a_manifest_of_any_kind_is_an_input_error(tmp_path: Path, content: Any) -> None:
    folder = save(tmp_path, 1).folder
    write_atomically(folder / "manifest.json", seal(content) if isinstance(content, dict) else b"[]")
    with pytest.raises(InputError):
        checkpoints.load(folder)


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


def test_pickles_never_run(tmp_path: Path) -> None:
    """Neither beside the files, nor unlisted among them, nor listed with a checksum that fits."""
    mark = tmp_path / "it-ran"
    payload = pickle.dumps(Payload(mark))
    folder = save(tmp_path, 1).folder
    for name in ("optimizer.pt", "pytorch_model.bin", "state.pkl"):
        (folder / name).write_bytes(payload)
    assert checkpoints.load(folder).tensors("optimizer").keys() == groups(1)["optimizer"].keys()
    (folder / "more.safetensors").write_bytes(payload)
    with pytest.raises(InputError, match="not in the manifest"):
        checkpoints.load(folder)
    (folder / "more.safetensors").unlink()
    path = folder / "optimizer.safetensors"
    path.write_bytes(payload)
    entry = {"size": len(payload), "xxh3": file_xxh3(path)}
    reseal(folder, lambda manifest: manifest["files"].update({path.name: entry}))
    with pytest.raises(InputError, match="safetensors"):
        checkpoints.load(folder).tensors("optimizer")
    assert not mark.exists()
    pickle.loads(payload)
    assert mark.exists(), "the payload would have worked"


@pytest.mark.parametrize("same_step", [True, False])
def test_a_full_disk_leaves_the_previous_one(tmp_path: Path, same_step: bool) -> None:
    first = save(tmp_path, 1)
    large = {"weights": {"a": torch.zeros(100_000)}}
    with file_size_limit(50_000), pytest.raises(OSError):
        checkpoints.save(tmp_path, 1 if same_step else 2, large, {})
    assert names(tmp_path) == ["step-00000001"]
    assert checkpoints.newest(tmp_path) == first
    assert checkpoints.save(tmp_path, 2, large, {}) == checkpoints.newest(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "rename", "replace"])
def test_a_disk_that_fails_at_any_call_leaves_the_previous_one(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(tmp_path, 1)
    real = getattr(os, call)
    for failing in range(1, 12):
        count = 0

        def fail(*arguments: Any, failing: int = failing) -> Any:
            nonlocal count
            count += 1
            if count == failing:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            try:
                checkpoints.save(tmp_path, 1, groups(1), first.state)
            except OSError as error:
                assert "No space left" in str(error)
        newest = checkpoints.newest(tmp_path)
        assert newest is not None and newest.step == 1 and newest.state == first.state
        assert same(newest.tensors("weights"), groups(1)["weights"])
        assert not [name for name in names(tmp_path) if name.startswith(".tmp-")]
    save(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


KILLS = """
import os, signal, sys
from pathlib import Path
import torch
from potstill.training import checkpoints
from tests.training.test_checkpoints import groups, names, same, save

torch.set_num_threads(1)
folder = Path(sys.argv[1])
save(folder, 1)
killed = 0
for call in range(1, 200):
    child = os.fork()
    if child == 0:
        count = 0
        def deadly(work):
            def act(*arguments, **options):
                global count
                count += 1
                if count == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return work(*arguments, **options)
            return act
        for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
            setattr(os, name, deadly(getattr(os, name)))
        checkpoints.save(folder, 1, groups(1), {"again": True})  # replaced where it stands
        save(folder, 2)
        checkpoints.rotate(folder, keep=1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    newest = checkpoints.newest(folder)
    assert newest is not None, (call, names(folder))
    assert same(newest.tensors("weights"), groups(newest.step)["weights"])
    for name in names(folder):  # a kill leaves drafts, but nothing that must be passed over
        assert name.startswith(".tmp-") or checkpoints.load(folder / name), name
    if os.WIFSIGNALED(status):
        killed += 1
    else:
        assert os.WEXITSTATUS(status) == 0, call
        break
    if call % 3 == 0:  # otherwise the next one finds what the kill left
        checkpoints.rotate(folder, keep=2)
        assert all(name.startswith("step-") for name in names(folder)), names(folder)
assert names(folder) == ["step-00000002"], names(folder)
print(killed)
"""


def test_killed_at_any_call_there_is_a_whole_one(tmp_path: Path) -> None:
    """SIGKILL before each call that changes the disk, while replacing, saving and rotating."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", KILLS, str(tmp_path / "checkpoints")]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 30


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "adamw": lambda trained: torch.optim.AdamW(trained, lr=1e-2, betas=(0.8, 0.95)),
    "adamw, amsgrad": lambda trained: torch.optim.AdamW(trained, lr=1e-2, amsgrad=True),
    "adamw, rate as a tensor": lambda trained: torch.optim.AdamW(trained, lr=torch.tensor(1e-2), foreach=False),
    "sgd": lambda trained: torch.optim.SGD(trained, lr=1e-2),
    "sgd, momentum": lambda trained: torch.optim.SGD(trained, lr=1e-2, momentum=0.9, nesterov=True),
    "adadelta": lambda trained: torch.optim.Adadelta(trained, lr=1.0),
}


def build(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    weights = [parameter for parameter in network.parameters() if parameter.ndim == 2]
    biases = [parameter for parameter in network.parameters() if parameter.ndim == 1]
    trained = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    return network, OPTIMIZERS[name](trained)


def train(network: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.9  # as a schedule does
        optimizer.zero_grad()
        network(rows).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("stop", [0, 4])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_training_continues_bit_by_bit(tmp_path: Path, name: str, stop: int) -> None:
    straight, optimizer = build(name)
    train(straight, optimizer, 0, 10)

    network, optimizer = build(name)
    train(network, optimizer, 0, stop)
    tensors, meta = checkpoints.optimizer_tensors(optimizer)
    checkpoints.save(tmp_path, stop, {"weights": network.state_dict(), "optimizer": tensors}, {"optimizer": meta})

    found = checkpoints.newest(tmp_path)
    assert found is not None
    resumed, fresh = build(name)
    resumed.load_state_dict(found.tensors("weights"))
    checkpoints.restore_optimizer(fresh, found.tensors("optimizer"), found.state["optimizer"])
    assert [type(group["lr"]) for group in fresh.param_groups] == [
        type(group["lr"]) for group in optimizer.param_groups
    ]
    assert json.dumps(checkpoints.optimizer_tensors(fresh)[1]) == json.dumps(meta)
    assert all(
        group.get("betas", ()) == old.get("betas", ())
        for group, old in zip(fresh.param_groups, optimizer.param_groups, strict=True)
    )
    train(resumed, fresh, stop, 10)
    assert same(resumed.state_dict(), straight.state_dict())


def test_what_an_optimizer_was_restored_from_stays_as_it_is() -> None:
    network, optimizer = build("adamw")
    train(network, optimizer, 0, 2)
    tensors, meta = checkpoints.optimizer_tensors(optimizer)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    network, optimizer = build("adamw")
    checkpoints.restore_optimizer(optimizer, tensors, meta)
    train(network, optimizer, 2, 4)
    assert same(tensors, before)


def test_another_optimizer_or_network_is_refused() -> None:
    network, optimizer = build("sgd, momentum")
    train(network, optimizer, 0, 2)
    tensors, meta = checkpoints.optimizer_tensors(optimizer)
    with pytest.raises(InputError, match="another optimizer"):
        checkpoints.restore_optimizer(build("adamw")[1], tensors, meta)
    smaller = torch.optim.SGD(nn.Linear(4, 8).parameters(), lr=1e-2, momentum=0.9)
    with pytest.raises(InputError, match="trained parameters"):
        checkpoints.restore_optimizer(smaller, tensors, meta)
