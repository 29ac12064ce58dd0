"""Where each architecture keeps its parts: asked of the modules and their types, never of a list of names per model."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.architectures.registration import PREFIX

TESTED = ("bert", "roberta", "distilbert", "mpnet", "electra", "modernbert")


def has_layers(model: PreTrainedModel) -> bool:
    """False for networks without layers that could be compared, kept or cut: those over word vectors."""
    return getattr(model.config, "num_hidden_layers", None) != 0


def layers_path(model: PreTrainedModel) -> str:
    """The name of the list of encoder layers inside the whole model, e.g. "bert.encoder.layer"."""
    if not has_layers(model):
        raise InputError(
            f"a {kind(model)} has no layers to choose from; build it last, or leave it out and write student = 'fresh'"
        )
    return next(iter(stacks(model)))


def stacks(model: PreTrainedModel) -> dict[str, str]:
    """Names of the lists of layers, each with the config's field that counts it: one; of a translator the reading one first."""
    config, writes = model.config, model.config.is_encoder_decoder and model.can_generate()
    inside = "encoder." if writes else ""
    found = {_list_of(model, inside, int(config.num_hidden_layers)): "num_hidden_layers"}
    if writes:
        field = "decoder_layers" if hasattr(config, "decoder_layers") else "num_decoder_layers"
        found[_list_of(model, "decoder.", int(getattr(config, field)))] = field
    return found


def _list_of(model: PreTrainedModel, inside: str, count: int) -> str:
    base = model.base_model
    lists = [
        name
        for name, module in base.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and name.startswith(inside)
    ]
    # a layer of T5 is itself a list, of two or three parts
    found = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(found) != 1:
        raise InputError(
            f"a model of type {model.config.model_type!r} is not supported: it has {len(found)} lists of "
            f"{count} layers where one is needed; use an encoder such as {', '.join(TESTED)}"
        )
    return found[0] if base is model else f"{model.base_model_prefix}.{found[0]}"


def kind(model: PreTrainedModel) -> str:
    """What the architecture is called in messages: bert, bilstm."""
    return str(model.config.model_type).removeprefix(PREFIX)


def encoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The layers of the encoder, first to last; none of networks without layers."""
    if not has_layers(model):
        return nn.ModuleList()
    layers = model.get_submodule(layers_path(model))
    assert isinstance(layers, nn.ModuleList)
    return layers


def layer_count(model: PreTrainedModel) -> int:
    """How many layers the encoder has."""
    return len(encoder_layers(model))


def width(model: PreTrainedModel) -> int:
    """The size of one token's state between two layers."""
    return int(model.config.hidden_size)


def word_embeddings(model: PreTrainedModel) -> nn.Embedding:
    """The table with one row per piece of the vocabulary; in ELECTRA its rows may be narrower than `width`."""
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    return table


def position_offset(model: PreTrainedModel) -> int:
    """Unused rows of the position table: RoBERTa and MPNet count from the padding's id + 1, the others from 0."""
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def positions(model: PreTrainedModel) -> int:
    """How many tokens the model can tell apart by position."""
    most = getattr(model.config, "max_position_embeddings", None)
    return int(most) - position_offset(model) if most is not None else 10**30  # T5 counts distances, of any size


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens, special ones included, that fit; a tokenizer without a limit says 10^30."""
    return min(positions(model), int(tokenizer.model_max_length))


def set_dropout(model: PreTrainedModel, p: float) -> None:
    """One dropout probability everywhere, in modules and config, so that a saved model comes back with it."""
    for module in list(model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = p
        for name, child in list(module.named_children()):
            # ModernBERT leaves a dropout out where its config says 0: it needs one when the probability rises again
            if "drop" in name and isinstance(child, nn.Identity):
                setattr(module, name, nn.Dropout(p))
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, p)
    for name, value in model.config.to_dict().items():
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float | int) and type(value) is not bool:
            setattr(model.config, name, p)


def undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters without weight decay: every bias and every norm's weight, which are all vectors."""
    return {name for name, parameter in model.named_parameters() if parameter.ndim < 2}


KEY_BIAS = re.compile(r"\.(key|k_lin|k|k_proj)\.bias$")


TURNED = ("rope_parameters", "rotary_value")  # fields of configs whose positions turn the keys: newer ones, RoFormer
HASHED = "use_expectation"  # of YOSO, which has no softmax


def without_effect(models: Iterable[PreTrainedModel]) -> list[nn.Parameter]:
    """Biases of attention's keys: they add the same to all scores of a query, which a softmax takes away again.

    Their gradient is zero but for rounding, which Adam would blow up to full steps in random directions. Where positions
    turn the keys (rotary ones), the bias turns with them and has an effect. Each model is asked for itself.
    """
    found: list[nn.Parameter] = []
    for model in models:
        config = model.config
        turned = any(getattr(config, name, None) is not None for name in TURNED)
        turned = turned or getattr(config, "position_embedding_type", None) == "rotary" or hasattr(config, HASHED)
        if not turned:
            found += [parameter for name, parameter in model.named_parameters() if KEY_BIAS.search(name)]
    return found


def is_causal(model: PreTrainedModel) -> bool:
    """Whether a token sees only those before it, so that the last one alone has seen the whole text.

    Attention says so of itself in most architectures; classifiers of the others call their head `score`, as all do that
    read the last token.
    """
    return hasattr(model, "score") or any(getattr(part, "is_causal", False) for part in model.base_model.modules())


def in_head(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter belongs to the task: what lies outside the encoder, and its pooler."""
    prefix = f"{model.base_model_prefix}."
    if model.base_model is model:  # T5 has its stacks beside its output
        return name.startswith("lm_head.")
    return not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")


EMBEDS = re.compile(r"embeddings|\b(embed_\w+|shared|wte|wpe)\.")


def parameters(model: PreTrainedModel) -> dict[str, int]:
    """Numbers of parameters by part. What the layers share, such as MPNet's position bias, counts to them.

    What is worked out again at every loading and never saved, as Marian's table of sines, is none.
    """
    counts = {"embeddings": 0, "layers": 0, "head": 0}
    for name, parameter in model.named_parameters():
        if name in (model._keys_to_ignore_on_save or ()):
            continue
        part = "head" if in_head(model, name) else "embeddings" if EMBEDS.search(name) else "layers"
        counts[part] += parameter.numel()
    return counts


def all_parameters(model: PreTrainedModel) -> int:
    return sum(parameters(model).values())


def is_spread(model: PreTrainedModel) -> bool:
    """Whether parts of the model lie on other devices, or on disk, and come when they are needed."""
    places = set(getattr(model, "hf_device_map", {}).values())
    return len(places) > 1 or "disk" in places
