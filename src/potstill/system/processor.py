"""Which processor this is, and what was measured on it: remembered in the cache, so that it is measured once."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from potstill.system import paths
from potstill.system.files import seal, unseal, write_atomically

CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = {  # the name that people know, and the flags of which Linux shows one
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "VNNI": ("avx512_vnni", "avx_vnni"),
    "BF16": ("avx512_bf16", "bf16"),
    "AMX": ("amx_tile",),
}


Key = TypeVar("Key")


def processor_name() -> str:
    """The model of the processor, such as "AMD EPYC"; its architecture where the system does not say more."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def instructions() -> list[str]:
    """The groups of instructions that decide the speed of networks, as far as this processor has them; [] if unknown."""
    info = _cpuinfo()
    flags = set(info.get("flags", info.get("Features", "")).split())
    return [name for name, words in INSTRUCTIONS.items() if flags & set(words)]


def described(threads: int) -> str:
    """The processor in one line: "AMD EPYC (AVX2, AVX-512, VNNI, BF16), 2 threads"."""
    known = f" ({', '.join(instructions())})" if instructions() else ""
    return f"{processor_name()}{known}, {threads} thread{'s' * (threads != 1)}"


def _cpuinfo() -> dict[str, str]:
    """The fields of the first core."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def recall(what: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was measured before under these circumstances; None if nothing was, or the file is damaged."""
    try:
        content = unseal(_file(what).read_bytes())
    except (OSError, ValueError):
        return None
    measured = content.get("measured")
    return measured if content.get("of") == what and isinstance(measured, dict) else None


def note(what: Mapping[str, Any], measured: dict[str, Any]) -> None:
    """Remember a measurement. A cache that cannot be written costs a second, not the run."""
    with contextlib.suppress(OSError):
        _file(what).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_file(what), seal({"of": dict(what), "measured": measured}))


def best_seconds(works: Mapping[Key, Callable[[], object]], turns: int, limit: float = math.inf) -> dict[Key, float]:
    """The best time of each work. They take turns, after one to warm up, and none is begun after `limit` seconds."""
    best = dict.fromkeys(works, math.inf)
    start = time.perf_counter()
    for turn in range(turns + 1):
        if turn > 1 and time.perf_counter() - start > limit:
            break
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            if turn:
                best[name] = min(best[name], time.perf_counter() - begun)
    return best


def _file(what: Mapping[str, Any]) -> Path:
    name = xxhash.xxh3_64_hexdigest(json.dumps(what, sort_keys=True).encode())
    return paths.cache() / "speed" / f"{name}.json"
