"""bitsandbytes' quantisation in NumPy float32: what the CUDA kernels of bitsandbytes 0.50 compute, step by step.

bitsandbytes' CPU path differs from them in three places (nested 8-bit codes come from a coarse table; a block that
is cut short is divided by its absmax instead of multiplied by its reciprocal; an all-zero block packs to 0x77, not
0x00), so goldens of those come from here. Everything else is checked against bitsandbytes itself by bnb_goldens.py.

All arithmetic is IEEE float32, round to nearest, with denormals. The CUDA kernels are built with fast-math
reciprocals, which may be off by one unit in the last place; a code can only change where w/absmax is within that of
a midpoint.
"""
import numpy as np

F32 = np.float32

NF4_CODE = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], F32)

# The kernel's decimal constants as a compiler reads them, rounded once to float32. Three lie so close to the middle of
# two float32 numbers (the first, ninth and thirteenth) that Python's way, through float64, gives the other neighbour.
NF4_MIDPOINTS = np.array([
    0xbf591cd9, 0xbf1c5270, 0xbeeb8480, 0xbeadea76, 0xbe703cec, 0xbe0d38bc, 0xbd3a7871, 0x3d22faff,
    0x3df64863, 0x3e5067e0, 0x3e9582d4, 0x3ec753f9, 0x3f006d03, 0x3f248daf, 0x3f5c89d9], np.uint32).view(F32)

NESTED_BLOCK = 256


def _linspace(first, last, n):
    """torch.linspace in float32: counted from whichever end is nearer, with a fused multiply-add.

    float64 holds the product of a float32 step and a small integer exactly, so one rounding at the end is the fma.
    """
    step = np.float64((F32(last) - F32(first)) / F32(n - 1))
    i = np.arange(n)
    return np.where(i < n // 2, np.float64(F32(first)) + step * i, np.float64(last) - step * (n - 1 - i)).astype(F32)


def dynamic_map(signed):
    """The dynamic 8-bit map with 7 exponent bits: 256 float32 values, ascending."""
    values = [0.0, 1.0]
    for i in range(7):
        edges = _linspace(0.1, 1.0, 2 ** i + 1 if signed else 2 ** (i + 1) + 1)
        means = (edges[:-1] + edges[1:]) / F32(2.0) * F32(10.0 ** (i - 6))
        values += means.tolist() + ((-means).tolist() if signed else [])
    return np.array(sorted(values), F32)


def _blocks(x, block):
    """x padded with zeros to whole blocks, [n_blocks, block]."""
    n_blocks = -(-x.size // block)
    padded = np.zeros(n_blocks * block, F32)
    padded[:x.size] = x
    return padded.reshape(n_blocks, block)


def _scaled(x, block):
    """(x · (1/absmax) per block, flat and padded; absmax). 0 · (1/0) is NaN, as in the kernels."""
    blocks = _blocks(x, block)
    absmax = np.abs(blocks).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (blocks * (F32(1.0) / absmax)[:, None]).reshape(-1), absmax


def quantise_nf4(weight, block=64):
    """weight: float32 of any shape, read flat. Returns (packed U8 [ceil(n/2)], absmax F32 [ceil(n/block)])."""
    flat = weight.reshape(-1).astype(F32)
    scaled, absmax = _scaled(flat, block)
    codes = (scaled[:, None] > NF4_MIDPOINTS).sum(axis=1).astype(np.uint8)      # NaN compares false: code 0
    n_bytes = -(-flat.size // 2)
    return ((codes[0::2] << 4) | codes[1::2])[:n_bytes], absmax


def dequantise_nf4(packed, absmax, shape, block=64):
    """float32 code · absmax."""
    n = int(np.prod(shape))
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)[:n]
    return (NF4_CODE[codes] * np.repeat(absmax, block)[:n]).reshape(shape)


def nearest_codes(x, code):
    """The search of the CUDA kernel: halving steps from the middle, then the nearer of two neighbours.

    A tie takes the lower code when x lies above the pivot and the higher one when it lies below.
    """
    pivot = np.full(x.shape, 127)
    upper_pivot, lower_pivot = np.full(x.shape, 255), np.zeros(x.shape, int)
    upper, lower = np.full(x.shape, F32(1.0)), np.full(x.shape, F32(-1.0))
    value = code[pivot]
    for step in (64, 32, 16, 8, 4, 2, 1):
        above = x > value
        lower_pivot, lower = np.where(above, pivot, lower_pivot), np.where(above, value, lower)
        upper_pivot, upper = np.where(above, upper_pivot, pivot), np.where(above, upper, value)
        pivot = np.where(above, pivot + step, pivot - step)
        value = code[pivot]
    upper = np.where(upper_pivot == 255, code[255], upper)
    lower = np.where(lower_pivot == 0, code[0], lower)
    up = np.where(x > (upper + value) * F32(0.5), upper_pivot, pivot)
    down = np.where(x < (lower + value) * F32(0.5), lower_pivot, pivot)
    return np.where(x > value, up, down).astype(np.uint8)


def quantise_dynamic(x, code, block=NESTED_BLOCK):
    """Blockwise 8-bit quantisation with a dynamic map. Returns (codes U8 [n], absmax F32 [ceil(n/block)])."""
    scaled, absmax = _scaled(x.astype(F32), block)
    return nearest_codes(scaled[:x.size], code), absmax


def dequantise_dynamic(codes, absmax, code, block=NESTED_BLOCK):
    return code[codes] * np.repeat(absmax, block)[:codes.size]


def quantise_nested(absmax, offset):
    """Double quantisation of NF4 scales given the offset. Returns (codes, nested_absmax)."""
    return quantise_dynamic(absmax - F32(offset), dynamic_map(signed=True))


def dequantise_nested(codes, nested_absmax, offset):
    """The restored absmax, F32 [n_blocks]."""
    return dequantise_dynamic(codes, nested_absmax, dynamic_map(signed=True)) + F32(offset)


def quantise_int8(weight):
    """weight: float16 [out, in]. Returns (codes I8 [out, in], SCB F32 [out]): rint(w · (127 · (1/SCB))).

    The reciprocal is rounded before it is multiplied by 127, in PyTorch (which divides a number by a tensor so) and in
    the CUDA kernel (__fdividef) alike; float16 weights often fall on ties, where 127/SCB rounded once differs.
    """
    scb = np.abs(weight).max(axis=1).astype(F32)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = weight.astype(F32) * (F32(127.0) * (F32(1.0) / scb))[:, None]
    return np.rint(np.nan_to_num(scaled, nan=0.0)).astype(np.int8), scb


def dequantise_int8(codes, scb):
    """(q · SCB) · (1/127) in float32, in that order."""
    return codes.astype(F32) * scb[:, None] * F32(7.874015718698502e-3)
