"""Words that could stand in place of a word: what a masked language model predicts there, or its nearest word vectors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor

from potstill.data.augment.tagging import WORD
from potstill.data.examples import folder_of
from potstill.data.tokens import tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.anatomy import longest_input
from potstill.models.builder import Student
from potstill.models.fingerprints import fingerprint
from potstill.models.inference import device_of, without_dropout
from potstill.models.student import load_student
from potstill.models.tokenizers.word_vectors import all_vectors
from potstill.system.column_files import ColumnFiles, column, write_once

FORMAT = 1  # of the stored candidates
AT_ONCE = 2048  # tokens that are read together: the head's output has so many rows at most
LETTER = re.compile(r"[^\W\d_]")  # numbers and punctuation are not replaced


class Choice(NamedTuple):
    """Where a word stands in its text, and what could stand there."""

    begin: int
    end: int
    words: list[str]


class Place(NamedTuple):
    """A word in one of several texts."""

    text: int
    begin: int
    end: int
    token: int | None  # the only piece of the word; None: there are several, or the text was cut off before it


def words_of(text: str) -> list[tuple[int, int]]:
    """Begin and end of every word with a letter in it."""
    return [match.span() for match in WORD.finditer(text) if LETTER.search(match[0])]


def with_words(text: str, choices: Sequence[Choice], replaced: np.ndarray, drawn: np.ndarray) -> str:
    """The text with some of its words replaced. (choices,) bool, and numbers in [0, 1) that choose the candidate."""
    parts, end = [], 0
    for place in np.flatnonzero(replaced).tolist():
        choice = choices[place]
        parts += [text[end : choice.begin], choice.words[int(drawn[place] * len(choice.words))]]
        end = choice.end
    return "".join([*parts, text[end:]])


class MaskedCandidates:
    """The most probable words at the place of a word, from the rest of its text."""

    def __init__(self, student: Student, most: int) -> None:
        self.model, self.tokenizer, self.most = student.model, student.tokenizer, most
        if self.tokenizer.mask_token_id is None:
            raise InputError("the model has no mask token; give a masked language model, such as BERT")
        pieces = self.tokenizer.get_vocab()
        marked = any(piece.startswith(("Ġ", "▁")) for piece in pieces)  # before the first piece of a word
        self.words = {
            number: piece.lstrip("Ġ▁")
            for piece, number in pieces.items()
            if number not in self.tokenizer.all_special_ids
            and LETTER.search(piece)
            and (piece.startswith(("Ġ", "▁")) if marked else not piece.startswith("##"))
        }
        self.allowed = torch.tensor(sorted(self.words))

    def places(self, texts: Sequence[str]) -> tuple[list[list[int]], list[Place]]:
        """The ids of each text, and all of its words."""
        longest = longest_input(self.model, self.tokenizer)
        encoded = self.tokenizer(list(texts), truncation=True, max_length=longest, return_offsets_mapping=True)
        places = []
        for number, (text, spans) in enumerate(zip(texts, encoded["offset_mapping"], strict=True)):
            whole = {span: token for token, span in enumerate(spans) if span[0] < span[1]}
            places += [Place(number, *span, whole.get(span)) for span in words_of(text)]
        return encoded["input_ids"], places

    def best(self, ids: Sequence[Sequence[int]], places: Sequence[Place]) -> list[list[str]]:
        """For each place with a token, the candidates, the most probable first; the word itself is none."""
        order = sorted(range(len(places)), key=lambda number: len(ids[places[number].text]))  # little padding
        found: list[list[str]] = [[] for _ in places]
        while order:
            longest = len(ids[places[order[-1]].text])
            now, order = order[-max(1, AT_ONCE // longest) :], order[: -max(1, AT_ONCE // longest)]
            for number, best in zip(now, self._batch(ids, [places[each] for each in now]), strict=True):
                found[number] = best
        return found

    def _batch(self, ids: Sequence[Sequence[int]], places: Sequence[Place]) -> Iterator[list[str]]:
        rows = [list(ids[place.text]) for place in places]
        at = torch.tensor([place.token or 0 for place in places])
        own = [row[place.token or 0] for row, place in zip(rows, places, strict=True)]
        batch = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt")
        batch["input_ids"][torch.arange(len(rows)), at] = self.tokenizer.mask_token_id
        device = device_of(self.model)
        given = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.inference_mode(), without_dropout(self.model), _head_at(self.model, at):
            logits: Tensor = self.model(**given).logits
        if logits.shape[1] == given["input_ids"].shape[1]:  # its head is not a module, as in MobileBERT
            logits = logits[torch.arange(len(rows)), at][:, None]
        of_words = logits[:, 0].index_select(1, self.allowed.to(device))
        best = self.allowed[of_words.topk(min(self.most + 1, len(self.allowed))).indices.cpu()]
        for mine, numbers in zip(own, best.tolist(), strict=True):
            yield [self.words[number] for number in numbers if number != mine][: self.most]


class Finder:
    """Candidates of every word: of a masked language model where the word is one piece, otherwise of word vectors."""

    def __init__(self, name: str, model: str | None, vectors: str | None, most: int) -> None:
        self.most, self.identity = most, [FORMAT, WORD.pattern, most]
        self.masked = MaskedCandidates(load_student(model, head="MaskedLM"), most) if model is not None else None
        if self.masked is not None:
            student = self.masked.model, tokenizer_fingerprint(self.masked.tokenizer)
            self.identity.append(fingerprint(*student, longest_input(self.masked.model, self.masked.tokenizer)))
        self.names: list[str] = []
        self.vectors = np.empty((0, 1))
        if vectors is not None:
            self.names, self.vectors = all_vectors(name, vectors)
            digest = xxhash.xxh3_128("\n".join(self.names).encode())
            digest.update(np.ascontiguousarray(self.vectors).tobytes())
            self.identity.append(digest.hexdigest())

    def stored(self, texts: Sequence[str]) -> list[list[Choice]]:
        """`find`, or what it returned before for the same texts."""
        digest = xxhash.xxh3_128_hexdigest("\0".join(texts).encode())

        def write(columns: ColumnFiles) -> None:
            columns.add("choices", np.frombuffer(json.dumps(self.find(texts)).encode(), np.uint8))
            columns.finish({})

        folder = folder_of("word candidates", self.identity, digest)
        write_once(folder, write)
        read = json.loads(bytes(column(folder, "choices", np.uint8)))
        return [[Choice(*each) for each in of_text] for of_text in read]

    def find(self, texts: Sequence[str]) -> list[list[Choice]]:
        """For each text its words with candidates, in their order."""
        ids, places = (
            self.masked.places(texts)
            if self.masked is not None
            else ([], [Place(number, *span, None) for number, text in enumerate(texts) for span in words_of(text)])
        )
        single = [place for place in places if place.token is not None]
        found: dict[Place, list[str]] = {}
        if self.masked is not None:
            found = dict(zip(single, self.masked.best(ids, single), strict=True))
        others = {place: texts[place.text][place.begin : place.end] for place in places if place.token is None}
        known = set(self.names) if self.names else set()
        spelled = {place: word if word in known else word.lower() for place, word in others.items()}
        near = nearest_words(spelled.values(), self.names, self.vectors, self.most) if known else {}
        found |= {place: near.get(word, []) for place, word in spelled.items()}
        choices: list[list[Choice]] = [[] for _ in texts]
        for place in places:
            if found[place]:
                choices[place.text].append(Choice(place.begin, place.end, found[place]))
        return choices


@contextmanager
def _head_at(model: torch.nn.Module, at: Tensor) -> Iterator[None]:
    """Let the output layer see one token of each row alone: it is as wide as the vocabulary."""
    output = model.get_output_embeddings()  # type: ignore[operator]
    hook = output.register_forward_pre_hook(lambda _, given: (given[0][torch.arange(len(at)), at][:, None],))
    try:
        yield
    finally:
        hook.remove()


def nearest_words(words: Iterable[str], names: Sequence[str], vectors: np.ndarray, most: int) -> dict[str, list[str]]:
    """For each word that has a vector, those with the most similar ones by cosine; the word itself is none."""
    place = {name: number for number, name in enumerate(names)}
    asked = [word for word in dict.fromkeys(words) if word in place]
    units = torch.nn.functional.normalize(torch.from_numpy(np.array(vectors, np.float32)), dim=1)
    found = {}
    for begin in range(0, len(asked), 64):  # a table of 400,000 words: 100 MB
        part = asked[begin : begin + 64]
        similar = units[[place[word] for word in part]] @ units.T
        best = similar.topk(min(most + 1, len(names)), dim=1).indices.tolist()
        for word, numbers in zip(part, best, strict=True):
            found[word] = [names[number] for number in numbers if names[number] != word][:most]
    return found
