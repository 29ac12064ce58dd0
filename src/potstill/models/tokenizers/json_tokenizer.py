"""Read tokenizer.json with the tokenizers library alone. Loads neither torch nor transformers.

The tokenizer answers the calls that tasks make, with the same token ids as the tokenizer of transformers that saved it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from potstill.data.tokens import explain_panics
from potstill.errors import InputError
from potstill.models.folders import explain_errors
from potstill.models.safety import json_object, refuse_growing


class Encoded(dict[str, list[Any]]):
    """Lists by name (input_ids, token_type_ids, …), and the encodings that they come from."""

    encodings: list[Encoding]


class JsonTokenizer:
    """A tokenizer for texts and pairs, called as those of transformers are."""

    def __init__(self, folder: Path, input_names: Sequence[str], longest: int) -> None:
        """`input_names` are those of the model, `longest` the tokens that it reads."""
        refuse_growing(folder)
        problem = f"{folder} holds no tokenizer.json that can be read"
        with explain_errors(problem, "write it again with potstill export"), explain_panics(folder=folder):
            self.backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.backend.no_padding()
        settings_file = folder / "tokenizer_config.json"
        settings = json_object(settings_file, "use the original file") if settings_file.exists() else {}
        self.name_or_path = str(folder)
        self.model_input_names, self.model_max_length = list(input_names), longest
        self.truncation_side: str = settings.get("truncation_side") or "right"
        if self.truncation_side not in ("left", "right"):
            side = f"{self.truncation_side!r:.80}"
            raise InputError(f"{settings_file} says truncation_side = {side}; write 'left' or 'right'")
        self.mask_token = _token(settings.get("mask_token"))
        self.pad_token_id, self.bos_token_id, self.eos_token_id = (
            None if (token := _token(settings.get(f"{kind}_token"))) is None else self.backend.token_to_id(token)
            for kind in ("pad", "bos", "eos")
        )

    def get_vocab(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    @property
    def all_special_ids(self) -> list[int]:
        return [number for number, token in self.backend.get_added_tokens_decoder().items() if token.special]

    def decode(self, ids: list[int], /) -> str:
        return str(self.backend.decode(ids, skip_special_tokens=False))

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def __call__(
        self,
        texts: str | list[str],
        pairs: list[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: bool | str = False,
        stride: int = 0,
        add_special_tokens: bool = True,
        return_overflowing_tokens: bool = False,
        **_: Any,
    ) -> Encoded:
        """Encode texts or pairs; with `truncation`, to at most `max_length` tokens."""
        if truncation and max_length is not None:
            strategy = "longest_first" if truncation is True else truncation
            self.backend.enable_truncation(max_length, stride=stride, strategy=strategy, direction=self.truncation_side)
        else:
            self.backend.no_truncation()
        batch = [texts] if isinstance(texts, str) else texts
        rows = batch if pairs is None else list(zip(batch, pairs, strict=True))
        encodings = self.backend.encode_batch(rows, add_special_tokens=add_special_tokens)
        rows_of = [row for row, encoding in enumerate(encodings) for _ in range(1 + len(encoding.overflowing))]
        if return_overflowing_tokens:
            encodings = [part for encoding in encodings for part in (encoding, *encoding.overflowing)]
        encoded = Encoded(
            input_ids=[encoding.ids for encoding in encodings],
            token_type_ids=[encoding.type_ids for encoding in encodings],
            attention_mask=[encoding.attention_mask for encoding in encodings],
        )
        if return_overflowing_tokens:
            encoded["overflow_to_sample_mapping"] = rows_of
        if isinstance(texts, str):  # as transformers answers a text that is not in a list
            encoded = Encoded({name: values[0] for name, values in encoded.items()})
        encoded.encodings = encodings
        return encoded


def _token(setting: Any) -> str | None:
    """A special token is a text, or a table with its content."""
    content = setting.get("content") if isinstance(setting, dict) else setting
    return None if content is None else str(content)
