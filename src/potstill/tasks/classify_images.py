"""Images instead of texts, for classification, multi-label classification and regression.

An image is a text with one character for each pixel, chr(0) to chr(255), so that it is stored and keyed like any row. The
network reads it as one token whose values are the pixels.
"""

from __future__ import annotations

import base64
import io
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from potstill.data.formats.reading import ImageShape
from potstill.data.pixel_reader import PixelReader, describe_size
from potstill.data.row import pixels_to_text, text_to_pixels
from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded
from potstill.errors import InputError
from potstill.recipe.task_words import IMAGES
from potstill.tasks.classify import TextClassification
from potstill.tasks.multilabel import MultiLabelClassification
from potstill.tasks.regress import Regression
from potstill.tasks.task import Task


@dataclass(frozen=True)
class ImageTask(Task):
    """How images are read. The other base of each class below says what is predicted."""

    shape: ImageShape = (1, 1, 1)  # channels, height, width

    words = IMAGES
    images = True
    limits_length = False
    how_to_ask = "the pixels of an image as a list of whole numbers from 0 to 255, or name a file"

    @classmethod
    def row(cls, asked: Any) -> tuple[str, str | None]:
        """The row of a file holds pixels already; an array or list of numbers from 0 to 255, or its JSON, is converted."""
        if isinstance(asked, tuple) and len(asked) == 2 and asked[1] is None:
            return str(asked[0]), None
        values = np.asarray(json.loads(asked) if isinstance(asked, str) else asked, float).ravel()
        if not len(values) or not ((values >= 0) & (values <= 255) & (values % 1 == 0)).all():
            raise ValueError
        return pixels_to_text(values.astype(np.uint8).tobytes()), None

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        assert isinstance(tokenizer, PixelReader)
        size = math.prod(tokenizer.shape)
        other = next((len(text) for text, _ in texts if len(text) != size), None)
        if other is not None:
            size_read = describe_size(tokenizer.shape)
            raise InputError(f"an image has {other} pixels, the model reads {size_read}; give images of that size")
        pixels = np.frombuffer(text_to_pixels("".join(text for text, _ in texts)), np.uint8)
        token = [[0]] * len(texts)
        return Encoded(token, token, 0, pixels=pixels.reshape(len(texts), *tokenizer.shape))

    def picture(self, text: str) -> str:
        """The image as an address that a page can show: data:image/png;base64,…"""
        from matplotlib.image import imsave

        pixels = np.frombuffer(text_to_pixels(text), np.uint8).reshape(self.shape)
        image = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)
        with io.BytesIO() as file:
            imsave(file, image, cmap="gray", vmin=0, vmax=255, format="png", metadata={"Software": "potstill"})
            return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@dataclass(frozen=True)
class ImageClassification(ImageTask, TextClassification):
    pass


@dataclass(frozen=True)
class ImageMultiLabelClassification(ImageTask, MultiLabelClassification):
    pass


@dataclass(frozen=True)
class ImageRegression(ImageTask, Regression):
    pass
