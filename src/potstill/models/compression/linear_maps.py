"""The linear layers of a network: where they are, what they give on texts, and the same layers as two narrow ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from potstill.models.anatomy import stacks
from potstill.models.architectures.reshaped import Factored
from potstill.models.builder import Student
from potstill.models.compression.low_rank import Factors, factors_along, rank_keeping
from potstill.models.compression.reading import batches


def linear_maps(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Those of all layers by name; two factors count as the one map that they stand for."""
    found: dict[str, nn.Module] = {}
    for path in stacks(model):
        for name, module in model.get_submodule(path).named_modules(prefix=path):
            inside = name.rpartition(".")[0] in found  # a factor
            if isinstance(module, nn.Linear | Conv1D | Factored) and not inside:
                found[name] = module
    return found


def is_factored(model: PreTrainedModel) -> bool:
    """Whether a map of the network is two factors."""
    return any(isinstance(module, Factored) for module in model.modules())


def matrix_of(module: nn.Module) -> Tensor:
    """(outputs, inputs)"""
    if isinstance(module, Factored):
        inner, outer = (module.get_parameter(f"{place}.weight").detach() for place in (0, 1))
        return (outer.double() @ inner.double()).to(outer.dtype)
    weight = module.get_parameter("weight").detach()
    return weight.T if isinstance(module, Conv1D) else weight


def bias_of(module: nn.Module) -> Tensor | None:
    bias = module[1].bias if isinstance(module, Factored) else module.bias
    assert bias is None or isinstance(bias, Tensor)
    return bias if bias is None else bias.detach()


def numbers(module: nn.Module) -> int:
    """Of the matrix of a linear map, or of its two factors, without the bias."""
    return sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)


def numbers_as_factors(module: nn.Module, rank: int) -> int:
    return rank * sum(matrix_of(module).shape)


@dataclass
class Moments:
    """Sums over the tokens of some texts: of the inputs of a linear map, or of its outputs where they are fewer."""

    of_inputs: bool
    sum: Tensor  # (numbers,) float64
    products: Tensor  # (numbers, numbers) float64
    tokens: int = 0

    @property
    def mean(self) -> Tensor:
        return self.sum / max(1, self.tokens)

    def spread(self, centred: bool) -> Tensor:
        """The covariance, or with the mean in it."""
        return self.products / max(1, self.tokens) - centred * torch.outer(self.mean, self.mean)


def moments_of(
    student: Student, names: Collection[str], texts: Sequence[str], longest: int, of_inputs: bool = False
) -> dict[str, Moments]:
    """What linear maps read or give on texts, without dropout and padding. `of_inputs`: what they read, whatever their shape."""
    found: dict[str, Moments] = {}
    real: list[Tensor] = []
    hooks = []
    for name in names:
        module = student.model.get_submodule(name)
        outputs, inputs = matrix_of(module).shape
        reads = of_inputs or inputs < outputs
        size, device = inputs if reads else outputs, student.model.device
        zeros = torch.zeros(size, dtype=torch.float64, device=device)
        found[name] = Moments(reads, zeros, torch.zeros(size, size, dtype=torch.float64, device=device))

        def add(module: nn.Module, given: tuple[Tensor, ...], gave: Tensor, moments: Moments = found[name]) -> None:
            numbers = (given[0] if moments.of_inputs else gave).detach()[real[-1]]  # (tokens, numbers)
            if not moments.of_inputs and (bias := bias_of(module)) is not None:
                numbers = numbers - bias
            moments.tokens += len(numbers)
            moments.sum += numbers.double().sum(0)
            moments.products += numbers.T @ numbers

        hooks.append(module.register_forward_hook(add))
    try:
        with torch.inference_mode():
            for batch in batches(student, texts, longest):
                real.append(batch["attention_mask"].bool())
                student.model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found


@dataclass
class Directions:
    """Where the outputs W·x of a linear map lie."""

    vectors: Tensor  # (outputs, directions) float64, orthonormal, the one with most energy first
    energies: Tensor  # (directions,) the mean square of what lies along each

    def rank_of_energy(self, share: float) -> int:
        """The smallest rank that keeps this share of the energy."""
        return rank_keeping(self.energies, share)


def directions_of(module: nn.Module, moments: Moments | None) -> Directions:
    """The principal directions of the outputs around their mean, or around 0 where there is no bias that could hold the mean.

    Without moments, all directions of the inputs count alike: the singular vectors of the matrix.
    """
    matrix = matrix_of(module).double()
    if moments is not None:
        spread = moments.spread(centred=bias_of(module) is not None)
        values, vectors = torch.linalg.eigh(spread)
        if not moments.of_inputs:
            return Directions(vectors.flip(1), values.flip(0))
        matrix = matrix @ (vectors * values.clamp(min=0).sqrt())
    left, singular, _ = torch.linalg.svd(matrix, full_matrices=False)
    return Directions(left, singular**2)


def put_factors(
    weights: dict[str, Tensor], name: str, module: nn.Module, directions: Directions, rank: int, moments: Moments | None
) -> Factors:
    """Replace a linear map in a model's weights by two factors. Its bias takes the mean of what they leave out."""
    matrix, bias, vectors = matrix_of(module), bias_of(module), directions.vectors[:, :rank]
    for part in ("weight", "bias", "0.weight", "1.weight", "1.bias"):
        weights.pop(f"{name}.{part}", None)
    factors = factors_along(matrix, vectors)
    weights |= {f"{name}.0.weight": factors.right.contiguous(), f"{name}.1.weight": factors.left.contiguous()}
    if bias is not None:
        mean = torch.zeros_like(vectors[:, 0])
        if moments is not None:
            mean = matrix.double() @ moments.mean if moments.of_inputs else moments.mean
        weights[f"{name}.1.bias"] = (bias.double() + mean - vectors @ (vectors.T @ mean)).to(bias.dtype)
    return factors
