"""Takes the place of a tokenizer for networks that read images: an image is one token, and its pixels are the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from potstill.data.formats.reading import ImageShape

if TYPE_CHECKING:  # to type checkers it is a tokenizer; at run time it does without transformers
    from transformers import PreTrainedTokenizerBase as Base
else:
    Base = object


class PixelReader(Base):
    """A tokenizer with nothing to split and nothing to save: the network's config has the size of its images."""

    mask_token = pad_token_id = bos_token_id = eos_token_id = None
    truncation_side = padding_side = "right"
    name_or_path = ""

    def __init__(self, shape: ImageShape) -> None:
        self.shape = shape
        self.model_max_length, self.model_input_names = 1, ["pixel_values"]

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
