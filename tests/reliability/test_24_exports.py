from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from potstill.models.heads import head_of
from potstill.models.inference import load_network, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import save_student
from potstill.recipe import plugins
from tests.support.commands import potstill
from tests.support.small_models import (
    ARCHITECTURES,
    GENERATED,
    LABELS,
    WRITERS,
    logits,
    sentences,
    small_model,
    small_writer,
)
from tests.support.training_world import TASKS

SHARED = Path(__file__).parents[3] / "shared"
TEACHER, ROWS = SHARED / "models/gte-small-sst2", SHARED / "data/sst2_sentence"


@pytest.mark.slow
def test_24_onnx_answers_as_pytorch_for_every_architecture_and_task(
    tmp_path: Path, figure: Callable[..., None]
) -> None:
    apart = 0.0
    kinds = [(architecture, "classify") for architecture in ARCHITECTURES] + [
        ("bert", task) for task in TASKS if task not in GENERATED
    ]
    for number, (architecture, task) in enumerate(dict.fromkeys(kinds)):
        student = small_model(architecture, layers=2, labels=LABELS[task], head=TASKS[task].head)
        plugins.make("exports", "onnx", {}).export(student, tmp_path / str(number), [])
        network, run = load_network(tmp_path / str(number)), torch_forward(student.model)
        for seed, shape in enumerate([(1, 2), (1, 64), (7, 3), (33, 40)]):
            inputs = sample_inputs(student, *shape, seed)
            expected, found = run(inputs), network.forward(inputs)
            if expected.ndim == 3:  # every token is read; padding is nobody's answer
                real = inputs["attention_mask"].bool().numpy()
                expected, found = expected[real], found[real]
            apart = max(apart, float(np.abs(expected - found).max()))
    assert apart <= 1e-5
    figure(24, f"ONNX {apart:.0e}")


@pytest.mark.slow
@pytest.mark.skipif(not (TEACHER.is_dir() and ROWS.is_dir()), reason="no real model and rows lie beside the project")
def test_24_int8_of_a_real_student_agrees_and_is_as_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: Callable[..., None]
) -> None:
    rows = [word for split in ("train", "dev", "test") for word in (f"--{split}", str(ROWS / f"{split}.tsv"))]
    words = ["distill", "--teacher", TEACHER, *rows, "--student", "keep_layers:3", "--method", "soft_targets"]
    words += ["--epochs", "1", "--rate", "2e-4", "--no-baseline", "--set", "timing=none", "--quiet"]
    assert potstill(*words, "--out", tmp_path / "run") == 0
    student, test = tmp_path / "run/student", str(ROWS / "test.tsv")
    assert potstill("export", student, "--to", "int8", "--data", test, "--out", tmp_path / "int8") == 0
    capsys.readouterr()
    assert potstill("measure", student, tmp_path / "int8", "--data", test, "--json") == 0
    plain, small = (one["quality"]["task"]["test"] for one in json.loads(capsys.readouterr().out)["models"].values())
    lost = 100 * (plain["accuracy"] - small["accuracy"])
    assert small["agreement"] >= 0.98 and abs(lost) <= 0.5, (plain, small)
    figure(24, f"int8 of a real student: same answer {100 * small['agreement']:.1f} %, accuracy {-lost:+.2f} points")


LOAD = """
import sys
import torch, transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer

folder, head, wanted, *texts = sys.argv[1:]
model = getattr(transformers, f"AutoModelFor{head}").from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
wanted = load_file(wanted)
made = tokenizer(texts, padding=True, return_tensors="pt")
for name in ("input_ids", "attention_mask"):
    assert torch.equal(made[name], wanted[name]), name
if model.config.is_encoder_decoder:
    made["decoder_input_ids"] = made["input_ids"]
with torch.no_grad():
    apart = (model(**made).logits - wanted["logits"]).abs().max()
assert apart < 1e-5, apart
if "written" in wanted:
    said = model.generate(**tokenizer(texts[:1], return_tensors="pt"), num_beams=3, max_new_tokens=8, do_sample=False)
    assert torch.equal(said, wanted["written"]), (said, wanted["written"])
    assert tokenizer.batch_decode(said, skip_special_tokens=True)[0].encode() == bytes(wanted["text"].tolist())
print(transformers.__version__)
"""


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """transformers 4.57 in a folder of its own."""
    folder = tmp_path_factory.mktemp("older")
    packages = ["transformers>=4.57,<4.58", "huggingface_hub<1", "tokenizers>=0.22,<0.23"]
    packages += ["requests", "urllib3", "idna", "certifi", "charset-normalizer"]  # of the older hub
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *packages]
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode:
        pytest.skip(f"transformers 4.57 cannot be installed here: {ended.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *WRITERS])
def test_24_students_load_in_transformers_4_and_5(
    architecture: str, older: Path, tmp_path: Path, figure: Callable[..., None]
) -> None:
    """And give the same logits; those that write, the same text by beam search."""
    writes = architecture in WRITERS
    student = small_writer(architecture, layers=2) if writes else small_model(architecture, layers=2)
    save_student(student, tmp_path / "student")
    texts = [text for text, _ in sentences(6, 1)]
    wanted = dict(student.tokenizer(texts, padding=True, return_tensors="pt")) | {"logits": logits(student, texts)}
    if writes:
        first = student.tokenizer(texts[:1], return_tensors="pt")
        wanted["written"] = student.model.generate(**first, num_beams=3, max_new_tokens=8, do_sample=False)
        said = student.tokenizer.batch_decode(wanted["written"], skip_special_tokens=True)[0]
        wanted["text"] = torch.tensor([*said.encode()], dtype=torch.uint8)
    save_file({name: tensor.contiguous() for name, tensor in wanted.items()}, tmp_path / "wanted.safetensors")
    files = [tmp_path / "student", head_of(student.model.config), tmp_path / "wanted.safetensors"]
    words = [sys.executable, "-c", LOAD, *map(str, files), *texts]
    versions = []
    for path in ("", str(older)):
        ended = subprocess.run(
            words, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        )
        assert ended.returncode == 0, ended.stderr
        versions.append(ended.stdout.strip())
    assert versions[0] == transformers.__version__ and versions[1].startswith("4.57")
    figure(24, f"students of {len(ARCHITECTURES) + len(WRITERS)} architectures load in {' and '.join(versions)}")
