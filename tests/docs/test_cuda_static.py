"""bench/cuda_static.py: what it reads from a listing (cuda_static.sass), and what it prints of one small source.

    test_cuda_static.py SOURCE_FOLDER listing
    test_cuda_static.py SOURCE_FOLDER compiled     exit code 77 without nvcc or nvdisasm
    test_cuda_static.py SOURCE_FOLDER step QRUN LIBQRUN_CUDA_SIMT
"""

import argparse
import json
import pathlib
import subprocess
import sys


def check(value, wanted):
    if value != wanted:
        sys.exit(f"FAILED: {value!r} instead of {wanted!r}")


def listing(root):
    import cuda_static
    import sass
    kernels = sass.kernels_of((root / "tests/docs/cuda_static.sass").read_text(encoding="utf-8"))
    check(sorted(kernels), ["_Z3twov", "_Z4sumsv"])
    two, sums = kernels["_Z3twov"], kernels["_Z4sumsv"]
    check((two.registers, sums.registers), (77, 32))
    check((two.max_threads, sums.max_threads), (256, 0))
    check((two.local_accesses, sums.local_accesses), (2, 0))
    check(two.ahead_bytes, 24)  # before the wait, past the cache: 8 and 16
    check(sums.ahead_bytes, 0)
    check(sums.main_loop(), None)
    # The inner one of two loops around the same products, not the first one and not the outer one.
    loop = two.main_loop()
    check((loop.instructions, loop.products, loop.load_bytes), (8, 2, 9))
    check(loop.per_weight(256), 0.5)
    inner = two.main_loop(innermost=True)
    check((inner.instructions, inner.products), (8, 2))
    check([sass.shared_cycles_of(op) for op in ("LDSM.16.M88.4", "LDS.128", "LDS.U8", "STS.64", "LDG.E")],
          [4, 4, 1, 2, 0])
    # 77 registers are 80 as they are allocated: 25 warps, three blocks of eight.
    check(two.blocks_at_once(256, 0, 227 << 10), 3)
    check(two.blocks_at_once(256, 100 << 10, 227 << 10), 2)
    check(sums.blocks_at_once(1024, 0, 227 << 10), 2)

    check(cuda_static.layer_of(list("eabacabacabacns"), 3), list("abac"))
    check(cuda_static.layer_of(list("xyz"), 2), [])
    check(cuda_static.short_name("void linear_mma_kernel<of_bf16, (weights_path)0, 1, 4, (mma_matrices)3>"
                                 "(mma_group, nf4_book)"), "linear_mma_kernel<of_bf16, nf4, 1, 4, 3>")
    check(cuda_static.tiles_of("linear_mma_kernel<of_bf16, nf4, 2, 4, 1>"), (2, 4))
    check(cuda_static.staged_of("linear_staged_kernel<of_bf16, nf4, staged_shape<4, 2, 4> >"), (4, 2, 4))
    check([cuda_static.shape_for((rows, 4096, "nf4"), batch, 132)
           for rows, batch in ((4096, 1), (4096, 8), (1024, 8), (28672, 32), (4096, 32), (28672, 64), (4096, 64))],
          [(None, 1, 1), (None, 2, 1), (None, 1, 1), (4, 2, 4), (2, 1, 4), (8, 1, 8), (4, 1, 8)])
    check(sum(m[0] * m[1] * m[3] for m in cuda_static.matrices()), 7504658432)  # Llama-3.1-8B without its embedding
    check(sum(m[0] * m[1] * m[3] for m in cuda_static.launches()), 7504658432)
    check((cuda_static.NORM_ROWS, cuda_static.NORM_KEPT), (2, 4096))

    # Wide tiles where they fill half of the GPU: for all but k and v. What bounds a chunk bounds them.
    def prefill(instructions):
        return cuda_static.prefill({
            "linear_wgmma_kernel<of_bf16, nf4>": {"loop_products": 8, "loop_instructions": 512},
            "linear_wgmma_wide_kernel<of_bf16>": {"loop_products": 4, "loop_instructions": instructions}},
            cuda_static.GPUS["H100"])
    quick, slow = prefill(70), prefill(1700)
    check([name for name, one in quick["matrices"].items() if not one["wide"]], ["1024 x 4096"])
    check(quick["narrow"]["in_turn"], 0.5)
    check((quick["wide_chunk"]["tensor"], quick["wide_chunk"]["shared"]), (1024.0, 1024.0))
    check(max(quick["wide_chunk"], key=quick["wide_chunk"].get), "second cache")
    check(max(slow["wide_chunk"], key=slow["wide_chunk"].get), "issue")
    check(0.2 < slow["share"] < 0.3 < quick["share"], True)

    # Of the model: what bounds a matrix. Four times the instructions are four times the time where they bound it.
    gpu = cuda_static.GPUS["H100"]
    def table(per_weight, in_flight):
        return {"linear_mma_kernel<of_bf16, nf4, 1, 1, 1>": {"instructions_a_weight": per_weight, "blocks": 3,
                                                                 "shared_cycles_a_weight": 1 / 64,
                                                                 "bytes_in_flight": in_flight}}
    matrix = (132 * 48, 4096, "nf4", 1, "several", False)
    few = cuda_static.matrix_seconds(table(1.0, 1 << 16), gpu, matrix, 1)
    many = cuda_static.matrix_seconds(table(4.0, 1 << 14), gpu, matrix, 1)
    check(max(few, key=few.get), "bytes")
    check(round(many["issue"] / few["issue"], 6), 4.0)
    check(round(many["latency"] / few["latency"], 6), 4.0)
    # Of 32 rows, x is read once for each of 264 tiles of 128 outputs: half a byte a weight beside the codes.
    name = "linear_staged_kernel<of_bf16, nf4, staged_shape<4, 2, 4> >"
    half = table(1.0, 1 << 15) | {name: {"instructions_a_weight": 1.0, "blocks": 1, "shared_cycles_a_weight": 1 / 64,
                                         "bytes_in_flight": 1 << 15}}
    matrix = (132 * 256, 4096, "nf4", 1, "several", False)
    check(cuda_static.instance_name(matrix, 32, 132), name)
    seconds = cuda_static.matrix_seconds(half, gpu, matrix, 32)
    check(round(seconds["second cache"] * cuda_static.L2_BYTES_PER_S / (matrix[0] * matrix[1]), 3),
          round(0.5 + cuda_static.WEIGHT_BYTES["nf4"], 3))

    # Of training: an adapter on a wide output joins the product, one on a narrow output is added to it.
    check(cuda_static.adapter_cost(1, 4096, 14336, False), (6 * 4096, 32 * (2 * 4096 + 3 * 14336)))
    check(cuda_static.adapter_cost(2, 14336, 4096, False)[0], 2 * (2 * 14336 + 8 * 4096))
    check(cuda_static.adapter_cost(1, 4096, 14336, True)[0], 4 * (4096 + 14336))
    counts = cuda_static.step_counts([("linear", [512, 1792], 4, 1.0), ("linear_backward", [1792, 512], 2, 1.0),
                                      ("gate", [1792], 4, 128.0 * 1792 * 10 * 4),
                                      ("attention_packed", [128, 512], 2, 256.0)])
    check(counts["weights"], 3.0 * 4096 * 14336)
    check((counts["other_bytes"], counts["attention_bytes"]), (2.0 * 14336 * 10, 8.0))


