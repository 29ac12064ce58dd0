"""A model with its tokenizer: loaded strictly, saved completely, built with the head of another."""

from __future__ import annotations

import copy
import inspect
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.anatomy import is_spread, positions
from potstill.models.architectures.own_model import OwnModel
from potstill.models.architectures.reshaped import ReshapedModel, fitting_config, is_reshaped, stock_config
from potstill.models.builder import Student
from potstill.models.compression.coded import read_coded
from potstill.models.folders import SHORTEST, explain_errors, refuse_odd_labels, safe_folder
from potstill.models.heads import DESCRIPTIONS, auto_class, head_of, head_of_class
from potstill.models.loading import (
    NO_CODE,
    load_config,
    load_reader,
    missing_weights,
    quiet_transformers,
    refuse_bad_weights,
    refuse_padding_effect,
)
from potstill.models.safety import is_coded, refuse_larger, refuse_other_vocabulary, stored_numbers
from potstill.system import paths
from potstill.system.files import MODEL_FILE, TEMPORARY, disk_errors, fsync_path
from potstill.system.paths import expand_user
from potstill.system.randomness import seeded

Model = TypeVar("Model", bound=PreTrainedModel)


def load_student(
    folder: str | Path,
    labels: Sequence[str] | None = None,
    problem: str | None = None,
    seed: int = 0,
    head: str | None = None,
    devices: str | dict[str, str] = "one",
) -> Student:
    """Load a model with a head and its tokenizer from a folder or the hub, in float32 and eval mode.

    Every weight must be present. Only with `labels` may the head be missing or have another number of labels: a new one
    is then drawn from `seed`. A head of the same size keeps its own label names. `head` is a key of
    `heads.DESCRIPTIONS`; without it the config decides, and if it names none, the model is a text classifier.
    `devices`: "auto" lets Accelerate spread the weights over all devices, memory and disk; a table limits each.
    """
    place = safe_folder(folder)
    stored = stored_numbers(place)
    config = load_config(place)
    head = head or head_of(config)
    failure = f"{folder} cannot be loaded as {DESCRIPTIONS.get(head, 'a model')}"
    todo = "give a folder with config.json, model.safetensors and tokenizer.json"
    with explain_errors(failure, todo), quiet_transformers(), seeded(seed):
        if head == "QuestionAnswering":  # start and end
            config.num_labels = 2
        elif labels and config.num_labels != len(labels):
            config.num_labels = len(labels)
        network = auto_class(head)
        needed = _count_numbers(lambda: network.from_config(config, trust_remote_code=False))
        refuse_larger(place, needed, stored)
        coded = is_coded(place)
        model, info = (_class_of(network, config) if coded else network).from_pretrained(
            None if coded else str(place),
            **NO_CODE,
            **({"state_dict": read_coded(place)} if coded else _device_map(devices)),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with their names
        )
        if coded and (place / "generation_config.json").exists():  # transformers has read no file of the folder
            model.generation_config = GenerationConfig.from_pretrained(place, **NO_CODE)
        tokenizer = load_reader(config, place)
        room = positions(model)
    if room < SHORTEST and not isinstance(tokenizer, PixelReader):
        raise InputError(f"{folder}: config.json has room for {room} tokens; write the right max_position_embeddings")
    refuse_bad_weights(folder, model, info, may_make_head=labels is not None)
    if isinstance(model, OwnModel):
        # the last bit of an LSTM depends on the alignment of its weights, which a memory-mapped file does not keep
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    model.config.architectures = [type(model).__name__]
    new_head = any(not name.startswith(f"{model.base_model_prefix}.") for name in missing_weights(info))
    if labels and new_head:
        model.config.id2label = dict(enumerate(labels))
        model.config.label2id = {label: index for index, label in enumerate(labels)}
        model.config.problem_type = problem
    else:
        refuse_odd_labels(model.config, folder)
    if isinstance(table := model.get_input_embeddings(), torch.nn.Embedding):
        refuse_other_vocabulary(tokenizer.get_vocab(), table.num_embeddings, folder)
    own = isinstance(model, OwnModel) and not isinstance(model, ReshapedModel)
    if head == "SequenceClassification" and not own and not is_spread(model):
        refuse_padding_effect(folder, model.eval(), tokenizer)
    return Student(model.eval(), tokenizer, new_head)


def _class_of(network: Any, config: PreTrainedConfig) -> Any:
    """The class that an Auto class chooses; those cannot load weights that are in memory."""
    with torch.device("meta"):
        return type(network.from_config(config, trust_remote_code=False))


def _device_map(devices: str | dict[str, str]) -> dict[str, Any]:
    if devices == "one":
        return {}
    limits = devices.items() if isinstance(devices, dict) else ()
    memory = {int(name) if name.isdigit() else name: size for name, size in limits} or None
    return {"device_map": "auto", "max_memory": memory, "offload_folder": str(paths.cache() / "offloaded")}


