"""Model folders and tensor files of strangers, looked at before anything of them is loaded.

Opened are plain files of the folder itself: stock configs without code, weights in safetensors whose header is short and
true, and no network that needs more numbers than the weights hold.
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

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)  # no slash, and nothing that starts with a dot
LONGEST_HEADER = 2 * 2**20  # bytes; that of BERT-large has 50,000
LARGEST_SETTINGS = 4 * 2**20  # bytes of config.json and the like: 10,000 named labels have half a million
LARGEST_VOCABULARY = 64 * 2**20
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
COUNTS = re.compile(r"label|layer|head|group|block|expert")  # numbers of a config that become lists when it is read
MOST_COUNTED = 10_000
OTHER_FILES = {"configuration_files", "fast_tokenizer_files", "vocab", "merges"}  # each would be read in place of ours
PLAIN_WORD = re.compile(r"\w*", re.ASCII)
ROOM = 4 * 2**20  # numbers that a network may have beyond twice those of its file: a new head
WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4}
FLOATS = ("F16", "BF16", "F32", "F64")
WIDTHS |= {"U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8}


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Of a safetensors file, by name; ValueError unless its tensors fill the file side by side."""
    return {name: shape for name, (_, shape) in _tensors(path).items()}


def _tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The kind of number and the shape of each."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(8)
        length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else size
        if length > LONGEST_HEADER or 8 + length > size:
            raise ValueError(f"{path.name} begins with a header of {length:,} bytes, which no file of tensors has")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise ValueError(f"{path.name} has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path.name} has a header that is not an object")
    header.pop("__metadata__", None)
    places, found = [], {}
    for name, entry in header.items():
        try:
            begin_at, end = entry["data_offsets"]
            kind, shape = found[name] = entry["dtype"], tuple(entry["shape"])
            whole = all(type(one) is int and one >= 0 for one in (*shape, begin_at, end))
            fits = whole and math.prod(shape) * WIDTHS[kind] == end - begin_at
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise ValueError(f"{path.name} describes the tensor {name[:80]!r} in a way that cannot be")
        places.append((begin_at, end))
    reached = 0
    for begin_at, end in sorted(places):
        if begin_at != reached:
            raise ValueError(f"{path.name} holds tensors that overlap, or bytes that belong to none")
        reached = end
    if 8 + length + reached != size:
        raise ValueError(f"{path.name} has {size:,} bytes where its tensors need {8 + length + reached:,}")
    return found


def refuse_unsafe_files(folder: Path) -> None:
    """Every file of a model's folder is a plain one that lies there, and none is larger than it can need to be."""
    if (folder / "adapter_config.json").exists():
        raise InputError(f"{folder} is an adapter to another model; give the folder of the model with it merged in")
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and not _stays(path, folder):
            raise InputError(f"{path} is a link that leads out of the folder; put the file itself there")
        if not path.exists() or path.is_dir():
            continue
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{path} is not a plain file; take it out of the model's folder")
        most = LARGEST_VOCABULARY if path.name in VOCABULARIES else LARGEST_SETTINGS
        if path.suffix in (".json", ".txt") and about.st_size > most:
            reason = f"has {about.st_size:,} bytes, more than the {most:,} that such a file can need"
            raise InputError(f"{path} {reason}; use the model's original folder")


def refuse_unsafe_settings(folder: Path, needed: str = "config.json") -> None:
    """No code of the model's own, no kernels from elsewhere, no counts that would fill the memory, also further inside."""
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).exists() and name != needed:
            continue
        settings = json_object(folder / name, f"give a folder with a {needed}")
        if settings.get("transformers_weights", "model.safetensors") != "model.safetensors":
            raise InputError(
                f"{folder / name} names other weights than model.safetensors; take transformers_weights out"
            )
        for key in OTHER_FILES & settings.keys():
            if isinstance(settings[key], str | list):
                raise InputError(f"{folder / name} names other files ({key}), which are not read; take {key} out")
        for key, value in _settings_inside(settings):
            if key == "auto_map":
                raise InputError(
                    f"{folder} brings its own code (auto_map), which is never run; use a stock architecture, such as bert"
                )
            if "implementation" in key and (code := _from_elsewhere(value)):
                raise InputError(f"{folder} asks for code of {code!r}, which is never run; take {key} out of {name}")
            if COUNTS.search(key) and isinstance(value, int | float) and value > MOST_COUNTED:
                raise InputError(f"{folder / name} says {key} = {value}, which no model has; write the right number")


def _settings_inside(settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every key with its value, those of tables inside too; not the names of classes, which may be any word."""
    waiting: list[Any] = [settings]
    while waiting:
        found = waiting.pop()
        for key, value in found.items() if isinstance(found, dict) else ():
            yield str(key), value
            if key not in ("id2label", "label2id", "added_tokens_decoder"):
                waiting.append(value)
        waiting.extend(found if isinstance(found, list) else ())


def _from_elsewhere(value: Any) -> str | None:
    """The first text in a value, of whatever shape, that is no plain word such as sdpa."""
    if isinstance(value, str):
        return None if PLAIN_WORD.fullmatch(value) else value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((code for one in inside if (code := _from_elsewhere(one))), None)


def stored_numbers(folder: Path) -> int:
    """How many numbers the folder's weights hold; an error unless they are whole safetensors files of this folder."""
    todo = "use the model's original folder, or write it again with `model.save_pretrained(folder)`"
    names = ["model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if not (folder / names[0]).exists() and index.exists():
        listed = json_object(index, todo).get("weight_map")
        names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    total = 0
    for name in names:
        if not FILE_NAME.fullmatch(name) or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise InputError(
                f"{folder}: the weights should lie in {name!r}, which is no safetensors file there; {todo}"
            )
        try:
            tensors = _tensors(folder / name)
        except ValueError as error:
            raise InputError(f"{folder}: {error}; {todo}") from None
        for tensor, (kind, shape) in tensors.items():
            # masks and positions are whole numbers by right; weights that are have a scale elsewhere, which nobody reads
            if tensor.endswith(".weight") and kind not in FLOATS:
                raise InputError(
                    f"{folder}: {tensor} is kept as {kind}, which is no plain number; use weights in float32, float16 or "
                    "bfloat16"
                )
            total += math.prod(shape)
    return total


def refuse_larger(folder: Path, needed: int, stored: int) -> None:
    if needed > 2 * stored + ROOM:
        raise InputError(
            f"{folder}: config.json describes a network of {needed:,} numbers, the weights hold {stored:,}; "
            "use a folder whose config.json and weights belong together"
        )


def _stays(link: Path, folder: Path) -> bool:
    """Within the folder; or, in the cache of the Hugging Face Hub, whose snapshots are links, within the model's part."""
    here, target = folder.resolve(), link.resolve()
    if here.parent.name == "snapshots" and target.parent == here.parents[1] / "blobs":
        return True
    return here in target.parents


def json_object(path: Path, todo: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or ["no JSON"])[0][:200]
        raise InputError(f"{path.parent} has no {path.name} that can be read ({reason}); {todo}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is not a JSON object; {todo}")
    return found
