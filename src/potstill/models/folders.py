"""Find a model, check its files and read its config.json: a local folder, an exported ONNX file, or a name on the Hub.

Loads neither torch nor transformers.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from potstill.errors import InputError
from potstill.models.heads import WITH_LABELS, head_of
from potstill.models.safety import json_object, refuse_unsafe_files, refuse_unsafe_settings
from potstill.system.paths import expand_user

SHORTEST = 3  # tokens: the special tokens around a text, and one of its own
TEMPERATURE = "potstill_temperature"  # in config.json
TRIMMABLE = ("WordPiece", "BPE", "Unigram")  # kinds of tokenizers of which tokens can be removed
UNNAMED = {0: "LABEL_0", 1: "LABEL_1"}  # the classes of a config.json that names none, as transformers reads it


def model_folder(model: str | Path) -> Path:
    """Return the local folder of a model. A name on the hub is downloaded first, if it is not cached."""
    path = expand_user(model)
    if os.path.isdir(path) and str(model):  # unlike Path.is_dir, it takes names that no file can have
        return path
    if _is_path(model):
        todo = "write the path of a model's folder, or a name on the hub"
        raise InputError(f"there is no folder {str(model)[:200]}; {todo}")
    return _from_hub(str(model))


def safe_folder(model: str | Path) -> Path:
    """Return the local folder of a model, after checking that loading it runs no code of its own."""
    folder = model_folder(model)
    refuse_unsafe_files(folder)
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.onnx")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        problem = "only pickled weights, which can run code" if pickled else "no weights"
        todo = "write safetensors only, with `model.save_pretrained(folder)` of a recent transformers"
        raise InputError(f"{model} has {problem}; {todo}")
    refuse_unsafe_settings(folder)
    return folder


def onnx_file(model: str | Path) -> Path | None:
    """Return the ONNX file that `model` names, or that its folder holds; None if there is none."""
    path = expand_user(model)
    file = path / "model.onnx" if os.path.isdir(path) else path
    return file if file.suffix == ".onnx" and os.path.isfile(file) else None


@contextmanager
def explain_errors(problem: str, todo: str) -> Iterator[None]:
    """Turn what other libraries raise, which is of many classes for broken files, into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"{problem} ({reason}); {todo}") from error


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
    problem = f"there is no folder {name}, and the Hugging Face Hub gave no such model"
    with explain_errors(problem, "check the name and the network, or give the path of a model's folder"):
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))


@dataclass(frozen=True)
class ConfigFile:
    """The fields of config.json, with the names and defaults that configs of transformers have."""

    folder: Path
    fields: Mapping[str, Any]

    @property
    def architectures(self) -> list[str]:
        return list(self.fields.get("architectures") or ())

    @property
    def model_type(self) -> str:
        return str(self.fields.get("model_type", ""))

    @property
    def id2label(self) -> dict[int, str]:
        return {int(number): str(name) for number, name in (self.fields.get("id2label") or UNNAMED).items()}

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    @property
    def problem_type(self) -> str | None:
        return self.fields.get("problem_type")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that the network reads."""
        height, width = self.fields["image_size"]
        return int(self.fields.get("num_channels", 1)), int(height), int(width)


def read_config(model: str | Path) -> ConfigFile:
    """Read config.json of a model's folder, of an exported folder or its .onnx file, or of a name on the hub."""
    file = onnx_file(model)
    folder = safe_folder(file.parent if file else model)
    fields = json_object(folder / "config.json", "give a folder with a config.json")
    names = fields.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(f"{folder}: architectures in config.json is not a list of names; write one class in brackets")
    return ConfigFile(folder, fields)


def tokenizer_kind(folder: Path) -> str:
    """The type of the tokenizer's model, such as WordPiece; without tokenizer.json, that of its files."""
    try:
        return str(json.loads((folder / "tokenizer.json").read_bytes())["model"]["type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "WordPiece" if (folder / "vocab.txt").exists() else "unknown"


def refuse_odd_labels(config: Any, folder: str | Path) -> None:
    """Refuse classes that are not numbered from 0, or do not have distinct, valid names, if the head names them."""
    if head_of(config) not in WITH_LABELS:
        return
    classes = config.id2label or {}
    if not classes or sorted(classes) != list(range(len(classes))):
        numbers = ", ".join(map(str, list(classes)[:5])) or "none"
        raise InputError(f"{folder}: the classes of id2label in config.json are {numbers}; number them 0, 1, …")
    for name, count in Counter(map(str, classes.values())).items():
        if name != name.encode("utf-8", "replace").decode():
            raise InputError(f"{folder}: the class {name!a} in id2label is not valid text; write another name")
        if count > 1:
            raise InputError(f"{folder}: two classes in id2label have the name {name!r}; write two names")


def trained_length(stated: object, longest: int, folder: str | Path) -> int:
    """Return how many tokens a model was trained to read: longer texts would use positions that were never trained.

    `stated` is potstill_length of its config, `longest` the most that it can read.
    """
    if stated is None:
        return longest
    if type(stated) is not int or stated < SHORTEST:
        raise InputError(
            f"{folder}: potstill_length in config.json is {stated!r:.80}; write a number of tokens, or remove it"
        )
    return min(stated, longest)


def stored_temperature(config: Any, folder: str | Path) -> float:
    """Return the temperature that was fitted to a model: its logits divided by it give calibrated probabilities; 1 if none was.

    `config`: a config of transformers, or a `ConfigFile`.
    """
    fields = config.fields if isinstance(config, ConfigFile) else vars(config)
    stated = fields.get(TEMPERATURE)
    if stated is None:
        return 1.0
    if type(stated) not in (int, float) or not 0.001 <= stated <= 1000:  # also refuses NaN
        raise InputError(
            f"{folder}: {TEMPERATURE} in config.json is {stated!r:.80}; write a number such as 1.5, or remove it"
        )
    return float(stated)
