"""Takes the place of a tokenizer for networks that read images: an image is one token, and its pixels are the input."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from potstill.data.formats.opened import ImageShape


class PixelReader(PreTrainedTokenizerBase):
    """A tokenizer with nothing to split and nothing to save: the network's config has the size of its images."""

    def __init__(self, shape: ImageShape) -> None:
        super().__init__(model_max_length=1, model_input_names=["pixel_values"])
        self.shape = shape

    def get_vocab(self) -> dict[str, int]:
        """Return the only kind of token."""
        return {" x ".join(map(str, self.shape)): 0}

    def __len__(self) -> int:
        return 1

    def save_pretrained(self, *_: Any, **__: Any) -> tuple[str, ...]:
        return ()


def describe_size(shape: ImageShape) -> str:
    """Return "28 x 28 pixels"."""
    return f"{shape[1]} x {shape[2]} pixels" + (f" in {shape[0]} channels" if shape[0] > 1 else "")
