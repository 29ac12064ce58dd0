"""Every test run has a cache of its own, no network, no fast bfloat16, and one thread in each process it starts. Figures are
drawn where they are looked at."""

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


DRAWN = {"measuring", "promises", "reporting", "tasks"}  # runs of every task, method and study are among them


@pytest.fixture(scope="module", autouse=True)
def bare_pages(request: pytest.FixtureRequest, own_cache: Path) -> Iterator[None]:
    """A page's figures take longer than the training of a student of the size that tests have. In the other folders the figures
    are made, but not written out as SVG."""
    if request.path.relative_to(Path(__file__).parent).parts[0] in DRAWN:
        yield
        return
    from matplotlib.figure import Figure

    patch, empty = pytest.MonkeyPatch(), '<svg viewBox="0 0 1 1"></svg>\n'  # the page outside its figures is the same
    patch.setattr(Figure, "savefig", lambda figure, file, **options: file.write(empty))
    yield
    patch.undo()
