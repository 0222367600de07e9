#!/usr/bin/env python3
"""qrun bench --train beside PEFT with bitsandbytes: the same shape, the same threads, steps taking turns.

    QRUN=build/release/cli/qrun bench/compare_peft.py --model FOLDER --python …/bin/python
    QRUN=… bench/compare_peft.py --shape bench/shapes/llama-3.1-8b.json --device cuda --seq-len 4096 --grad-accum 2

--python is one that has torch, transformers, peft and bitsandbytes. FOLDER holds a model whose linear layers are stored
in NF4 as bitsandbytes has them (`qrun quantize` makes one). Both load it, train LoRA on all linear layers, computing in
BF16, --grad-accum rows of --seq-len random tokens a step, AdamW on F32 factors, gradients clipped, activations
checkpointed by layer (`--checkpointing full`; gradient_checkpointing_enable). With --shape there is no folder: each makes
random weights and quantises them to NF4, twice quantised, the head left as it is (in BF16; PEFT's preparation makes it
F32). The peer is set up the way QLoRA is usually run: from_pretrained, prepare_model_for_kbit_training, get_peft_model,
BF16 autocast, torch.optim.AdamW. It is one process that loads, takes a first step, and then steps whenever it is asked
to; between its steps qrun runs, a process of its own each time, with a first step and one that counts. On a GPU the
peer's memory stays taken meanwhile. The table has medians over rounds, so that what disturbs the machine for a
while disturbs both; loading, first steps and peak memory stand beside them. qrun is measured once more with all
activations kept (`--checkpointing none`), which costs memory: compare it with what the peer takes.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time

import measuring


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=pathlib.Path, help="folder with linear layers in NF4")
    source.add_argument("--shape", type=pathlib.Path, help="a model's config.json; its weights are random")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--python", default=sys.executable, help="of the environment with peft and bitsandbytes")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)  # be the peer's process
    return parser.parse_args()


def of_model(options):
    """The options that both programs have alike."""
    source = ["--shape", options.shape] if options.model is None else ["--model", options.model]
    return [*source, "--device", options.device]


# ---- The peer's process: a line of JSON when it is ready, and one for every line on its stdin -------------------------


def say(**fields):
    print(json.dumps(fields), flush=True)


def peak_rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux


def quantize_layers(model, bitsandbytes, torch):
    """Linear layers but the head become bitsandbytes' own, as loading in 4 bits makes them."""
    for module in list(model.modules()):
        for name, linear in list(module.named_children()):
            if not isinstance(linear, torch.nn.Linear) or name == "lm_head":
                continue
            ours = bitsandbytes.nn.Linear4bit(
                linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=torch.bfloat16,
                compress_statistics=True, quant_type="nf4", device="meta")
            ours.weight = bitsandbytes.nn.Params4bit(linear.weight.data.cpu(), requires_grad=False, module=ours,
                                                     compress_statistics=True, quant_type="nf4")
            ours.bias = linear.bias
            setattr(module, name, ours.to(linear.weight.device))
    model.is_loaded_in_4bit = True


def load_model(options, bitsandbytes, torch, transformers):
    if options.model is not None:
        return transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16,
                                                                 device_map=options.device)
    config = json.loads(options.shape.read_text(encoding="utf-8"))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    torch.set_default_dtype(torch.float32)
    quantize_layers(model, bitsandbytes, torch)
    return model


