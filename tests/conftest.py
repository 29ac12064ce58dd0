"""Every test run has a cache of its own, no network, no fast bfloat16, and one thread in each process it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # bits are promised for one number of threads, and a child would count the cores
# a clock must not decide what a test compares: oneDNN then multiplies no faster in bfloat16, in every process and cache
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
# what a test says of training would be said of a file, if the stage were the result of another run
os.environ["POTSTILL_STAGES_GB"] = "0"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    cache = tmp_path_factory.mktemp("cache")
    os.environ["POTSTILL_CACHE"] = str(cache)
    yield cache
    del os.environ["POTSTILL_CACHE"]
