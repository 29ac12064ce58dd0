"""Checks against the reference files of pruning, quantization, weight sharing, Huffman codes and low rank."""

from __future__ import annotations

import math

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from potstill.models.compression import clusters, huffman, low_rank, masks
from potstill.models.compression.quantization import grid_of
from tests.support.references import Case, Checks, close, tensor


def check_iterative_pruning(case: Case) -> None:
    """The authors' code removes the weight at the threshold too, and all that equal it; ours are exact counts."""
    fraction = case["settings"]["fraction_per_round"]
    for scope in ("global", "layerwise"):
        before: masks.Masks | None = None
        theirs: masks.Masks | None = None
        rounds = zip(
            case["inputs"]["trained_weights_per_round"],
            case["expected"][f"corrected_exact_count_{scope}"],
            case["expected"][f"open_lth_{scope}"],
            strict=True,
        )
        for given, expected, original in rounds:
            weights = {name: tensor(values) for name, values in given.items()}
            groups = [[name] for name in weights] if scope == "layerwise" else [list(weights)]
            after: masks.Masks = {}
            for names in groups:
                group = {name: weights[name] for name in names}
                remaining = sum(int(before[name].sum()) if before else weights[name].numel() for name in names)
                kept = {name: before[name] for name in names} if before else None
                after |= masks.smallest_removed(group, kept, math.ceil(fraction * remaining))
            assert {name: mask.int().tolist() for name, mask in after.items()} == expected["masks"]
            assert {name: int(mask.sum()) for name, mask in after.items()} == expected["remaining_per_layer"]
            before = after
            # the original, from its own earlier masks: all that is not above the largest weight that we would remove next
            mine: masks.Masks = {}
            for names in groups:
                left = {n: theirs[n] if theirs else torch.ones_like(weights[n], dtype=torch.bool) for n in names}
                values = torch.cat([weights[name][left[name]].abs() for name in names]).sort().values
                edge = values[math.ceil(fraction * len(values))]
                mine |= {name: left[name] & (weights[name].abs() > edge) for name in names}
            assert {name: mask.int().tolist() for name, mask in mine.items()} == original["masks"]
            theirs = mine


def check_schedule(case: Case) -> None:
    weights = {name: tensor(values) for name, values in case["inputs"]["weights"].items()}
    before: masks.Masks | None = None
    for expected in case["expected"]["rounds"]:
        remaining = sum(int(mask.sum()) for mask in before.values()) if before else 0
        remaining = remaining if before else sum(weight.numel() for weight in weights.values())
        count = round(expected["amount_of_remaining"] * remaining)
        before = masks.smallest_removed(weights, before, count)
        assert count == expected["removed_now"]
        assert {name: mask.int().tolist() for name, mask in before.items()} == expected["masks"]
        kept = {name: weight * before[name] for name, weight in weights.items()}
        close(masks.share_of_zeros(kept), expected["sparsity"])


def check_prunable(case: Case) -> None:
    config = BertConfig(
        num_hidden_layers=case["settings"]["layers"], hidden_size=8, intermediate_size=16, num_attention_heads=2
    )
    chosen = masks.prunable(BertForSequenceClassification(config))
    assert list(chosen) == case["expected"]["names_in_order"]
    assert len(chosen) == case["expected"]["count"]
    with torch.device("meta"):
        base = masks.prunable(BertForSequenceClassification(BertConfig()))
    assert sum(parameter.numel() for parameter in base.values()) == case["expected"]["weights_in_bert_base"]
    # one tenth of the weights goes in every round
    before, weights = None, {name: parameter.detach() for name, parameter in chosen.items()}
    for percent in case["expected"]["nominal_sparsity_percent_after_round"]:
        before = masks.masks_of_sparsity(weights, before, percent / 100, per_layer=False)
        gone = sum(int((~mask).sum()) for mask in before.values())
        assert gone == round(percent / 100 * sum(weight.numel() for weight in weights.values()))


