"""A WordPiece vocabulary of given texts, as BERT has one (Devlin et al., 2019), in the stock tokenizer of transformers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable

import xxhash
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer

from potstill.errors import InputError
from potstill.models.tokenizers.trimming import replace_surrogates

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = 1000  # most different ones that are kept, as in BERT's own code
LEAST = 2  # occurrences of a piece
_last: dict[tuple[str, int, bool], BertTokenizer] = {}  # by a hash of the texts, size and case


def wordpiece_of(texts: Callable[[], Iterable[str]], size: int, lowercase: bool, longest: int) -> BertTokenizer:
    """Return the tokenizer of the texts. A run asks for it again for every seed."""
    digest = xxhash.xxh3_128()
    for text in texts():
        digest.update(replace_surrogates(text).encode() + b"\0")
    key = digest.hexdigest(), size, lowercase
    if key not in _last:
        _last.clear()
        _last[key] = wordpiece(texts, size, lowercase)
    found = copy.deepcopy(_last[key])
    found.model_max_length = found.init_kwargs["model_max_length"] = longest
    return found


def wordpiece(texts: Callable[[], Iterable[str]], size: int, lowercase: bool = True) -> BertTokenizer:
    """Train at most `size` tokens, special ones included, which are the first: [PAD] is 0.

    The same texts in any order give the same tokens. A word of known characters is never [UNK].
    """
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    characters = frequent_characters(backend, texts())
    first = [*SPECIAL, *(f"##{character}" for character in characters)]  # else their order is that of a hash table
    if size < len(first) + len(characters):
        least = len(first) + len(characters)
        raise InputError(f"a vocabulary of {size} tokens has no room for words; write vocabulary = {least} or more")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=first,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        min_frequency=LEAST,
        show_progress=False,
    )
    backend.train_from_iterator(map(replace_surrogates, texts()), trainer)
    return BertTokenizer(vocab=backend.get_vocab(), do_lower_case=lowercase)


def frequent_characters(backend: Tokenizer, texts: Iterable[str]) -> list[str]:
    """The most frequent characters of words, sorted."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(backend.normalizer.normalize_str(replace_surrogates(text)))
    every = sorted((character for character in counts if not character.isspace()), key=lambda one: (-counts[one], one))
    return sorted(every[:CHARACTERS])
