"""Small real things for tests: models and tokenizers of every architecture, and sentences with a sentiment to learn."""

from __future__ import annotations

import copy
import csv
import json
import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    BertTokenizer,
    DistilBertTokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from potstill.models.heads import auto_class
from potstill.models.student import Student
from potstill.tasks.classify_images import ImageClassification
from potstill.tasks.registry import TASKS
from potstill.tasks.task import Task
from potstill.tasks.translate import Translation

torch.set_num_threads(1)  # for models as small as these, threads cost more than they bring

ARCHITECTURES = ("bert", "roberta", "distilbert", "mpnet", "electra", "modernbert")
LONGEST = 64  # tokens


def _words(text: str) -> list[str]:
    return text.split()


POSITIVE = _words("good great lovely funny warm brilliant charming clever moving superb delightful fresh honest bright")
NEGATIVE = _words("bad awful boring dull cold clumsy stupid tedious terrible weak lazy dreadful stale fake ugly")
NEUTRAL = _words("""the a this that one film movie story plot scene actor actress director script music camera ending
beginning cast dialogue character hero city summer evening audience book sequel picture was is feels looks seems remains
became and but with about from for every some two three hours minutes people watching quietly again never always almost
rather very quite really Paris London yesterday today , . ! ; 7 1999""")


def sentences(n: int, seed: int) -> list[tuple[str, int]]:
    """n texts of 3 to 20 words with label 0 (negative words in it) or 1 (positive words), as many of each."""
    chance = random.Random(seed)
    rows = []
    for place in range(n):
        label = place % 2
        words = chance.choices(NEUTRAL, k=chance.randint(2, 18))
        for word in chance.sample(POSITIVE if label else NEGATIVE, k=1 + (len(words) > 5)):
            words.insert(chance.randint(0, len(words)), word)
        rows.append((" ".join(words), label))
    chance.shuffle(rows)
    return rows


def write_csv(path: Path, rows: Iterable[Sequence[Any]], header: Sequence[str] = ("text", "label")) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


TAGS = ("B-BAD", "B-GOOD", "I-BAD", "I-GOOD", "O")
# those that read texts which follow each other have tests of their own
KINDS: dict[str, type[Task]] = {
    name: task for name, task in TASKS.items() if name not in ("multilabel", "regress") and not task.follows
}
LABELS = {"classify": ("negative", "positive"), "tag": TAGS, "answer": ("start", "end"), "choose": ("A", "B", "C")}
LABELS |= {"mask": ("LABEL_0", "LABEL_1")}  # of every config that names none


def tagged(n: int, seed: int) -> list[dict[str, Any]]:
    """Words with tags: good and bad ones are entities, of two words where they stand side by side."""
    rows = []
    for text, _ in sentences(n, seed):
        words = text.split()
        kinds = ["GOOD" if word in POSITIVE else "BAD" if word in NEGATIVE else "" for word in words]
        tags = [
            "O" if not kind else f"{'I' if place and kinds[place - 1] == kind else 'B'}-{kind}"
            for place, kind in enumerate(kinds)
        ]
        rows.append({"tokens": words, "tags": tags})
    return rows


def questions(n: int, seed: int, longest: int = 40) -> list[dict[str, Any]]:
    """Contexts of up to `longest` words with one good and one bad word; asked is where the good one stands."""
    chance = random.Random(seed)
    rows = []
    for _ in range(n):
        words = chance.choices(NEUTRAL, k=chance.randint(5, longest))
        good, bad = chance.choice(POSITIVE), chance.choice(NEGATIVE)
        for word in (good, bad):
            words.insert(chance.randint(0, len(words)), word)
        start = len(" ".join(words[: words.index(good)])) + (words.index(good) > 0)
        answers = [{"text": good, "answer_start": start}]
        rows.append({"question": "what was good ?", "context": " ".join(words), "answers": answers})
    return rows


def choices(n: int, seed: int) -> list[dict[str, Any]]:
    """A text, and three words of which one is good."""
    chance = random.Random(seed)
    rows = []
    for text, _ in sentences(n, seed):
        candidates = [chance.choice(POSITIVE), *chance.sample(NEGATIVE, 2)]
        right = candidates[0]
        chance.shuffle(candidates)
        answer = "ABC"[candidates.index(right)]
        rows.append({"article": text, "question": "it was _ .", "options": candidates, "answer": answer})
    return rows


def _ring(begin: int, words: int) -> str:
    """Words of which each is always followed by the same one: what a language model can learn in a second."""
    return " ".join(NEUTRAL[(begin + place) % len(NEUTRAL)] for place in range(words))


def translations(n: int, seed: int) -> list[dict[str, Any]]:
    """Words in their usual order, of which as many as were read follow in the translation."""
    chance = random.Random(seed)
    places = [(chance.randrange(len(NEUTRAL)), chance.randint(2, 9)) for _ in range(n)]
    return [{"source": _ring(begin, words), "target": _ring(begin + words, words)} for begin, words in places]


