"""Students: a model and its tokenizer, loaded strictly, saved whole. Each file beside this one makes or reshapes."""

from __future__ import annotations

import copy
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.anatomy import has_layers, in_head, layers_path, positions
from potstill.models.architectures.registration import PREFIX
from potstill.models.builder import Student
from potstill.models.folders import first_line
from potstill.models.heads import WHAT, head_named
from potstill.models.loading import NO_CODE, load_config, quiet_transformers, reader_of, refuse_odd_labels, safe_folder
from potstill.models.padding_check import refuse_moved_by_padding
from potstill.models.safety import refuse_larger, stored_numbers
from potstill.models.tokenizers.safety import SHORTEST, refuse_other_vocabulary
from potstill.system import paths
from potstill.system.files import MODEL_FILE, TEMPORARY, disk_errors, fsync_path
from potstill.system.paths import given
from potstill.system.randomness import seeded

Made = TypeVar("Made", bound=PreTrainedModel)
HEADS: dict[str, Any] = {
    "SequenceClassification": AutoModelForSequenceClassification,
    "TokenClassification": AutoModelForTokenClassification,
    "QuestionAnswering": AutoModelForQuestionAnswering,
    "MultipleChoice": AutoModelForMultipleChoice,
    "ImageClassification": AutoModelForImageClassification,
    "Seq2SeqLM": AutoModelForSeq2SeqLM,
    "CausalLM": AutoModelForCausalLM,
}
NAMED = ("SequenceClassification", "TokenClassification", "ImageClassification")  # heads whose outputs have names


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
    config = load_config(place)
    try:
        with quiet_transformers(), seeded(seed):
            head = head or head_of(config)
            if head == "QuestionAnswering":  # start and end
                config.num_labels = 2
            elif labels and config.num_labels != len(labels):
                config.num_labels = len(labels)
            refuse_larger(place, _needed_numbers(config, head), stored)
            model, info = HEADS[head].from_pretrained(
                str(place),
                **NO_CODE,
                **spread_over(devices),
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with the names
            )
            tokenizer = reader_of(config, place)
            room = positions(model)
    except InputError:
        raise
    except Exception as error:  # a broken folder fails in many ways inside transformers
        raise InputError(
            f"{folder} cannot be loaded as {WHAT.get(str(head), 'a model')} ({first_line(error)}); "
            "give a folder with config.json, model.safetensors and tokenizer.json"
        ) from error
    if room < SHORTEST and not isinstance(tokenizer, PixelReader):
        raise InputError(
            f"{folder}: config.json leaves room for {room} tokens; write the right max_position_embeddings"
        )
    _check_weights(folder, model, info, may_make_head=labels is not None)
    if config.model_type.startswith(PREFIX):
        # an LSTM's last bit hangs on where its weights lie; in the file's memory map they lie otherwise than torch puts them
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    model.config.architectures = [type(model).__name__]
    new_head = any(not name.startswith(f"{model.base_model_prefix}.") for name in _absent(info))
    if labels and new_head:
        model.config.id2label = dict(enumerate(labels))
        model.config.label2id = {label: index for index, label in enumerate(labels)}
        model.config.problem_type = problem
    elif head in NAMED:
        refuse_odd_labels(model.config, folder)
    table = model.get_input_embeddings()
    if isinstance(table, torch.nn.Embedding) and not isinstance(tokenizer, PixelReader):
        refuse_other_vocabulary(tokenizer, table.num_embeddings, folder)
    if head == "SequenceClassification" and not config.model_type.startswith(PREFIX) and not is_spread(model):
        refuse_moved_by_padding(folder, model.eval(), tokenizer)
    return Student(model.eval(), tokenizer, new_head)


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


def head_of(config: PreTrainedConfig) -> str:
    return head_named(str((config.architectures or [""])[0])) or "SequenceClassification"


def save_student(student: Student, folder: Path) -> None:
    """The stock folder of transformers, safetensors only; it appears under its name once it is whole and on disk."""
    folder = given(folder)
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
    with quiet_transformers():
        model: PreTrainedModel = new_network(lambda: HEADS[head].from_config(config, dtype=torch.float32), seed)
    model.config.architectures = [type(model).__name__]
    if like.can_generate():
        model.generation_config = copy.deepcopy(like.generation_config)
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    model.eval()
    return model


def new_network(make: Callable[[], Made], seed: int) -> Made:
    """With random weights from `seed`; refused before it takes memory where this machine has less than it needs."""
    with seeded(seed):
        numbers = _numbers_of(make)
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if 4 * numbers > there:
            raise InputError(
                f"the student would have {numbers:,} numbers, {4 * numbers / 1e9:,.0f} GB, and this machine has "
                f"{there / 1e9:,.0f} GB of memory; ask for a smaller one, such as keep_layers:3"
            )
        torch.manual_seed(seed)
        return make()


def _needed_numbers(config: PreTrainedConfig, head: str) -> int:
    """Of the network that a config describes."""
    return _numbers_of(lambda: HEADS[head].from_config(config, trust_remote_code=False))


def _numbers_of(make: Callable[[], PreTrainedModel]) -> int:
    """Counted without giving them memory."""
    with torch.device("meta"):
        model = make()
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


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
