#!/usr/bin/env python3
"""What the CUDA kernels' machine code says without a GPU, and what that would cost by a simple model.

    bench/cuda_static.py --qrun build/dev/cli/qrun --simt build/dev/tests/simt/libqrun_cuda_simt.so

Compiles kernels/cuda/**/*.cu one by one with the library's flags, disassembles them, and prints a table: registers,
instructions that touch a thread's local memory (spills, and arrays indexed at run time), blocks a multiprocessor; of
kernels with matrix products the instructions of the main loop, and of linear's those a weight. With --qrun and --simt
one decode step of a model of three layers is run by the CPU, and its launches are counted: they give shared memory and
kernels a layer. Then the time of an 8B model follows by the model
below. --json - prints all of it for programs.

The model (nothing here is a measurement):
  a matrix at up to 64 rows     the longest of: its bytes at the memory's datasheet rate; the same at what its loads in
                                flight bring in LATENCY_S; its thread instructions at ISSUE_SHARE of 128 a cycle and
                                multiprocessor, tiles rounded up to whole ones a multiprocessor; its loads from shared
                                memory and what is copied there, likewise; its products at MMA_SHARE of the tensor
                                cores' peak; the codes and x from the second cache: x for every tile anew, since the
                                first cache keeps nothing of it, or of up to 8 rows for every block
  a launch                      LAUNCH_US each, whatever it does; of kernels other than linear nothing else is counted
  a norm in linear's kernel     every block norms x before its first product: NORM_SUM_US, and NORM_PASS_US for each time
                                that a row is read from the second cache. It is read once as far as a block's threads
                                keep it in registers, else twice. The weights are loaded before x is there.
  prefill, linear_wgmma         its loop: overlapped, the longest of tensor and issue cycles of what a multiprocessor
                                holds, and of the bytes from the second cache; in turn, the sum of the first two. The
                                truth lies between them.
  prefill, linear_wgmma_wide    for each chunk the longest of tensor cores, issue slots (at ISSUE_SHARE), shared memory
                                and the bytes from the second cache; after it, in turn, what a tile adds: the totals in
                                shared memory after each segment, y at the second cache's rate, LATENCY_S. Then tiles
                                rounded up to whole ones a multiprocessor, as if all outputs were one panel; and before
                                them the copies of x and of the weights, at the memory's datasheet rate. Which of the
                                two kernels multiplies a matrix is what linear_wgmma_wide.cu says.
  a QLoRA step                  what a step of a small model of the same proportions runs, on the processor (--qrun):
                                its products at CUBLASLT_SHARE of the peak, and the bytes of its element-wise ops, as
                                kernels/op_bytes.c counts them, both scaled to the 8B. LoRA's products at
                                ADAPTER_SHARE, and the bytes they read and write besides; see step_parts
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import measuring
import sass

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLKIT = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"

GPUS = {  # datasheets; the clock is what both hold under load
    "H100": {"bytes_per_s": 3.35e12, "multiprocessors": 132, "hz": 1.75e9},
    "H200": {"bytes_per_s": 4.8e12, "multiprocessors": 132, "hz": 1.75e9},
}
TENSOR_FLOPS = 4096      # of a multiprocessor and cycle, 16-bit operands, wgmma
MMA_SHARE = 0.62         # of it that mma.sync reaches on Hopper, by published microbenchmarks
CUBLASLT_SHARE = 0.7     # of the peak, with the panels' traffic: an assumption
ADAPTER_SHARE = 0.3      # of the peak, of products as narrow as an adapter's rank: an assumption
ISSUE_SHARE = 0.85       # of the issue slots that a loop with such dependences fills: an assumption
L2_BYTES_PER_S = 5.5e12  # read from the second cache, by NVIDIA's and others' figures for an H100: an assumption
LATENCY_S = 0.8e-6       # of a load from device memory under load: an assumption
LAUNCH_US = 1.5          # of a kernel in a replayed graph, launched early: an assumption
NORM_PASS_US = 0.3       # a row from the second cache, all of it under way at once: an assumption
NORM_SUM_US = 0.4        # a sum over the block, and what is made of it: an assumption
SHARED_LIMIT = 227 << 10  # of a multiprocessor of sm_90
THREADS = 256            # of a block of linear

# As many rows at most, linear's kernel norms itself.
NORM_ROWS = int(re.search(r"LINEAR_NORM_ROWS = (\d+)",
                          (ROOT / "kernels/cuda/linear/linear.cuh").read_text(encoding="utf-8")).group(1))

HEADS_ROWS = 8  # as many at most, it rotates q and k and writes k and v: TILE_ROWS of linear_mma.cuh

# Elements of a row that a block's threads keep in registers between the sum and the product.
NORM_KEPT = THREADS * 4 * int(re.search(r"NORM_KEPT = (\d+)", (
    ROOT / "kernels/cuda/norm.cuh").read_text(encoding="utf-8")).group(1))

SHAPE = {"hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head": 128, "vocab": 128256, "layers": 32}
WEIGHT_BYTES = {"nf4": 0.5 + 1 / 64 + 4 / (64 * 256), "int8": 1.0, "16": 2.0}  # nf4: double-quantised
BATCHES = (1, 16, 32, 64)
PREFILL_ROWS = 2048      # of a chunk of prompts
WIDE = {"outputs": 128, "rows": 256, "chunk": 64}  # a tile of linear_wgmma_wide.cu
NARROW_ROWS = 128        # of linear_wgmma.cu
WIDE_REGISTER_TOTALS, WIDE_STAGES = (
    int(re.search(rf"{name} = (\d+)", (ROOT / "kernels/cuda/linear/linear_wgmma_wide.cu").read_text(encoding="utf-8"))
        .group(1)) for name in ("REGISTER_TOTALS", "STAGES"))
WIDE_SHARED_TOTALS = 32 - WIDE_REGISTER_TOTALS
STAGED_AHEAD_BYTES = 64  # of a lane of linear_staged.cu, by staged_depth: its code has two ways to begin, twice as many
L2_BYTES_A_CYCLE = 24    # of a multiprocessor: staged_cost of linear_staged.cu
KINDS = {"one": 0, "several": 1, "heads": 2, "pair": 3}  # enum mma_matrices
PATHS = ["nf4", "int8", "16", "any", "mxfp4"]  # enum weights_path

# The model whose decode step is recorded: all of decode's kernels, little else.
RECORDED = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128,
            "vocab_size": 256, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu"}

# The model whose training step is counted: an eighth of the 8B's widths and two layers. TRAINED_TOKENS: of its one row.
TRAINED = RECORDED | {"hidden_size": 512, "intermediate_size": 1792, "num_hidden_layers": 2, "num_attention_heads": 4}
TRAINED_TOKENS = 128
OUTSIDE_LAYERS = {"embedding", "rope_table"}  # ops with as many rows that a step runs once


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=pathlib.Path, help=".cu files; default: all of kernels/cuda")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--nvcc", help="default: on PATH, or the toolkit's")
    parser.add_argument("--nvdisasm", help="default: on PATH, or the toolkit's")
    parser.add_argument("--cubins", type=pathlib.Path,
                        help="folder that keeps what is compiled; it is used again where it is newer than its source "
                             "(headers are not looked at)")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once")
    parser.add_argument("--qrun", type=pathlib.Path, help="the program, for the launches of a decode step")
    parser.add_argument("--simt", type=pathlib.Path, help="libqrun_cuda_simt.so, for the same")
    parser.add_argument("--json", type=pathlib.Path, help='file for the results ("-": stdout, in place of the tables)')
    return parser.parse_args()


def tool(name, named):
    """A program of the toolkit. Exit code 77 where there is none, which tests take as a skip."""
    for place in [named] if named else [shutil.which(name), TOOLKIT / name]:
        if place and os.access(place, os.X_OK):
            return str(place)
    print(f"cuda_static.py: no {name}" + (f" at {named}" if named else
          f" on PATH or in {TOOLKIT}; --{name} names one (it is in NVIDIA's toolkit)"), file=sys.stderr)
    sys.exit(77)


# ---- What the compiler made -----------------------------------------------------------------------------------------


def compile_one(source, folder, options):
    cubin = folder / f"{source.stem}.{options.arch}.cubin"
    if not cubin.exists() or cubin.stat().st_mtime < source.stat().st_mtime:
        part = cubin.with_suffix(".part")
        measuring.run([options.nvcc, "-std=c++17", "-fmad=false", f"-arch={options.arch}", "-cubin", f"-I{ROOT}",
                       f"-I{ROOT / 'include'}", "-o", part, source])
        part.replace(cubin)
    return sass.kernels_of(measuring.run([options.nvdisasm, cubin]))


def kernels_compiled(options):
    sources = options.sources or sorted((ROOT / "kernels" / "cuda").rglob("*.cu"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.cubins or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(lambda source: compile_one(source.resolve(), folder, options), sources))
    kernels = [kernel for one in found for kernel in one.values()]
    return dict(zip(demangled([kernel.symbol for kernel in kernels]), kernels))


def demangled(symbols):
    """As the sources name them: linear_mma_kernel<of_bf16, nf4, 1, 1>. Without c++filt, the symbols."""
    if not shutil.which("c++filt"):
        return symbols
    text = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    return [short_name(line) for line in text.splitlines()]


def short_name(name):
    name = re.sub(r"\(weights_path\)(\d)", lambda path: PATHS[int(path.group(1))], name.removeprefix("void "))
    name = name.replace("(anonymous namespace)::", "")
    depth, end = 0, len(name)
    for i, letter in enumerate(name):  # the argument list is the first parenthesis outside <>
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            end = i
            break
    return re.sub(r"\((?:int|bool|unsigned int|\w+)\)(\d+)", r"\1", name[:end])


# ---- What a decode step launches ------------------------------------------------------------------------------------


def recorded_step(options):
    """The launches of one decode step, from the embedding to the last: [name, threads, shared bytes]. Not launched
    early: the bytes are what a kernel needs, with nothing on top to spread its blocks."""
    with tempfile.TemporaryDirectory() as temporary:
        shape, log = pathlib.Path(temporary) / "config.json", pathlib.Path(temporary) / "launches"
        shape.write_text(json.dumps(RECORDED), encoding="utf-8")
        command = [options.qrun, "bench", "--shape", shape, "--device", "cuda", "--quant", "nf4-dq", "--quant-head",
                   "int8", "--batch", "1", "--repeat", "1", "--prompt-tokens", "4", "--decode-tokens", "4",
                   "--decode-context", "4", "--json", "-"]
        environment = os.environ | {"QRUN_SIMT_LAUNCHES": str(log), "QRUN_CUDA_EARLY_LAUNCH": "0",
                                    "QRUN_CUDA_LIBRARY": str(options.simt.resolve())}
        done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0 or not log.exists():
            measuring.stop(f"no decode step over {options.simt}: {done.stderr.strip()}")
        launches = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    last = max(i for i, launch in enumerate(launches) if launch[0] == "embedding_kernel")
    return [(launch[0], int(launch[4]), int(launch[5])) for launch in launches[last:]]


def recorded_training(qrun, checkpointing):
    """The ops of one training step's layers: [op, rows, two sizes or one, calls, bytes]. The loss has a row less."""
    with tempfile.TemporaryDirectory() as temporary:
        shape = pathlib.Path(temporary) / "config.json"
        shape.write_text(json.dumps(TRAINED), encoding="utf-8")
        result = json.loads(measuring.run(
            [qrun, "bench", "--shape", shape, "--device", "cpu", "--quant", "nf4-dq", "--quant-head", "int8", "--train",
             "--kernels", "--seq-len", TRAINED_TOKENS, "--checkpointing", checkpointing, "--repeat", "1", "--json",
             "-"]))
    ops = []
    for op in result["kernels"][0]["ops"]:
        sizes = [int(word) for word in re.findall(r"\d+", op["shape"].split(" nf4")[0])]
        if sizes[0] == TRAINED_TOKENS and op["op"] not in OUTSIDE_LAYERS:
            ops.append((op["op"], sizes[1:], op["calls"], op["bytes"]))
    return ops


