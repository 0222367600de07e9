"""Ten steps of 8-bit AdamW on gradients that any language can make: parameters and state bytes after each step."""
from dataclasses import dataclass

import bitsandbytes.functional as bnb
import numpy as np
import torch
from safetensors.torch import save_file

import reference_adamw8bit as adamw
from bnb_goldens import fnv1a64

N_STEPS = 10
BETAS, EPS = (0.9, 0.999), 1e-8
STATE_NAMES = {2: ("m", "v"), 4: ("m", "v", "m_absmax", "v_absmax")}


@dataclass(frozen=True)
class Case:
    name: str
    n: int
    seed: int
    covers: str
    lr: float = 1e-2
    weight_decay: float = 0.01
    grad_scale: float = 1.0
    zeros: tuple = ()           # [first, end) of elements whose gradient is always +0
    non_finite: tuple = ()      # (step, element, value)
    stored_steps: tuple = (N_STEPS,)


CASES = [
    Case("whole-blocks", 4096, 1, "sixteen whole blocks, the smallest tensor with 8-bit states"),
    Case("odd", 5000, 2, "a short last block, an all-zero block, zeros in a block, non-finite gradients, grad_scale",
         lr=3e-3, grad_scale=0.37, zeros=((512, 768), (1000, 1013)),
         non_finite=((2, 5, "nan"), (2, 4999, "inf"), (7, 1500, "-inf"), (9, 600, "nan")), stored_steps=(1, N_STEPS)),
    Case("large", 65536 + 13, 3, "many blocks, no weight decay: checksums only", weight_decay=0.0, stored_steps=()),
    Case("small", 4095, 4, "one element too few: 32-bit states"),
]


def numbers(seed, step, n):
    """float32 [n] without rounding: splitmix64 of a counter gives 24 bits of sign and fraction and a power of two."""
    with np.errstate(over="ignore"):
        z = ((np.uint64(seed) << np.uint64(48)) + (np.uint64(step) << np.uint64(40)) + np.arange(n, dtype=np.uint64)
             + np.uint64(1)) * np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        z = z ^ (z >> np.uint64(31))
    fraction = (z >> np.uint64(40)).astype(np.int64) - 2 ** 23
    return np.ldexp(fraction.astype(np.float32), -23 - (z & np.uint64(7)).astype(np.int32))


def gradient(case, step):
    g = numbers(case.seed, step, case.n)
    for first, end in case.zeros:
        g[first:end] = 0.0
    for at, element, value in case.non_finite:
        if at == step:
            g[element] = float(value)
    return g


def _check_first_step(case, g, state):
    """bitsandbytes' CPU path shares the rules of the first step, but finds codes through a table of 65,536 bins and
    computes 1 − β in float64: its codes are neighbours of ours, or within a bin of them."""
    if case.non_finite or case.n < adamw.LEAST_8BIT:
        return
    p, n_blocks = torch.from_numpy(numbers(case.seed, 0, case.n)), -(-case.n // adamw.BLOCK)
    codes = [torch.zeros(case.n, dtype=torch.uint8) for _ in range(2)]
    absmax = [torch.zeros(n_blocks) for _ in range(2)]
    maps = (adamw.MAP_M, adamw.MAP_V)
    bnb.optimizer_update_8bit_blockwise(
        "adam", torch.from_numpy(g), p, *codes, *BETAS, 0.0, 0.0, EPS, 1, case.lr, *map(torch.from_numpy, maps),
        *absmax, 0.0, case.grad_scale)
    for i, code_map in enumerate(maps):
        ours, theirs = state[i].astype(int), codes[i].numpy().astype(int)
        near = (np.abs(ours - theirs) <= 1) | (np.abs(code_map[ours] - code_map[theirs]) <= 2 ** -15)
        if not near.all() or not np.allclose(state[2 + i], absmax[i].numpy(), rtol=2e-5, atol=0):
            raise SystemExit(f"{case.name}: bitsandbytes' states are far from reference_adamw8bit.py's")


def make_adamw8bit(case, root):
    """Writes the stored steps; returns the index entry."""
    p, state = numbers(case.seed, 0, case.n), adamw.initial_state(case.n)
    names = ("p", *STATE_NAMES[len(state)])
    tensors, steps = {}, []
    for step in range(1, N_STEPS + 1):
        g = gradient(case, step)
        p, state = adamw.adamw_step(p, g, state, step, case.lr, *BETAS, EPS, case.weight_decay, case.grad_scale)
        if step == 1:
            _check_first_step(case, g, state)
        values = dict(zip(names, (p, *state)))
        constants = adamw.constants(step, case.lr, *BETAS)
        steps.append({
            "correction1": float(constants[0]), "correction2": float(constants[1]), "step_size": float(constants[2]),
            "gradient_fnv1a64": fnv1a64(g.tobytes()),
            "fnv1a64": {name: fnv1a64(value.tobytes()) for name, value in values.items()},
        })
        if step in case.stored_steps:
            tensors |= {f"{name}.{step}": torch.from_numpy(value.copy()) for name, value in values.items()}
    path = f"training/adamw8bit/{case.name}.safetensors" if tensors else None
    if path:
        save_file(tensors, root / path)
    return {
        "name": case.name, "covers": case.covers, "n": case.n, "seed": case.seed, "lr": case.lr, "beta1": BETAS[0],
        "beta2": BETAS[1], "eps": EPS, "weight_decay": case.weight_decay, "grad_scale": case.grad_scale,
        "zeros": case.zeros, "non_finite": case.non_finite, "bits": 32 if len(state) == 2 else 8, "states": path,
        "stored_steps": case.stored_steps, "steps": steps,
    }
