"""The teacher's memory: right, whole after any kill, shared by processes, and no burden on RAM."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potstill.errors import InputError
from potstill.system.files import seal, unseal, write_atomically
from potstill.training.teacher.memory import Column, Memory
from tests.support.faults import file_size_limit, flip

SHARDS, ROWS = 6, 40
# children start from a process that has imported everything: a kill test needs many
fork = multiprocessing.get_context("forkserver")
fork.set_forkserver_preload(["test_memory"])


def block(number: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    random_numbers = np.random.default_rng(number)
    keys = random_numbers.integers(-(2**63), 2**63, ROWS, dtype=np.int64)
    logits = random_numbers.standard_normal((ROWS, 3), dtype=np.float32)
    return keys, {"logits": logits, "cls.2": random_numbers.standard_normal((ROWS, 2, 5), dtype=np.float32)}


def remember(folder: Path, shards: int = SHARDS) -> None:
    """Write the blocks that are not there yet, as a teacher that continues does."""
    memory = Memory(folder)
    for number in range(shards):
        keys, columns = block(number)
        with memory.lock():
            if memory.missing(keys, list(columns)).any():
                memory.write(keys, columns)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    remember(tmp_path / "memory")
    return tmp_path / "memory"


def test_nothing_is_created_until_something_is_written(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory")
    assert memory.missing(np.arange(3), ["logits"]).all()
    with pytest.raises(InputError, match="has no 'logits'"):
        memory.read(np.arange(3), "logits")
    memory.write(np.arange(0), {"logits": np.zeros((0, 2), np.float32)})
    assert not (tmp_path / "memory").exists()


def test_answers_come_back_in_the_order_of_the_keys(filled: Path) -> None:
    memory = Memory(filled)
    blocks = [block(number) for number in range(SHARDS)]
    keys = np.concatenate([keys for keys, _ in blocks])
    order = np.random.default_rng(0).permutation(len(keys))
    for column, shape in (("logits", (3,)), ("cls.2", (2, 5))):
        values = np.concatenate([columns[column] for _, columns in blocks])
        found = memory.read(keys[order], column)
        assert found.dtype == np.float32 and found.shape == (len(keys), *shape)
        assert np.array_equal(found, values[order])
    assert not memory.missing(keys, ["logits", "cls.2"]).any()
    assert memory.missing(np.append(keys[:2], keys[0] ^ 1), ["logits"]).tolist() == [False, False, True]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_it_behaves_like_a_dictionary_that_keeps_the_first_answer(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    memory = Memory(tmp_path_factory.mktemp("memory"))
    model: dict[tuple[str, int], float] = {}
    keys_drawn = st.lists(st.integers(-4, 4), min_size=1, max_size=5)
    for turn in range(data.draw(st.integers(1, 4))):
        keys = data.draw(keys_drawn)
        names = data.draw(st.sets(st.sampled_from(["a", "b"]), min_size=1))
        values = {name: np.arange(len(keys), dtype=np.float32) + 100 * turn for name in names}
        memory.write(np.asarray(keys, dtype=np.int64), values)
        for name in names:
            for key, value in zip(keys, values[name], strict=True):
                model.setdefault((name, key), float(value))
    asked = np.asarray(data.draw(keys_drawn), dtype=np.int64)
    for memory_now in (memory, Memory(memory.folder)):
        for name in ("a", "b"):
            known = [(name, int(key)) in model for key in asked]
            assert memory_now.missing(asked, [name]).tolist() == [not one for one in known]
            if all(known):
                assert memory_now.read(asked, name).tolist() == [model[name, int(key)] for key in asked]
        both = [("a", int(key)) in model and ("b", int(key)) in model for key in asked]
        assert memory_now.missing(asked, ["a", "b"]).tolist() == [not one for one in both]


def test_a_new_column_misses_alone(filled: Path) -> None:
    memory = Memory(filled)
    keys, _ = block(1)
    assert memory.missing(keys, ["logits", "cls.4"]).all()
    memory.write(keys, {"cls.4": np.ones((ROWS, 2, 5), np.float32)})
    assert not memory.missing(keys, ["logits", "cls.4"]).any()
    assert memory.missing(block(2)[0], ["cls.4"]).all()
    with pytest.raises(InputError, match=f"{ROWS} of {2 * ROWS} examples"):
        memory.read(np.concatenate([keys, block(2)[0]]), "cls.4")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.asarray([[np.nan], [0.0]], np.float32), "finite"),
        (np.asarray([[0.0], [-np.inf]], np.float32), "finite"),
        (np.zeros((2, 1)), "float32"),
        (np.zeros((3, 1), np.float32), r"\(2, ...\)"),
        (np.zeros((2, 4), np.float32), "another name"),
        (np.zeros((2, 1), np.int32), "another name"),
        (np.zeros((2, 0), np.float32), "omit it"),
    ],
)
def test_what_cannot_be_right_is_refused_and_changes_nothing(filled: Path, values: np.ndarray, reason: str) -> None:
    before = content(filled)
    with pytest.raises(ValueError, match=reason):
        Memory(filled).write(np.arange(2), {"logits": values})
    with pytest.raises(ValueError, match="int64"):
        Memory(filled).missing(np.arange(2, dtype=np.uint64), ["logits"])
    assert content(filled) == before


def test_a_number_per_example_needs_no_axis(tmp_path: Path) -> None:
    Memory(tmp_path).write(np.arange(3), {"value": np.arange(3, dtype=np.float32)})
    assert Memory(tmp_path).read(np.asarray([2, 0]), "value").tolist() == [2.0, 0.0]


def test_every_flipped_bit_is_noticed_and_its_answers_asked_again(
    filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = content(filled)
    names = sorted(whole.keys() - {".lock"})
    chance = random.Random(0)
    for trial in range(100):
        name = names[trial % len(names)]
        flip(filled / name, chance.randrange(8 * len(whole[name])))
        caplog.clear()
        memory = Memory(filled)
        missing = [memory.missing(block(number)[0], ["logits"]).all() for number in range(SHARDS)]
        damaged = [name in ("manifest.json", f"shard-{number:05d}.arrow") for number in range(SHARDS)]
        assert missing == damaged, (trial, name)
        assert "damaged" in caplog.text and name in caplog.text
        if trial % 10 == 0:  # asked again, the same folder comes about
            remember(filled)
            assert content(filled) == whole
        (filled / name).write_bytes(whole[name])


def test_every_truncation_is_noticed(filled: Path) -> None:
    whole = content(filled)
    for name in ("shard-00002.arrow", "manifest.json"):
        for cut in np.linspace(0, len(whole[name]) - 1, 25, dtype=int):
            (filled / name).write_bytes(whole[name][:cut])
            assert Memory(filled).missing(block(2)[0], ["logits"]).all(), (name, cut)
            (filled / name).write_bytes(whole[name])
    (filled / "shard-00002.arrow").unlink()
    remember(filled)
    assert content(filled) == whole


def test_names_that_lead_elsewhere_are_refused(filled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = unseal((filled / "manifest.json").read_bytes())
    outside = tmp_path / "shard-00000.arrow"
    outside.write_bytes((filled / "shard-00000.arrow").read_bytes())
    names = ["../shard-00000.arrow", str(outside), "x/../shard-00000.arrow", "shard-00000.arrow\n", "shard-١٢٣٤٥.arrow"]
    for name in [*names, 7, None]:
        manifest["shards"][0]["name"] = name
        write_atomically(filled / "manifest.json", seal(manifest))
        caplog.clear()
        assert Memory(filled).missing(block(1)[0], ["logits"]).all()
        assert "starts empty" in caplog.text
    manifest["shards"][0]["name"] = "shard-00000.arrow"
    write_atomically(filled / "manifest.json", seal(manifest))
    (filled / "shard-00000.arrow").unlink()
    (filled / "shard-00000.arrow").symlink_to(outside)
    assert Memory(filled).missing(block(0)[0], ["logits"]).all()
    assert not Memory(filled).missing(block(1)[0], ["logits"]).any()


@pytest.mark.parametrize("text", ["[]", "{}", '{"shards": 3}', "[" * 100_000, '{"shards": [{}]}', "\x00", ""])
def test_a_manifest_of_any_kind_never_stops_a_run(filled: Path, text: str) -> None:
    (filled / "manifest.json").write_text(text)
    assert Memory(filled).missing(block(0)[0], ["logits"]).all()
    if text.startswith("{"):
        write_atomically(filled / "manifest.json", seal(json.loads(text)))
        assert Memory(filled).missing(block(0)[0], ["logits"]).all()
    remember(filled)
    assert not Memory(filled).missing(block(0)[0], ["logits"]).any()


def test_rubbish_of_the_killed_is_removed_and_nothing_else(filled: Path) -> None:
    whole = content(filled)
    for name in (".tmp-1234-shard-00001.arrow", ".tmp-manifest.json", "shard-00077.arrow"):
        (filled / name).write_bytes(b"half a shard")
    (filled / "notes.txt").write_text("mine")
    assert not Memory(filled).missing(block(1)[0], ["logits"]).any()
    remember(filled)
    assert content(filled) == {**whole, "notes.txt": b"mine"}


def killed_at(folder: Path, call: int, before: bool) -> None:
    """Remember, but die just before or after the given call of fsync or replace."""
    count = 0

    def deadly(work: Callable[..., None]) -> Callable[..., None]:
        def act(*arguments: object) -> None:
            nonlocal count
            count += 1
            if count == call and before:
                os.kill(os.getpid(), signal.SIGKILL)
            work(*arguments)
            if count == call:
                os.kill(os.getpid(), signal.SIGKILL)

        return act

    os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)
    remember(folder)


def test_killed_at_any_point_it_continues_to_the_same_bytes(filled: Path, tmp_path: Path) -> None:
    """fsync, replace and fsync of the folder, for shard and manifest: six calls a shard, each a place to die."""
    whole = content(filled)
    for call in range(7, 13):  # while writing the second shard
        for before in (True, False):
            folder = tmp_path / f"killed-{call}-{before}"
            child = fork.Process(target=killed_at, args=(folder, call, before))
            child.start()
            child.join(20)
            assert child.exitcode == -signal.SIGKILL
            memory = Memory(folder)
            assert not memory.missing(block(0)[0], ["logits", "cls.2"]).any()
            listed = call == 12 or (call == 11 and not before)  # only the manifest's replace makes it count
            assert (not memory.missing(block(1)[0], ["logits", "cls.2"]).any()) is listed
            remember(folder)
            assert content(folder) == whole


def test_killed_at_random_moments_it_continues_to_the_same_bytes(tmp_path: Path) -> None:
    shards = 400  # more than a fast disk writes between ten kills
    remember(tmp_path / "whole", shards)
    chance = random.Random(1)
    progress = []
    for _ in range(10):
        child = fork.Process(target=remember, args=(tmp_path / "killed", shards))
        child.start()
        reached = len(progress) and progress[-1]
        until = time.monotonic() + 20
        while time.monotonic() < until and count_shards(tmp_path / "killed") <= reached:
            time.sleep(0.001)  # it is writing now
        time.sleep(chance.random() * 0.03)
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        progress.append(count_shards(tmp_path / "killed"))
    assert 10 <= progress[-1] < shards, "the kills came while it was writing"
    remember(tmp_path / "killed", shards)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def count_shards(folder: Path) -> int:
    return len(list(folder.glob("shard-*"))) if folder.exists() else 0


def write_own(folder: Path, first: int) -> None:
    """Blocks that overlap with those of the neighbour, without a lock of the caller's."""
    memory = Memory(folder)
    for number in range(first, first + 10):
        keys, columns = block(number)
        memory.write(keys, columns)


