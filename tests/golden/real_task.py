#!/usr/bin/env python3
"""Trains real tasks with PEFT as qrun finetune does, and stores the loss curves that test_real_task compares with.

    python3 tests/golden/real_task.py --build build/release [--only NAME ...]

Examples, their order and the first factors come from the C program tests/train/test_real_task of that build (and
nothing else does): the same steps then run with transformers, PEFT, torch's AdamW and, for the NF4 base, bitsandbytes'
Linear4bit on what `qrun quantize` wrote. Everything is F32. Needs what make_model_goldens.py needs; the tasks on real data
need ../shared/data.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

from make_model_goldens import FIXTURES, merged, write_index   # sets the environment before torch is imported

import torch
import transformers
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from transformers import AutoModelForCausalLM, get_scheduler

TASKS = ["pirate-f32", "pirate-nf4", "gsm8k-f32", "gsm8k-nf4"]
IGNORED = -100


def nll_sum(model, example):
    """Sum over the targets of −log p: one forward over the sequence alone, no padding, no cache."""
    ids, labels = torch.tensor([example["ids"]]), torch.tensor(example["labels"])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=IGNORED, reduction="sum")


def n_targets(examples):
    return sum(label != IGNORED for example in examples for label in example["labels"][1:])


@torch.no_grad()
def evaluate(model, windows):
    examples = [example for window in windows for example in window]
    return sum(nll_sum(model, example).item() for example in examples) / n_targets(examples)


def load_base(task, build, scratch):
    folder = pathlib.Path(task["model"])
    if task["quant"] == "nf4":
        quantised = scratch / "nf4"
        subprocess.run([build / "cli" / "qrun", "quantize", "--model", folder, "--out", quantised, "--quant", "nf4"],
                       check=True)
        folder = quantised
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for parameter in model.parameters():        # a quantised folder is loaded in the type it was stored in
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.weight.quant_state.dtype = module.compute_dtype = torch.float32
            module.compute_type_is_set = True
    return model.train()    # in eval() Linear4bit repacks its weight and computes in BF16; these models have no dropout


def train(task, base, adapter):
    """The steps of the HF Trainer: gradients, clip, optimiser, scheduler. Returns the entry's curves."""
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=task["learning_rate"], betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=task["weight_decay"])
    scheduler = get_scheduler("cosine", optimiser, num_warmup_steps=task["warmup"],
                              num_training_steps=task["n_steps"])
    losses, evaluations = [], [evaluate(model, task["eval"])]
    for step, examples in enumerate(task["steps"], start=1):
        total, loss = n_targets(examples), 0.0
        for example in examples:
            nll = nll_sum(model, example)
            (nll / total).backward()
            loss += nll.item()
        losses.append(loss / total)
        torch.nn.utils.clip_grad_norm_(parameters, task["max_grad_norm"])
        optimiser.step()
        scheduler.step()
        optimiser.zero_grad()
        if step % task["eval_every"] == 0:
            evaluations.append(evaluate(model, task["eval"]))
            print(f"  step {step}: loss {losses[-1]:.4f}, evaluation loss {evaluations[-1]:.6f}", flush=True)
    return {"eval_loss": [float(f"{x:.8g}") for x in evaluations], "loss": [float(f"{x:.8g}") for x in losses]}


def make_task(name, build):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        subprocess.run([build / "tests" / "runtime" / "test_real_task", "--dump", name, scratch / "run"], check=True)
        task = json.loads((scratch / "run" / "task.json").read_text())
        curves = train(task, load_base(task, build, scratch), scratch / "run")
    examples = [example for step in task["steps"] for example in step]
    return {"name": name, "examples": len(examples), "targets": n_targets(examples),
            "eval_examples": sum(len(window) for window in task["eval"])} | curves


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build folder with tests")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tasks only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made = []
    for name in options.only or TASKS:
        print(name, flush=True)
        made.append(make_task(name, options.build.resolve()))
    index = FIXTURES / "training" / "real_task.json"
    write_index(index, merged(index, {"tasks": made}) if options.only else {"tasks": made})


if __name__ == "__main__":
    main()
