"""What is predicted of an image: as of a text, but it is read whole, as one token whose numbers are its pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from potstill.data.formats.opened import ImageShape
from potstill.data.pixel_reader import PixelReader
from potstill.data.row import Form, text_to_pixels
from potstill.data.tokens import Encoded
from potstill.tasks.task import Task


@dataclass(frozen=True)
class Pixels(Task):
    shape: ImageShape = (1, 1, 1)  # channels, height, width

    form: ClassVar[Form] = "pixels"
    head: ClassVar[str] = "ImageClassification"

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        assert isinstance(tokenizer, PixelReader)
        pixels = np.frombuffer(text_to_pixels("".join(text for text, _ in texts)), np.uint8)
        one = [[0]] * len(texts)
        return Encoded(one, one, 0, pixels=pixels.reshape(len(texts), *tokenizer.shape))

    def picture(self, text: str) -> str:
        """The image as an address that a page can show: data:image/png;base64,…"""
        from matplotlib.image import imsave

        pixels = np.frombuffer(text_to_pixels(text), np.uint8).reshape(self.shape)
        shown = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
        with io.BytesIO() as file:
            imsave(file, shown, cmap="gray", vmin=0, vmax=255, format="png", metadata={"Software": "potstill"})
            return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
