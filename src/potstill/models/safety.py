"""Check untrusted model folders, tensor files and tokenizers before anything in them is loaded.

This module loads neither torch nor transformers. Only regular files of the folder itself are opened: configs of stock
architectures without code, and weights in safetensors with a short and consistent header. A network may not need far
more numbers than the weights hold. A few lines of JSON can make a tokenizer turn a short text into gigabytes, so its
chain of replacements is examined.
"""

from __future__ import annotations

import base64
import json
import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from potstill.errors import InputError

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)  # no slash, no leading dot
LONGEST_HEADER = 2 * 2**20  # bytes; that of BERT-large has 50,000
LARGEST_SETTINGS = 4 * 2**20  # bytes of config.json and the like: 10,000 named labels take half a million
LARGEST_VOCABULARY = 64 * 2**20
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
COUNTS = re.compile(r"label|layer|head|group|block|expert")  # numbers of a config that become lists when it is read
LARGEST_COUNT = 10_000
# fields whose files would be read instead of the usual ones
OTHER_FILES = {"configuration_files", "fast_tokenizer_files", "vocab", "merges"}
PLAIN_WORD = re.compile(r"\w*", re.ASCII)
EXTRA_NUMBERS = 4 * 2**20  # that a network may have beyond twice those of its file: a new head
CODED = "model.huffman.safetensors"  # the weights of an export to huffman
FLOATS = ("F16", "BF16", "F32", "F64")
MOST_GROWTH = 64  # characters that one character may become
MOST_ADDED = 64  # tokens that may be put around a text
LONGEST_FORM = 256  # bytes: the longest normal form of one character in Unicode needs 33
ORIGINAL = "use the model's original tokenizer.json"
NESTED = ("normalizers", "pretokenizers", "decoders", "processors")  # fields of a sequence that list its parts


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes in a safetensors file by name; ValueError unless its tensors fill the file without gaps."""
    return {name: shape for name, (_, shape) in _tensors(path).items()}


def _tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each tensor. The library checks the header, but takes one of 100 MB."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"{path.name} begins with a header of {length:,} bytes, which no safetensors file has")
    try:
        with safe_open(path, "np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (it is not a dictionary)
            return {name: (tensor.get_dtype(), tuple(tensor.get_shape())) for name, tensor in slices.items()}
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged: {str(error)[:200]}") from None


def refuse_unsafe_files(folder: Path) -> None:
    """Refuse links out of the folder, special files, adapters, and settings that are larger than any model needs."""
    try:
        if (folder / "adapter_config.json").exists():
            raise InputError(f"{folder} is an adapter to another model; give the folder of the merged model")
        for path in sorted(folder.iterdir()):
            _refuse_unsafe_file(path, folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}); check the path and its permissions") from None


def _refuse_unsafe_file(path: Path, folder: Path) -> None:
    if path.is_symlink() and not _stays_inside(path, folder):
        raise InputError(f"{path} is a link that leads out of the folder; put the file itself there")
    if not path.exists() or path.is_dir():
        return
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file; remove it from the model's folder")
    limit = LARGEST_VOCABULARY if path.name in VOCABULARIES else LARGEST_SETTINGS
    if path.suffix in (".json", ".txt") and status.st_size > limit:
        raise InputError(
            f"{path} has {status.st_size:,} bytes, more than such a file can need; use the model's original folder"
        )


def _stays_inside(link: Path, folder: Path) -> bool:
    """Whether a link leads into the folder, or, in the cache of the Hugging Face Hub, to a blob of the same model."""
    here, target = folder.resolve(), link.resolve()
    cached = here.parent.name == "snapshots" and target.parent == here.parents[1] / "blobs"
    return cached or here in target.parents


def refuse_unsafe_settings(folder: Path, needed: str = "config.json") -> None:
    """Refuse configs that bring code or kernels, name other files, or hold counts that would fill the memory."""
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).exists() and name != needed:
            continue
        settings = json_object(folder / name, f"give a folder with a {needed}")
        if settings.get("transformers_weights", "model.safetensors") != "model.safetensors":
            raise InputError(f"{folder / name} names other weights than model.safetensors; remove transformers_weights")
        for key in OTHER_FILES & settings.keys():
            if isinstance(settings[key], str | list):
                raise InputError(f"{folder / name} names other files ({key}), which are not read; remove {key}")
        for key, value in _nested_items(settings):
            if key == "auto_map":
                raise InputError(
                    f"{folder} brings its own code (auto_map), which is never run; use a stock architecture"
                )
            if "implementation" in key and (code := _code_name(value)):
                raise InputError(f"{folder} asks for code of {code!r}, which is never run; remove {key} from {name}")
            if COUNTS.search(key) and isinstance(value, int | float) and value > LARGEST_COUNT:
                raise InputError(f"{folder / name} says {key} = {value}, which no model has; write the right number")


def _nested_items(settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, at any depth; but not the names of classes and tokens, which may be any word."""
    waiting: list[Any] = [settings]
    while waiting:
        current = waiting.pop()
        for key, value in current.items() if isinstance(current, dict) else ():
            yield str(key), value
            if key not in ("id2label", "label2id", "added_tokens_decoder"):
                waiting.append(value)
        waiting.extend(current if isinstance(current, list) else ())


