"""Products in bfloat16: everything else stays in float32, and what was measured is remembered."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from potstill.models import precision
from potstill.models.hooks import eager_attention, listen
from potstill.models.precision import autocast, bfloat16_gain, in_bfloat16
from potstill.signals import Wants
from potstill.system import paths, processor
from potstill.system.processor import best_seconds
from tests.support.encoders import asked, built, texts
from tests.support.small_models import small_model
from tests.support.training_world import make_world

CPU = torch.device("cpu")


class Softmaxes(TorchFunctionMode):
    """Notes in which type every softmax is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (functional.softmax, torch.softmax, torch.Tensor.softmax):
            self.types.add(made.dtype)
        return made


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("architecture", ["bert", "distilbert", "electra", "roberta", "mpnet", "modernbert"])
def test_norms_and_softmax_stay_in_float32(architecture: str, attention: bool) -> None:
    model = small_model(architecture).model
    norms: set[torch.dtype] = set()
    products: set[torch.dtype] = set()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(lambda _, given, made: norms.add(made.dtype))
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, given, made: products.add(made.dtype))
    seen = Softmaxes()
    with (
        eager_attention(model) if attention else copy.copy(torch.no_grad()),
        seen,
        autocast(model, CPU, "bfloat16", attention),
    ):
        asked(model, texts())
    assert norms == {torch.float32} and products == {torch.bfloat16}
    assert seen.types <= {torch.float32} and (seen.types or not attention)


def test_a_copy_in_bfloat16_answers_the_same_and_shares_what_is_not_a_product() -> None:
    for kind, model in built().items():
        if kind == "deberta":  # its mask holds the lowest number of float32, which bfloat16 does not have
            continue
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        made = in_bfloat16(model)
        with torch.inference_mode(), autocast(made, CPU, "bfloat16"):
            said = asked(made, texts()).float()
        plain = asked(model, texts())
        assert float((said - plain).abs().max()) <= 0.1 * float(plain.abs().max()), kind
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), kind
        shared = {id(parameter) for parameter in model.parameters()}
        assert all(id(each) in shared for each in made.parameters() if each.dtype == torch.float32), kind


def test_losses_get_float32(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    source = world.source()
    rows = torch.arange(8).numpy()
    with autocast(world.student.model, CPU, "bfloat16"):
        raw = listen(world.student.model, source.batch(rows, source.count(rows)).student, Wants(logits=True, cls=(1,)))
    said = precision.in_float32(raw)
    assert {said.logits.dtype, said.cls.dtype} == {torch.float32}


def test_the_gain_is_measured_once_and_again_if_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POTSTILL_CACHE", str(tmp_path))
    measured: list[int] = []
    monkeypatch.setattr(
        precision, "best_seconds", lambda *arguments: measured.append(1) or {"float32": 4.0, "bfloat16": 1.0}
    )
    assert bfloat16_gain(CPU) == bfloat16_gain(CPU) == 4.0 and len(measured) == 1
    (file,) = (paths.cache() / "speed").glob("*.json")
    file.write_bytes(file.read_bytes().replace(b"4.0", b"9.0"))
    assert bfloat16_gain(CPU) == 4.0 and len(measured) == 2
    monkeypatch.setattr(torch, "__version__", "99")
    bfloat16_gain(CPU)
    assert len(measured) == 3  # another version may multiply otherwise


def test_works_take_turns_until_the_time_is_over() -> None:
    told: list[str] = []
    best_seconds({"a": lambda: told.append("a"), "b": lambda: told.append("b")}, 3)
    assert told == ["a", "b"] * 4
    best_seconds({"a": lambda: told.append("c")}, 3, limit=0.0)
    assert told.count("c") == 2  # one to warm up, one that counts


def test_the_instructions_are_read_from_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(
        "model name\t: Some Xeon\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_tile avx512_bf16\n\nmodel name: no\n"
    )
    monkeypatch.setattr(processor, "CPUINFO", info)
    assert processor.instructions() == ["AVX2", "AVX-512", "VNNI", "BF16", "AMX"]
    assert processor.described(2) == "Some Xeon (AVX2, AVX-512, VNNI, BF16, AMX), 2 threads"
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    assert processor.instructions() == [] and processor.processor_name()