def writings(n: int, seed: int) -> list[dict[str, Any]]:
    """Prompts and how they go on; every sixth is running text without a prompt, every third of which needs two windows."""
    chance = random.Random(seed)
    rows = []
    for place in range(n):
        begin, given, words = chance.randrange(len(NEUTRAL)), chance.randint(1, 5), chance.randint(2, 12)
        if place % 6 == 0:
            given, words = 0, 80 if place % 18 == 0 else 20
        rows.append({"prompt": _ring(begin, given), "completion": f" {_ring(begin + given, words)}"})
    return rows


def running_texts(n: int, seed: int) -> list[dict[str, Any]]:
    """Each text says one word again and again, with others between: what is masked is mostly that word. Some need two windows."""
    chance = random.Random(seed)
    rows = []
    for place in range(n):
        word, size = chance.choice(NEUTRAL[:20]), 80 if place % 18 == 0 else chance.randint(4, 20)
        words = [word if chance.random() < 0.8 else chance.choice(NEUTRAL) for _ in range(size)]
        rows.append({"text": " ".join(words)})
    return rows


ROWS = {"tag": tagged, "answer": questions, "choose": choices, "translate": translations, "write": writings}
ROWS |= {"mask": running_texts}
GENERATED = ("translate", "write")


def write_task(path: Path, task: str, n: int, seed: int) -> Path:
    """Rows of a task as JSON lines; of classification as CSV."""
    if task == "classify":
        write_csv(path.with_suffix(".csv"), sentences(n, seed))
        return path.with_suffix(".csv")
    rows = ROWS[task](n, seed)
    path = path.with_suffix(".jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def small_model(
    architecture: str,
    layers: int = 4,
    width: int = 32,
    labels: Sequence[str] = ("negative", "positive"),
    seed: int = 0,
    head: str = "SequenceClassification",
) -> Student:
    """A random classifier with a trained tokenizer, its special tokens where the real ones have them."""
    tokenizer = small_tokenizer(architecture)
    shape: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": 4,
        "hidden_dim" if architecture == "distilbert" else "intermediate_size": 2 * width,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": LONGEST + (2 if architecture in ("roberta", "mpnet") else 0),
        "initializer_range": 0.1,  # wide enough that texts get different logits without training
    }
    if architecture == "electra":
        shape["embedding_size"] = width // 2
    if architecture == "modernbert":
        shape |= {"initializer_cutoff_factor": 3.0, "local_attention": 8}
        shape |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    if architecture in ("roberta", "mpnet", "modernbert"):
        shape |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    config = AutoConfig.for_model(architecture, pad_token_id=tokenizer.pad_token_id, **shape)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    config.problem_type = "single_label_classification" if len(labels) > 1 else "regression"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = auto_class(head).from_config(config)
    model.config.architectures = [type(model).__name__]
    return Student(model.eval(), tokenizer)


