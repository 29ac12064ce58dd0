"""Check untrusted model folders and tensor files before anything in them is loaded.

This module loads neither torch nor transformers. Only regular files of the folder itself are opened: configs of stock
architectures without code, and weights in safetensors with a short and consistent header. A network may not need far
more numbers than the weights hold.
"""

from __future__ import annotations

import json
import math
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from potstill.errors import InputError

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)  # no slash, no leading dot
LONGEST_HEADER = 2 * 2**20  # bytes; that of BERT-large has 50,000
LARGEST_SETTINGS = 4 * 2**20  # bytes of config.json and the like: 10,000 named labels take half a million
LARGEST_VOCABULARY = 64 * 2**20
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
COUNTS = re.compile(r"label|layer|head|group|block|expert")  # numbers of a config that become lists when it is read
LARGEST_COUNT = 10_000
OTHER_FILES = {
    "configuration_files",
    "fast_tokenizer_files",
    "vocab",
    "merges",
}  # would be read instead of the usual ones
PLAIN_WORD = re.compile(r"\w*", re.ASCII)
EXTRA_NUMBERS = 4 * 2**20  # that a network may have beyond twice those of its file: a new head
FLOATS = ("F16", "BF16", "F32", "F64")
BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
BYTES |= {"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8}


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes in a safetensors file by name; ValueError unless its tensors fill the file without gaps."""
    return {name: shape for name, (_, shape) in _tensors(path).items()}


def _tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each tensor."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > LONGEST_HEADER or 8 + length > size:
            raise ValueError(f"{path.name} begins with a header of {length:,} bytes, which no safetensors file has")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise ValueError(f"{path.name} has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path.name} has a header that is not an object")
    header.pop("__metadata__", None)
    spans, tensors = [], {}
    for name, entry in header.items():
        try:
            begin, end = entry["data_offsets"]
            dtype, shape = tensors[name] = entry["dtype"], tuple(entry["shape"])
            whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
            fits = whole and math.prod(shape) * BYTES[dtype] == end - begin
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise ValueError(f"{path.name} describes the tensor {name[:80]!r} inconsistently")
        spans.append((begin, end))
    reached = 0
    for begin, end in sorted(spans):
        if begin != reached:
            raise ValueError(f"{path.name} holds overlapping tensors, or bytes that belong to none")
        reached = end
    if 8 + length + reached != size:
        raise ValueError(f"{path.name} has {size:,} bytes where its tensors need {8 + length + reached:,}")
    return tensors


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
        reason = f"has {status.st_size:,} bytes, more than the {limit:,} that such a file can need"
        raise InputError(f"{path} {reason}; use the model's original folder")


def _stays_inside(link: Path, folder: Path) -> bool:
    """Whether a link leads into the folder, or, in the cache of the Hugging Face Hub, to a blob of the same model."""
    here, target = folder.resolve(), link.resolve()
    if here.parent.name == "snapshots" and target.parent == here.parents[1] / "blobs":
        return True
    return here in target.parents


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
                    f"{folder} brings its own code (auto_map), which is never run; use a stock architecture, such as "
                    "bert"
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
    index = folder / "model.safetensors.index.json"
    if not (folder / names[0]).exists() and index.exists():
        files = json_object(index, todo).get("weight_map")
        names = sorted(set(map(str, files.values()))) if isinstance(files, dict) else []
    total = 0
    for name in names:
        if not FILE_NAME.fullmatch(name) or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise InputError(
                f"{folder}: the weights should be in {name!r}, which is not a safetensors file there; {todo}"
            )
        try:
            tensors = _tensors(folder / name)
        except ValueError as error:
            raise InputError(f"{folder}: {error}; {todo}") from None
        for tensor, (dtype, shape) in tensors.items():
            # masks and positions may be integers; integer weights would need a scale that nothing here reads
            if tensor.endswith(".weight") and dtype not in FLOATS:
                raise InputError(
                    f"{folder}: {tensor} is stored as {dtype}, which is not a plain number; use weights in float32, "
                    "float16 or bfloat16"
                )
            total += math.prod(shape)
    return total


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
