"""The file of Huffman codes: the same bits again, whatever they are, and an error for every damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from potstill.errors import InputError
from potstill.models.builder import BuildContext
from potstill.models.compression import coded
from potstill.models.safety import CODED, coded_matrices, stored_numbers
from potstill.models.student import load_student, save_student
from potstill.plugins.exports.huffman import Huffman
from potstill.plugins.students.clustered import Clustered
from potstill.plugins.students.pruned_weights import PrunedWeights
from tests.support.generative_models import small_writer
from tests.support.small_models import small_model


def matrices() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    few = torch.randn(9, generator=draw)
    shared = few[torch.randint(0, 9, (80, 130), generator=draw)]
    sparse = torch.where(torch.rand(90, 300, generator=draw) < 0.02, 0.5 * few[0], torch.zeros(()))
    odd = shared.clone()
    odd[0, :4] = torch.tensor([-0.0, 0.0, torch.inf, torch.nan])
    return {
        "shared": shared,
        "sparse": sparse,  # gaps of more than 255
        "empty": torch.zeros(60, 400),
        "odd": odd,
        "dense": torch.randn(30, 40, generator=draw),
        "vector": few,
        "whole": torch.arange(12).view(3, 4),
        "half": shared.half(),
    }


def test_every_bit_comes_back(tmp_path: Path) -> None:
    weights = matrices()
    coded.write_coded(weights, tmp_path / CODED)
    again = coded.read_coded(tmp_path)
    assert again.keys() == weights.keys()
    for name, weight in weights.items():
        assert (again[name].dtype, again[name].shape) == (weight.dtype, weight.shape)
        assert torch.equal(again[name].flatten().view(torch.uint8), weight.flatten().view(torch.uint8)), name
    assert stored_numbers(tmp_path) == sum(weight.numel() for weight in weights.values())


def test_what_repeats_is_small(tmp_path: Path) -> None:
    """Within a tenth of the entropy of its places, for matrices that are large beside their tables."""
    draw = np.random.default_rng(0)
    kept = draw.random((400, 500)) < 0.2
    values = np.sort(draw.normal(size=16)).astype(np.float32)
    weights = np.where(kept, values[draw.integers(0, 16, kept.shape)], np.float32(0))
    coded.write_coded({"w": torch.from_numpy(weights)}, tmp_path / CODED)
    share = kept.mean()
    bits = -share * np.log2(share) - (1 - share) * np.log2(1 - share) + share * 4
    assert (tmp_path / CODED).stat().st_size < 1.1 * bits * kept.size / 8 + 1500
    assert {name.partition(":")[2] for name in load_file(tmp_path / CODED)} == {*coded.PARTS, *coded.GAP_PARTS}


def rewrite(folder: Path, **changes: object) -> None:
    """Write the file again with other tensors or other metadata, and with the checksum that belongs to them."""
    tensors = load_file(folder / CODED)
    told = {"shared": [[80, 130], 10400, 0], **changes.pop("matrices", {})}  # type: ignore[dict-item]
    tensors |= changes.pop("tensors", {})  # type: ignore[arg-type]
    words = json.dumps(told)
    about = {"format": coded.FORMAT, "matrices": words, "xxh3": coded._checksum(tensors, words), **changes}
    save_file(tensors, folder / CODED, about)  # type: ignore[arg-type]


def test_embedding_tables_of_few_values_are_coded_too(tmp_path: Path) -> None:
    start = small_model("bert", layers=1)
    context = BuildContext(start, 0, lambda: iter(("a film",)), False)
    table = "bert.embeddings.word_embeddings.weight"
    sizes = []
    for values in (4, None):
        folder = tmp_path / str(values)
        Huffman().export(Clustered(values=4, embeddings=values).build(start, context), folder, [])
        sizes.append((folder / CODED).stat().st_size)
        assert (table in coded_matrices(folder / CODED)) == (values is not None)
    numbers = start.model.get_input_embeddings().weight.numel()
    assert sizes[1] - sizes[0] > 3.5 * numbers, "about two bits instead of 32"


def test_damaged_and_hostile_files_are_refused(tmp_path: Path) -> None:
    coded.write_coded({"shared": matrices()["shared"]}, tmp_path / CODED)
    good = (tmp_path / CODED).read_bytes()
    rewrite(tmp_path)
    coded.read_coded(tmp_path)  # the helper itself writes a file that can be read

    def refused(**changes: object) -> str:
        (tmp_path / CODED).write_bytes(good)
        rewrite(tmp_path, **changes)
        with pytest.raises(InputError, match=r"write it again with potstill export") as error:
            coded.read_coded(tmp_path)
        return str(error.value)

    assert "its format" in refused(format="potstill-huffman-9")
    assert "checksum" in refused(xxh3="0" * 32)
    assert "far more than" in refused(matrices={"shared": [[2**20, 2**20 - 1], 1, 1]})
    assert "as many codes as places" in refused(matrices={"shared": [[80, 131], 10400, 0]})
    assert "which shape" in refused(matrices={"shared": [[80, -1], 10400, 0]})
    assert "which shape" in refused(matrices={"shared": [80, 130, 10400]})
    assert "do not fit" in refused(matrices={"shared": [[80, 130 * 16], 10400 * 16, 0]})
    assert "gap_" in refused(matrices={"shared": [[80, 130], 10400, 3]})
    assert "other:" in refused(matrices={"other": [[1, 1], 1, 0]})
    assert "another type" in refused(tensors={"shared:lengths": torch.zeros(9)})
    assert "missing or too long" in refused(tensors={"shared:lengths": torch.zeros(9, dtype=torch.uint8)})
    assert "as many values as codes" in refused(tensors={"shared:values": torch.zeros(8)})
    for place in (len(good) // 2, len(good) - 3):
        (tmp_path / CODED).write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(InputError, match="checksum"):
            coded.read_coded(tmp_path)
    (tmp_path / CODED).write_bytes(good[:-5])
    with pytest.raises(InputError, match="cannot be decoded"):
        coded.read_coded(tmp_path)


def test_any_change_of_a_byte_gives_weights_of_the_same_shapes_or_an_error(tmp_path: Path) -> None:
    """With a checksum that belongs to the changed bytes, as an attacker would write it."""
    weights = {name: weight for name, weight in matrices().items() if name in ("shared", "sparse")}
    coded.write_coded(weights, tmp_path / CODED)
    tensors = load_file(tmp_path / CODED)
    words = json.dumps(
        {name: [list(shape), *rest] for name, (shape, *rest) in coded_matrices(tmp_path / CODED).items()}
    )
    draw, read = np.random.default_rng(0), 0
    for _ in range(40):
        changed = {name: tensor.clone() for name, tensor in tensors.items()}
        victim = changed[draw.choice(sorted(changed))].view(torch.uint8)
        victim[int(draw.integers(len(victim)))] ^= 1 << int(draw.integers(8))
        about = {"format": coded.FORMAT, "matrices": words, "xxh3": coded._checksum(changed, words)}
        save_file(changed, tmp_path / CODED, about)
        try:
            found = coded.read_coded(tmp_path)
        except InputError:
            continue
        read += 1
        assert {name: weight.shape for name, weight in found.items()} == {n: w.shape for n, w in weights.items()}
    assert 0 < read < 40


@pytest.mark.parametrize("kind", ["bert", "marian"])
def test_a_pruned_and_clustered_model_is_loaded_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    """Tied tables and the settings of generation included."""
    start = small_writer("marian") if kind == "marian" else small_model(kind, layers=2)
    context = BuildContext(start, 0, lambda: iter(()))
    student = PrunedWeights(0.6).build(start, context)
    student = Clustered(8, 8).build(student, context)
    checked = Huffman().export(student, tmp_path / "out", [])
    assert (checked.difference, checked.agreement) == (0.0, 1.0)
    assert [file.name for file in (tmp_path / "out").glob("*.safetensors")] == [CODED]
    again = load_student(tmp_path / "out")
    state = student.model.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in again.model.state_dict().items())
    save_student(student, tmp_path / "plain")
    plain = load_student(tmp_path / "plain").model.config.to_dict()
    assert again.model.config.to_dict() == plain | {"_name_or_path": again.model.config._name_or_path}
    if kind == "marian":
        assert again.model.generation_config.to_dict() == student.model.generation_config.to_dict()
        assert again.model.get_output_embeddings().weight is again.model.get_input_embeddings().weight


def test_a_config_of_a_larger_network_is_refused(tmp_path: Path) -> None:
    Huffman().export(small_model("bert", layers=1), tmp_path / "out", [])
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps(settings | {"intermediate_size": 2**19}))
    with pytest.raises(InputError, match="belong together"):
        load_student(tmp_path / "out")


def test_a_student_starts_from_codes_with_a_head_of_its_own(tmp_path: Path) -> None:
    start = small_model("bert", layers=1)
    Huffman().export(start, tmp_path / "out", [])
    new = load_student(tmp_path / "out", ["a", "b", "c"], "single_label_classification")
    assert new.new_head and new.model.config.id2label == {0: "a", 1: "b", 2: "c"}
    encoder = start.model.base_model.state_dict()
    assert all(torch.equal(weight, encoder[name]) for name, weight in new.model.base_model.state_dict().items())