def digits(rows: int | None = None, begin: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Real handwritten digits of 8 x 8 pixels, (rows, 8, 8) uint8, and their classes (rows,)."""
    from sklearn.datasets import load_digits

    found = load_digits()
    end = None if rows is None else begin + rows
    return (found.images * 255 / 16).astype(np.uint8)[begin:end], found.target[begin:end]


def write_digits(path: Path, rows: int, begin: int = 0) -> Path:
    images, labels = digits(rows, begin)
    np.savez(path, images=images, labels=labels)
    return path


def small_images(hidden: Sequence[int] = (24, 16), seed: int = 0) -> Student:
    """A random network for digits as rows have them here, with two classes."""
    from potstill.plugins.students.mlp import Mlp

    return Mlp(hidden=list(hidden)).begin(ImageClassification(("negative", "positive"), shape=(1, 8, 8)), seed)


def small_convolutions(seed: int = 0) -> Student:
    """A random convolutional network for the same digits."""
    from potstill.plugins.students.cnn import Cnn

    task = ImageClassification(("negative", "positive"), shape=(1, 8, 8))
    return Cnn(channels=[4, 6], hidden=[12]).begin(task, seed)


def small_translator(layers: int = 2, width: int = 32, seed: int = 0) -> Student:
    """A random Marian with a vocabulary of its own."""
    return copy.deepcopy(_translator(layers, width, seed))


@cache
def _translator(layers: int, width: int, seed: int) -> Student:
    from potstill.plugins.students.marian import Marian

    shape = Marian(encoder_layers=layers, decoder_layers=layers, width=width, vocabulary=400)
    return shape.begin(Translation(), seed, lambda: iter(_corpus()))


@cache
def _tokenizer_of_writers() -> PreTrainedTokenizerFast:
    from potstill.models.tokenizers.joint_bpe import joint_bpe

    return joint_bpe(_corpus(), 400)


WRITERS = ("llama", "gpt2", "marian", "t5")  # the last two read with one stack and write with another


def small_writer(architecture: str, layers: int = 3, width: int = 32, seed: int = 0) -> Student:
    """A random model that writes texts, with a vocabulary of both sides of a translation."""
    tokenizer = copy.deepcopy(_tokenizer_of_writers())
    shape: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1}
    if architecture == "t5":
        shape |= {"d_model": width, "d_kv": 8, "d_ff": 2 * width, "num_layers": layers, "num_heads": 4}
        shape |= {"decoder_start_token_id": 0}
    elif architecture == "marian":
        return small_translator(layers, width, seed)
    elif architecture == "gpt2":
        shape |= {"n_embd": width, "n_layer": layers, "n_head": 4, "n_positions": LONGEST, "bos_token_id": 1}
    else:
        shape |= {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 2 * width, "bos_token_id": 1}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LONGEST}
        shape |= {"attention_dropout": 0.1}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = "Seq2SeqLM" if architecture == "t5" else "CausalLM"
        model = auto_class(head).from_config(AutoConfig.for_model(architecture, **shape))
    model.config.architectures = [type(model).__name__]
    return Student(model.eval(), tokenizer)


def small_teacher(task: str, architecture: str = "bert", seed: int = 0) -> Student:
    """A random network of four layers for a task, whose logits differ from text to text."""
    if task not in GENERATED:
        return small_model(architecture, seed=seed, labels=LABELS[task], head=KINDS[task].head)
    made = small_writer({"translate": "marian", "write": "llama"}[task], layers=4, seed=seed)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
    return made


def logits(student: Student, texts: Sequence[str]) -> torch.Tensor:
    """(texts, classes), all in one padded batch. A network of images sees as many digits instead; a translator is told
    that each text's translation is the text."""
    with torch.no_grad():
        if student.tokenizer.model_input_names == ["pixel_values"]:
            seen = torch.from_numpy(digits(len(texts))[0]).float()[:, None] / 255
            said: torch.Tensor = student.model(pixel_values=seen).logits
            return said
        batch = student.tokenizer(list(texts), padding=True, return_tensors="pt")
        if student.model.config.is_encoder_decoder:
            batch["decoder_input_ids"] = batch["input_ids"]
        answer: torch.Tensor = student.model(**batch).logits
    return answer


def same_weights(ours: Student, theirs: Student) -> bool:
    """Bit for bit, under the same names."""
    a, b = ours.model.state_dict(), theirs.model.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def small_tokenizer(architecture: str) -> PreTrainedTokenizerBase:
    """WordPiece or byte-level BPE in the stock class of the architecture, trained on the sentences above."""
    limit = {"model_max_length": LONGEST}
    if architecture == "roberta":
        pieces, merges = _byte_pairs()
        vocabulary = _numbered(["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"])
        return RobertaTokenizer(vocab=vocabulary, merges=merges, **limit)
    if architecture == "modernbert":
        return _modernbert_tokenizer(limit)
    if architecture == "mpnet":
        vocabulary = _numbered(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *_word_pieces(), "<mask>"])
        return MPNetTokenizer(vocab=vocabulary, **limit)
    unused = [f"[unused{number}]" for number in range(5)]
    vocabulary = _numbered(["[PAD]", *unused, "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_word_pieces()])
    return (DistilBertTokenizer if architecture == "distilbert" else BertTokenizer)(vocab=vocabulary, **limit)


def _modernbert_tokenizer(limit: dict[str, int]) -> PreTrainedTokenizerBase:
    """The special tokens at the end of the vocabulary, and a run of spaces as an added token: so has the real one."""
    pieces, merges = _byte_pairs()
    backend = Tokenizer(models.BPE(vocab=_numbered(pieces), merges=merges))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(["   "])
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "CLS", "SEP", "PAD", "MASK")}
    backend.add_special_tokens(list(special.values()))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=names, **special, **limit)


def _numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}


@cache
def _corpus() -> list[str]:
    letters = "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9"
    run_together = letters.replace(" ", "")  # so that every letter is also seen inside a word
    return [text for text, _ in sentences(300, seed=7)] + [
        letters,
        run_together,
        run_together[::-1],
        ". , ! ? ; : ' - ( )",
    ]


@cache
def _word_pieces() -> list[str]:
    """The same in every process: the trainer would number continuations ("##a") in the order of a hash table, and break ties
    between merges by these numbers, so that they are given as special tokens."""
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer()
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    characters = sorted(set("".join(_corpus()).lower()) - {" "})
    first = ["[UNK]", *(f"##{character}" for character in characters)]
    trained.train_from_iterator(
        _corpus(), trainers.WordPieceTrainer(vocab_size=420, special_tokens=first, show_progress=False)
    )
    return sorted(set(trained.get_vocab()) - {"[UNK]"}, key=trained.get_vocab().__getitem__)


@cache
def _byte_pairs() -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces in the order of their ids, and the merges."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        _corpus(), trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [tuple(merge) for merge in model["merges"]]