def compiled(root):
    source = root / "kernels/cuda/attention/kv.cu"
    done = subprocess.run([sys.executable, root / "bench/cuda_static.py", source, "--json", "-"], capture_output=True,
                          text=True, check=False)
    if done.returncode == 77:
        print(f"skipped: {done.stderr.strip()}")
        sys.exit(77)
    check(done.stderr, "")
    result = json.loads(done.stdout)
    check(result["model"], None)
    names = [row["kernel"] for row in result["kernels"]]
    if not any("kv_write_kernel" in name for name in names):
        sys.exit(f"FAILED: no kv_write_kernel among {names}")
    for row in result["kernels"]:
        check((0 < row["registers"] < 256, row["local_accesses"]), (True, 0))


def step(qrun, simt):
    import cuda_static
    launches = cuda_static.recorded_step(argparse.Namespace(qrun=pathlib.Path(qrun), simt=pathlib.Path(simt)))
    names = [name for name, _, _ in launches]
    layer = cuda_static.layer_of(names, cuda_static.RECORDED["num_hidden_layers"])
    # The norm with q, k and v, their rotation and pages; attention; o; the norm with gate, up and activation; down.
    check(layer, ["linear_mma_kernel", "attention_mma_kernel"] + 3 * ["linear_mma_kernel"])
    check(names.count("attention_mma_kernel"), 3 * layer.count("attention_mma_kernel"))
    check(names.count("linear_mma_kernel"), 3 * layer.count("linear_mma_kernel") + 1)  # and the head
    own = cuda_static.shared_of_linear("linear_mma_kernel<of_bf16, nf4, 1, 1, 1>", (1, 1))
    x = cuda_static.RECORDED["hidden_size"] * 2  # of a row that the kernel norms
    check({n for name, _, n in launches[:-1] if name == "linear_mma_kernel"} >= {own, own + x}, True)
    # Each matrix of a layer is multiplied forward and for dx, and again where the layer is recomputed, but for down.
    layer, down = 2 * 4096 * 5120 + 3 * 4096 * 14336, 4096 * 14336
    for policy, weights in (("none", 2 * layer), ("full", 3 * layer - down)):
        check(cuda_static.step_counts(cuda_static.recorded_training(qrun, policy))["weights"], float(weights))
    check(names[0], "embedding_kernel")
    check(names[-1], "sample_choose_kernel")


def main():
    root = pathlib.Path(sys.argv[1])
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root / "bench"))
    {"listing": lambda: listing(root), "compiled": lambda: compiled(root), "step": lambda: step(*sys.argv[3:5])}[
        sys.argv[2]]()


main()
