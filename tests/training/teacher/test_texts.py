"""Texts of teachers as targets: each source decoded once, whatever happens in between, and the right one chosen."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sacrebleu

from potstill.data.examples import Examples, key_of, store
from potstill.data.making import MakeContext
from potstill.data.rows import open_table
from potstill.errors import InputError
from potstill.models.generation import decoding
from potstill.models.generation.decoding import Hypothesis, decoder
from potstill.plugins.data.teacher_outputs import TeacherOutputs
from potstill.system import paths
from potstill.tasks.label_matching import make_task
from potstill.training.teacher.black_boxes import black_box_identity, command_decoder, function_decoder
from potstill.training.teacher.texts import TeacherTexts
from tests.support import black_box
from tests.support.black_box import outputs_of
from tests.support.generative_models import small_writer, trained_marian
from tests.support.small_models import sentences, write_csv

BEAM = 4


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(TeacherOutputs, "block", 8)
    black_box.asked.clear()


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of these tests are our own; who else may name one: tests/recipe/test_user_functions.py."""
    monkeypatch.setenv("POTSTILL_COMMANDS", "allowed")


def pairs_of(folder: Path, rows: list[tuple[str, str]]) -> Examples:
    write_csv(folder / "rows.csv", [(*both, place % 2) for place, both in enumerate(rows)], ("text1", "text2", "label"))
    table = open_table(folder / "rows.csv")
    return store(table, make_task(None, None, ["0", "1"], None, "rows", table.form)[0])


def blocks(cache: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(cache.rglob("block-*.json"))}


def test_every_source_has_the_teacher_s_best_hypothesis_and_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for text, _ in sentences(20, 3)]
    rows = [(text, "a reference") for text in [*texts, *texts[:5]]] + [("", "nothing")]
    examples, context = pairs_of(tmp_path, rows), MakeContext(0, teacher=trained_marian(), longest=24)
    with decoder(trained_marian(), "ctranslate2", 24) as decode:
        every = decode([text for text, _ in rows], BEAM, BEAM)
    expected = [next((one.text for one in some if one.finished), "") for some in every]
    made = TeacherOutputs(beam=BEAM).make(examples, context)
    assert list(made.texts()) == [(text, said) for (text, _), said in zip(rows, expected, strict=True)]
    assert made.keys.tolist() == [key_of(*both) for both in made.texts()]
    assert made.labelled.tolist() == [bool(said) for said in expected] and not made.labelled[-1]
    assert len(blocks(paths.cache() / "outputs")) == 3, "21 texts in blocks of 8"

    def nobody(*_: object) -> None:
        raise AssertionError("the teacher was asked again")

    monkeypatch.setattr(decoding, "decoder", nobody)
    again = TeacherOutputs(beam=BEAM).make(examples, context)
    assert again.folder == made.folder
    TeacherOutputs(beam=BEAM, closest=True).make(examples.take(examples.index[3:9]), context)
    with pytest.raises(AssertionError, match="asked again"):
        TeacherOutputs(beam=BEAM - 1).make(examples, context)
    with pytest.raises(AssertionError, match="asked again"):
        TeacherOutputs(beam=BEAM).make(examples, MakeContext(0, teacher=small_writer("marian", seed=1), longest=24))
    with pytest.raises(AssertionError, match="asked again"):
        TeacherOutputs(beam=BEAM).make(examples, MakeContext(0, teacher=trained_marian(), longest=23))


def test_closest_is_the_one_that_sacrebleu_finds_nearest_to_the_reference(tmp_path: Path) -> None:
    texts = [text for text, _ in sentences(24, 3)]
    with decoder(trained_marian(), "ctranslate2", 24) as decode:
        every = zip(texts, decode(texts, BEAM, BEAM), strict=True)
    texts, found = zip(
        *((text, some) for text, every_one in every if (some := [one for one in every_one if one.finished])),
        strict=True,
    )
    # references that are another hypothesis than the first, with a word more
    rows = [
        (text, f"{some[place % len(some)].text} more")
        for place, (text, some) in enumerate(zip(texts, found, strict=True))
    ]
    rows[5] = (texts[5], "")
    made = TeacherOutputs(beam=BEAM, closest=True).make(
        pairs_of(tmp_path, rows), MakeContext(0, teacher=trained_marian(), longest=24)
    )
    said = [pair for _, pair in made.texts()]
    for (_, reference), some, one in zip(rows, found, said, strict=True):
        if not reference:
            assert one == some[0].text
            continue
        bleu = [sacrebleu.sentence_bleu(each.text, [reference]).score for each in some]
        best = max(zip(bleu, [each.score for each in some], strict=True))
        assert one == some[list(zip(bleu, [each.score for each in some], strict=True)).index(best)].text
    assert said != [some[0].text for some in found]
    several = TeacherOutputs(beam=BEAM, best=2).make(
        pairs_of(tmp_path, rows), MakeContext(0, teacher=trained_marian(), longest=24)
    )
    assert list(several.texts()) == [
        (text, one.text) for text, some in zip(texts, found, strict=True) for one in some[:2]
    ]


