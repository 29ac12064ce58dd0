"""One vocabulary for both sides of a translation: joint byte-pair encoding (Sennrich et al., 2016, arXiv:1508.07909).

It is over bytes, so that every text can be encoded without an unknown token and decoded exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from potstill.errors import InputError
from potstill.models.tokenizers.trimming import replace_surrogates

PAD, END = "<pad>", "</s>"
LONGEST = 512  # tokens of a text with its end


def joint_bpe(texts: Iterable[str], size: int, languages: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Train at most `size` tokens, special ones included: <pad> is 0, </s> is 1, then >>de<< for each language "de".

    A text gets </s> at its end. The same texts in any order give the same tokenizer, byte for byte.
    """
    special = [PAD, END, *(f">>{language}<<" for language in languages)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if size < len(special) + len(alphabet):
        raise InputError(
            f"a vocabulary of {size} tokens is too small for the {len(alphabet)} bytes and {len(special)} special "
            f"tokens; write vocabulary = {len(special) + len(alphabet)} or more"
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(map(replace_surrogates, texts), trainer)
    end = (END, special.index(END))
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[end]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        model_max_length=LONGEST,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,  # it would change the decoded text
    )
