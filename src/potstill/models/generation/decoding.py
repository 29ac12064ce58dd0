"""Generate texts by beam search: with CTranslate2 if it supports the architecture, else with transformers.

Both engines search alike. Each step keeps `beam` hypotheses; one that ends is set aside; the search of a text stops
when `beam` of them have ended, or at `longest` tokens. The best has the highest log probability per token, with the end
token counted (length penalty 1). Tokens that the generation config forbids have no probability. Its other settings
(sampling, repeated n-grams, a forced end) are ignored. A text that is cut off at `longest` has no end token, and its
score none either. A source without tokens gives the empty text with score 0, without running the model.

What may still differ: hypotheses whose scores differ by less than the rounding of float32, and the effect of int8.
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

from potstill.data.tokens import explain_panics, tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.anatomy import is_spread
from potstill.models.builder import Student
from potstill.models.fingerprints import fingerprint
from potstill.models.folders import explain_errors
from potstill.models.generation.ctranslate2 import (
    ABOUT,
    TRANSLATORS,
    SpecialTokens,
    Weights,
    convert,
    import_ctranslate2,
    is_exported,
    longest_text,
    special_tokens,
    why_unsupported,
)
from potstill.models.inference import device_of, without_dropout
from potstill.models.loading import load_tokenizer, quiet_transformers
from potstill.models.student import load_student
from potstill.models.tokenizers.long_texts import beginnings
from potstill.system.files import scratch_folder
from potstill.system.paths import expand_user

Engine = Literal["auto", "ctranslate2", "transformers"]
BATCH_TOKENS = 1024  # padded source tokens of a batch: with more, the states of the beams do not fit the cache
SCORED_LOGITS = 2**25  # logits that are held at once


class Hypothesis(NamedTuple):
    text: str
    score: float  # natural log probability of the text with its end, not divided by its length; nan if unknown
    finished: bool = True  # False: cut off at the longest length


Decoder = Callable[[Sequence[str], int, int], list[list[Hypothesis]]]
"""Texts, beam, best -> the best hypotheses of each text, best first, in the order of the texts."""

Search = Callable[[list[list[int]], int, int], list[list[tuple[list[int], float]]]]
"""The same for token ids."""


@contextmanager
def decoder(
    student: Student, engine: Engine = "auto", longest: int = 256, weights: Weights = "float32"
) -> Iterator[Decoder]:
    """Open a model's decoder. Sources and outputs are cut at `longest` tokens, or where the model's positions end.

    `weights` are those of CTranslate2. For causal language models a text is a prompt, and the output continues it.
    """
    if not student.model.can_generate():
        name = type(student.model).__name__
        raise InputError(f"a {name} does not generate text; give the folder of a translation model or a language model")
    special = special_tokens(student.model, student.tokenizer)
    longest = _length_limit(longest_text(student), special, longest)
    if engine_for(student, engine) == "transformers":
        yield _decoder(transformers_search(student, special, longest), student.tokenizer, special, longest)
        return
    with scratch_folder() as folder:
        convert(student, folder, weights)
        device = "cuda" if student.model.device.type == "cuda" else "cpu"
        yield _decoder(ctranslate2_search(folder, longest, device), student.tokenizer, special, longest)


@contextmanager
def decoder_of(folder: str | Path, longest: int = 256, engine: Engine = "auto") -> Iterator[Decoder]:
    """Open the decoder of a model's folder, or of one that `potstill export --to ctranslate2` wrote."""
    place = expand_user(folder)
    if not is_exported(place):
        with decoder(load_student(folder), engine, longest) as decode:
            yield decode
        return
    import_ctranslate2()
    tokenizer = load_tokenizer(place)
    with explain_errors(f"{folder} cannot be read as an exported model", "write it again with potstill export"):
        about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        special = SpecialTokens(**about["pieces"])
        longest = _length_limit(int(about["longest"]), special, longest)
        search = ctranslate2_search(place, longest, "cpu", special.forced)
    yield _decoder(search, tokenizer, special, longest)


def search_identity(student: Student, beam: int, longest: int) -> list[object]:
    """Return all that the hypotheses of a source depend on. The engine is not part of it: both write the same."""
    model, tokenizer = student.model, student.tokenizer
    identity = fingerprint(model, tokenizer_fingerprint(tokenizer), longest)
    return [identity, beam, special_tokens(model, tokenizer)._asdict()]