def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    children = [fork.Process(target=write_own, args=(tmp_path / "memory", first)) for first in (0, 5, 10)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    memory = Memory(tmp_path / "memory")
    assert count_shards(tmp_path / "memory") == 30
    for number in range(20):
        keys, columns = block(number)
        assert np.array_equal(memory.read(keys, "logits"), columns["logits"])


def test_two_processes_under_the_lock_ask_each_thing_once(tmp_path: Path) -> None:
    children = [fork.Process(target=remember, args=(tmp_path / "memory",)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    remember(tmp_path / "alone")
    assert content(tmp_path / "memory") == content(tmp_path / "alone")


def test_the_lock_shows_what_others_wrote(filled: Path) -> None:
    early, late = Memory(filled), Memory(filled)
    keys, columns = block(SHARDS + 1)
    assert early.missing(keys, ["logits"]).all()
    late.write(keys, columns)
    with early.lock():
        assert not early.missing(keys, ["logits"]).any()


def test_a_full_disk_leaves_what_was_there(filled: Path) -> None:
    before = content(filled)
    keys, columns = block(SHARDS)
    memory = Memory(filled)
    with file_size_limit(1000), pytest.raises(OSError):
        memory.write(keys, columns)
    assert content(filled) == before
    memory.write(keys, columns)
    assert np.array_equal(Memory(filled).read(keys, "logits"), columns["logits"])


def test_a_disk_that_fails_at_the_last_moment_leaves_what_was_there(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(filled)
    keys, columns = block(SHARDS)

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space left"):
                Memory(filled).write(keys, columns)
        assert content(filled) == before


MEASURE = """
import sys, numpy as np
from potstill.training.teacher.memory import Column, Memory
def private():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])
memory = Memory(sys.argv[1])
memory.missing(np.arange(10), ["cls"]), memory.read(np.arange(10), "cls")
keys = np.arange(0, int(sys.argv[2]), int(sys.argv[2]) // 1000)
assert memory.read(keys, "cls").shape == (1000, 128) and not memory.missing(keys, ["cls"]).any()
print(private())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_private_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    used = []
    for rows in (10_000, 100_000):  # 5 MB and 50 MB of answers
        memory = Memory(tmp_path / str(rows))
        for start in range(0, rows, 10_000):
            keys = np.arange(start, start + 10_000)
            memory.write(keys, {"cls": np.full((10_000, 128), start, np.float32)})
        command = [sys.executable, "-c", MEASURE, str(memory.folder), str(rows)]
        used.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert used[1] - used[0] < 4 * 1024, used


def test_open_shards_hold_no_file_handles(filled: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    memory = Memory(filled)
    memory.read(block(0)[0], "logits")
    with memory.lock():
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_needs_neither_torch_nor_pandas(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from potstill.training.teacher.memory import Column, Memory; memory = Memory(sys.argv[1])\n"
        "memory.write(np.arange(2), {'a': np.ones((2, 2), np.float32)}); memory.read(np.arange(2), 'a')\n"
        "print({'torch', 'pandas'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_integers_are_a_column_too_and_a_manifest_without_any_is_as_before(filled: Path) -> None:
    """Numbers beyond 2**24, which float32 would round; folders from before they could be stored stay readable."""
    assert b"integers" not in (filled / "manifest.json").read_bytes()
    keys, columns = block(0)
    classes = np.random.default_rng(0).integers(0, 2**31 - 1, (ROWS, 4), np.int32)
    sizes = {name: Column(values.shape[1:]) for name, values in columns.items()}
    before = Memory(filled)
    planned = before.size_with([(ROWS, {"classes": Column((4,), "int32"), "of": Column((), "int32")})])
    assert before.size_with([(ROWS, sizes)]) != planned
    before.write(keys, {"classes": classes, "of": np.full(ROWS, 7, np.int32)})
    again = Memory(filled)
    assert sum(path.stat().st_size for path in filled.iterdir() if path.suffix in (".arrow", ".json")) == planned
    read = again.read(keys, "classes")
    assert read.dtype == np.int32 and np.array_equal(read, classes)
    assert again.read(keys[:2], "of").tolist() == [7, 7]
    assert np.array_equal(again.read(keys, "logits"), columns["logits"])
