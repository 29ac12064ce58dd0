"""Keep some layers, the embeddings and the head: the start of vanilla KD and of Patient KD (arXiv:1908.09355)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from potstill.api import FINE_TUNING, BuildContext, Builder, InputError, Pace, Student, anatomy, networks, transformers

SAME_PARTS = {"full_attention", "sliding_attention"}  # kinds of layers that have the same weights
NOT_PER_LAYER = ("architectures", "token_id", "token_ids")  # ends of names of lists that may be as long by chance


@dataclass(frozen=True)
class KeepLayers(Builder):
    """layers: a number (the first ones), "first:3", "last:3", "every:2" (2, 4, 6 …), "skip:3" (spread out: 4, 8, 12 of 12),
    or a list counted from 1. A translation model keeps as many in its encoder as in its decoder.
    """

    layers: int | str | list[int] | tuple[int, ...] = 3

    @property
    def pace(self) -> Pace:
        """The rate of fine-tuning suits twelve layers, and fewer need more: 2e-4 for three, 6e-4 for one."""
        if isinstance(self.layers, str):
            way, number = _way(self.layers)
            count = 12 // (number or 12) if way == "every" else number or 12
        else:
            count = self.layers if isinstance(self.layers, int) else len(self.layers)
        return FINE_TUNING._replace(rate=12 * FINE_TUNING.rate / min(12, max(1, count)), steps=1500)

    def kept(self, layers: int) -> list[int]:
        if isinstance(self.layers, list | tuple):
            chosen = list(self.layers)
            if not chosen or chosen != sorted(set(chosen)) or chosen[0] < 1 or chosen[-1] > layers:
                raise InputError(
                    f"keep_layers: {chosen} is not a list of layers; write increasing numbers from 1 to {layers}"
                )
            return chosen
        written = self.layers if isinstance(self.layers, str) else f"first:{self.layers}"
        way, count = _way(written)
        ways: dict[str, Iterable[int]] = {
            "first": range(1, count + 1),
            "last": range(layers - count + 1, layers + 1),
            "every": range(count, layers + 1, max(1, count)),
            "skip": (place * layers // count for place in range(1, count + 1)),
        }
        if way not in ways or not 1 <= count <= layers:
            raise InputError(
                f"keep_layers: {written!r} cannot be taken from {layers} layers; "
                f'write a number from 1 to {layers}, "first:3", "last:3", "every:2", "skip:3" or a list such as [1, 3]'
            )
        return list(ways[way])

    def build(self, current: Student, context: BuildContext) -> Student:
        model, old = current.model, current.model.state_dict()
        anatomy.layers_path(model)  # refuses networks without layers
        config, weights = copy.deepcopy(model.config), dict(old)
        kinds = getattr(model.config, "layer_types", None)
        for path, counted in anatomy.stacks(model).items():
            total = int(getattr(config, counted))
            chosen = self.kept(total)
            _choose_in_lists(config, total, chosen)
            setattr(config, counted, len(chosen))
            if anatomy.shares_layers(model):
                if len(anatomy.stored_layers(model)) > 1:
                    raise InputError(
                        f"keep_layers: in this {config.model_type} several layers are shared; write student = 'fresh'"
                    )
                continue  # the one that there is, used less often
            weights = {name: weight for name, weight in weights.items() if not name.startswith(f"{path}.")}
            for place, layer in enumerate(chosen):
                ours, there = (
                    {name.removeprefix(prefix): weight for name, weight in old.items() if name.startswith(prefix)}
                    for prefix in (f"{path}.{layer - 1}.", f"{path}.{place}.")
                )
                both = {kinds[layer - 1], kinds[place]} if kinds else set()
                listed = len(both) > 1 and not both <= SAME_PARTS  # then the new layer_types says what the layer is
                # ModernBERT's first layer lacks the norm of its attention, only T5's first has relative positions
                if ours.keys() != there.keys() and not listed:
                    raise InputError(
                        f"keep_layers: layer {layer} of this {config.model_type} has other parts than layer {place + 1}, "
                        f"whose place it would take; keep layer 1, e.g. layers = {[1, *chosen[1:]]}"
                    )
                weights |= {f"{path}.{place}.{name}": weight for name, weight in ours.items()}
        try:
            built = networks.stock_model(current.model, config, weights)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"keep_layers: a {config.model_type} of {len(chosen)} layers does not take these weights "
                f"({str(error).strip().splitlines()[-1].strip()}); keep all of its layers, or write student = 'fresh'"
            ) from error
        return Student(built, copy.deepcopy(current.tokenizer))


def _choose_in_lists(config: transformers.PreTrainedConfig, total: int, chosen: list[int]) -> None:
    """Keep the entries of the chosen layers in every list of a config that has an entry for each layer."""
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == total and not name.endswith(NOT_PER_LAYER):
            setattr(config, name, type(value)(value[layer - 1] for layer in chosen))
    if hasattr(config, "attention_types"):  # GPT-Neo writes its list of layers also as [[kinds, times], …]
        config.attention_types = [[[kind], 1] for kind in config.attention_layers]
    if set(getattr(config, "layer_types", None) or ()) == {"linear_attention"}:
        raise InputError(f"keep_layers: this {config.model_type} needs full attention; name such a layer in a list")


def _way(text: str) -> tuple[str, int]:
    """Split "every:2"; the number is 0 if it is none."""
    way, _, number = text.partition(":")
    return way, int(number) if number.isascii() and number.isdigit() else 0
