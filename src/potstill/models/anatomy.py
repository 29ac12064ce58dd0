"""Find the parts of a model, by its modules and their types, never by a list of names per architecture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.architectures.registration import PREFIX

TESTED = ("bert", "roberta", "distilbert", "mpnet", "electra", "modernbert")
KEY_BIAS = re.compile(r"\.(key|k_lin|k|k_proj)(\.1)?\.bias$")  # of two factors, the second has the bias
ROTARY = ("rope_parameters", "rotary_value")  # config fields of models with rotary positions: newer ones, RoFormer
GROUPS = "num_hidden_groups"  # config field of ALBERT: how many layers have weights of their own
NO_SOFTMAX = "use_expectation"  # config field of YOSO, which hashes instead
EMBEDDINGS = re.compile(r"embeddings|\b(embed_\w+|shared|wte|wpe)\.")


def is_spread(model: PreTrainedModel) -> bool:
    """Whether parts of the model are on different devices, or on disk, and are moved when they are needed."""
    places = set(getattr(model, "hf_device_map", {}).values())
    return len(places) > 1 or "disk" in places


def has_layers(model: PreTrainedModel) -> bool:
    """False for networks without layers that could be compared, kept or dropped: those over word vectors."""
    return getattr(model.config, "num_hidden_layers", None) != 0


def layers_path(model: PreTrainedModel) -> str:
    """Return the name of the list of encoder layers inside the whole model, such as "bert.encoder.layer"."""
    if not has_layers(model):
        raise InputError(
            f"a {architecture_name(model)} has no layers to choose from; build it last, "
            "or omit it and write student = 'fresh'"
        )
    return next(iter(stacks(model)))


def stacks(model: PreTrainedModel) -> dict[str, str]:
    """Return the names of the lists of layers, each with the config field that counts it; the encoder comes first."""
    config, two_stacks = model.config, model.config.is_encoder_decoder and model.can_generate()
    stored = int(getattr(config, GROUPS, config.num_hidden_layers))
    paths = {_find_layers(model, "encoder." if two_stacks else "", stored): "num_hidden_layers"}
    if two_stacks:
        field = "decoder_layers" if hasattr(config, "decoder_layers") else "num_decoder_layers"
        paths[_find_layers(model, "decoder.", int(getattr(config, field)))] = field
    return paths


def _find_layers(model: PreTrainedModel, prefix: str, count: int) -> str:
    base = model.base_model
    lists = [
        name
        for name, module in base.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and name.startswith(prefix)
    ]
    # a layer of T5 is itself a list, of two or three parts
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outermost) != 1:
        raise InputError(
            f"a model of type {model.config.model_type!r} is not supported: it has {len(outermost)} lists of "
            f"{count} layers where one is needed; use an encoder such as {', '.join(TESTED)}"
        )
    return outermost[0] if base is model else f"{model.base_model_prefix}.{outermost[0]}"


def architecture_name(model: PreTrainedModel) -> str:
    """Return the name of the architecture for messages, such as bert or bilstm."""
    return str(model.config.model_type).removeprefix(PREFIX)


def stored_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Return the layers of the encoder that have weights of their own; an empty list for networks without layers."""
    if not has_layers(model):
        return nn.ModuleList()
    layers = model.get_submodule(layers_path(model))
    assert isinstance(layers, nn.ModuleList)
    return layers


def encoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """Return the layers of the encoder in the order of their use. In ALBERT one layer is used at every depth, or a few."""
    stored = stored_layers(model)
    if not hasattr(model.config, GROUPS):
        return stored
    depth = int(model.config.num_hidden_layers)
    return nn.ModuleList(stored[place * len(stored) // depth] for place in range(depth))


def shares_layers(model: PreTrainedModel) -> bool:
    """Whether a layer is used at several depths."""
    return hasattr(model.config, GROUPS) and len(stored_layers(model)) < layer_count(model)


def layer_count(model: PreTrainedModel) -> int:
    return len(encoder_layers(model))


def width(model: PreTrainedModel) -> int:
    """Return the size of a token's state between two layers."""
    return int(model.config.hidden_size)


def fitting_heads(width: int, even: bool = False) -> int:
    """Return the number of attention heads whose size is nearest to 64. Rotary positions need an `even` size."""
    sizes = [size for size in range(1, width + 1) if width % size == 0 and not (even and size % 2)]
    if not sizes:
        raise InputError(f"rotary positions need an even width, not {width}; write width = {width + 1}")
    return width // min(sizes, key=lambda size: (abs(size - 64), size))


def word_embeddings(model: PreTrainedModel) -> nn.Embedding:
    """Return the table with one row per token of the vocabulary; in ELECTRA its rows may be narrower than `width`."""
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    return table


def position_offset(model: PreTrainedModel) -> int:
    """Count the unused rows of the position table: RoBERTa and MPNet count from the padding's id + 1, others from 0."""
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def positions(model: PreTrainedModel) -> int:
    """Return how many tokens the model has positions for."""
    limit = getattr(model.config, "max_position_embeddings", None)
    return int(limit) - position_offset(model) if limit is not None else 10**30  # T5 has relative positions


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the most tokens that fit, special ones included; a tokenizer without a limit says 10^30."""
    return min(positions(model), int(tokenizer.model_max_length))


def set_dropout(model: PreTrainedModel, p: float) -> None:
    """Set one dropout probability everywhere, in modules and config, so that a saved model keeps it."""
    for module in list(model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = p
        for name, child in list(module.named_children()):
            # ModernBERT has no dropout modules if its config says 0: it needs them when the probability rises
            if "drop" in name and isinstance(child, nn.Identity):
                setattr(module, name, nn.Dropout(p))
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, p)
    for name, value in model.config.to_dict().items():
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float | int) and type(value) is not bool:
            setattr(model.config, name, p)


def undecayed(model: nn.Module) -> set[str]:
    """Return the names of the parameters without weight decay: all biases and norms, which are vectors."""
    return {name for name, parameter in model.named_parameters() if parameter.ndim < 2}


def without_effect(models: Iterable[PreTrainedModel]) -> list[nn.Parameter]:
    """Return the biases of attention keys, which add the same to all scores of a query and cancel in the softmax.

    Their gradient is zero up to rounding, which Adam would turn into full steps in random directions. With rotary
    positions the bias is rotated too and does have an effect.
    """
    biases: list[nn.Parameter] = []
    for model in models:
        config = model.config
        rotary = any(getattr(config, name, None) is not None for name in ROTARY)
        rotary = rotary or getattr(config, "position_embedding_type", None) == "rotary"
        if not rotary and not hasattr(config, NO_SOFTMAX):
            biases += [parameter for name, parameter in model.named_parameters() if KEY_BIAS.search(name)]
    return biases


def is_causal(model: PreTrainedModel) -> bool:
    """Whether a token sees only those before it, so that only the last one has seen the whole text.

    In most architectures the attention modules say so; in the others, classifiers that read the last token call their
    head `score`.
    """
    return hasattr(model, "score") or any(getattr(part, "is_causal", False) for part in model.base_model.modules())


def in_head(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter belongs to the task's head: everything outside the encoder, and the pooler."""
    prefix = f"{model.base_model_prefix}."
    if model.base_model is model:  # T5 has its stacks beside its output
        return name.startswith("lm_head.")
    return not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")


def chosen_parameters(model: PreTrainedModel, parts: Sequence[int | str]) -> set[str]:
    """Return the names of the parameters in these parts: a layer by its number from 1, "embeddings", "head", or a module."""
    names = [name for name, _ in model.named_parameters()]
    layers = f"{layers_path(model)}." if any(isinstance(part, int) for part in parts) else ""
    count = layer_count(model)
    chosen: set[str] = set()
    for part in parts:
        if isinstance(part, int):
            if part > count:
                raise InputError(
                    f"trains names layer {part}, but the student has {count}; write numbers from 1 to {count}"
                )
            found = [name for name in names if name.startswith(f"{layers}{part - 1}.")]
        elif part == "head":
            found = [name for name in names if in_head(model, name)]
        elif part == "embeddings":
            found = [name for name in names if EMBEDDINGS.search(name) and not in_head(model, name)]
        else:
            found = [name for name in names if f".{name}".startswith(f".{part}.") or f".{part}." in f".{name}."]
        if not found:
            modules = ", ".join(dict.fromkeys(".".join(name.split(".")[:2]) for name in names))
            raise InputError(
                f"trains names '{part}', but no parameter of the student lies there; write the number of a layer, "
                f'"embeddings", "head", or a module such as {modules}'
            )
        chosen.update(found)
    return chosen


def parameters(model: PreTrainedModel) -> dict[str, int]:
    """Count parameters by part. What the layers share, such as MPNet's position bias, counts as part of them.

    Tables that are recomputed on load and never saved, such as Marian's sines, are not counted.
    """
    counts = {"embeddings": 0, "layers": 0, "head": 0}
    for name, parameter in model.named_parameters():
        if name in (model._keys_to_ignore_on_save or ()):
            continue
        part = "head" if in_head(model, name) else "embeddings" if EMBEDDINGS.search(name) else "layers"
        counts[part] += parameter.numel()
    return counts


def all_parameters(model: PreTrainedModel) -> int:
    return sum(parameters(model).values())