def save_student(student: Student, folder: Path) -> None:
    """Save in the layout of transformers, safetensors only; the folder appears once it is complete and on disk."""
    folder = expand_user(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f"{TEMPORARY}{secrets.token_hex(4)}-{folder.name}")
    old = new.with_name(f"{new.name}-before")
    try:
        with quiet_transformers(), disk_errors(folder):
            student.model.save_pretrained(new)
            _clean_copy(student.tokenizer).save_pretrained(new)
            _name_class_for_transformers_4(new / "tokenizer_config.json")
        for path in [*new.iterdir(), new]:
            fsync_path(path)
        if folder.exists():
            # a folder that is not empty cannot be replaced in one step: for a moment the old one has another name
            folder.rename(old)
        new.rename(folder)
        fsync_path(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if folder.exists():
            _keep_user_files(old, folder)
        elif old.exists():
            old.rename(folder)


def _keep_user_files(old: Path, folder: Path) -> None:
    """Move files that do not belong to a model from the replaced folder into the new one; delete the rest."""
    if not old.exists():
        return
    for path in old.iterdir():
        if path.is_symlink() or not path.is_file() or not MODEL_FILE.fullmatch(path.name):
            path.rename(folder / path.name)
    shutil.rmtree(old, ignore_errors=True)


def _clean_copy(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Copy a tokenizer without the settings of its last loading and its last batch, which would be saved with it."""
    tokenizer = copy.deepcopy(tokenizer)
    if isinstance(tokenizer, PixelReader):
        return tokenizer
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    if hasattr(tokenizer, "backend_tokenizer"):  # tokenizers in Python, such as Marian's own, have no such settings
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


def _name_class_for_transformers_4(settings: Path) -> None:
    """Name the plain tokenizer class as transformers 4 does; transformers 5 knows both names."""
    text = settings.read_text(encoding="utf-8") if settings.exists() else ""
    if '"TokenizersBackend"' in text:
        settings.write_text(text.replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"'), encoding="utf-8")


def stock_model(
    like: PreTrainedModel, config: PreTrainedConfig, weights: dict[str, torch.Tensor] | None, seed: int = 0
) -> PreTrainedModel:
    """Build a model with the head and the labels of `like`, in eval mode, with these weights or random ones from `seed`.

    If `like` has layers of other shapes than a stock model, the new one may have some too, those of its weights.
    """
    if weights is not None and is_reshaped(like.config):
        return reshaped_model(like, config, weights)
    return _built_like(like, stock_config(config), weights, seed)


def reshaped_model(
    like: PreTrainedModel, config: PreTrainedConfig, weights: dict[str, torch.Tensor]
) -> PreTrainedModel:
    """The same, with linear layers of the shapes that their weights have: NAME.weight, or NAME.0.weight and NAME.1.weight."""
    head = head_of_class(type(like).__name__)
    assert head is not None
    return _built_like(like, fitting_config(config, head, weights), weights)


def _built_like(
    like: PreTrainedModel, config: PreTrainedConfig, weights: dict[str, torch.Tensor] | None, seed: int = 0
) -> PreTrainedModel:
    config.id2label, config.label2id = copy.deepcopy((like.config.id2label, like.config.label2id))
    config.problem_type = like.config.problem_type
    head = head_of_class(type(like).__name__)
    assert head is not None
    model = new_model(config, head, seed)
    if like.can_generate():
        model.generation_config = copy.deepcopy(like.generation_config)
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    return model


def fitting_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer that gives only what the model reads: DistilBERT, MPNet and ModernBERT have no segments."""
    tokenizer = copy.deepcopy(tokenizer)
    parameters = inspect.signature(model.forward).parameters
    inputs = [name for name in tokenizer.model_input_names if name in parameters]
    if inputs != tokenizer.model_input_names:
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = inputs  # the latter is saved
    return tokenizer


def new_model(config: PreTrainedConfig, head: str, seed: int) -> PreTrainedModel:
    """Build a model with a head such as "Seq2SeqLM", in eval mode, with random weights from `seed`."""
    with quiet_transformers():
        model: PreTrainedModel = new_network(lambda: auto_class(head).from_config(config, dtype=torch.float32), seed)
    model.config.architectures = [type(model).__name__]
    return model.eval()


def new_network(make: Callable[[], Model], seed: int) -> Model:
    """Make a network with random weights from `seed`; refuse it before it takes more memory than this machine has."""
    with seeded(seed):
        numbers = _count_numbers(make)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if 4 * numbers > memory:
            raise InputError(
                f"the student would have {numbers:,} numbers, {4 * numbers / 1e9:,.0f} GB, and this machine has "
                f"{memory / 1e9:,.0f} GB of memory; ask for a smaller one, such as keep_layers:3"
            )
        torch.manual_seed(seed)
        return make()


def _count_numbers(make: Callable[[], PreTrainedModel]) -> int:
    """Count the parameters and buffers of a network without allocating them."""
    with torch.device("meta"):
        model = make()
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
