"""Stock networks with linear layers of other shapes: with fewer rows or columns, or as two narrow ones.

`potstill_shapes` in config.json has the sizes of every such layer, from its input to its output, by its name in the encoder:

    "encoder.layer.0.attention.self.query": [768, 512]      one matrix, of fewer rows, where attention heads were removed
    "encoder.layer.0.intermediate.dense": [768, 128, 3072]  two: W ≈ L·R, first R without a bias, then L

All else is the stock network's own code. A BERT has the type potstill-bert then, which `import potstill` makes known to
transformers; without it a plain load fails, and never gives random weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from potstill.models.architectures.own_model import OwnModel
from potstill.models.architectures.registration import PREFIX
from potstill.models.heads import DESCRIPTIONS, auto_class

SHAPES = "potstill_shapes"  # in config.json
Shapes = dict[str, list[int]]


class Factored(nn.Sequential):
    """W ≈ L·R as two linear layers, R (rank, inputs) and L (outputs, rank)."""

    def __init__(self, inputs: int, rank: int, outputs: int, bias: bool) -> None:
        super().__init__(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=bias))

    @property
    def weight(self) -> Tensor:
        """L. T5 asks its linear layers for the type of their weights."""
        return self.get_parameter("1.weight")


class ReshapedModel(OwnModel):
    """The classes of `register` have a stock class as their second base, whose `__init__` runs first."""

    stock: ClassVar[type[PreTrainedModel]]

    def __init__(self, config: PreTrainedConfig, *inputs: Any, **options: Any) -> None:
        super().__init__(config, *inputs, **options)
        _reshape(self.base_model, stated_shapes(config))
        self.post_init()


def is_reshaped(config: PreTrainedConfig) -> bool:
    return hasattr(type(config), "stock")


def stated_shapes(config: PreTrainedConfig) -> Shapes:
    """Which layers of a network have other shapes; empty for stock ones."""
    if not is_reshaped(config):
        return {}
    stated = getattr(config, SHAPES, None)
    if not isinstance(stated, dict) or not all(_is_shape(sizes) for sizes in stated.values()):
        raise ValueError(f"{SHAPES} in config.json is not a table of sizes such as [768, 128, 768]")
    return stated


def _is_shape(sizes: object) -> bool:
    return (
        isinstance(sizes, list)
        and len(sizes) in (2, 3)
        and all(type(size) is int and 0 < size < 2**31 for size in sizes)
    )


def _reshape(base: nn.Module, shapes: Shapes) -> None:
    """Put new layers of these shapes in their places."""
    for name, sizes in shapes.items():
        try:
            old = base.get_submodule(name)
        except AttributeError:
            old = None
        if not isinstance(old, nn.Linear | Conv1D):
            raise ValueError(f"{SHAPES} in config.json names {name[:80]!r}, which is no linear layer of this network")
        bias = old.bias is not None
        new = Factored(sizes[0], sizes[1], sizes[2], bias) if len(sizes) == 3 else nn.Linear(sizes[0], sizes[1], bias)
        base.set_submodule(name, new)


def stock_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of a config with the shapes of the stock network."""
    config = copy.deepcopy(config)
    vars(config).pop("model_type", None)  # what was loaded has it beside its class, which may become another one
    if is_reshaped(config):
        config.__class__ = type(config).stock  # type: ignore[attr-defined]  # a copy by fields would lose private ones
        vars(config).pop(SHAPES, None)
    return config


def fitting_config(config: PreTrainedConfig, head: str, weights: Mapping[str, Tensor]) -> PreTrainedConfig:
    """A copy of a config whose network, with this head, has the shapes of these weights: a stock one, if they are stock."""
    config = stock_config(config)
    with torch.device("meta"):
        model = auto_class(head).from_config(config)
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    shapes: Shapes = {}
    for name, module in model.base_model.named_modules():
        if not isinstance(module, nn.Linear | Conv1D):
            continue
        whole, first, second = (weights.get(f"{prefix}{name}.{part}") for part in ("weight", "0.weight", "1.weight"))
        if first is not None and second is not None:
            shapes[name] = [first.shape[1], first.shape[0], second.shape[0]]
        elif type(module) is nn.Linear and whole is not None and whole.shape != module.weight.shape:
            shapes[name] = [whole.shape[1], whole.shape[0]]
    if shapes:
        stock: Any = type(config)
        config.__class__ = register(stock)
        setattr(config, SHAPES, shapes)
    return config


def register_type(architecture: str) -> None:
    """Let the Auto classes know potstill-ARCHITECTURE, if transformers has the architecture."""
    if architecture in CONFIG_MAPPING and not architecture.startswith(PREFIX):
        stock: Any = CONFIG_MAPPING[architecture]
        register(stock)


@cache
def register(stock: Any) -> type[PreTrainedConfig]:
    """Make the config of a stock architecture with other shapes, and a class for each of its heads, and register all."""
    name = f"Potstill{stock.__name__.removesuffix('Config')}"
    own = {"model_type": f"{PREFIX}{stock.model_type}", "stock": stock, "__module__": __name__}
    config: type[PreTrainedConfig] = type(f"{name}Config", (stock,), own)
    AutoConfig.register(config.model_type, config, exist_ok=True)
    for head in DESCRIPTIONS:
        if (network := auto_class(head)._model_mapping.get(stock, None)) is not None:
            classes = {"config_class": config, "stock": network, "__module__": __name__}
            type(f"{name}For{head}", (ReshapedModel, network), classes)  # registers itself, as every `OwnModel`
    return config
