#!/usr/bin/env python3
"""The tables of the guides to memory, for qrun: planned, and measured at sizes that any machine runs.

    QRUN=build/release/cli/qrun bench/memory_guide.py [--device-memory rtx-4090] [--write docs/memory.md]

- A model of width 2,048 with 24 layers, 16 rows of 1,024 tokens a step: from what no card holds to less than 3 GB, one
  option after the other. Planned for a GPU that need not be there. Beside it the same steps of a model of an eighth of
  the width, a quarter of the layers and rows of 128 tokens, planned and run on this machine: what was allocated at
  most is compared with the plan, and has to be equal.
- What GPT-2 and a 7B take by category, where GPT-2 is run too; the memory of LoRA by its rank, and a 7B on a card of 12 GB, by plan.

Standard library only. --write puts the tables between the marks of that file.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import measuring

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- bench/memory_guide.py -->", "<!-- end of bench/memory_guide.py -->"
MIB, GIB = 1 << 20, 1 << 30

# What is added to the options so far, or replaces them. An option without a value is None; False takes one away.
STEPS = [
    ("every weight, in F32", {"--full": None, "--dtype": "f32", "--checkpointing": "none", "--optimizer": "adamw"}),
    ("`--dtype bf16`", {"--dtype": "bf16"}),
    ("one row at a time: `--batch-size 1 --grad-accum 16`", {"--batch-size": "1", "--grad-accum": "16"}),
    ("`--checkpointing full`", {"--checkpointing": "full"}),
    ("`--optimizer adamw8bit`", {"--optimizer": "adamw8bit"}),
    ("`--offload optimizer,activations`", {"--offload": "optimizer,activations"}),
    ("`gradients` too", {"--offload": "optimizer,gradients,activations"}),
    ("`parameters` too", {"--offload": "optimizer,gradients,activations,parameters"}),
    ("LoRA of rank 16 in place of `--full`, gradients and parameters on the device",
     {"--full": False, "--rank": "16", "--quant": "bf16", "--dtype": False, "--offload": "optimizer,activations"}),
    ("`--quant nf4-dq --quant-head int8`", {"--quant": "nf4-dq", "--quant-head": "int8"}),
    ("`--offload parameters` too", {"--offload": "optimizer,activations,parameters"}),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device-memory", default="rtx-4090", help="the card that is planned for (%(default)s)")
    parser.add_argument("--small", action="store_true", help="run the smallest model only, and not GPT-2")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="replace the tables of this file")
    return parser.parse_args()


def shape(width, layers, context, vocabulary=50257):
    """A GPT-2 of that size."""
    return {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": width // 64, "n_positions": context,
            "vocab_size": vocabulary, "layer_norm_epsilon": 1e-5, "torch_dtype": "bfloat16",
            "activation_function": "gelu_new", "bos_token_id": 0, "eos_token_id": 1}


def words(options):
    return [word for name, value in options.items() for word in ([name] if value is None else [name, value])]


def steps(first):
    """(title, options) of every step, each with those of the steps before."""
    options = dict(first)
    for title, change in STEPS:
        options.update(change)
        options = {name: value for name, value in options.items() if value is not False}
        yield title, dict(options)


def plan(qrun, options):
    """The plan as JSON, whether it fits or not (exit code 6)."""
    command = [qrun, "finetune", "--plan", "--json", *words(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 6):
        measuring.stop(f"exit code {done.returncode} from: {' '.join(command)}\n{done.stderr.strip()}")
    return json.loads(done.stdout)["plan"]


def size(n_bytes):
    if n_bytes < MIB // 10:
        return "0"
    return f"{n_bytes / GIB:.2f} GiB" if n_bytes >= GIB else f"{n_bytes / MIB:.1f} MiB"


def bytes_of(planned, category):
    return next((entry["bytes"] or 0 for entry in planned["entries"] if entry["category"] == category), 0)


# ---- Measured ---------------------------------------------------------------------------------------------------------

def make_model(folder, config):
    """config.json and a tokenizer: runs of every weight begin from random ones."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((ROOT / "examples" / "model" / name).read_bytes())