def test_what_was_cut_off_teaches_nothing(tmp_path: Path) -> None:
    """A text without its end would teach to end in the middle: the next best one that ends is taken, or none."""
    texts = [text for text, _ in sentences(30, 3)]
    examples, short = pairs_of(tmp_path, [(text, "a reference") for text in texts]), 10
    model, tokenizer = trained_marian().model, trained_marian().tokenizer
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=short, return_tensors="pt")
    wanted = {"num_beams": BEAM, "num_return_sequences": BEAM, "max_new_tokens": short, "early_stopping": True}
    ended = (model.generate(**inputs, **wanted)[:, 1:] == tokenizer.eos_token_id).any(1)
    for engine in ("ctranslate2", "transformers"):
        with decoder(trained_marian(), engine, short) as decode:  # type: ignore[arg-type]
            every = decode(texts, BEAM, BEAM)
        assert [one.finished for some in every for one in some] == ended.tolist()
        made = list(
            TeacherOutputs(beam=BEAM, engine=engine)  # type: ignore[arg-type]
            .make(examples, MakeContext(0, teacher=trained_marian(), longest=short))
            .texts()
        )
        expected = [next((one.text for one in some if one.finished), "") for some in every]
        assert [said for _, said in made] == expected and "" in expected
        assert any(said and not some[0].finished for said, some in zip(expected, every, strict=True))


def test_a_teacher_that_never_ends_is_told_of(tmp_path: Path) -> None:
    examples = pairs_of(tmp_path, [(text, "a reference") for text, _ in sentences(3, 3)])
    with pytest.raises(InputError, match="within 2 tokens; write a larger `length`"):
        TeacherOutputs(beam=2).make(examples, MakeContext(0, teacher=trained_marian(), longest=2))


def test_a_damaged_block_is_decoded_again_and_no_other(tmp_path: Path) -> None:
    first = outputs_of(tmp_path / "rows", 40, "black box")
    assert len(black_box.asked) == 40 and [pair for _, pair in first.texts()] == [
        text[::-1] for text, _ in first.texts()
    ]
    before = blocks(paths.cache() / "outputs")
    file = sorted((paths.cache() / "outputs").rglob("block-*.json"))[2]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    black_box.asked.clear()
    outputs_of(tmp_path / "rows", 40, "black box")
    assert len(black_box.asked) == 8 and blocks(paths.cache() / "outputs") == before


@pytest.mark.parametrize(("teacher", "kills"), [("black box", 1), pytest.param("marian", 4, marks=pytest.mark.slow)])
def test_killed_in_the_middle_it_goes_on_to_the_same_bytes(
    teacher: str, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 64 * kills
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path / "whole"))
    expected = list(outputs_of(tmp_path / "rows", rows, teacher).texts())
    killed = tmp_path / "killed"
    words = [sys.executable, str(Path(black_box.__file__)), str(tmp_path / "rows"), str(rows), "8", teacher]
    environment = {**os.environ, "POTSTILL_CACHE": str(killed), "PYTHONPATH": os.pathsep.join(sys.path)}
    seen, chance = 0, random.Random(0)
    for _ in range(kills):
        with subprocess.Popen(words, env=environment) as running:
            until = time.monotonic() + 300  # a busy machine starts a process slowly
            while len(blocks(killed)) < seen + 2:
                assert running.poll() is None and time.monotonic() < until
                time.sleep(0.005)
            time.sleep(chance.random() * 0.1)
            running.send_signal(signal.SIGKILL)
        assert running.returncode == -signal.SIGKILL
        seen = len(blocks(killed))
    assert 2 <= seen < rows // 8, "the kills came while it was writing"
    monkeypatch.setenv("POTSTILL_CACHE", str(killed))
    black_box.asked.clear()
    made = outputs_of(tmp_path / "rows", rows, teacher)
    assert list(made.texts()) == expected
    assert blocks(killed) == blocks(tmp_path / "whole")
    assert teacher != "black box" or len(black_box.asked) == rows - 8 * seen
    assert not list((paths.cache() / "outputs").rglob(".tmp-*"))


