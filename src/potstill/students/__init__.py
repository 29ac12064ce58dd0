"""Students: a model and its tokenizer, loaded strictly, saved whole. Each file beside this one makes or reshapes."""

from __future__ import annotations

import copy
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from potstill import paths, short_forms
from potstill.anatomy import has_layers, in_head, layers_path
from potstill.errors import InputError
from potstill.files import MODEL_FILE, TEMPORARY, disk_errors, fsync_path
from potstill.foreign import refuse_larger, refuse_unsafe_files, refuse_unsafe_settings, stored_numbers
from potstill.heads import WHAT, head_named
from potstill.pixel_reader import PixelReader
from potstill.registered import PREFIX

if TYPE_CHECKING:
    from potstill.tasks import Task

HEADS: dict[str, Any] = {
    "SequenceClassification": AutoModelForSequenceClassification,
    "TokenClassification": AutoModelForTokenClassification,
    "QuestionAnswering": AutoModelForQuestionAnswering,
    "MultipleChoice": AutoModelForMultipleChoice,
    "ImageClassification": AutoModelForImageClassification,
    "Seq2SeqLM": AutoModelForSeq2SeqLM,
    "CausalLM": AutoModelForCausalLM,
}


@dataclass
class Student:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True)
class Context:
    """What a builder may look at beside the current student."""

    start: Student  # untouched, to take weights from
    seed: int
    texts: Callable[[], Iterator[str]]  # every text (and pair) of the task's train and dev rows, anew at each call
    pairs: bool = False  # whether a row of the task is two texts


def load_student(
    folder: str | Path,
    labels: Sequence[str] | None = None,
    problem: str | None = None,
    seed: int = 0,
    head: str | None = None,
    devices: str | dict[str, str] = "one",
) -> Student:
    """A model with a head and its tokenizer from a folder or the hub, in float32 and eval mode.

    Every weight must be there. Only with `labels` may the task's head be missing or have another number of labels: a
    new one is then drawn from `seed`. A head of the same size is kept with its own label names. `head` is one of HEADS;
    without it the config says, and where it does not, a classifier of texts is meant. `devices`: "auto" lets Accelerate
    spread the weights over all devices, memory and disk; a table says how much each may hold.
    """
    place = safe_folder(folder)
    stored = stored_numbers(place)
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(place), "local_files_only": True}
    try:
        with quiet_transformers(), seeded(seed):
            config = AutoConfig.from_pretrained(**source, trust_remote_code=False)
            head = head or head_of(config)
            if head == "QuestionAnswering":  # start and end
                config.num_labels = 2
            elif labels and config.num_labels != len(labels):
                config.num_labels = len(labels)
            refuse_larger(place, _needed_numbers(config, head), stored)
            model, info = HEADS[head].from_pretrained(
                **source,
                **spread_over(devices),
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with the names
            )
            tokenizer = reader_of(config, place)
    except InputError:
        raise
    except Exception as error:  # a broken folder fails in many ways inside transformers
        raise InputError(
            f"{folder} cannot be loaded as {WHAT.get(str(head), 'a model')} ({_first_line(error)}); "
            "give a folder with config.json, model.safetensors and tokenizer.json"
        ) from error
    _check_weights(folder, model, info, may_make_head=labels is not None)
    if config.model_type.startswith(PREFIX):
        # an LSTM's last bit hangs on where its weights lie; in the file's memory map they lie otherwise than torch puts them
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    model.config.architectures = [type(model).__name__]
    if labels and any(not name.startswith(f"{model.base_model_prefix}.") for name in _absent(info)):
        model.config.id2label = dict(enumerate(labels))
        model.config.label2id = {label: index for index, label in enumerate(labels)}
        model.config.problem_type = problem
    return Student(model.eval(), tokenizer)


def spread_over(devices: str | dict[str, str]) -> dict[str, Any]:
    if devices == "one":
        return {}
    limits = (
        {int(name) if name.isdigit() else name: size for name, size in devices.items()}
        if isinstance(devices, dict)
        else None
    )
    return {"device_map": "auto", "max_memory": limits, "offload_folder": str(paths.offloaded())}