def _length_limit(positions: int, special: SpecialTokens, longest: int) -> int:
    """Return the limit for a source, and for an output: a prompt and its continuation share the positions."""
    return min(longest, positions // (1 if special.start is not None else 2))


def engine_for(student: Student, engine: Engine = "auto") -> Literal["ctranslate2", "transformers"]:
    """Return the wanted engine, or the faster one that can run the model."""
    if engine == "transformers":
        return engine
    why = why_unsupported(student.model)
    if why is None and student.model.config.model_type not in TRANSLATORS:
        why = "causal language models are decoded by transformers"
    elif why is None and is_spread(student.model):
        why = "its weights are on several devices"
    elif why is None and special_tokens(student.model, student.tokenizer).forced is not None:
        why = "its first token is forced"
    if engine == "ctranslate2":
        import_ctranslate2()
        if why:
            raise InputError(f'CTranslate2 cannot decode here: {why}; write engine = "transformers"')
        return engine
    return "ctranslate2" if why is None and find_spec("ctranslate2") else "transformers"


def _decoder(search: Search, tokenizer: PreTrainedTokenizerBase, special: SpecialTokens, longest: int) -> Decoder:
    def decode(texts: Sequence[str], beam: int, best: int) -> list[list[Hypothesis]]:
        if not 1 <= best <= beam:
            raise InputError(f"a beam of {beam} cannot give {best} hypotheses; write a beam of at least {max(best, 1)}")
        if not texts:
            return []
        with explain_panics(tokenizer):
            sources = _sources(tokenizer, special, texts, longest)
        empty = {*special.ends, special.padding, tokenizer.bos_token_id, tokenizer.cls_token_id}
        results: list[list[Hypothesis]] = [[Hypothesis("", 0.0)] for _ in texts]
        rows = [row for row, ids in enumerate(sources) if special.start is None or not set(ids) <= empty]
        for row, outputs in zip(rows, search([sources[row] for row in rows], beam, best), strict=True):
            decoded = tokenizer.batch_decode([ids for ids, _ in outputs], skip_special_tokens=True)
            results[row] = [
                Hypothesis(text, score, bool(ids) and ids[-1] in special.ends)
                for text, (ids, score) in zip(decoded, outputs, strict=True)
            ]
        return results

    return decode


def _sources(tokenizer: Any, special: SpecialTokens, texts: Sequence[str], longest: int) -> list[list[int]]:
    """Return token ids. Prompts are as in training: after the begin token, without an end, truncated on the left."""
    if special.start is not None:
        shortened = beginnings(tokenizer, list(texts), longest)
        return list(tokenizer(shortened, truncation=True, max_length=longest)["input_ids"])
    begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    plain = tokenizer(beginnings(tokenizer, list(texts), longest, side="left"), add_special_tokens=False)["input_ids"]
    room = max(longest - len(begin), 1)
    return [[*begin, *ids[-room:]] or [special.ends[0]] for ids in plain]


def batches_by_length(rows: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield rows in batches of at most BATCH_TOKENS padded tokens, the longest first."""
    batch: list[int] = []
    for row in sorted(rows, key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def ctranslate2_search(folder: Path, longest: int, device: str = "cpu", forced: int | None = None) -> Search:
    """Search with CTranslate2: as many batches in parallel as PyTorch has threads, each on one thread.

    Matrix products this small gain nothing from a second thread.
    """
    threads = {"intra_threads": 1, "inter_threads": torch.get_num_threads() if device == "cpu" else 1}
    translates = (folder / "shared_vocabulary.json").exists()
    engine = getattr(import_ctranslate2(), "Translator" if translates else "Generator")
    model = engine(str(folder), device=device, **threads)
    file = folder / ("shared_vocabulary.json" if translates else "vocabulary.json")
    tokens = json.loads(file.read_text(encoding="utf-8"))
    ids_by_token = {token: id for id, token in enumerate(tokens)}
    if translates:
        run = model.translate_batch
        # sources are truncated already and sorted by length there; with a minimal length of 1 the first token could not
        # be the end, and the others would share its probability
        limits: dict[str, Any] = {"max_decoding_length": longest, "min_decoding_length": 0, "max_input_length": 0}
        limits |= {"max_batch_size": BATCH_TOKENS, "batch_type": "tokens"}
    else:
        run = model.generate_batch
        # in a batch of prompts, those that are longer than the shortest would be generated by force, and be counted
        limits = {"max_length": longest, "min_length": 0, "max_batch_size": 1, "include_prompt_in_result": False}
    has_prefix = forced is not None and translates  # the forced token is part of the output, with probability 1

    def search(sources: list[list[int]], beam: int, best: int) -> list[list[tuple[list[int], float]]]:
        outputs = run(
            [[tokens[id] for id in ids] for ids in sources],
            beam_size=beam,
            num_hypotheses=best,
            length_penalty=1,
            patience=1,
            return_scores=True,
            return_end_token=True,
            **({"target_prefix": [[tokens[forced]]] * len(sources)} if has_prefix else {}),
            **limits,
        )
        results = []
        for output in outputs:
            texts = output.hypotheses if translates else output.sequences
            every = [[ids_by_token[token] for token in text] for text in texts]
            results.append([(ids, score * len(ids)) for ids, score in zip(every, output.scores, strict=True)])
        return results

    return search


def transformers_search(student: Student, special: SpecialTokens, longest: int) -> Search:
    model: Any = student.model

    def search(sources: list[list[int]], beam: int, best: int) -> list[list[tuple[list[int], float]]]:
        results: list[list[tuple[list[int], float]]] = [[]] * len(sources)
        for rows in batches_by_length(range(len(sources)), [len(ids) for ids in sources]):
            for row, outputs in zip(rows, search_batch([sources[row] for row in rows], beam, best), strict=True):
                results[row] = outputs
        return results

    def search_batch(sources: list[list[int]], beam: int, best: int) -> list[list[tuple[list[int], float]]]:
        device = device_of(model)
        padded = _inputs(sources, special.padding, on_the_left=special.start is None)
        inputs = {name: tensor.to(device) for name, tensor in padded.items()}
        settings = GenerationConfig(
            num_beams=beam,
            num_return_sequences=best,
            early_stopping=True if beam > 1 else None,
            length_penalty=1.0 if beam > 1 else None,
            max_new_tokens=longest,
            do_sample=False,
            pad_token_id=special.padding,
            eos_token_id=special.ends,
            decoder_start_token_id=special.start,
            forced_bos_token_id=special.forced,
            bad_words_ids=[[id] for id in special.never] or None,
            renormalize_logits=bool(special.never) or None,
        )
        before = model.generation_config
        model.generation_config = settings  # otherwise the model's own would fill what is not set
        try:
            with torch.inference_mode(), quiet_transformers(), without_dropout(model):
                generated = model.generate(**inputs)
        finally:
            model.generation_config = before
        skipped = 1 if special.start is not None else inputs["input_ids"].shape[1]
        outputs = [_until_end(ids, special.ends) for ids in generated[:, skipped:].tolist()]
        scores = log_probabilities(student, special, [source for source in sources for _ in range(best)], outputs)
        hypotheses = list(zip(outputs, scores, strict=True))
        return [hypotheses[begin : begin + best] for begin in range(0, len(hypotheses), best)]

    return search


def log_probabilities(
    student: Student, special: SpecialTokens, sources: list[list[int]], outputs: list[list[int]]
) -> list[float]:
    """Return the log probability of each output (token ids) after its source, by a forward pass."""
    model, device, results = student.model, device_of(student.model), []
    row_logits = max(map(len, outputs), default=1) * int(model.get_output_embeddings().weight.shape[0])
    batch = max(1, SCORED_LOGITS // max(1, row_logits))
    for begin in range(0, len(sources), batch):
        texts, targets = sources[begin : begin + batch], outputs[begin : begin + batch]
        if special.start is not None:
            inputs = _inputs(texts, special.padding)
            inputs["decoder_input_ids"] = _padded([[special.start, *ids[:-1]] for ids in targets], special.padding)
            first = [0] * len(texts)
        else:
            inputs = _inputs([[*ids, *more] for ids, more in zip(texts, targets, strict=True)], special.padding)
            first = [len(ids) - 1 for ids in texts]
        with torch.inference_mode(), without_dropout(model):
            logits = model(**{name: tensor.to(device) for name, tensor in inputs.items()}).logits
            logits[..., special.never] = -torch.inf
            log_probs = logits.float().log_softmax(-1).cpu()
        for row, ids in enumerate(targets):
            steps = range(int(special.forced is not None), len(ids))  # a forced token has probability 1
            results.append(float(sum(log_probs[row, first[row] + step, ids[step]].double() for step in steps)))
    return results


def _inputs(rows: list[list[int]], padding: int, on_the_left: bool = False) -> dict[str, Tensor]:
    mask = _padded([[1] * len(ids) for ids in rows], 0, on_the_left)
    return {"input_ids": _padded(rows, padding, on_the_left), "attention_mask": mask}


def _padded(rows: list[list[int]], padding: int, on_the_left: bool = False) -> Tensor:
    """(rows, longest)"""
    longest = max(map(len, rows))
    gaps = [[padding] * (longest - len(ids)) for ids in rows]
    return torch.tensor([[*gap, *ids] if on_the_left else [*ids, *gap] for ids, gap in zip(rows, gaps, strict=True)])


def _until_end(ids: list[int], ends: list[int]) -> list[int]:
    """Remove the padding behind the end token."""
    last = next((position for position, id in enumerate(ids) if id in ends), len(ids) - 1)
    return ids[: last + 1]
