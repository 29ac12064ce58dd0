"""Attention heads: where they are in a network, how much each contributes on texts, and weights without some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from potstill.models.anatomy import layers_path, stored_layers
from potstill.models.compression.linear_maps import Moments

# of the linear layers to the heads, and of the one from them, inside a layer; ModernBERT has one for all three
NAMES = (
    (("attention.self.query", "attention.self.key", "attention.self.value"), "attention.output.dense"),
    (("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.out_lin"),
    (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.o_proj"),
    (("attn.Wqkv",), "attn.Wo"),
)
HEAD_SIZES = ("attention_head_size", "head_dim")  # an attention module has one of these


@dataclass(frozen=True)
class Attention:
    """The attention of one layer. Queries that share keys and values are counted as one head, since they go together."""

    inner: tuple[str, ...]  # of queries, keys and values; or one name, of the matrix of all three
    outer: str
    heads: int
    width: int  # of what one head gives to `outer`

    def rows(self, weight: Tensor) -> Tensor:
        """A weight or a bias of an inner layer as (parts, heads, rows of a head, …); three parts where they are one matrix."""
        return weight.unflatten(0, (3 if len(self.inner) == 1 else 1, self.heads, -1))

    def columns(self, weight: Tensor) -> Tensor:
        """The weight of the outer layer (outputs, heads · width) -> (outputs, heads, width)."""
        return weight.unflatten(1, (self.heads, self.width))


def attentions(model: PreTrainedModel) -> list[Attention] | None:
    """Those of all layers, in their order; None if a layer has none that is known, or not as plain matrices."""
    found, path = [], layers_path(model)
    for number, layer in enumerate(stored_layers(model)):
        linear = {name: module for name, module in layer.named_modules() if type(module) is nn.Linear}
        known = [(inner, outer) for inner, outer in NAMES if linear.keys() >= {*inner, outer}]
        if len(known) != 1:
            return None
        inner, outer = known[0]
        owner = layer.get_submodule(inner[0].rpartition(".")[0])
        size = next((getattr(owner, name) for name in HEAD_SIZES if hasattr(owner, name)), 0)
        rows = linear[inner[-1]].out_features // (3 if len(inner) == 1 else 1)  # of the values
        if not size or rows % size or linear[outer].in_features % rows:
            return None
        heads = rows // size
        names = tuple(f"{path}.{number}.{name}" for name in inner)
        found.append(Attention(names, f"{path}.{number}.{outer}", heads, linear[outer].in_features // heads))
    return found


def importance(attention: Attention, weights: Mapping[str, Tensor], given: Moments) -> Tensor:
    """(heads,): the expected squared change of the attention's output if a head gives its mean in place of its output.

    Without a bias, which could hold the mean, if it gives 0. `given`: of the inputs of the outer layer.
    """
    spread = given.spread(centred=f"{attention.outer}.bias" in weights)
    outer = attention.columns(weights[f"{attention.outer}.weight"]).double()  # (outputs, heads, width)
    blocks = spread.unflatten(0, (attention.heads, -1)).unflatten(2, (attention.heads, -1))
    own = torch.stack([blocks[head, :, head] for head in range(attention.heads)])  # (heads, width, width)
    return torch.einsum("ohi,hij,ohj->h", outer, own, outer)


def without_heads(attention: Attention, kept: Tensor, mean: Tensor, weights: dict[str, Tensor]) -> None:
    """Change the weights of a layer to those of its kept heads; the mean of the others goes into the bias behind them."""
    gone = torch.ones(attention.heads, dtype=torch.bool, device=mean.device)
    gone[kept] = False
    for name in attention.inner:
        for part in ("weight", "bias"):
            if (weight := weights.get(f"{name}.{part}")) is not None:
                weights[f"{name}.{part}"] = attention.rows(weight)[:, kept].flatten(0, 2)
    outer = attention.columns(weights[f"{attention.outer}.weight"])
    weights[f"{attention.outer}.weight"] = outer[:, kept].flatten(1)
    if (bias := weights.get(f"{attention.outer}.bias")) is not None:
        constant = outer[:, gone].flatten(1).double() @ mean.unflatten(0, (attention.heads, -1))[gone].flatten()
        weights[f"{attention.outer}.bias"] = (bias.double() + constant).to(bias.dtype)


def state_heads(config: PreTrainedConfig, count: int) -> bool:
    """Write into a config that its layers have so many heads of the same size; False if it has no field for their size."""
    if getattr(config, "head_dim", None) is None or getattr(config, "num_key_value_heads", None) is None:
        return False
    config.num_attention_heads = count * (config.num_attention_heads // config.num_key_value_heads)
    config.num_key_value_heads = count
    return True
