#!/usr/bin/env python3
"""Trains the shipped model on pairs of answers by qrun and by TRL's own DPOTrainer, and compares step by step.

    PATH=build/release/cli:$PATH python3 tests/golden/compare_trl.py [--steps N] [--from-adapter]

Needs torch, transformers, peft, trl and datasets. Not part of the test suite, whose goldens have TRL's formulas: this
also compares how texts become tokens, what a step's mean is over, and the rewards. Every step takes all pairs, so that
their order does not matter. Both begin from the same factors: those that a run of qrun with the same seed leaves where
its learning rate is as good as zero. With --from-adapter it is an adapter that has learned from the chosen answers, and
what answers are compared with is that one.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import torch
import transformers
from peft import PeftModel
from trl import DPOConfig, DPOTrainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, PAIRS = ROOT / "examples" / "model", ROOT / "examples" / "finetune" / "pairs.jsonl"
RATE, BETA = 1e-3, 0.1
KEYS = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies")


def train_by_qrun(data, out, *options):
    subprocess.run(["qrun", "finetune", "--model", MODEL, "--data", data, "--out", out, "--quant", "f32", "--dtype",
                    "f32", "--rank", "8", "--seq-len", "256", "--batch-size", "32", "--schedule", "constant",
                    "--weight-decay", "0", "--seed", "7", "--quiet", *options], check=True)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def train_by_trl(adapter, out, n_steps):
    base = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    pairs = datasets.Dataset.from_list([json.loads(line) for line in PAIRS.read_text().splitlines()])
    config = DPOConfig(output_dir=str(out), per_device_train_batch_size=len(pairs), max_steps=n_steps,
                       learning_rate=RATE, lr_scheduler_type="constant", beta=BETA, logging_steps=1, weight_decay=0.0,
                       max_grad_norm=1.0, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
                       gradient_checkpointing=False, disable_tqdm=True)
    trainer = DPOTrainer(PeftModel.from_pretrained(base, adapter, is_trainable=True), args=config, train_dataset=pairs,
                         processing_class=tokenizer)
    trainer.train()
    return [step for step in trainer.state.log_history if "loss" in step]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--from-adapter", action="store_true", help="begin from one that has been trained")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        chosen = folder / "chosen.jsonl"
        chosen.write_text("".join(json.dumps({"messages": pair["prompt"] + pair["chosen"]}) + "\n" for pair in
                                  map(json.loads, PAIRS.read_text().splitlines())))
        trained, rate = ("8", "5e-3") if options.from_adapter else ("1", "1e-12")
        train_by_qrun(chosen, folder / "initial", "--max-steps", trained, "--learning-rate", rate)
        begins = ["--adapter", str(folder / "initial")] if options.from_adapter else []
        ours = train_by_qrun(PAIRS, folder / "qrun", "--objective", "dpo", "--beta", str(BETA), "--learning-rate",
                             str(RATE), "--max-steps", str(options.steps), *begins)
        theirs = train_by_trl(folder / "initial", folder / "trl", options.steps)
    largest = 0.0
    for own, other in zip(ours, theirs, strict=True):
        print(f"step {own['step']}: " + ", ".join(f"{key} {own[key]:.6f} / {other[key]:.6f}" for key in KEYS))
        largest = max([largest] + [abs(own[key] - other[key]) / (1 + abs(other[key])) for key in KEYS])
    print(f"largest difference, relative to 1 or to the number: {largest:.2g}")
    return 0 if largest < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
