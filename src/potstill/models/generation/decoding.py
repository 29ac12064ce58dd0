"""Texts written by a model, by beam search: in CTranslate2 where the architecture allows it, else by transformers.

Both engines search alike: `beam` hypotheses at each step, of which one that ends is set aside; the search of a text ends when
`beam` of them have ended, or at `longest` tokens; the best is that of the highest log probability per token, the end token
counted (length penalty 1). Tokens that the model's settings forbid have no probability, the others share it. Whatever else
such settings wish (sampling, repeated n-grams, a forced end) is left aside. A text cut off at `longest` has no end token, and
its score none either. A source without a token is answered by the empty text, surely (score 0), without being asked.

What may still differ: two hypotheses whose scores differ less than the rounding of float32, and whatever int8 weights change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase

from potstill.data.tokens import explain_panics
from potstill.errors import InputError
from potstill.models.anatomy import is_spread
from potstill.models.generation.ctranslate2 import (
    ABOUT,
    TRANSLATORS,
    Pieces,
    Weights,
    convert,
    is_exported,
    library,
    longest_text,
    refusal,
)
from potstill.models.generation.ctranslate2 import pieces as pieces_of
from potstill.models.inference import device_of, without_dropout
from potstill.models.loading import load_tokenizer, quiet_transformers
from potstill.models.student import Student, load_student
from potstill.models.tokenizers.long_texts import beginnings
from potstill.system.paths import expand_user
from potstill.system.scratch import scratch_folder

Engine = Literal["auto", "ctranslate2", "transformers"]
TOGETHER = 1024  # padded source tokens that are decoded at once: more, and the beams' states leave the cache
SCORED_TOGETHER = 2**25  # logits


class Hypothesis(NamedTuple):
    text: str
    score: float  # log probability of the whole with its end, natural, not divided by its length; nan where unknown
    finished: bool = True  # False: cut off where texts may be no longer


Decoder = Callable[[Sequence[str], int, int], list[list[Hypothesis]]]
"""Texts, beam, best -> of each text its best hypotheses, best first, in the order of the texts."""

Search = Callable[[list[list[int]], int, int], list[list[tuple[list[int], float]]]]
"""The same for token numbers, of any lengths."""


@contextmanager
def decoder(
    student: Student, engine: Engine = "auto", longest: int = 256, weights: Weights = "float32"
) -> Iterator[Decoder]:
    """A model's decoder. Sources and what is written are cut at `longest` tokens, or where the model's positions end.

    `weights` are those of CTranslate2. For causal language models a text is a prompt, and what follows it is written.
    """
    if not student.model.can_generate():
        raise InputError(
            f"a {type(student.model).__name__} does not write; give the folder of a translator or a language model"
        )
    known = pieces_of(student.model, student.tokenizer)
    longest = _room(longest_text(student), known, longest)
    if engine_for(student, engine) == "transformers":
        yield _decoder(by_transformers(student, known, longest), student.tokenizer, known, longest)
        return
    with scratch_folder() as place:
        convert(student, place, weights)
        device = "cuda" if student.model.device.type == "cuda" else "cpu"
        search = by_ctranslate2(place, longest, device)
        yield _decoder(search, student.tokenizer, known, longest)


@contextmanager
def decoder_of(folder: str | Path, longest: int = 256, engine: Engine = "auto") -> Iterator[Decoder]:
    """The decoder of a student's folder, or of one that `potstill export --to ctranslate2` wrote."""
    place = expand_user(folder)
    if not is_exported(place):
        with decoder(load_student(folder), engine, longest) as decode:
            yield decode
        return
    library()
    tokenizer = load_tokenizer(place)
    try:
        about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        known = Pieces(**about["pieces"])
        longest = _room(int(about["longest"]), known, longest)
        search = by_ctranslate2(place, longest, "cpu", known.forced)
    except Exception as error:  # files of many kinds, read by three libraries
        raise InputError(
            f"{folder} cannot be read as a translator ({str(error).splitlines()[0]}); make it anew with potstill export"
        ) from None
    yield _decoder(search, tokenizer, known, longest)


