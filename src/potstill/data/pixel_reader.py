"""What a network that reads pixels has in the place of a tokenizer: an image is one token, whose numbers are its pixels."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from potstill.data.formats.images import Shape


class PixelReader(PreTrainedTokenizerBase):
    """Nothing to split and nothing to save: the network's config says which images it reads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(model_max_length=1, model_input_names=["pixel_values"])
        self.shape = shape  # channels, height, width

    def get_vocab(self) -> dict[str, int]:
        """One kind of token."""
        return {" x ".join(map(str, self.shape)): 0}

    def __len__(self) -> int:
        return 1

    def save_pretrained(self, *_: Any, **__: Any) -> tuple[str, ...]:
        return ()


def describe_size(shape: Shape) -> str:
    """28 x 28 pixels"""
    return f"{shape[1]} x {shape[2]} pixels" + (f" in {shape[0]} channels" if shape[0] > 1 else "")