def make_data(path):
    text = (ROOT / "examples" / "eval.txt").read_text(encoding="utf-8")
    lines = [json.dumps({"text": text[i % (len(text) // 2):][:600]}) for i in range(0, 400 * 211, 211)]
    path.write_text("\n".join(lines) + "\n")


def run_full(qrun, room, model, options):
    out = room / "out"
    command = [qrun, "finetune", "--model", model, "--data", room / "data.jsonl", "--out", out, "--restart",
               "--init", "random", "--max-steps", "2", "--json", *words(options)]
    return json.loads(measuring.run(command).splitlines()[-1])["result"]


def run_adapter(qrun, room, model, options):
    result = room / "bench.json"
    measuring.run([qrun, "bench", "--train", "--shape", model / "config.json", "--repeat", "1", "--json",
                   result, *words(options)])
    return json.loads(result.read_text())["train"]


def measure(qrun, room, model, options):
    """(planned, used at most) in bytes, by a run of two steps."""
    result = (run_full if "--full" in options else run_adapter)(qrun, room, model, options)
    if result["planned_bytes"] != result["peak_bytes"]:
        measuring.stop(f"{' '.join(words(options))}: planned {result['planned_bytes']}, used {result['peak_bytes']}")
    return result["planned_bytes"], result["peak_bytes"]


# ---- Tables -----------------------------------------------------------------------------------------------------------

def table(heading, rows):
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def step_by_step(qrun, device, room):
    (room / "large.json").write_text(json.dumps(shape(2048, 24, 1024)))
    make_model(room / "small", shape(256, 6, 128, 2048))
    large = steps({"--shape": str(room / "large.json"), "--device-memory": device, "--batch-size": "16",
                   "--seq-len": "1024"})
    small = steps({"--batch-size": "16", "--seq-len": "128"})
    rows = []
    for (title, wide), (_, narrow) in zip(large, small, strict=True):
        planned = plan(qrun, wide)
        own, used = measure(qrun, room, room / "small", narrow)
        rows.append([title, size(planned["total_bytes"]), size(planned["host_bytes"]),
                     "yes" if planned["fits"] else "no", size(own), size(used)])
    return table(["each step has those above it", f"planned, {device}", "in host memory", "fits",
                  "an eighth of it, planned", "and used at most"], rows)


FULL = {"--full": None, "--checkpointing": "full"}
QLORA = {"--rank": "16", "--checkpointing": "full", "--quant-head": "int8", "--quant-embedding": "int8"}


def breakdown(qrun, room, is_run):
    plans, here = {}, {}
    make_model(room / "gpt2", shape(768, 12, 1024))
    for name, title, options in (("gpt2", "GPT-2, every weight", FULL | {"--dtype": "bf16"}),
                                 ("gpt2", "GPT-2, QLoRA", QLORA),
                                 ("llama-2-7b", "Llama 2 7B, every weight", FULL | {"--dtype": "bf16"}),
                                 ("llama-2-7b", "Llama 2 7B, QLoRA", QLORA)):
        options = {"--seq-len": "1024"} | options
        plans[title] = plan(qrun, {"--shape": name, "--device-memory": "b200"} | options)
        if is_run and name == "gpt2":
            here[title] = [size(n_bytes) for n_bytes in measure(qrun, room, room / "gpt2", options)]
    largest = {entry["category"]: 0 for planned in plans.values() for entry in planned["entries"]}
    for planned in plans.values():
        for entry in planned["entries"]:
            largest[entry["category"]] = max(largest[entry["category"]], entry["bytes"] or 0)
    columns = [name for name, most in largest.items() if most >= MIB]
    rows = [[title, size(planned["total_bytes"])] + [size(bytes_of(planned, name)) for name in columns]
            + here.get(title, ["", ""]) for title, planned in plans.items()]
    return table(["one row of 1,024 tokens", "in all"] + columns + ["on a processor, planned", "and used at most"], rows)


def ranks(qrun):
    rows = []
    for rank in (4, 8, 16, 32, 64, 128, 256):
        planned = plan(qrun, {"--shape": "llama-2-7b", "--seq-len": "1024", "--device-memory": "b200"} | QLORA
                       | {"--rank": str(rank)})
        rows.append([str(rank), size(planned["total_bytes"])]
                    + [size(bytes_of(planned, c)) for c in ("adapters", "gradients", "optimizer")])
    return table(["rank", "in all", "adapters", "gradients", "optimizer"], rows)


def seven_in_twelve(qrun):
    rows = []
    for name in ("llama-2-7b", "mistral-7b", "qwen2.5-7b", "llama-3.1-8b"):
        for tokens in (512, 2048, 4096):
            planned = plan(qrun, {"--shape": name, "--seq-len": str(tokens), "--device-memory": "rtx-3060"} | QLORA)
            rows.append([name, str(tokens), size(planned["total_bytes"]), "yes" if planned["fits"] else "no"])
    return table(["QLoRA of rank 16 on a card of 12 GB (rtx-3060)", "tokens a step", "planned", "fits"], rows)


def replace(path, text):
    old = path.read_text(encoding="utf-8")
    begin, end = old.find(BEGIN), old.find(END)
    if begin < 0 or end < begin:
        measuring.stop(f"{path}: has no lines {BEGIN} and {END}")
    path.write_text(old[:begin] + f"{BEGIN}\n{text}\n" + old[end:], encoding="utf-8")


def main():
    options = arguments()
    qrun = measuring.program("QRUN", "qrun")
    with tempfile.TemporaryDirectory() as room:
        make_data(pathlib.Path(room) / "data.jsonl")
        parts = [step_by_step(qrun, options.device_memory, pathlib.Path(room)),
                 breakdown(qrun, pathlib.Path(room), not options.small)]
    parts += [ranks(qrun), seven_in_twelve(qrun)]
    text = "\n" + "\n\n".join(parts) + "\n"
    if options.write is not None:
        replace(options.write, text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    main()
