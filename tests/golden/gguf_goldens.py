"""Blocks of GGML and what the Python package gguf makes of them, for test_ggml: every type that qrun reads.

    python3 tests/golden/gguf_goldens.py    # needs gguf, numpy and safetensors from PyPI

Writes tests/fixtures/goldens/ggml.safetensors: "<type>.blocks" (U8) and "<type>.values" (F32); for the types that qrun
writes also "<type>.source" (F32) and "<type>.encoded" (U8). The blocks are random bytes with scales of all kinds:
zero, subnormal, negative, large.
"""
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"]
# Where a block has its 16-bit scales.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "IQ4_NL": [0], "MXFP4": []}
OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "goldens" / "ggml.safetensors"


def random_blocks(rng, name, n_blocks, n_bytes):
    blocks = rng.integers(0, 256, (n_blocks, n_bytes), dtype=np.uint8)
    for offset in SCALES[name]:
        scales = (rng.standard_normal(n_blocks) * 10.0 ** rng.integers(-7, 4, n_blocks)).astype(np.float16)
        scales[0] = 0
        blocks[:, offset:offset + 2] = scales.reshape(-1, 1).view(np.uint8)
    if name == "MXFP4":
        blocks[:4, 0] = [0, 1, 2, 254]  # powers of two at the ends: two are subnormal
    return blocks


def sources(rng, n_blocks):
    """Values to encode: of all magnitudes, a block of zeros, ties, one with a single value."""
    values = (rng.standard_normal((n_blocks, 32)) * 10.0 ** rng.integers(-6, 4, (n_blocks, 1))).astype(np.float32)
    values[0] = 0
    values[1] = np.arange(32) - 16
    values[2] = 0
    values[2, 7] = -3
    values[3] = -values[1]
    return values


def main():
    rng = np.random.default_rng(20)
    tensors = {}
    for name in TYPES:
        dtype = gguf.GGMLQuantizationType[name]
        n_elements, n_bytes = gguf.GGML_QUANT_SIZES[dtype]
        blocks = random_blocks(rng, name, 12 if n_elements == 32 else 5, n_bytes)
        tensors[f"{name}.blocks"] = blocks
        tensors[f"{name}.values"] = gguf.dequantize(blocks, dtype)
        if name in ("Q8_0", "Q4_0"):
            source = sources(rng, 16)
            tensors[f"{name}.source"] = source
            tensors[f"{name}.encoded"] = gguf.quantize(source, dtype)
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, OUT)


if __name__ == "__main__":
    main()