def make_peer(options):
    import bitsandbytes
    import peft
    import torch
    import transformers
    on_gpu = options.device == "cuda"
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    begin = time.monotonic()
    model = load_model(options, bitsandbytes, torch, transformers)
    load_seconds = time.monotonic() - begin
    model = peft.prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
    model = peft.get_peft_model(model, peft.LoraConfig(r=options.rank, lora_alpha=2 * options.rank,
                                                       target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
    rows = [torch.randint(0, model.config.vocab_size, (1, options.seq_len), device=options.device)
            for _ in range(options.grad_accum)]
    n_quantized = sum(isinstance(m, bitsandbytes.nn.Linear4bit) for m in model.modules())
    n_trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    say(load_seconds=load_seconds, quantized_layers=n_quantized, trainable_parameters=n_trainable,
        versions={m.__name__: m.__version__ for m in (torch, transformers, peft, bitsandbytes)})

    def step():
        start = time.monotonic()
        for ids in rows:
            with torch.autocast(options.device, dtype=torch.bfloat16):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss / options.grad_accum
            loss.backward()
        torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        return time.monotonic() - start, loss.item(), torch.cuda.max_memory_allocated() if on_gpu else 0

    return step


def be_peer(options):
    step = make_peer(options)
    for _ in sys.stdin:
        seconds, loss, device_bytes = step()
        say(step_seconds=seconds, loss=loss, peak_rss_bytes=peak_rss_bytes(), device_bytes=device_bytes)


class Peer:
    def __init__(self, options):
        command = [options.python, __file__, "--peer", *of_model(options), "--seq-len", options.seq_len,
                   "--grad-accum", options.grad_accum, "--rank", options.rank, "--threads", options.threads]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.ready = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            measuring.stop("the peer's process ended; what it said is above")
        return json.loads(line)

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---- Comparing ---------------------------------------------------------------------------------------------------------


def measure_qrun(qrun, options, checkpointing):
    quant = ["--quant", "nf4-dq"] if options.model is None else []
    result = json.loads(measuring.run([
        qrun, "bench", *of_model(options), *quant, "--train", "--seq-len", options.seq_len,
        "--grad-accum", options.grad_accum, "--rank", options.rank, "--threads", options.threads,
        "--checkpointing", checkpointing, "--repeat", 1, "--json", "-"]))
    train, machine = result["train"], result["machine"]
    return {
        "step_seconds": train["step_seconds"],
        "first_step_seconds": train["first_step_seconds"],
        "load_seconds": result["load_seconds"],
        "bf16_flops": machine["bf16_flops"],
        "matrix_share_counted": train["matrix_share_counted"],
        "matrix_share_computed": train["matrix_share_computed"],
        "planned_bytes": train["planned_bytes"],
        "peak_rss_bytes": train["peak_rss_bytes"],
        "device_bytes": train["planned_bytes"] if options.device == "cuda" else 0,
        "trainable_parameters": train["trainable_parameters"],
        "isa": machine["isa"],
    }


def collect(rounds):
    """Lists of one engine's rounds to medians; what is no float is as in the first round."""
    return {key: measuring.summary([one[key] for one in rounds]) if isinstance(value, float) else value
            for key, value in rounds[0].items()}


def print_table(engines, options):
    def row(name, values):
        print(f"{name:24}" + "".join(f"{value:>16}" for value in values))

    ours, peer = engines["qrun"], engines["peft"]
    steps = [engine["step_seconds"] for engine in engines.values()]
    row(f"medians of {options.rounds}", ["qrun", "qrun, all kept", "PEFT + bnb"])
    row("seconds a step", [f"{step['median']:.2f}" for step in steps])
    row("", [f"{step['least']:.2f}-{step['most']:.2f}" for step in steps])
    row("tokens/s", [f"{options.grad_accum * options.seq_len / step['median']:.1f}" for step in steps])
    for name, key in (("loading", "load_seconds"), ("first step", "first_step_seconds")):
        row(name, [f"{engine[key]['median']:.2f} s" for engine in engines.values()])
    if options.device == "cuda":
        row("memory of the GPU", [f"{engine['device_bytes'] / 2**30:.2f} GiB" for engine in engines.values()])
    row("peak RSS", [f"{engine['peak_rss_bytes'] / 2**30:.2f} GiB" for engine in engines.values()])
    factors = [peer["step_seconds"]["median"] / step["median"] for step in steps]
    print(f"\nqrun is {factors[0]:.2f} times as fast, {factors[1]:.2f} with all activations kept; at "
          f"{ours['matrix_share_counted']['median']:.1%} of {ours['bf16_flops']['median'] / 1e12:.2f} TFLOP/s "
          f"({ours['isa']}) counting 6 operations per parameter and token")


def main():
    options = arguments()
    if options.peer:
        be_peer(options)
        return
    qrun = measuring.program("QRUN", "qrun")
    machine = measuring.machine()
    if options.device == "cuda":
        machine["gpu"] = measuring.gpu_name()
    peer = Peer(options)
    first = peer.step()
    ours, all_kept, theirs = [], [], []
    for _ in range(options.rounds):
        ours.append(measure_qrun(qrun, options, "full"))
        all_kept.append(measure_qrun(qrun, options, "none"))
        theirs.append(peer.step())
    peer.close()
    if ours[0]["trainable_parameters"] != peer.ready["trainable_parameters"]:
        measuring.stop("the two do not train the same number of parameters")
    engines = {"qrun": collect(ours), "qrun, all kept": collect(all_kept),
               "peft": {**peer.ready, "load_seconds": measuring.summary([peer.ready["load_seconds"]]),
                        "device_bytes": theirs[-1]["device_bytes"],
                        "first_step_seconds": measuring.summary([first["step_seconds"]]),
                        "step_seconds": measuring.summary([one["step_seconds"] for one in theirs]),
                        "peak_rss_bytes": theirs[-1]["peak_rss_bytes"]}}
    print_table(engines, options)
    measuring.write_result("peft", {
        "machine": machine,
        "qrun": measuring.run([qrun, "--version"]).splitlines()[0],
        "options": {key: str(value) for key, value in vars(options).items() if key not in ("peer", "python", "model", "shape")},
        "engines": engines,
    })


if __name__ == "__main__":
    main()
