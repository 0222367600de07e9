#!/usr/bin/env python3
"""qrun beside llama.cpp: the same shape, the same threads, taking turns.

    QRUN=build/release/cli/qrun LLAMA_BENCH=… LLAMA_BATCHED_BENCH=… \\
        bench/compare_llama_cpp.py --shape bench/shapes/llama-3.2-1b.json --gguf IQ4_NL.gguf --gguf Q4_0.gguf

Each round runs qrun and then llama.cpp once per file; the table has medians over rounds, so that what disturbs the
machine for a while disturbs everybody. Speeds do not depend on the values of weights: qrun makes random ones of the
shape, and the GGUF files may hold random ones too. Measured: reading a prompt, and writing tokens in 1 and in 16
sequences. qrun's numbers stand beside the peaks of the machine, measured in the same run.
"""

import argparse
import json
import pathlib

import measuring

BATCH = 16


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--shape", type=pathlib.Path, help="config.json; random weights")
    model.add_argument("--model", type=pathlib.Path, help="model folder")
    parser.add_argument("--gguf", type=pathlib.Path, action="append", required=True, help="once for each file")
    parser.add_argument("--quant", default="nf4-dq")
    parser.add_argument("--quant-head", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def measure_qrun(qrun, options):
    source = ["--shape", options.shape] if options.shape else ["--model", options.model]
    result = json.loads(measuring.run([
        qrun, "bench", *source, "--quant", options.quant, "--quant-head", options.quant_head,
        "--threads", options.threads, "--prompt-tokens", options.prompt_tokens,
        "--decode-tokens", options.decode_tokens, "--batch", f"1,{BATCH}", "--repeat", 1, "--json", "-"]))
    return {
        "prefill": result["prefill"]["tokens_per_second"],
        "decode 1": result["decode"][0]["tokens_per_second"],
        f"decode {BATCH}": result["decode"][1]["tokens_per_second"],
        "read_bytes_per_second": result["machine"]["read_bytes_per_second"],
        "bf16_flops": result["machine"]["bf16_flops"],
        "step_weight_bytes": result["step_weight_bytes"],
        "linear_parameters": result["linear_parameters"],
        "isa": result["machine"]["isa"],
    }


def measure_llama(llama_bench, llama_batched_bench, gguf, options):
    runs = json.loads(measuring.run([
        llama_bench, "-m", gguf, "-t", options.threads, "-p", options.prompt_tokens, "-n", options.decode_tokens,
        "-r", 1, "-o", "json"]))
    lines = measuring.run([
        llama_batched_bench, "-m", gguf, "-t", options.threads, "-c", 4096, "-npp", 1, "-ntg", options.decode_tokens,
        "-npl", BATCH, "--output-format", "jsonl"]).splitlines()
    batched = next(json.loads(line) for line in lines if line.startswith("{"))
    return {
        "prefill": next(run["avg_ts"] for run in runs if run["n_prompt"] > 0),
        "decode 1": next(run["avg_ts"] for run in runs if run["n_gen"] > 0),
        f"decode {BATCH}": batched["speed_tg"],
        "model_bytes": runs[0]["model_size"],
    }


def collect(rounds):
    """Lists of one engine's rounds to medians; what is not a number is as in the first round."""
    return {key: measuring.summary([one[key] for one in rounds]) if isinstance(value, float) else value
            for key, value in rounds[0].items()}


def print_table(engines, options):
    measured = ["prefill", "decode 1", f"decode {BATCH}"]
    ours = engines["qrun"]
    print(f"{'tokens/s, medians of ' + str(options.rounds):28}" + "".join(f"{name:>14}" for name in measured))
    for name, engine in engines.items():
        print(f"{name:28}" + "".join(f"{engine[key]['median']:14.1f}" for key in measured))
        print(f"{'':28}" + "".join(f"{engine[k]['least']:>7.1f}-{engine[k]['most']:<6.1f}" for k in measured))
    for name, engine in engines.items():
        if name != "qrun":
            print(f"{'qrun / ' + name:28}" +
                  "".join(f"{ours[key]['median'] / engine[key]['median']:14.2f}" for key in measured))
    peak, reading = ours["bf16_flops"]["median"], ours["read_bytes_per_second"]["median"]
    print(f"\nThe machine ({ours['isa']}): reads {reading / 1e9:.1f} GB/s, multiplies {peak / 1e12:.2f} TFLOP/s in BF16")
    print(f"qrun's prefill: {2 * ours['linear_parameters'] * ours['prefill']['median'] / peak:.1%} of the matrix peak; "
          f"batch 1: {ours['step_weight_bytes'] * ours['decode 1']['median'] / reading:.1%} of the reading; "
          f"batch {BATCH}: {ours[f'decode {BATCH}']['median'] / ours['decode 1']['median']:.2f} x batch 1")


def main():
    options = arguments()
    qrun = measuring.program("QRUN", "qrun")
    llama_bench = measuring.program("LLAMA_BENCH", "llama-bench")
    batched_bench = measuring.program("LLAMA_BATCHED_BENCH", "llama-batched-bench")
    machine = measuring.machine()
    rounds = {"qrun": [], **{path.stem: [] for path in options.gguf}}
    for _ in range(options.rounds):
        rounds["qrun"].append(measure_qrun(qrun, options))
        for path in options.gguf:
            rounds[path.stem].append(measure_llama(llama_bench, batched_bench, path, options))
    engines = {name: collect(list_of_rounds) for name, list_of_rounds in rounds.items()}
    print_table(engines, options)
    measuring.write_result("llama-cpp", {
        "machine": machine,
        "qrun": measuring.version([qrun, "--version"]),
        "llama_cpp": measuring.version([batched_bench, "--version"]),
        "options": {key: [path.name for path in value] if key == "gguf" else str(value) if value is not None else None
                    for key, value in vars(options).items()},
        "engines": engines,
    })


if __name__ == "__main__":
    main()
