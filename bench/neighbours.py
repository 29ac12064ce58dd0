"""What the waiting policy of OpenMP threads costs a training process alone, and what it gains beside another one.

Threads of GNU OpenMP, which PyTorch's CPU wheels bundle, spin while they wait for each other. A second process on the same
cores then waits for a core that only spins. Each setting trains a small BERT with two threads, alone and beside a copy of
itself, interleaved; of all rounds the best median time of a step counts. Prints the times, and ratios to the default.
`potstill` sets GOMP_SPINCOUNT=1000 unless the user has chosen.

    python bench/neighbours.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

THREADS, ROUNDS, SECONDS, WARM_UP = 2, 12, 0.5, 5
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    **{f"GOMP_SPINCOUNT={spins}": {"GOMP_SPINCOUNT": spins} for spins in ("300", "1000", "3000")},
}
POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def train_steps() -> None:
    """For each line of standard input, train for SECONDS and print the median milliseconds of a step."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=8000
    )
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, labels = torch.randint(0, 8000, (16, 32)), torch.randint(0, 2, (16,))

    def step() -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    for _ in range(WARM_UP):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        end = time.perf_counter() + SECONDS
        steps = []
        while time.perf_counter() < end:
            steps.append(step())
        print(1000 * statistics.median(steps), flush=True)


def start_worker(setting: dict[str, str]) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in POLICIES}
    worker = subprocess.Popen(
        [sys.executable, __file__, "--worker"],
        env={**inherited, "OMP_NUM_THREADS": str(THREADS), **setting},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout and worker.stdout.readline() == "ready\n"
    return worker


def median_step(workers: list[subprocess.Popen[str]]) -> float:
    """Milliseconds of a step, averaged over workers that train at the same time."""
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("train\n")
        worker.stdin.flush()
    return statistics.mean(float(worker.stdout.readline()) for worker in workers if worker.stdout)


def main() -> None:
    workers = {name: [start_worker(setting) for _ in range(2)] for name, setting in SETTINGS.items()}
    best = {(name, processes): float("inf") for name in SETTINGS for processes in (1, 2)}
    for _ in range(ROUNDS):
        for name, processes in best:
            best[name, processes] = min(best[name, processes], median_step(workers[name][:processes]))
    for name in SETTINGS:
        alone, beside = best[name, 1], best[name, 2]
        slower, faster = alone / best["default", 1], best["default", 2] / beside
        print(
            f"{name:<24} alone {alone:6.1f} ms ({100 * (slower - 1):+.1f} %)   "
            f"side by side {beside:6.1f} ms ({faster:.2f} times as fast)"
        )
        for worker in workers[name]:
            worker.communicate()


if __name__ == "__main__":
    train_steps() if "--worker" in sys.argv else main()
