"""Feed-forward neurons: where they are in a network, how much each contributes on texts, and weights without some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.models.anatomy import layers_path, stored_layers
from potstill.models.builder import Student
from potstill.models.compression.reading import batches

FIELDS = ("intermediate_size", "hidden_dim")  # of a config: how many neurons a layer has


@dataclass(frozen=True)
class FeedForward:
    """The two linear layers around the neurons of one layer: `inner` (neurons, width), `outer` (width, neurons)."""

    inner: str
    outer: str


def size_field(model: PreTrainedModel) -> str | None:
    """The field of the config that says how many neurons a layer has; None if it has none that is known."""
    return next((field for field in FIELDS if isinstance(getattr(model.config, field, None), int)), None)


def feed_forwards(model: PreTrainedModel) -> list[FeedForward] | None:
    """Those of all layers, in their order; None if a layer has not exactly one linear layer to its neurons and one from them."""
    field = size_field(model)
    if field is None:
        return None
    size, path, found = getattr(model.config, field), layers_path(model), []
    for number, layer in enumerate(stored_layers(model)):
        linear = {name: module for name, module in layer.named_modules() if type(module) is nn.Linear}
        inner = [name for name, module in linear.items() if module.out_features == size != module.in_features]
        outer = [name for name, module in linear.items() if module.in_features == size != module.out_features]
        if len(inner) != 1 or len(outer) != 1:
            return None
        found.append(FeedForward(*(f"{path}.{number}.{name}" for name in (inner[0], outer[0]))))
    return found


@dataclass
class Activity:
    """Sums over the tokens of some texts of what a layer's neurons give: (neurons,) float64."""

    tokens: int
    sum: Tensor
    squares: Tensor

    @property
    def mean(self) -> Tensor:
        return self.sum / max(1, self.tokens)

    @property
    def variance(self) -> Tensor:
        return (self.squares / max(1, self.tokens) - self.mean**2).clamp(min=0)


@contextmanager
def _listening(model: PreTrainedModel, places: Sequence[FeedForward], masks: list[Tensor]) -> Iterator[list[Activity]]:
    """Within it, every call of the model adds to the activities; the last of `masks` (batch, tokens) says which tokens are real."""
    activities: list[Activity] = []
    hooks = []
    for place in places:
        outer = model.get_submodule(place.outer)
        assert isinstance(outer, nn.Linear)
        zeros = torch.zeros(outer.in_features, dtype=torch.float64, device=outer.weight.device)
        activities.append(activity := Activity(0, zeros, zeros.clone()))

        def add(_: nn.Module, inputs: tuple[Tensor, ...], activity: Activity = activity) -> None:
            real = inputs[0].detach()[masks[-1].bool()].double()  # (tokens, neurons)
            activity.tokens += len(real)
            activity.sum += real.sum(0)
            activity.squares += (real**2).sum(0)

        hooks.append(outer.register_forward_pre_hook(add))
    try:
        yield activities
    finally:
        for hook in hooks:
            hook.remove()


def activities(student: Student, places: Sequence[FeedForward], texts: Sequence[str], longest: int) -> list[Activity]:
    """What the neurons give on texts, without dropout."""
    masks: list[Tensor] = []
    with torch.inference_mode(), _listening(student.model, places, masks) as found:
        for batch in batches(student, texts, longest):
            masks.append(batch["attention_mask"])
            student.model(**batch)
    return found


def importance(model: PreTrainedModel, place: FeedForward, activity: Activity) -> Tensor:
    """(neurons,): the expected squared change of the layer's output if a neuron gives its mean in place of its value."""
    outer = model.get_submodule(place.outer)
    assert isinstance(outer, nn.Linear)
    return activity.variance * (outer.weight.detach().double() ** 2).sum(0)


def without_neurons(
    model: PreTrainedModel, place: FeedForward, kept: Tensor, mean: Tensor, weights: dict[str, Tensor]
) -> None:
    """Change the weights of a layer to those of its kept neurons; the mean of the others goes into the bias behind them."""
    inner, outer = weights[f"{place.inner}.weight"], weights[f"{place.outer}.weight"]
    gone = torch.ones(len(mean), dtype=torch.bool, device=mean.device)
    gone[kept] = False
    weights[f"{place.inner}.weight"] = inner[kept]
    if (bias := f"{place.inner}.bias") in weights:
        weights[bias] = weights[bias][kept]
    weights[f"{place.outer}.weight"] = outer[:, kept]
    if (bias := f"{place.outer}.bias") in weights:
        constant = outer[:, gone].double() @ mean[gone]
        weights[bias] = (weights[bias].double() + constant).to(weights[bias].dtype)
