"""Find a model and check its files: a local folder, an exported ONNX file, or a name on the Hugging Face hub.

Loads neither torch nor transformers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from potstill.errors import InputError
from potstill.models.safety import refuse_unsafe_files, refuse_unsafe_settings
from potstill.system.paths import expand_user


def model_folder(model: str | Path) -> Path:
    """Return the local folder of a model. A name on the hub is downloaded first, if it is not cached."""
    path = expand_user(model)
    if is_there(path, "dir") and str(model):
        return path
    if _is_path(model):
        raise InputError(
            f"there is no folder {str(model)[:200]}; write the path of a model's folder, or a name on the hub"
        )
    return _from_hub(str(model))


def safe_folder(model: str | Path) -> Path:
    """Return the local folder of a model, after checking that loading it runs no code of its own."""
    folder = model_folder(model)
    refuse_unsafe_files(folder)
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.onnx")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        raise InputError(
            f"{model} has {'only pickled weights, which can run code' if pickled else 'no weights'}; "
            "potstill reads safetensors only: write it with `model.save_pretrained(folder)` of a recent transformers"
        )
    refuse_unsafe_settings(folder)
    return folder


def onnx_file(model: str | Path) -> Path | None:
    """Return the ONNX file that `model` names, or that its folder holds; None if there is none."""
    path = expand_user(model)
    file = path / "model.onnx" if is_there(path, "dir") else path
    return file if file.suffix == ".onnx" and is_there(file, "file") else None


def is_there(path: Path, what: Literal["dir", "file"]) -> bool:
    try:
        return path.is_dir() if what == "dir" else path.is_file()
    except OSError:  # a name that no file can have
        return False


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _is_path(model: str | Path) -> bool:
    """Whether this can only be a path: a name on the hub has at most two parts and no dot, slash or tilde in front."""
    parts = Path(model).parts
    if isinstance(model, Path) or not parts or len(parts) > 2 or model.startswith((".", "/", "~")):
        return True
    return not model.isprintable() or len(model) > 200 or Path(parts[0]).exists()


@cache  # commands look for the model before they load torch, and again when they load it
def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.spm"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))
    except Exception as error:  # no network, no such model, an invalid name: each has its own exception class
        raise InputError(
            f"there is no folder {name}, and the Hugging Face Hub gave no such model ({first_line(error)}); "
            "check the name and the network, or give the path of a model's folder"
        ) from error