def _code_name(value: Any) -> str | None:
    """Return the first text in a value of any shape that is not a plain word such as sdpa."""
    if isinstance(value, str):
        return None if PLAIN_WORD.fullmatch(value) else value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((code for part in inner if (code := _code_name(part))), None)


def stored_numbers(folder: Path) -> int:
    """Count the numbers in the folder's weights, which must be complete safetensors files of this folder."""
    todo = "use the model's original folder, or write it again with `model.save_pretrained(folder)`"
    names = ["model.safetensors"]
    if is_coded(folder):
        return _coded_numbers(folder / CODED)
    index = folder / "model.safetensors.index.json"
    if not (folder / names[0]).exists() and index.exists():
        files = json_object(index, todo).get("weight_map")
        names = sorted(set(map(str, files.values()))) if isinstance(files, dict) else []
    total = 0
    for name in names:
        if not FILE_NAME.fullmatch(name) or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise InputError(f"{folder}: the weights' file {name!r} is not a safetensors file there; {todo}")
        try:
            tensors = _tensors(folder / name)
        except ValueError as error:
            raise InputError(f"{folder}: {error}; {todo}") from None
        for tensor, (dtype, shape) in tensors.items():
            # masks and positions may be integers; integer weights would need a scale that nothing here reads
            if tensor.endswith(".weight") and dtype not in FLOATS:
                raise InputError(
                    f"{folder}: {tensor} is stored as {dtype}; use weights in float32, float16 or bfloat16"
                )
            total += math.prod(shape)
    return total


def is_coded(folder: Path) -> bool:
    """Whether the folder's weights are those that the export huffman writes."""
    return not (folder / "model.safetensors").exists() and (folder / CODED).is_file()


def coded_matrices(file: Path) -> dict[str, tuple[tuple[int, ...], int, int]]:
    """The shape of each coded matrix, and how many codes of values and of gaps it has; ValueError if that is not told so."""
    _tensors(file)
    with safe_open(file, "np") as opened:
        told = json.loads((opened.metadata() or {}).get("matrices", "null"))
    if not isinstance(told, dict):
        raise ValueError("it does not say which matrices it holds")
    matrices: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for name, entry in told.items():
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], list) or len(entry[0]) != 2:
            raise ValueError(f"it does not say which shape {name:.80} has")
        numbers = [*entry[0], *entry[1:]]
        if any(type(number) is not int or not 0 <= number < 2**40 for number in numbers):
            raise ValueError(f"it does not say which shape {name:.80} has")
        matrices[name] = ((numbers[0], numbers[1]), numbers[2], numbers[3])
    return matrices


def _coded_numbers(file: Path) -> int:
    """Count the numbers that a coded file says it holds."""
    try:
        matrices = coded_matrices(file)
        plain = sum(math.prod(shape) for name, shape in tensor_shapes(file).items() if ":" not in name)
        return plain + sum(math.prod(shape) for shape, _, _ in matrices.values())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{file} cannot be decoded: {str(error)[:200]}; write it again with potstill export --to huffman"
        ) from None


def refuse_larger(folder: Path, needed: int, stored: int) -> None:
    if needed > 2 * stored + EXTRA_NUMBERS:
        raise InputError(
            f"{folder}: config.json describes a network of {needed:,} numbers, the weights hold {stored:,}; "
            "use a folder whose config.json and weights belong together"
        )


