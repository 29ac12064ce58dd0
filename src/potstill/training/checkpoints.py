"""Checkpoints: a folder per step, checksummed and put in place by one rename. Incomplete or damaged ones are skipped.

step-00001234/
    weights.safetensors, optimizer.safetensors …   one file per group of tensors
    state.json                                     everything that is not a tensor
    manifest.json                                  size and xxh3 of each file, and its own; written last
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from potstill.errors import InputError, TrainingError
from potstill.models.safety import FILE_NAME, tensor_shapes
from potstill.system.files import TEMPORARY, disk_errors, file_xxh3, fsync_path, seal, unseal, write_atomically

log = logging.getLogger(__name__)

STEP_NAME = re.compile(r"step-(\d{8,})", re.ASCII)
LARGEST_STATE = 8 * 2**20  # bytes of state.json and manifest.json
REPLACED = ".old-"  # an intact checkpoint that is about to be replaced by another one of the same step


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    step: int
    state: dict[str, Any]

    def has(self, name: str) -> bool:
        """Whether it has such a group of tensors."""
        return (self.folder / f"{name}.safetensors").exists()

    def tensors(self, name: str) -> dict[str, Tensor]:
        """One group of tensors, on the CPU."""
        path = self.folder / f"{name}.safetensors"
        if not FILE_NAME.fullmatch(path.name) or path.name != f"{name}.safetensors" or not path.is_file():
            groups = ", ".join(sorted(path.stem for path in self.folder.glob("*.safetensors")))
            raise InputError(f"{self.folder} has no tensors '{name}'; choose one of: {groups}")
        try:
            tensor_shapes(path)
            return load_file(path)
        except (SafetensorError, ValueError) as error:  # its checksum is right, so somebody crafted it
            raise InputError(f"{path} is not a valid safetensors file ({error}); choose another checkpoint") from error


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def save(folder: Path, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> Checkpoint:
    """Write a checkpoint. Until the last rename the previous one stays the newest. A full disk raises OSError."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _recover(folder)
    place = folder / step_name(step)
    draft = folder / f"{TEMPORARY}{place.name}"
    try:
        draft.mkdir()
        for name, group in tensors.items():
            if not FILE_NAME.fullmatch(name):
                raise ValueError(f"'{name}' cannot name a group of tensors; use letters, digits, '_', '-' and '.'")
            _refuse_non_finite(step, name, group)
        with ThreadPoolExecutor() as pool:  # in parallel: a quarter less time than one by one
            list(pool.map(lambda name: _write_tensors(draft / f"{name}.safetensors", tensors[name]), tensors))
        write_atomically(draft / "state.json", (json.dumps(state, indent=1, allow_nan=False) + "\n").encode())
        files = {path.name: {"size": path.stat().st_size, "xxh3": file_xxh3(path)} for path in sorted(draft.iterdir())}
        write_atomically(draft / "manifest.json", seal({"step": step, "files": files}))
        _put_in_place(draft, place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Checkpoint(place, step, json.loads((place / "state.json").read_bytes()))


def load(path: Path) -> Checkpoint:
    """Load the checkpoint in this folder and verify every file."""
    path = Path(path)
    try:
        if (path / "manifest.json").is_symlink():
            raise ValueError("manifest.json is a symbolic link")
        for name in ("manifest.json", "state.json"):
            if (path / name).stat().st_size > LARGEST_STATE:
                raise ValueError(f"{name} is too large")
        manifest = unseal((path / "manifest.json").read_bytes())
        for name, expected in manifest["files"].items():
            _verify(path, name, expected)
        if "state.json" not in manifest["files"]:
            raise ValueError("state.json is not in the manifest")
        unlisted = {file.name for file in path.glob("*.safetensors")} - manifest["files"].keys()
        if unlisted:
            raise ValueError(f"{min(unlisted)} is not in the manifest")
        return Checkpoint(path, int(manifest["step"]), json.loads((path / "state.json").read_bytes()))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InputError(
            f"{path} is not a complete checkpoint: {Path(error.filename or path).name} is missing; "
            "give a folder such as checkpoints/step-00001000"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged: {error}; give another checkpoint, or --resume auto to use the newest"
        ) from error


def newest(folder: Path) -> Checkpoint | None:
    """Load the newest intact checkpoint; damaged ones are skipped with a warning."""
    return next(filter(None, map(_load_or_skip, _candidates(Path(folder)))), None)


def all_intact(folder: Path) -> list[Checkpoint]:
    """Load all intact checkpoints, oldest first."""
    _recover(Path(folder))
    return list(filter(None, map(_load_or_skip, reversed(_candidates(Path(folder))))))


def rotate(folder: Path, keep: int = 2, best: int | None = None) -> None:
    """Keep the newest `keep` intact checkpoints and that of the best step. If none is intact, delete nothing."""
    if keep < 1:
        raise ValueError(f"keep = {keep} would delete every checkpoint; write 1 or more")
    _recover(Path(folder))
    candidates = _candidates(Path(folder))
    kept: list[Path] = []
    for path in candidates:
        if len(kept) < keep and _load_or_skip(path) is not None:
            kept.append(path)
    if not kept:
        return
    for path in candidates:
        if path not in kept and _step(path) != best:
            _remove(path)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split the state of an optimizer into tensors, named "index.name" and "group.index.name", and a rest for JSON."""
    content = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {"state": {}, "groups": []}
    for index, values in content["state"].items():
        rest["state"][str(index)] = _split(values, str(index), tensors)
    for index, group in enumerate(content["param_groups"]):
        rest["groups"].append(_split(group, f"group.{index}", tensors))
    return tensors, rest


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Restore the state that `optimizer_tensors` split, bit by bit, in an optimizer built in the same way."""
    state = {int(index): dict(values) for index, values in meta["state"].items()}
    groups = [dict(group) for group in meta["groups"]]
    for name, tensor in tensors.items():
        place, _, field = name.removeprefix("group.").partition(".")
        # a copy: the optimizer changes its state in place
        (groups if name.startswith("group.") else state)[int(place)][field] = tensor.clone()
    current = optimizer.state_dict()["param_groups"]
    same_sizes = [len(group["params"]) for group in groups] == [len(group["params"]) for group in current]
    if not same_sizes or any(now.keys() - then.keys() for now, then in zip(current, groups, strict=True)):
        raise InputError(
            "the checkpoint was made with another optimizer or other trained parameters; "
            "continue with the recipe it was made with, or start again in another folder"
        )
    for group, now in zip(groups, current, strict=True):
        for field, value in now.items():
            if isinstance(value, tuple):  # JSON has only lists, but AdamW's betas are a tuple
                group[field] = tuple(group[field])
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _split(values: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Move the tensors among the values into `tensors`; return the rest as it will be read back from JSON."""
    tensors.update({f"{prefix}.{name}": value for name, value in values.items() if isinstance(value, Tensor)})
    rest = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
    plain: dict[str, Any] = json.loads(json.dumps(rest, allow_nan=False))
    return plain


def _refuse_non_finite(step: int, name: str, group: dict[str, Tensor]) -> None:
    for inner, tensor in group.items():
        # smallest and largest: one pass, twenty times faster than testing every number
        if tensor.is_floating_point() and tensor.numel() and not torch.isfinite(torch.stack(tensor.aminmax())).all():
            raise TrainingError(
                f"step {step}: '{inner}' of the {name} holds a number that is not finite; this step was not saved. "
                "Lower optimizer.rate, and start again or continue from the previous checkpoint"
            )


def _write_tensors(path: Path, group: dict[str, Tensor]) -> None:
    """Tensors that share memory (tied weights) are written as copies, since safetensors refuses them."""
    seen: set[int] = set()
    ready = {}
    for name, tensor in group.items():
        tensor = tensor.detach().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        ready[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    with disk_errors(path):
        save_file(ready, path)
    fsync_path(path)


def _put_in_place(draft: Path, place: Path) -> None:
    """Rename the draft. An older checkpoint of the same step is first renamed so that `newest` still finds it."""
    fsync_path(draft)
    aside = place.with_name(REPLACED + place.name)
    if place.exists():
        os.rename(place, aside)
    os.rename(draft, place)
    fsync_path(place.parent)
    if aside.exists():
        _remove(aside)


def _recover(folder: Path) -> None:
    """Remove the drafts that a kill left, and put a replaced checkpoint back unless its successor is intact."""
    for path in folder.glob(f"{TEMPORARY}step-*"):
        shutil.rmtree(path)
    for aside in folder.glob(f"{REPLACED}step-*"):
        place = aside.with_name(aside.name.removeprefix(REPLACED))
        if place.exists() and _load_or_skip(place) is not None:
            _remove(aside)
        else:
            if place.exists():
                _remove(place)
            os.rename(aside, place)


def _remove(path: Path) -> None:
    """Rename it first, so that a kill in between leaves a draft instead of a damaged checkpoint."""
    rubbish = path.with_name(f"{TEMPORARY}{path.name.removeprefix(REPLACED)}")
    os.rename(path, rubbish)
    shutil.rmtree(rubbish)


def _candidates(folder: Path) -> list[Path]:
    """Folders that may be checkpoints, newest first, a replaced one after its successor. Symbolic links are skipped."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if STEP_NAME.fullmatch(path.name.removeprefix(REPLACED))]
    paths = [path for path in paths if path.is_dir() and not path.is_symlink()]
    return sorted(paths, key=lambda path: (_step(path), not path.name.startswith(REPLACED)), reverse=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix(REPLACED).removeprefix("step-"))


def _load_or_skip(path: Path) -> Checkpoint | None:
    try:
        return load(path)
    except InputError as error:
        log.warning("skipped: %s", error)
        return None


def _verify(folder: Path, name: str, expected: dict[str, Any]) -> None:
    path = folder / name
    if not FILE_NAME.fullmatch(name) or path.is_symlink() or not path.is_file():
        raise ValueError(f"{name!r} is not a regular file of this folder")
    if path.stat().st_size != expected["size"] or file_xxh3(path) != expected["xxh3"]:
        raise ValueError(f"{name} does not match its checksum")