def layer_of(names, n_layers):
    """The longest run of names that follows itself n_layers times."""
    for length in range(len(names) // n_layers, 0, -1):
        for begin in range(len(names) - n_layers * length + 1):
            layer = names[begin:begin + length]
            if layer * n_layers == names[begin:begin + n_layers * length]:
                return layer
    return []


# ---- Tables ---------------------------------------------------------------------------------------------------------


def tiles_of(name):
    """(m_tiles, n_tiles) of an instance of linear_mma_kernel."""
    found = re.match(r"linear_mma_kernel<\w+, \w+, (\d+), (\d+), \w+>", name)
    return (int(found.group(1)), int(found.group(2))) if found else None


def staged_of(name):
    """(groups, m_tiles, n_tiles) of an instance of linear_staged_kernel."""
    found = re.match(r"linear_staged_kernel<\w+, \w+, staged_shape<(\d+), (\d+), (\d+)> ?>", name)
    return tuple(map(int, found.groups())) if found else None


def row_of(name, kernel, shared):
    """One line of the table. `shared`: bytes by the name without template arguments, of the recorded step."""
    bare = name.split("<")[0]
    row = {"kernel": name, "registers": kernel.registers, "local_accesses": kernel.local_accesses,
           "threads": kernel.max_threads}
    staged = staged_of(name)
    tiles = staged[1:] if staged else tiles_of(name)
    bytes_here = (shared_of_staged(name, staged) if staged else shared_of_linear(name, tiles) if tiles
                  else shared.get(bare))
    row["shared_bytes"] = bytes_here
    if kernel.max_threads and kernel.registers:
        row["blocks"] = kernel.blocks_at_once(kernel.max_threads, bytes_here or 0, SHARED_LIMIT)
    loop = kernel.main_loop(innermost=tiles is not None)
    if loop:
        row.update(loop_instructions=loop.instructions, loop_products=loop.products,
                   loop_shared_cycles=loop.shared_cycles)
    if name.startswith("linear_wgmma_wide_kernel"):
        row["shared_bytes"] = wide_shared_bytes()
    if loop and tiles:
        row["instructions_a_weight"] = loop.per_weight(16 * 16 / tiles[1])  # n_tiles products share 16 x 16 weights
        row["shared_cycles_a_weight"] = loop.shared_cycles / (loop.products * 16 * 16 / tiles[1])
        ahead = STAGED_AHEAD_BYTES if staged else kernel.ahead_bytes
        row["bytes_in_flight"] = ahead * kernel.max_threads * row["blocks"]
    return row


def wide_shared_bytes():
    """wide_memory of linear_wgmma_wide.cu, and what aligns it: stages and their barriers, totals."""
    stage = (WIDE["rows"] + WIDE["outputs"]) * WIDE["chunk"] * 2 + 2 * 8
    return WIDE_STAGES * stage + WIDE_SHARED_TOTALS * 2 * WIDE["outputs"] * 16 + 1024


def shared_of_linear(name, tiles):
    """mma_memory of linear_mma.cu: the segments' sums, of two tiles; of NF4 the table of pairs and the map."""
    return 2 * 8 * tiles[0] * 8 * 20 * 4 + (256 * 16 * 8 + 256 * 4 if ", nf4," in name else 16)


def shared_of_staged(name, staged):
    """staged_memory of linear_staged.cu: sums, of NF4 the tables, totals, four stages of x."""
    groups, m, n = staged
    table = 256 * 16 * 8 + 256 * 4 if ", nf4," in name else 16
    total = 8 * n * groups * m * 16 * 4 if groups > 2 else 16
    return 16 * m * 8 * 20 * 4 + table + total + 16 // groups * 4 * 8 * n * 64 * 2


# ---- The model ------------------------------------------------------------------------------------------------------


def matrices():
    """Of an 8B model: rows, columns, format, how many."""
    s = SHAPE
    q, kv = s["heads"] * s["head"], s["kv_heads"] * s["head"]
    return [(q, s["hidden"], "nf4", s["layers"]), (kv, s["hidden"], "nf4", 2 * s["layers"]),
            (s["hidden"], q, "nf4", s["layers"]), (s["ffn"], s["hidden"], "nf4", 2 * s["layers"]),
            (s["hidden"], s["ffn"], "nf4", s["layers"]), (s["vocab"], s["hidden"], "int8", 1)]


def launches():
    """The same matrices as decode launches them: rows, columns, format, how many, what they are to the kernel, after a
    norm. q, k and v are one, and so are gate and up. main compares the number with the recorded step's."""
    s = SHAPE
    q, kv, layers = s["heads"] * s["head"], s["kv_heads"] * s["head"], s["layers"]
    return [(q + 2 * kv, s["hidden"], "nf4", layers, "heads", True),
            (s["hidden"], q, "nf4", layers, "several", False), (2 * s["ffn"], s["hidden"], "nf4", layers, "pair", True),
            (s["hidden"], s["ffn"], "nf4", layers, "several", False),
            (s["vocab"], s["hidden"], "int8", 1, "several", True)]


def shape_for(launch, batch, n_sm):
    """What launch_tiles of linear_mma.cu and launch_path of linear_staged.cu choose: groups (None: of linear_mma.cu),
    m_tiles, n_tiles."""
    rows, fmt = launch[0], launch[2]
    if batch <= 8:
        fills = rows > 16 and -(-rows // 32) * 8 >= 7 * n_sm
        return None, 2 if batch > 2 and fills else 1, 1
    few = batch <= 32
    if fmt == "16":
        return (2, 1, 4) if few else (4, 1, 8)

    def cost(shape):
        groups, m, _ = shape
        outputs = groups * m * 16
        tiles = -(-rows // outputs)
        cache = tiles * (outputs * {"nf4": 1, "int8": 2}[fmt] // 2 + batch * 2) * 1000 // (n_sm * L2_BYTES_A_CYCLE)
        tile_bytes = outputs * (4 + batch * 2 // (16 * m)) + batch * 2
        return max(cache, -(-tiles // n_sm) * tile_bytes * 1000 // 128)
    return min([(4, 2, 4), (2, 2, 4), (2, 1, 4)] if few else [(8, 1, 8), (4, 1, 8)], key=cost)


def instance_name(launch, batch, n_sm):
    groups, m, n = shape_for(launch, batch, n_sm)
    if groups:
        return f"linear_staged_kernel<of_bf16, {launch[2]}, staged_shape<{groups}, {m}, {n}> >"
    return f"linear_mma_kernel<of_bf16, {launch[2]}, {m}, {n}, {KINDS[launch[4]]}>"


def tiling(launch, batch, gpu):
    """Outputs and rows of a tile, and how many there are."""
    groups, m, n = shape_for(launch, batch, gpu["multiprocessors"])
    outputs = 16 * m * (groups or 1)
    return outputs, 8 * n, -(-launch[0] // outputs) * -(-batch // (8 * n))


def blocks_of(row, tiles, gpu):
    return min(tiles, row["blocks"] * gpu["multiprocessors"])


def bytes_in_flight(table, gpu, launch, batch):
    """Of a multiprocessor, on average, while this matrix is read."""
    row = table[instance_name(launch, batch, gpu["multiprocessors"])]
    _, _, tiles = tiling(launch, batch, gpu)
    return row["bytes_in_flight"] / row["blocks"] * blocks_of(row, tiles, gpu) / gpu["multiprocessors"]


def matrix_seconds(table, gpu, launch, batch):
    """Seconds by each of what may bound it."""
    rows, cols, fmt = launch[:3]
    row = table[instance_name(launch, batch, gpu["multiprocessors"])]
    outputs, tile_rows, tiles = tiling(launch, batch, gpu)
    balance = -(-tiles // gpu["multiprocessors"]) * gpu["multiprocessors"] / tiles
    cycles = gpu["hz"] * gpu["multiprocessors"]
    weights = rows * cols * -(-batch // tile_rows)  # as often as they are dequantised
    n_bytes = weights * WEIGHT_BYTES[fmt]
    blocks = blocks_of(row, tiles, gpu)
    x_bytes = cols * 2 * (tiles * -(-batch // 16) * 16 if batch > 8 else blocks * batch)
    copied = x_bytes / 128 if batch > 8 else 0
    return {"bytes": n_bytes / gpu["bytes_per_s"],
            "latency": n_bytes * LATENCY_S / (row["bytes_in_flight"] / row["blocks"] * blocks),
            "issue": weights * row["instructions_a_weight"] * balance / (128 * ISSUE_SHARE * cycles),
            "shared": (weights * row["shared_cycles_a_weight"] + copied) * balance / cycles,
            "tensor": 2 * weights * tile_rows * balance / (TENSOR_FLOPS * MMA_SHARE * cycles),
            "second cache": (n_bytes + x_bytes) / L2_BYTES_PER_S}


def decode(table, gpu, batch, launches_a_layer, other_launches):
    """One step: seconds of the matrices, and of everything with its launches."""
    linear, least, norms, bound = 0.0, 0.0, 0, {}
    for launch in launches():
        seconds = matrix_seconds(table, gpu, launch, batch)
        longest = max(seconds, key=seconds.get)
        linear += seconds[longest] * launch[3]
        least += launch[0] * launch[1] * WEIGHT_BYTES[launch[2]] * launch[3] / gpu["bytes_per_s"]
        norms += launch[3] if launch[5] else 0
        bound[longest] = bound.get(longest, 0) + seconds[longest] * launch[3]
    n_launches = SHAPE["layers"] * launches_a_layer + other_launches
    if batch > NORM_ROWS:  # then norms are launches of their own
        n_launches, norms = n_launches + norms, 0
    if batch > HEADS_ROWS:  # and so is what is done with heads
        n_launches += SHAPE["layers"]
    norm_us = NORM_SUM_US + NORM_PASS_US * (1 if SHAPE["hidden"] <= NORM_KEPT else 2)
    total = linear + (n_launches * LAUNCH_US + norms * norm_us) * 1e-6
    return {"batch": batch, "seconds": total, "tokens_per_s": batch / total, "share_of_bandwidth": least / total,
            "linear_share_of_bandwidth": least / linear, "launches": n_launches,
            "bound_by": {name: value / linear for name, value in bound.items()},
            "bytes_in_flight": {f"{launch[0]} x {launch[1]}": round(bytes_in_flight(table, gpu, launch, batch))
                                for launch in launches()}}


def l2_cycles(gpu, n_bytes):
    """Of one multiprocessor while all of them read as much."""
    return n_bytes * gpu["multiprocessors"] * gpu["hz"] / L2_BYTES_PER_S


def narrow_share(table, gpu, fmt="nf4"):
    """Share of the tensor cores' peak that the loop of linear_wgmma allows. A block is two warpgroups, whose warps are
    one on each scheduler; a product of 64 x 128 x 16 is 64 cycles, a chunk of 64 columns eight of them."""
    row = table.get(f"linear_wgmma_kernel<of_bf16, {fmt}>")
    if row is None or "loop_products" not in row:
        return None
    tensor = 2 * row["loop_products"] * 2 * 64 * 128 * 16 / TENSOR_FLOPS
    issue = 2 * row["loop_instructions"]
    cache = l2_cycles(gpu, 128 * 64 * (2 + WEIGHT_BYTES[fmt]) * row["loop_products"] / 4)
    return {"overlapped": tensor / max(tensor, issue, cache), "in_turn": tensor / max(tensor + issue, cache)}


def wide_chunk(table, gpu):
    """Cycles of a chunk in linear_wgmma_wide, by each of what may bound it. A scheduler has one warp of each consumer."""
    row = table.get("linear_wgmma_wide_kernel<of_bf16>")
    if row is None or "loop_products" not in row:
        return None
    outputs, rows, cols = WIDE["outputs"], WIDE["rows"], WIDE["chunk"]
    consumers = 2 * row["loop_instructions"] * (cols // 16) / row["loop_products"]
    operands = cols // 16 * 2 * (64 + rows) * 32  # what both consumers' products read
    return {"tensor": 2 * outputs * rows * cols / TENSOR_FLOPS,
            "issue": consumers / ISSUE_SHARE,
            "shared": ((outputs + rows) * cols * 2 + operands) / 128,
            "second cache": l2_cycles(gpu, (rows // 2 + outputs) * cols * 2)}  # the other block brings half of x


def wide_cycles(chunk, gpu, cols):
    """Of a whole tile."""
    n_chunks = -(-cols // WIDE["chunk"])
    totals = 2 * WIDE_SHARED_TOTALS * 2 * 128 * 16 / 128
    segments = -(-n_chunks // -(-n_chunks // 8))
    return (n_chunks * max(chunk.values()) + (segments - 1) * totals
            + l2_cycles(gpu, WIDE["outputs"] * WIDE["rows"] * 4) + LATENCY_S * gpu["hz"])


def prefill(table, gpu):
    """Of a layer's matrices: the share of the peak, and of each matrix its kernel and its share."""
    narrow, chunk = narrow_share(table, gpu), wide_chunk(table, gpu)
    if narrow is None or chunk is None:
        return None
    n_sm, flops, cycles, each = gpu["multiprocessors"], 0.0, 0.0, {}
    for rows, cols, fmt, count in matrices():
        if fmt != "nf4":
            continue
        tiles = -(-rows // WIDE["outputs"])
        n_tiles, n_narrow = (tiles * -(-PREFILL_ROWS // n) for n in (WIDE["rows"], NARROW_ROWS))
        is_wide = n_tiles * 2 >= n_sm
        tensor = 2 * rows * cols * PREFILL_ROWS / (TENSOR_FLOPS * n_sm)
        if is_wide:
            copied = PREFILL_ROWS * cols * 4 + rows * cols * (WEIGHT_BYTES[fmt] + 2)
            took = -(-n_tiles // n_sm) * wide_cycles(chunk, gpu, cols) + copied / gpu["bytes_per_s"] * gpu["hz"]
        else:
            took = -(-n_narrow // n_sm) * 2 * WIDE["outputs"] * NARROW_ROWS * cols / TENSOR_FLOPS / narrow["in_turn"]
        each[f"{rows} x {cols}"] = {"wide": is_wide, "share": tensor / took}
        flops, cycles = flops + tensor * count, cycles + took * count
    return {"share": flops / cycles, "rows": PREFILL_ROWS, "matrices": each, "narrow": narrow, "wide_chunk": chunk}


def loop_share(table, prefix):
    """Of the peak, by a main loop of mma.sync: the longest of tensor cores (at MMA_SHARE), issue slots and shared
    memory."""
    rows = [row for name, row in table.items() if name.startswith(prefix) and "loop_products" in row]
    if not rows:
        return None
    row = max(rows, key=lambda r: r["loop_products"])
    cycles = row["loop_products"] * 4096 / TENSOR_FLOPS
    return cycles / max(cycles / MMA_SHARE, row["loop_instructions"] / (4 * ISSUE_SHARE), row["loop_shared_cycles"])


def logit_rows():
    """Rows of the loss at once, which runtime/pass chooses."""
    source = (ROOT / "runtime/pass/pass_memory.c").read_text(encoding="utf-8")
    n_bytes = int(re.search(r"LOGIT_BYTES = INT64_C\((\d+)\) << 20", source).group(1)) << 20
    return max(int(re.search(r"DEVICE_LOGIT_ROWS = (\d+)", source).group(1)), n_bytes // (4 * SHAPE["vocab"]))


def head_parts(gpu, tokens):
    """The head in INT8, forward and backward, in seconds: products of cuBLASLt with the codes as a panel, filled anew
    for every so many rows and product; and the bytes of the logits between them."""
    s = SHAPE
    peak = TENSOR_FLOPS * gpu["hz"] * gpu["multiprocessors"]
    weights, logits = s["hidden"] * s["vocab"], tokens * s["vocab"]
    passes = 2 * -(-tokens // logit_rows())
    # F32: written by the product; read and written for the rows' factors; the loss reads them three times and writes
    # gradients; these are read to be rounded. 16 bits: written rounded, read and written scaled, read by the product.
    return {"head, products": 2 * 2 * weights * tokens / (CUBLASLT_SHARE * peak),
            "head, panels": passes * weights * (1 + 2 * 2) / gpu["bytes_per_s"],
            "head, logits": logits * (8 * 4 + 4 * 2) / gpu["bytes_per_s"]}


def adapter_cost(calls, n_in, n_out, backward, rank=16):
    """Bytes and operations a token that an adapter on a matrix of the 8B's size costs beside the matrix's own product.
    Factors and the rows between them are pairs of BF16: 2 · rank columns, or 3 · rank terms (lora_cublaslt.cu)."""
    if backward:  # h = x A and dh = dy B, then dh x and dy h; the terms of dx
        return calls * 4 * (n_in + n_out), calls * 2 * rank * (4 * (n_in + n_out) + 3 * n_in)
    products = calls * 2 * rank * (2 * n_in + 3 * n_out)
    if 2 * n_out > n_in:  # x is copied to where t can stand beside it, and read there; terms of y
        return calls * 6 * n_in, products
    return calls * (2 * n_in + 8 * n_out), products  # y is added to


def step_counts(ops):
    """Of a layer of the 8B, a token: weights of the matrices times how often each is multiplied; bytes and operations of
    adapters; bytes of attention's ops, and of all others."""
    wider, layers = SHAPE["hidden"] // TRAINED["hidden_size"], TRAINED["num_hidden_layers"]
    counts = dict.fromkeys(("weights", "adapter_bytes", "adapter_flops", "attention_bytes", "other_bytes"), 0.0)
    for op, sizes, calls, n_bytes in ops:
        a_token = n_bytes / TRAINED_TOKENS * wider / layers
        if op in ("linear", "linear_backward"):
            first, second = (size * wider for size in sizes)
            n_in, n_out = (first, second) if op == "linear" else (second, first)
            counts["weights"] += calls / layers * n_in * n_out
            cost = adapter_cost(calls / layers, n_in, n_out, op == "linear_backward")
            counts["adapter_bytes"] += cost[0]
            counts["adapter_flops"] += cost[1]
        elif op.startswith("attention_packed"):
            counts["attention_bytes"] += a_token
        else:
            counts["other_bytes"] += a_token
    return counts


def step_parts(table, gpu, ops, recomputed, tokens=4096):
    """A QLoRA step by part, in seconds: forward and dx; `recomputed`: layers forward again in between. `ops`: of
    recorded_training, by the same policy."""
    forwards = 2 if recomputed else 1
    s, c = SHAPE, step_counts(ops)
    q, kv = s["heads"] * s["head"], s["kv_heads"] * s["head"]
    peak = TENSOR_FLOPS * gpu["hz"] * gpu["multiprocessors"]
    rows = tokens * s["layers"]
    flash = 2 * s["heads"] * s["head"] * tokens * tokens / 2 * s["layers"]  # one product of causal attention
    forward, dq, dkv = (loop_share(table, f"attention_packed_{name}<{s['head']}, 2")  # 2: operands in BF16
                        for name in ("mma_kernel", "dq_mma_kernel", "dkv_mma_kernel"))
    # What is no op: the residual stream is kept before and after attention, and taken up again before layers are
    # computed again. Attention writes its operands as BF16, and reads them.
    streams = (2 * forwards + (1 if recomputed else 0)) * 8 * s["hidden"]
    operands = 4 * (forwards * (q + 2 * kv) + 2 * (q + kv))
    parts = {
        "linear": 2 * c["weights"] * rows / (CUBLASLT_SHARE * peak),
        "panels": c["weights"] * s["layers"] * (0.52 + 2 * 2) / gpu["bytes_per_s"],
        "lora": rows * (c["adapter_bytes"] / gpu["bytes_per_s"] + c["adapter_flops"] / (ADAPTER_SHARE * peak)),
        "elementwise": rows * (c["other_bytes"] + streams) / gpu["bytes_per_s"],
        **head_parts(gpu, tokens),
    }
    if forward and dq and dkv:
        parts["attention"] = (flash * (forwards * 2 / forward + 3 / dq + 4 / dkv) / peak
                              + rows * (c["attention_bytes"] + operands) / gpu["bytes_per_s"])
    return parts


def modelled(table, layer, step, training):
    n_layer, n_other = len(layer), len(step) - RECORDED["num_hidden_layers"] * len(layer)
    results = {}
    for name, gpu in GPUS.items():
        results[name] = {"decode": [decode(table, gpu, batch, n_layer, n_other) for batch in BATCHES],
                         "prefill": prefill(table, gpu),
                         "training_step_s": step_parts(table, gpu, training["full"], True),
                         "training_step_kept_s": step_parts(table, gpu, training["none"], False)}
    return results


# ---- Output ---------------------------------------------------------------------------------------------------------


def cell(row, key):
    value = row.get(key)
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def print_kernels(rows):
    keys = ["registers", "local_accesses", "shared_bytes", "blocks", "loop_instructions", "loop_products",
            "instructions_a_weight", "bytes_in_flight"]
    heads = ["registers", "local", "shared", "blocks/SM", "loop", "products", "instr./weight", "bytes in flight"]
    print(f"{'kernel':56s}" + "".join(f"{head:>16s}" for head in heads))
    for row in rows:
        print(f"{row['kernel'][:55]:56s}" + "".join(f"{cell(row, key):>16s}" for key in keys))


def print_model(results):
    print("\nBy the model in this script's head, NOT measured; 8B, NF4 twice quantised, head in INT8:")
    for name, result in results.items():
        for step in result["decode"]:
            bounds = ", ".join(f"{key} {value:.0%}" for key, value in step["bound_by"].items())
            print(f"{name}  decode, batch {step['batch']}: {step['tokens_per_s']:.0f} tokens/s, "
                  f"{step['share_of_bandwidth']:.0%} of the bandwidth ({step['linear_share_of_bandwidth']:.0%} in its "
                  f"matrices, which are bound by: {bounds}), {step['launches']} launches; bytes in flight: "
                  + ", ".join(f"{name} {n_bytes}" for name, n_bytes in step["bytes_in_flight"].items()))
        share = result["prefill"]
        if share:
            print(f"{name}  prefill of {share['rows']} rows: {share['share']:.0%} of the peak ("
                  + ", ".join(f"{key} {one['share']:.0%}" + ("" if one["wide"] else " narrow")
                              for key, one in share["matrices"].items())
                  + "); cycles of a chunk in wide tiles: "
                  + ", ".join(f"{key} {value:.0f}" for key, value in share["wide_chunk"].items())
                  + f"; narrow tiles {share['narrow']['in_turn']:.0%} to {share['narrow']['overlapped']:.0%}")
        for key, how in (("training_step_s", "layers recomputed"), ("training_step_kept_s", "nothing recomputed")):
            parts = result[key]
            print(f"{name}  QLoRA step of 4,096 tokens, {how}: {sum(parts.values()):.3f} s: "
                  + ", ".join(f"{part} {value * 1e3:.0f} ms" for part, value in parts.items()))


def main():
    options = arguments()
    options.nvcc, options.nvdisasm = tool("nvcc", options.nvcc), tool("nvdisasm", options.nvdisasm)
    if bool(options.qrun) != bool(options.simt):
        measuring.stop("--qrun and --simt go together")
    kernels = kernels_compiled(options)
    step = recorded_step(options) if options.qrun else []
    shared = {}
    for name, _, shared_bytes in step:
        shared[name] = max(shared_bytes, shared.get(name, 0))
    bytes_of_linear = {n_bytes for name, _, n_bytes in step if name == "linear_mma_kernel"}
    if step and shared_of_linear("linear_mma_kernel<of_bf16, nf4, 1, 1, 1>", (1, 1)) not in bytes_of_linear:
        measuring.stop("shared_of_linear is not mma_memory of linear_mma.cu any more")
    rows = [row_of(name, kernel, shared) for name, kernel in sorted(kernels.items())]
    table = {row["kernel"]: row for row in rows}
    layer = layer_of([name for name, _, _ in step], RECORDED["num_hidden_layers"])
    if step and layer.count("linear_mma_kernel") != sum(launch[3] == SHAPE["layers"] for launch in launches()):
        measuring.stop("launches() is not what a layer of a decode step launches any more")
    whole = {instance_name(launch, batch, 132) for launch in launches() for batch in BATCHES} <= table.keys()
    training = {policy: recorded_training(options.qrun, policy) for policy in ("full", "none")} if step else {}
    results = {"what": "by a model from machine code, not measured", "arch": options.arch, "kernels": rows,
               "layer": layer, "step_launches": len(step), "model": modelled(table, layer, step, training) if whole
               and step else None}
    if options.json and str(options.json) == "-":
        print(json.dumps(results, indent=1))
        return
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print_kernels(rows)
    if step:
        print(f"\nA decode step of one sequence: {len(step)} kernels, of which a layer has {len(layer)}: "
              + ", ".join(layer))
    if results["model"]:
        print_model(results["model"])


if __name__ == "__main__":
    main()