def json_object(path: Path, todo: str) -> dict[str, Any]:
    """Read a JSON object; an error that ends in `todo` if the file is missing or holds something else."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or ["no JSON"])[0][:200]
        raise InputError(f"{path.parent} has no {path.name} that can be read ({reason}); {todo}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object; {todo}")
    return content


def refuse_growing(folder: Path) -> None:
    """Refuse a tokenizer.json that would make far more of a text than it is."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return
    settings = json_object(file, ORIGINAL)
    parts = {name: _parts(settings.get(name)) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")}
    for name, chain in {"text": parts["normalizer"] + parts["pre_tokenizer"], "token": parts["decoder"]}.items():
        if (factor := growth(chain)) > MOST_GROWTH:
            raise InputError(f"{file} makes {factor:,.0f} characters of one character of a {name}; {ORIGINAL}")
    for part in parts["post_processor"]:
        template = [*(part.get("single") or ()), *(part.get("pair") or ())]
        special = part.get("special_tokens") or {}
        added = [token.get("ids") or () for token in special.values() if isinstance(token, dict)]
        if len(template) > MOST_ADDED or any(len(ids) > MOST_ADDED for ids in added):
            raise InputError(f"{file} puts more than {MOST_ADDED} tokens around a text; {ORIGINAL}")


def growth(parts: list[dict[str, Any]]) -> float:
    """Return the most characters that parts in sequence can make of one character.

    A part multiplies what an earlier part writes only if its pattern could occur in that.
    """
    steps: list[tuple[str | None, float]] = []  # what each part may write (None: anything), and the growth up to it
    for part in parts:
        pattern, content, factor = _replacement(part)
        before = [grown for text, grown in steps if pattern is None or text is None or set(text) & set(pattern)]
        steps.append((content, factor * max(before, default=1.0)))
    return max((grown for _, grown in steps), default=1.0)


def _replacement(part: dict[str, Any]) -> tuple[str | None, str | None, float]:
    """Return what a part matches (None: anything), what it writes (None: anything), and its largest growth."""
    kind = part.get("type")
    if kind == "Replace":
        content, pattern = str(part.get("content", "")), part.get("pattern")
        fields = pattern if isinstance(pattern, dict) else {}
        if text := fields.get("String"):
            return str(text), content, max(1.0, len(content) / len(str(text)))
        return None, content, max(1.0, len(content) + (0 if _consumes(str(fields.get("Regex", ""))) else 1))
    if kind == "Prepend":
        return None, None, 1.0 + len(str(part.get("prepend", "")))
    if kind == "ByteLevel":
        return None, None, 4.0  # a character has up to four bytes, each written as a character
    if kind == "Precompiled":
        longest = _longest_form(part.get("precompiled_charsmap"))
        return None, None, 1.0 if longest <= LONGEST_FORM else float(longest)
    return None, None, 1.0


def _parts(part: Any) -> list[dict[str, Any]]:
    """Flatten a part of tokenizer.json that may be a sequence of parts, at any depth."""
    if not isinstance(part, dict):
        return []
    inner = [item for name in NESTED if isinstance(part.get(name), list) for item in part[name]]
    return [leaf for item in inner for leaf in _parts(item)] if inner else [part]


def _consumes(pattern: str) -> bool:
    """Whether a regular expression always matches at least one character; False if Python cannot parse it."""
    try:
        return re._parser.parse(pattern).getwidth()[0] >= 1  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError):
        return False


def _longest_form(charsmap: Any) -> int:
    """Return the bytes of the longest replacement in SentencePiece's compiled map, which is a trie and then texts."""
    try:
        raw = base64.b64decode(str(charsmap or ""))
    except ValueError:
        return 0  # the library refuses it
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def refuse_other_vocabulary(vocabulary: dict[str, int], rows: int, folder: str | Path) -> None:
    """Refuse a tokenizer that does not belong to an embedding table with so many rows."""
    largest = max(vocabulary.values(), default=-1)
    if largest >= rows or 2 * len(vocabulary) < rows:
        raise InputError(
            f"{folder}: the tokenizer has {len(vocabulary)} tokens with ids up to {largest}, the model {rows} embeddings; "
            "use a tokenizer.json that belongs to the weights, or call model.resize_token_embeddings(len(tokenizer))"
        )