def test_blocks_fill_the_holes_that_ranks_left(tmp_path: Path) -> None:
    outputs = TeacherTexts(tmp_path)
    for number in (0, 2):
        outputs.write(number, [10 + number], [[Hypothesis("said", -1.5), Hypothesis("or", math.nan)]])  # type: ignore[arg-type]
    outputs.refresh()
    assert outputs.free_numbers(3) == [1, 3, 4]
    outputs.write(3, [13], [[Hypothesis("cut", -2.0, finished=False)]])  # type: ignore[arg-type]
    outputs.refresh()
    assert not outputs.read(13)[0].finished
    assert outputs.read(12)[0] == Hypothesis("said", -1.5) and math.isnan(outputs.read(12)[1].score)


def test_commands_are_started_without_a_shell_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POTSTILL_COMMANDS")
    with pytest.raises(InputError, match="POTSTILL_COMMANDS=allowed"):
        command_decoder("cat")
    monkeypatch.setenv("POTSTILL_COMMANDS", "allowed")
    texts = ["one", "", "two\nlines", "$HOME `id`; x", "日本"]
    said = command_decoder("tr 'a-z' 'A-Z'")(texts, 5, 5)
    assert [one.text for (one,) in said] == ["ONE", "", "TWO LINES", "$HOME `ID`; X", "日本"]
    assert all(math.isnan(one.score) for (one,) in said)
    assert command_decoder("cat")([], 1, 1) == []
    echoed = command_decoder("echo $HOME; id | cat")
    assert echoed(["x"], 1, 1)[0][0].text == "$HOME; id | cat", "nothing expands it"
    for command, told in {
        "head -n 1": "returned 1 texts for 5",
        "false": "ended with 1",
        "sh -c 'echo a reason >&2; exit 3'": "ended with 3 \\(a reason\\)",
        "no-such-program": "cannot be started",
        "cat 'open": "quote it",
    }.items():
        with pytest.raises(InputError, match=told):
            command_decoder(command)(texts, 1, 1)


def test_a_command_of_the_same_name_elsewhere_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mt").write_text("#!/bin/sh\ncat\n")
        (tmp_path / folder / "mt").chmod(0o755)
    decided = []
    for folder in ("one", "other", "one"):
        monkeypatch.setenv("PATH", f"{tmp_path / folder}{os.pathsep}{os.environ['PATH']}")
        decided.append(black_box_identity("mt -q", None))
    assert decided[0] == decided[2] != decided[1]


def test_functions_are_of_modules_of_ones_own() -> None:
    assert function_decoder("tests.support.black_box:backwards")(["ab"], 1, 1)[0][0].text == "ba"
    with pytest.raises(InputError, match="returned 1 texts for 2"):
        function_decoder("tests.support.black_box:too_few")(["a", "b"], 1, 1)
    for name, message in (
        ("nothing", "TypeError"),
        ("unknown", "returned None for a text"),
        ("broken", r"OSError \(no line\)"),
    ):
        with pytest.raises(InputError, match=message):
            function_decoder(f"tests.support.black_box:{name}")(["a", "b"], 1, 1)
    for name in ("os:listdir", "subprocess:run", "backwards", "tests.support.black_box:none", "no_such_module:f"):
        with pytest.raises(InputError, match="function"):
            function_decoder(name)


def test_a_function_is_another_when_its_module_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the function's own lines stay."""
    monkeypatch.syspath_prepend(tmp_path)
    decided = []
    for model in ("first", "second", "first"):
        (tmp_path / "of_my_own.py").write_text(f"MODEL = {model!r}\n\n\ndef translate(texts):\n    return texts\n")
        sys.modules.pop("of_my_own", None)
        decided.append(black_box_identity(None, "of_my_own:translate"))
    assert decided[0] == decided[2] != decided[1]


def test_what_cannot_be_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    examples = pairs_of(tmp_path, [("a", "b"), ("c", "d")])
    task, _ = make_task(None, None, ["0", "1"], None, "rows", "text")
    running, _ = make_task("write", None, [], None, "rows", "writing")
    with pytest.raises(InputError, match="have no prompt"):
        TeacherOutputs(function="tests.support.black_box:backwards").make(
            pairs_of(tmp_path, [("", "b"), ("c", "d")]), MakeContext(0, running)
        )
    for maker, context, told in (
        (TeacherOutputs(), MakeContext(0, task), "omit it"),
        (TeacherOutputs(), MakeContext(0), "name one"),
        (TeacherOutputs(beam=2, best=3), MakeContext(0, teacher=trained_marian()), "wider beam"),
        (TeacherOutputs(command="cat", function="a:b"), MakeContext(0), "one of them"),
    ):
        with pytest.raises(InputError, match=told):
            maker.make(examples, context)