def is_spread(model: PreTrainedModel) -> bool:
    """Whether parts of the model lie on other devices, or on disk, and come when they are needed."""
    places = set(getattr(model, "hf_device_map", {}).values())
    return len(places) > 1 or "disk" in places


def begin_anew(
    builders: list[dict[str, Any]], task: Task, texts: Callable[[], Iterator[str]], seed: int = 0
) -> Student | None:
    """The first builder's student for a task, where it needs no weights to begin from; None where it does."""
    first = short_forms.made("students", builders[0]) if builders else None
    begin: Callable[[Task, int, Callable[[], Iterator[str]]], Student] | None = getattr(first, "begin", None)
    return begin(task, seed, texts) if begin else None


def begin_from(folder: str | Path, task: Task, seed: int = 0) -> Student:
    """A model to be trained for a task: its encoder with the task's head, a new one where it has none that fits."""
    return load_student(folder, task.labels if task.names_outputs else (), task.problem, seed, task.head)


def head_of(config: PreTrainedConfig) -> str:
    return head_named(str((config.architectures or [""])[0])) or "SequenceClassification"


def reader_of(config: PreTrainedConfig, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a model's folder; of a network that reads pixels, what it has in its place."""
    if head_of(config) != "ImageClassification":
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        return found
    if config.model_type != "potstill-mlp":  # others have images scaled and normalised in ways of their own
        raise InputError(f"{folder} is an image model of type {config.model_type!r}; use one that was made by mlp")
    return PixelReader(config.shape)


def save_student(student: Student, folder: Path) -> None:
    """The stock folder of transformers, safetensors only; it appears under its name once it is whole and on disk."""
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{folder.name}")
    old = new.with_name(f"{new.name}-before")
    try:
        with quiet_transformers(), disk_errors(folder):
            student.model.save_pretrained(new)
            _as_made(student.tokenizer).save_pretrained(new)
            _name_for_older_readers(new / "tokenizer_config.json")
        for path in [*new.iterdir(), new]:
            fsync_path(path)
        if folder.exists():
            # a folder that is not empty cannot be replaced in one step: for a moment the old one is beside its place
            folder.rename(old)
        new.rename(folder)
        fsync_path(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if folder.exists():
            _keep_the_users(old, folder)
        elif old.exists():
            old.rename(folder)


def _keep_the_users(old: Path, folder: Path) -> None:
    """What is not a model's file goes from the folder that was replaced into the new one; the rest of it is removed."""
    if not old.exists():
        return
    for path in old.iterdir():
        if path.is_symlink() or not path.is_file() or not MODEL_FILE.fullmatch(path.name):
            path.rename(folder / path.name)
    shutil.rmtree(old, ignore_errors=True)


def stock_model(
    like: PreTrainedModel, config: PreTrainedConfig, weights: dict[str, torch.Tensor] | None, seed: int = 0
) -> PreTrainedModel:
    """A model with another's kind of head and this config, in eval mode: with exactly these weights, or random ones from `seed`."""
    head = head_named(type(like).__name__)
    assert head is not None
    with quiet_transformers(), seeded(seed):
        model: PreTrainedModel = HEADS[head].from_config(config, dtype=torch.float32)
    model.config.architectures = [type(model).__name__]
    if like.can_generate():
        model.generation_config = copy.deepcopy(like.generation_config)
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    model.eval()
    return model


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch from `seed` inside, and as if nothing had been drawn after."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No load report, warning or progress bar: what they would tell is checked here, and said once as an error."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def safe_folder(folder: str | Path) -> Path:
    """Where a model lies, once it is known that only plain weights and stock code will be opened there."""
    path = _place(folder)
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.onnx")):
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        raise InputError(
            f"{folder} has {'only pickled weights, which can run code' if pickled else 'no weights'}; "
            "potstill reads safetensors only: write it with `model.save_pretrained(folder)` of a recent transformers"
        )
    refuse_unsafe_files(path)
    refuse_unsafe_settings(path)
    return path


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Of a model's folder, or of one that holds nothing else; weights are not looked at."""
    path = _place(folder)
    refuse_unsafe_files(path)
    refuse_unsafe_settings(path, needed="tokenizer_config.json")
    try:
        with quiet_transformers():
            found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # files that are missing or broken fail in many ways inside transformers
        raise InputError(
            f"{folder} holds no tokenizer that can be read ({_first_line(error)}); "
            "give a folder that `tokenizer.save_pretrained(folder)` of transformers has written"
        ) from error
    return found


def _place(folder: str | Path) -> Path:
    path = Path(folder)
    if not path.is_dir() and _is_path(folder):
        raise InputError(f"there is no folder {folder}; write the path of a model's folder, or a name on the hub")
    return path if path.is_dir() else _from_hub(str(folder))


def _from_hub(name: str) -> Path:
    """The model's folder in the local cache of the hub, brought there first where HF_HUB_OFFLINE does not forbid it."""
    from huggingface_hub import snapshot_download

    wanted = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.spm"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))
    except Exception as error:  # no network, no such model, a name that cannot be one: each has a class of its own
        raise InputError(
            f"there is no folder {name}, and the Hugging Face Hub gave no such model ({_first_line(error)}); "
            "check the name and the network, or give the path of a model's folder"
        ) from error


def _needed_numbers(config: PreTrainedConfig, head: str) -> int:
    """Of the network that a config describes, counted without making it."""
    with torch.device("meta"):
        model = HEADS[head].from_config(config, trust_remote_code=False)
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


def _is_path(folder: str | Path) -> bool:
    """Whether this can only mean a folder: a name on the hub has at most two parts and no dot or slash in front."""
    parts = Path(folder).parts
    return isinstance(folder, Path) or folder.startswith((".", "/", "~")) or len(parts) > 2 or Path(parts[0]).exists()


def _absent(info: dict[str, Any]) -> set[str]:
    """Names of the weights that the model needs and the file does not have in that shape."""
    return set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}


def _check_weights(folder: str | Path, model: PreTrainedModel, info: dict[str, Any], may_make_head: bool) -> None:
    absent = sorted(_absent(info))
    encoder = [name for name in absent if not in_head(model, name)]
    if encoder:
        raise InputError(
            f"{folder} lacks {len(encoder)} weights of the encoder, or has them in another shape, "
            f"such as {encoder[0]}; use a folder whose config.json and model.safetensors belong together"
        )
    if absent and not may_make_head:
        raise InputError(
            f"{folder} has no trained head ({', '.join(absent)}); use a model that was fine-tuned on this task"
        )
    saved = set()
    for name, weight in _stored_weights(safe_folder(folder)) if is_spread(model) else model.state_dict().items():
        saved.add(name)
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise InputError(
                f"{folder}: {name} holds numbers that are not finite; use weights of a training that went well"
            )
    saved |= set(getattr(model, "all_tied_weights_keys", None) or {})  # kept under the name of another
    if lost := [name for name, weight in model.named_parameters() if weight.is_meta and name not in saved]:
        raise InputError(f"{folder}: {lost[0]} is in no file and cannot lie on disk; write teacher_devices = 'one'")
    if not has_layers(model):
        return
    layer = re.compile(re.escape(layers_path(model).partition(".")[2]) + r"\.(\d+)\.")
    numbers = {name: int(found[1]) for name in info["unexpected_keys"] if (found := layer.search(name))}
    left_over = sorted(name for name, number in numbers.items() if number >= model.config.num_hidden_layers)
    if left_over:
        raise InputError(
            f"{folder} has layers that its config.json does not name, such as {left_over[0]}; "
            f"write the right number of layers into config.json, which now says {model.config.num_hidden_layers}"
        )


def _stored_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """One after the other: all of a model that is spread would not fit."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no dictionary)
                yield name, tensors.get_tensor(name)


def _as_made(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy without what came from its last loading and its last batch, which would be saved with it."""
    tokenizer = copy.deepcopy(tokenizer)
    if isinstance(tokenizer, PixelReader):
        return tokenizer
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    if hasattr(tokenizer, "backend_tokenizer"):  # those in Python, as Marian's own, have no such settings
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


def _name_for_older_readers(settings: Path) -> None:
    """The plain tokenizer by the name that transformers 4 knows too; transformers 5 reads both."""
    text = settings.read_text(encoding="utf-8") if settings.exists() else ""
    if '"TokenizersBackend"' in text:
        settings.write_text(text.replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"'), encoding="utf-8")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
