#!/usr/bin/env python3
"""How long loading takes, beside reading the file.

    QRUN=build/release/cli/qrun bench/load.py --model BF16_FOLDER --quantized FOLDER

1. A warm pass: read() of every safetensors file of the folder from the page cache into one 4 MiB buffer, as dd does,
   by one thread. It looks at no byte of what it copies.
2. Loading the same folder as NF4 double-quantised: the load seconds that `qrun bench` reports, so without the start of
   the process. The ratio is to be at most 1.5.
3. From start to first token of the already quantised folder: the wall clock of a whole `qrun generate --max-tokens 1`
   process. FOLDER is made by `qrun quantize` where it does not exist. To be under 1.5 s.

The three take turns; reported are medians. A first round, not counted, brings the files into the page cache.
"""

import argparse
import json
import pathlib
import time

import measuring

BLOCK_BYTES = 4 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="folder in BF16, with a tokenizer")
    parser.add_argument("--quantized", type=pathlib.Path, required=True, help="the same, by qrun quantize")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def read_seconds(folder):
    buffer = bytearray(BLOCK_BYTES)
    begin = time.monotonic()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.monotonic() - begin


def load_seconds(qrun, options):
    return json.loads(measuring.run([
        qrun, "bench", "--model", options.model, "--quant", "nf4-dq", "--threads", options.threads,
        "--prompt-tokens", 1, "--decode-tokens", 1, "--batch", 1, "--repeat", 1, "--json", "-"]))["load_seconds"]


def first_token_seconds(qrun, options):
    begin = time.monotonic()
    measuring.run([qrun, "generate", "--model", options.quantized, "--threads", options.threads, "--prompt", "Hello",
                   "--temperature", 0, "--max-tokens", 1])
    return time.monotonic() - begin


def main():
    options = arguments()
    qrun = measuring.program("QRUN", "qrun")
    if not options.quantized.exists():
        measuring.run([qrun, "quantize", "--model", options.model, "--quant", "nf4-dq", "--out", options.quantized])
    machine = measuring.machine()
    rounds = []
    for _ in range(options.rounds + 1):
        rounds.append((read_seconds(options.model), load_seconds(qrun, options), first_token_seconds(qrun, options)))
    read, load, first = (measuring.summary(list(column)) for column in zip(*rounds[1:]))
    n_bytes = sum(path.stat().st_size for path in options.model.glob("*.safetensors"))
    ratio = load["median"] / read["median"]
    for name, one in (("warm pass by read()", read), ("load as nf4-dq", load), ("start to first token", first)):
        print(f"{name:24}{one['median']:8.3f} s   {one['least']:.3f} - {one['most']:.3f}")
    print(f"{'load / warm pass':24}{ratio:8.2f}     file of {n_bytes / 1e9:.2f} GB, read at "
          f"{n_bytes / read['median'] / 1e9:.1f} GB/s")
    measuring.write_result("load", {
        "machine": machine, "qrun": measuring.version([qrun, "--version"]), "threads": options.threads,
        "file_bytes": n_bytes, "read_seconds": read, "load_seconds": load, "first_token_seconds": first,
        "load_over_read": ratio})


if __name__ == "__main__":
    main()
