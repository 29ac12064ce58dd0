"""A trimmed tokenizer reads every text that it could read before, and keeps the tokens that texts to come are likeliest to use."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from potstill.models.tokenizers import trimming

# as in BERT: places kept free, characters, then words from the most frequent to the rarest; é and 字 are no ASCII
PIECES = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]"]
PIECES += [form + c for c in "abcdefghijklmnopqrstuvwxyzé字" for form in ("", "##")]
PIECES += ["the", "film", "##ing", "was", "café", "bore", "##dom", "字é", "zest"]
PIECES += ["ñandu", "##ñas"]  # their ñ stands in no shorter token


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


def trimmed(tokenizer: Any, texts: list[str], tokens: int) -> tuple[PreTrainedTokenizerFast, set[str]]:
    written = trimming.read_settings(tokenizer)
    counts = Counter(id for ids in trimming.token_ids(tokenizer, texts) for id in ids)
    kept = trimming.tokens_to_keep(written, trimming.most_frequent(written, counts, tokens))
    return trimming.rebuild(tokenizer, trimming.renumber(written, kept)[0]), kept  # type: ignore[return-value]


def test_the_most_frequent_tokens_of_the_texts_stay_then_those_of_the_lowest_ids(tokenizer: Any) -> None:
    texts = ["zest zest bore", "the zest"]
    words = {number: trimmed(tokenizer, texts, number)[1] & {*PIECES[-11:]} for number in (1, 3, 5, 6)}
    spelled = {"ñandu", "##ñas"}  # nothing else can spell their ñ
    assert words[1] == {"zest"} | spelled
    assert words[3] == {"zest", "the", "bore"} | spelled
    assert words[5] == {"zest", "the", "bore", "film", "##ing"} | spelled
    assert words[6] == words[5] | {"was"}


def test_special_tokens_and_characters_stay_and_free_places_go(tokenizer: Any) -> None:
    _, kept = trimmed(tokenizer, ["the film"], 2)
    assert {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "é", "##字"} <= kept
    assert not {"[unused0]", "[unused1]"} & kept


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.text("abz é字ñ", min_size=1) | st.sampled_from(PIECES[-11:]), max_size=8).map(" ".join))
def test_a_text_has_no_unknown_token_that_it_had_not_before(tokenizer: Any, text: str) -> None:
    smaller, _ = trimmed(tokenizer, ["the"], 1)
    (before,), (after,) = (list(trimming.token_ids(each, [text])) for each in (tokenizer, smaller))
    assert after.count(smaller.unk_token_id) == before.count(tokenizer.unk_token_id)
