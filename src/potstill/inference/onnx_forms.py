"""ONNX and int8 files of models for the time in which they are measured; those of the teacher are cached for later runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from potstill.models.fingerprints import fingerprint
from potstill.models.student import Student
from potstill.system import paths
from potstill.system.display import Display
from potstill.system.files import file_xxh3, folder_lock, fsync_path, scratch_folder, seal, unseal, write_atomically

MANIFEST = "manifest.json"
Files = dict[str, tuple[Path, Path]]
"""By model: the float32 file and the int8 file."""


@contextmanager
def onnx_files(models: Mapping[str, Student], cached: str, show: Display) -> Iterator[Files]:
    """Yield the files of each model, which are deleted at the end; those of the model named `cached` stay in the cache.

    A model that cannot be exported is omitted with a message, since these figures are not worth failing a run for.
    """
    if models and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        show.say("no figures for ONNX and int8; to get them, write pip install 'potstill[onnx]'")
        models = {}
    with scratch_folder() as place:
        files: Files = {}
        for name, student in models.items():
            try:
                with show.bar(f"{name} as ONNX and int8", 2, "file") as bar:
                    if name == cached:
                        files[name] = cached_files(student, bar.advance)
                    else:
                        files[name] = _write_files(student, place / name, bar.advance)
            except Exception as error:  # exporters fail in as many ways as there are architectures
                show.say(f"no figures of ONNX for the {name} model: {str(error).splitlines()[0]}")
        yield files


def cached_files(student: Student, advance: Callable[[int], None] = lambda count: None) -> tuple[Path, Path]:
    """The float32 file and the int8 file in the cache, under a hash of weights and config; written again if they are incomplete or damaged."""
    folder = paths.cache() / "exports" / fingerprint(student.model, "onnx", 0)
    with folder_lock(folder):
        if not _is_complete(folder):
            _write_files(student, folder, advance)
            sums = _checksums(folder)
            for name in sums:
                fsync_path(folder / name)
            # the manifest is written last: if it is right, all files are complete
            write_atomically(folder / MANIFEST, seal({"files": sums}))
    return folder / "model.onnx", folder / "int8.onnx"


def _checksums(folder: Path) -> dict[str, str]:
    contents = (path for path in sorted(folder.iterdir()) if path.name != MANIFEST and not path.name.startswith("."))
    return {path.name: file_xxh3(path) for path in contents}


def _is_complete(folder: Path) -> bool:
    try:
        return bool(_checksums(folder) == unseal((folder / MANIFEST).read_bytes())["files"])
    except (OSError, ValueError, KeyError):
        return False


def _write_files(student: Student, folder: Path, advance: Callable[[int], None]) -> tuple[Path, Path]:
    from potstill.models.onnx.quantizing import quantize  # onnx may not be installed
    from potstill.models.onnx.writing import write_onnx

    if student.model.device.type != "cpu":
        student = Student(copy.deepcopy(student.model).cpu(), student.tokenizer)
    float32, int8 = write_onnx(student, folder), folder / "int8.onnx"
    advance(1)
    quantize(float32, int8)
    advance(1)
    return float32, int8
