#!/usr/bin/env python3
"""Writes the values that torch gives all codes of the floats of 8 bits, and those of E2M1 by its definition.

    python3 tests/golden/small_float_goldens.py
"""
import pathlib

import torch
from safetensors.torch import save_file

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "goldens"


def e2m1(code):
    """Sign, 2 bits of exponent with bias 1, 1 bit of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -size if code & 8 else size


def main():
    codes = torch.arange(256, dtype=torch.uint8)
    types = dict(F8_E4M3=torch.float8_e4m3fn, F8_E5M2=torch.float8_e5m2, F8_E8M0=torch.float8_e8m0fnu)
    values = {name: codes.view(dtype).to(torch.float32) for name, dtype in types.items()}
    save_file(values | dict(F4=torch.tensor([e2m1(code) for code in range(16)])), GOLDENS / "small_floats.safetensors")


if __name__ == "__main__":
    main()