def _room(positions: int, known: Pieces, longest: int) -> int:
    """Tokens of a source, and of what is written: a prompt and what follows it share the positions."""
    return min(longest, positions // (1 if known.start is not None else 2))


def engine_for(student: Student, engine: Engine = "auto") -> Literal["ctranslate2", "transformers"]:
    """The one that is asked for, or the quicker one that can."""
    if engine == "transformers":
        return engine
    why = refusal(student.model)
    if why is None and student.model.config.model_type not in TRANSLATORS:
        why = "language models are decoded by transformers"
    elif why is None and is_spread(student.model):
        why = "its weights lie on several devices"
    elif why is None and pieces_of(student.model, student.tokenizer).forced is not None:
        why = "its first token is forced"
    if engine == "ctranslate2":
        library()
        if why:
            raise InputError(f'CTranslate2 cannot decode here: {why}; write engine = "transformers"')
        return engine
    return "ctranslate2" if why is None and find_spec("ctranslate2") else "transformers"


def _decoder(search: Search, tokenizer: PreTrainedTokenizerBase, known: Pieces, longest: int) -> Decoder:
    def decode(texts: Sequence[str], beam: int, best: int) -> list[list[Hypothesis]]:
        if not 1 <= best <= beam:
            raise InputError(
                f"{best} of {beam} hypotheses cannot be had; write a beam of at least as many as are wanted"
            )
        if not texts:
            return []
        with explain_panics(tokenizer):
            sources = (
                _prompts(tokenizer, known, texts, longest)
                if known.start is None
                else _sources(tokenizer, texts, longest)
            )
        empty = {*known.ends, known.padding, tokenizer.bos_token_id, tokenizer.cls_token_id}
        found: list[list[Hypothesis]] = [[Hypothesis("", 0.0)] for _ in texts]
        asked = [place for place, ids in enumerate(sources) if known.start is None or not set(ids) <= empty]
        for place, made in zip(asked, search([sources[one] for one in asked], beam, best), strict=True):
            said = tokenizer.batch_decode([ids for ids, _ in made], skip_special_tokens=True)
            found[place] = [
                Hypothesis(text, score, bool(ids) and ids[-1] in known.ends)
                for text, (ids, score) in zip(said, made, strict=True)
            ]
        return found

    return decode


def _sources(tokenizer: Any, texts: Sequence[str], longest: int) -> list[list[int]]:
    read = beginnings(tokenizer, list(texts), longest)
    found: list[list[int]] = tokenizer(read, truncation=True, max_length=longest)["input_ids"]
    return found


def _prompts(tokenizer: Any, known: Pieces, texts: Sequence[str], longest: int) -> list[list[int]]:
    """As they are trained on (`tasks.writing`): behind the token that begins texts, without an end, cut at their beginning."""
    begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    plain = tokenizer(beginnings(tokenizer, list(texts), longest, side="left"), add_special_tokens=False)["input_ids"]
    room = max(longest - len(begin), 1)
    return [[*begin, *ids[-room:]] or [known.ends[0]] for ids in plain]


def batches(places: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places in the order of their lengths, the longest first, as many together as fit."""
    batch: list[int] = []
    for place in sorted(places, key=lambda one: -lengths[one]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > TOGETHER:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def by_ctranslate2(folder: Path, longest: int, device: str = "cpu", forced: int | None = None) -> Search:
    """As many batches side by side as PyTorch has threads, each on one: products this small gain nothing from two."""
    runs = {"device": device, "intra_threads": 1, "inter_threads": torch.get_num_threads() if device == "cpu" else 1}
    translates = (folder / "shared_vocabulary.json").exists()
    engine = getattr(library(), "Translator" if translates else "Generator")(str(folder), **runs)
    file = folder / ("shared_vocabulary.json" if translates else "vocabulary.json")
    names = json.loads(file.read_text(encoding="utf-8"))
    numbers = {name: number for number, name in enumerate(names)}
    limits: dict[str, Any] = {"max_decoding_length": longest, "max_input_length": 0}  # inputs are cut already
    limits |= {"max_batch_size": TOGETHER, "batch_type": "tokens"}  # sorted by length there
    # with a least length of 1 the first token cannot be the end, and the others share its probability
    limits |= {"min_decoding_length": 0}
    if not translates:
        # several prompts at once would be written by force where one is longer, and be counted
        limits = {"max_length": longest, "min_length": 0, "max_batch_size": 1, "include_prompt_in_result": False}
    run = engine.translate_batch if translates else engine.generate_batch
    has_prefix = forced is not None and translates  # it stands in what is written, and is sure

    def search(sources: list[list[int]], beam: int, best: int) -> list[list[tuple[list[int], float]]]:
        made = run(
            [[names[one] for one in ids] for ids in sources],
            beam_size=beam,
            num_hypotheses=best,
            length_penalty=1,
            patience=1,
            return_scores=True,
            return_end_token=True,
            **({"target_prefix": [[names[forced]]] * len(sources)} if has_prefix else {}),
            **limits,
        )
        found = []
        for one in made:
            every = [[numbers[name] for name in names] for names in (one.hypotheses if translates else one.sequences)]
            found.append([(ids, score * len(ids)) for ids, score in zip(every, one.scores, strict=True)])
        return found

    return search


def by_transformers(student: Student, known: Pieces, longest: int) -> Search:
    model: Any = student.model

    def search(sources: list[list[int]], beam: int, best: int) -> list[list[tuple[list[int], float]]]:
        found: list[list[tuple[list[int], float]]] = [[]] * len(sources)
        for places in batches(range(len(sources)), [len(ids) for ids in sources]):
            for place, made in zip(places, together([sources[one] for one in places], beam, best), strict=True):
                found[place] = made
        return found

    def together(sources: list[list[int]], beam: int, best: int) -> list[list[tuple[list[int], float]]]:
        place = device_of(model)
        inputs = _padded(sources, known, left=known.start is None).to(place)
        real = _padded([[1] * len(ids) for ids in sources], known._replace(padding=0), known.start is None)
        settings = GenerationConfig(
            num_beams=beam,
            num_return_sequences=best,
            early_stopping=True if beam > 1 else None,
            length_penalty=1.0 if beam > 1 else None,
            max_new_tokens=longest,
            do_sample=False,
            pad_token_id=known.padding,
            eos_token_id=known.ends,
            decoder_start_token_id=known.start,
            forced_bos_token_id=known.forced,
            bad_words_ids=[[one] for one in known.never] or None,
            renormalize_logits=bool(known.never) or None,
        )
        before = model.generation_config
        model.generation_config = settings  # what is not set would be taken from the model's own
        try:
            with torch.inference_mode(), quiet_transformers(), without_dropout(model):
                made = model.generate(inputs, attention_mask=real.to(place))
        finally:
            model.generation_config = before
        skipped = 1 if known.start is not None else inputs.shape[1]
        written = [_until_end(ids, known.ends) for ids in made[:, skipped:].tolist()]
        owners = [source for source in sources for _ in range(best)]
        scores = scores_of(student, known, owners, written)
        both = list(zip(written, scores, strict=True))
        return [both[begin : begin + best] for begin in range(0, len(both), best)]

    return search


def scores_of(student: Student, known: Pieces, sources: list[list[int]], written: list[list[int]]) -> list[float]:
    """Log probabilities of what was written (token numbers), by one forward pass over each."""
    model, found, place = student.model, [], device_of(student.model)
    width = max(map(len, written), default=1) * int(model.get_output_embeddings().weight.shape[0])
    together = max(1, SCORED_TOGETHER // max(1, width))
    for begin in range(0, len(sources), together):
        texts, targets = sources[begin : begin + together], written[begin : begin + together]
        if known.start is not None:
            inputs: dict[str, Tensor] = {
                "input_ids": _padded(texts, known),
                "attention_mask": _padded([[1] * len(ids) for ids in texts], known._replace(padding=0)),
                "decoder_input_ids": _padded([[known.start, *ids[:-1]] for ids in targets], known),
            }
            first = [0] * len(texts)
        else:
            whole = [[*ids, *more] for ids, more in zip(texts, targets, strict=True)]
            real = _padded([[1] * len(ids) for ids in whole], known._replace(padding=0))
            inputs = {"input_ids": _padded(whole, known), "attention_mask": real}
            first = [len(ids) - 1 for ids in texts]
        with torch.inference_mode(), without_dropout(model):
            logits = model(**{name: one.to(place) for name, one in inputs.items()}).logits
            logits[..., known.never] = -torch.inf
            sure = logits.float().log_softmax(-1).cpu()
        for row, ids in enumerate(targets):
            steps = range(int(known.forced is not None), len(ids))  # what is forced is sure
            found.append(float(sum(sure[row, first[row] + step, ids[step]].double() for step in steps)))
    return found


def _padded(rows: list[list[int]], known: Pieces, left: bool = False) -> Tensor:
    """(rows, longest)"""
    most = max(map(len, rows))
    gaps = [[known.padding] * (most - len(ids)) for ids in rows]
    return torch.tensor([[*gap, *ids] if left else [*ids, *gap] for ids, gap in zip(rows, gaps, strict=True)])


def _until_end(ids: list[int], ends: list[int]) -> list[int]:
    """With the end; padding behind it is nobody's."""
    place = next((place for place, one in enumerate(ids) if one in ends), len(ids) - 1)
    return ids[: place + 1]