def check_uniform(case: Case) -> None:
    settings, expected = case["settings"], case["expected"]
    rows = settings["granularity"].startswith("per_channel")
    symmetric, narrow = settings["scheme"] == "symmetric", settings["narrow_range"]
    weights = tensor(case["inputs"]["weights"])
    grid = grid_of(weights, settings["bits"], symmetric, rows, narrow)
    assert (grid.lowest, grid.highest) == (settings["qmin"], settings["qmax"])
    close(grid.scale.flatten().squeeze(), expected["scale"])
    close(grid.zero_point.flatten().squeeze(), expected["zero_point"])
    at = [tuple(place) for place in expected.get("entries_on_a_rounding_boundary", [])]
    # the weight on the boundary may go either way in float64 too: by at most one step
    found, wanted = grid.whole_numbers(weights), tensor(expected["quantized"])
    inner = torch.ones_like(weights, dtype=torch.bool)
    for place in at:
        inner[place] = False
    assert torch.equal(found[inner], wanted[inner])
    assert ((found - wanted).abs() <= 1).all()
    near = grid.nearest(weights)
    close(near[inner], tensor(expected["round_trip"])[inner])
    if torch.equal(found, wanted):
        close((near - weights).abs().max(), expected["max_abs_error"])
        close(((near - weights) ** 2).mean(), expected["mean_squared_error"])
        close((near - weights).norm() / weights.norm(), expected["relative_frobenius_error"])
    single = tensor(case["inputs"]["weights"], torch.float32)
    in_float32 = grid_of(single, settings["bits"], symmetric, rows, narrow).nearest(single)
    close(in_float32[inner], tensor(expected["torch_float32_round_trip"])[inner], torch.float32)


def check_sharing(case: Case) -> None:
    settings, expected = case["settings"], case["expected"]
    weights = np.array(case["inputs"]["weights"])
    taken = weights != 0 if settings["zeros"].startswith("left out") else np.ones_like(weights, bool)
    values = weights[taken]
    close(clusters.linear_centroids(values, settings["clusters"]), expected["initial_centroids"])
    found = clusters.k_means(values, settings["clusters"])
    close(found.centroids, expected["centroids"])
    codes = np.full(weights.shape, -1)
    codes[taken] = found.codes
    assert codes.tolist() == expected["assignments"]
    shared = np.where(taken, found.centroids[codes], 0.0)
    close(shared, expected["shared_weights"])
    sizes = np.bincount(found.codes, minlength=settings["clusters"])
    assert sizes.tolist() == expected["cluster_sizes"]
    close(((shared - weights)[taken] ** 2).sum(), expected["sum_of_squared_errors"])
    assert found.rounds == max(1, expected["iterations_until_no_change"])
    check_coded(found.codes.ravel(), sizes, expected["huffman_total_bits_of_assignments"])


def check_huffman(case: Case) -> None:
    counts = np.array(case["inputs"]["symbol_counts"])
    symbols = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    check_coded(symbols, counts, case["expected"]["total_bits"])


def check_coded(symbols: np.ndarray, counts: np.ndarray, total: int) -> None:
    lengths = huffman.code_lengths(counts)
    assert int((lengths.astype(int) * counts).sum()) == total
    stream, lanes = huffman.encode(symbols, lengths)
    assert int(lanes.sum()) == total and len(stream) == -(-total // 8)
    assert np.array_equal(huffman.decode(stream, lanes, lengths, len(symbols)), symbols)


def check_low_rank(case: Case) -> None:
    expected, matrix = case["expected"], tensor(case["inputs"]["matrix"])
    rows, columns = matrix.shape
    shares = low_rank.energies(matrix)
    for each in expected["per_rank"]:
        factors = low_rank.factors_of(matrix, each["rank"])
        apart = factors.product - matrix
        close(apart.norm(), each["frobenius_error"])
        close(apart.norm() / matrix.norm(), each["relative_frobenius_error"])
        close(torch.linalg.matrix_norm(apart, 2), each["spectral_error"])
        close(shares[each["rank"] - 1], each["energy_kept"])
        close((apart**2).mean(), each["mean_squared_error"])
        assert factors.parameters == each["parameters"] and matrix.numel() == each["parameters_dense"]
        assert (factors.parameters < matrix.numel()) == each["smaller_than_dense"]
    for rank, product in expected.get("reconstruction", {}).items():
        close(low_rank.factors_of(matrix, int(rank)).product, product)
    assert low_rank.rank_of_energy(matrix, 0.9) == expected["smallest_rank_with_90_percent_energy"]
    assert low_rank.largest_smaller_rank(rows, columns) == expected["largest_rank_smaller_than_dense"]


COMPRESSION: Checks = {
    "imp": {
        "iterative_magnitude_pruning": check_iterative_pruning,
        "torch_global_unstructured": check_schedule,
        "bert_tickets_list": check_prunable,
    },
    "quantize": {"uniform": check_uniform, "k_means_sharing": check_sharing, "huffman": check_huffman},
    "low_rank": {None: check_low_rank},
}
