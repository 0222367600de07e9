#!/usr/bin/env python3
"""Trains examples/model with torch's DistributedDataParallel over gloo, and stores the losses of its steps.

    python3 -m pip install torch transformers
    python3 tests/golden/make_ddp_golden.py

Two processes on the CPU, every weight, F32, AdamW at a constant rate: each step has four examples, two a process. An
epoch is one step, so that the order of the examples is no matter. `tests/cli/test_ranks_ddp.sh` runs qrun on ranks with
the same data and compares. Written are the data (`ddp.jsonl`) and a line per step: loss, gradient norm (`ddp.txt`).
"""

import json
import os
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/training/ddp"
N_RANKS, N_STEPS, LEARNING_RATE = 2, 20, 1e-4

# Each is longer than half a row of SEQ_TOKENS, so that none share one.
SEQ_TOKENS = 96
SUBJECTS = ("captain", "parrot", "lighthouse keeper", "cook")
TEXTS = [
    f"The {who} of the ship number {i} said to the crew: look at the sea, the sea is wide, and the wind is strong "
    f"today. Bring the ropes, and sing the song of the {who} again, until the sun goes down behind the island."
    for i, who in enumerate(SUBJECTS)
]


def encode(tokenizer):
    examples = []
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        if ids[-1] != tokenizer.eos_token_id:
            ids.append(tokenizer.eos_token_id)
        assert SEQ_TOKENS // 2 < len(ids) <= SEQ_TOKENS, len(ids)
        examples.append(torch.tensor([ids]))
    return examples


def train(rank, port, path):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=N_RANKS)
    torch.set_num_threads(1)
    examples = encode(AutoTokenizer.from_pretrained(ROOT / "examples/model"))
    n_targets = sum(ids.shape[1] - 1 for ids in examples)
    model = AutoModelForCausalLM.from_pretrained(
        ROOT / "examples/model", dtype=torch.float32, attn_implementation="eager")
    model = DistributedDataParallel(model.train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    lines = []
    for _ in range(N_STEPS):
        own = examples[rank::N_RANKS]
        total = torch.zeros((), dtype=torch.float64)
        optimizer.zero_grad()
        for i, ids in enumerate(own):
            model.require_backward_grad_sync = i + 1 == len(own)
            logits = model(input_ids=ids).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
            (loss * (N_RANKS / n_targets)).backward()     # DDP takes the mean over the processes
            total += loss.detach().double()
        dist.all_reduce(total)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lines.append(f"{total.item() / n_targets:.9g} {norm.item():.9g}")
    if rank == 0:
        pathlib.Path(path).write_text("\n".join(lines) + "\n")
    dist.destroy_process_group()


def main():
    FIXTURES.mkdir(parents=True, exist_ok=True)
    (FIXTURES / "ddp.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    mp.spawn(train, args=(29731, str(FIXTURES / "ddp.txt")), nprocs=N_RANKS)


if __name__ == "__main__":
    main()
