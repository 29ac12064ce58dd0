"""Augmented sentences a second: potstill beside nlpaug, in turns in one run, on one core.

Sentences of film reviews, 20 copies of each; tagged by TextBlob before the clock runs, and nlpaug is given the words of each tag.

- potstill: the data maker `augmented` with the paper's settings: masks, words of the same tag by their counts, n-grams,
  duplicates dropped, labels carried over, the rows written to disk. Only copies that are kept count.
- nlpaug: `RandomWordAug` puts [MASK] in place of a tenth of the words, then `ReservedAug` a word of the same tag in place
  of another tenth (a word has one tag there, and counts are not weighed). It cuts no n-grams, drops nothing and writes
  nothing: it does less. All that it gives counts.
- nlpaug, masks alone: the first of the two.

Of all rounds the best counts, for each competitor. Prints JSON lines; the exit code is 1 where a target is missed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _packages import write_sentences

from potstill.data.augment.tagging import TaggedTexts, tag_examples
from potstill.data.examples import Examples, store
from potstill.data.making import MakeContext
from potstill.data.rows import open_table
from potstill.plugins.data.augmented import Augmented
from potstill.tasks.label_matching import make_task

os.environ.setdefault("OMP_NUM_THREADS", "1")


SENTENCES = 6000  # of film reviews, from a package that `make bench` installs
COPIES, ROUNDS = 20, 5
FEW = 100  # sentences of which nlpaug makes copies in a round; its speed does not hang on their number
TARGETS = {"nlpaug": 20.0}

Speed = Callable[[], float]  # sentences a second


def words_by_tag(texts: TaggedTexts) -> list[list[str]]:
    """Of every tag its words; a word stands with the tag that it has most often."""
    found = Counter(zip((texts.words >> 1).tolist(), texts.tags.tolist(), strict=True))
    most: dict[int, int] = {}
    for (word, tag), _ in found.most_common():
        most.setdefault(word, tag)
    groups: list[list[str]] = [[] for _ in texts.tag_names]
    for word, tag in most.items():
        groups[tag].append(texts.vocabulary[word])
    return [group for group in groups if len(group) > 1]


def nlpaug_speeds(texts: TaggedTexts, sentences: list[str]) -> dict[str, Speed]:
    for name in ("gdown", "requests"):  # that fetch models, of which none is used
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
    try:
        from nlpaug.augmenter.word import RandomWordAug, ReservedAug
        from nlpaug.flow import Sequential
    except ImportError as error:
        tell(skipped=f"nlpaug is not installed ({error}): pip install --no-deps nlpaug")
        return {}
    # it cuts texts at marks by itself: told to keep to spaces, as the sentences are written
    how: dict[str, Any] = {
        "aug_p": 0.1,
        "aug_min": 0,
        "aug_max": None,
        "tokenizer": str.split,
        "reverse_tokenizer": " ".join,
    }
    masks = RandomWordAug(action="substitute", target_words=["[MASK]"], **how)
    both = Sequential([masks, ReservedAug(reserved_tokens=words_by_tag(texts), **how)])

    def speed(augmenter: Any) -> float:
        begun = time.perf_counter()
        made = sum(len(augmenter.augment(sentence, n=COPIES)) for sentence in sentences)
        return made / (time.perf_counter() - begun)

    return {"nlpaug": lambda: speed(both), "nlpaug, masks alone": lambda: speed(masks)}


def our_speed(examples: Examples, draw: int) -> float:
    begun = time.perf_counter()
    made = Augmented(copies=COPIES, draw=draw).make(examples, MakeContext(0))
    return (len(made) - len(examples)) / (time.perf_counter() - begun)


def tell(**what: Any) -> None:
    rounded = {name: round(value, 1) if isinstance(value, float) else value for name, value in what.items()}
    print(json.dumps({"bench": "augment", **rounded}), flush=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        os.environ["POTSTILL_CACHE"] = place
        write_sentences(Path(place) / "rows.csv", SENTENCES)
        task, _ = make_task(None, None, ["0", "1"], None, "rows.csv")
        examples = store(open_table(Path(place) / "rows.csv"), task)
        begun = time.perf_counter()
        texts = tag_examples(examples, "textblob", lambda count: None)
        tell(tagged_a_second=len(examples) / (time.perf_counter() - begun))
        sentences = [text for text, _ in examples.texts()]
        others = nlpaug_speeds(texts, sentences[:: len(sentences) // FEW][:FEW])
        best = dict.fromkeys(["potstill", *others], 0.0)
        for turn in range(ROUNDS):
            best["potstill"] = max(best["potstill"], our_speed(examples, turn))
            for name, speed in others.items():
                best[name] = max(best[name], speed())
    ratios = {name: best["potstill"] / speed for name, speed in best.items()}
    for name, speed in best.items():
        tell(competitor=name, sentences_a_second=speed, potstill_is_times_faster=ratios[name])
    missed = [
        f"{name}: {ratios[name]:.1f} times; the target is {least}"
        for name, least in TARGETS.items()
        if ratios.get(name, least) < least
    ]
    if best["potstill"] < 10_000:
        missed.append(f"{best['potstill']:.0f} sentences a second; the target is 10,000")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
