#!/usr/bin/env python3
"""How long loading takes, beside reading the file.

    QRUN=build/release/cli/qrun bench/load.py --model BF16_FOLDER --quantized FOLDER

1. A warm pass: read() of every safetensors file of the folder from the page cache into one 4 MiB buffer, as dd does,
   by one thread. It looks at no byte of what it copies.
2. Loading the same folder as NF4 double-quantised: the load seconds that `qrun bench` reports, so without the start of
   the process. The ratio is to be at most 1.5. Once after a pause, and once more at once: a virtual machine whose host
   takes free memory back has to ask for it page by page after a pause, and gets what another process has just left
   otherwise.
3. What that memory costs by itself: after a pause, one byte written to each page of as much memory as the weights take.
4. From start to first token of the already quantised folder: the wall clock of a whole `qrun generate --max-tokens 1`
   process. FOLDER is made by `qrun quantize` where it does not exist. To be under 1.5 s.

These take turns; reported are medians. A first round, not counted, brings the files into the page cache.
"""

import argparse
import json
import mmap
import pathlib
import time

import measuring

BLOCK_BYTES = 4 << 20
PAUSE_SECONDS = 5


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


def load(qrun, options):
    """What `qrun bench` says about loading: load_seconds, weight_bytes."""
    return json.loads(measuring.run([
        qrun, "bench", "--model", options.model, "--quant", "nf4-dq", "--threads", options.threads,
        "--prompt-tokens", 1, "--decode-tokens", 1, "--batch", 1, "--repeat", 1, "--json", "-"]))


def touch_seconds(n_bytes):
    with mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        begin = time.monotonic()
        for offset in range(0, n_bytes, mmap.PAGESIZE):
            memory[offset] = 1
        return time.monotonic() - begin


def first_token_seconds(qrun, options):
    begin = time.monotonic()
    measuring.run([qrun, "generate", "--model", options.quantized, "--threads", options.threads, "--prompt", "Hello",
                   "--temperature", 0, "--max-tokens", 1])
    return time.monotonic() - begin


def measure_round(qrun, options):
    time.sleep(PAUSE_SECONDS)
    first = load(qrun, options)
    again = load(qrun, options)
    quantized = first_token_seconds(qrun, options)
    reading = read_seconds(options.model)
    time.sleep(PAUSE_SECONDS)
    return {"read": reading, "load": first["load_seconds"], "load_again": again["load_seconds"],
            "touch": touch_seconds(first["weight_bytes"]), "first_token": quantized}


LABELS = {"read": "warm pass by read()", "load": "load as nf4-dq", "load_again": "the same again at once",
          "touch": "memory of the weights", "first_token": "start to first token"}


def main():
    options = arguments()
    qrun = measuring.program("QRUN", "qrun")
    if not options.quantized.exists():
        measuring.run([qrun, "quantize", "--model", options.model, "--quant", "nf4-dq", "--out", options.quantized])
    machine = measuring.machine()
    rounds = [measure_round(qrun, options) for _ in range(options.rounds + 1)][1:]
    seconds = {key: measuring.summary([one[key] for one in rounds]) for key in LABELS}
    n_bytes = sum(path.stat().st_size for path in options.model.glob("*.safetensors"))
    reading = seconds["read"]["median"]
    for key, label in LABELS.items():
        one = seconds[key]
        print(f"{label:24}{one['median']:8.3f} s   {one['least']:.3f} - {one['most']:.3f}"
              f"   {one['median'] / reading:6.2f} x the pass")
    print(f"file of {n_bytes / 1e9:.2f} GB, read at {n_bytes / reading / 1e9:.1f} GB/s")
    measuring.write_result("load", {
        "machine": machine, "qrun": measuring.version([qrun, "--version"]), "threads": options.threads,
        "file_bytes": n_bytes, "seconds": seconds})


if __name__ == "__main__":
    main()
