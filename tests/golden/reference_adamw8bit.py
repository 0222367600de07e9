"""One step of bitsandbytes' 8-bit AdamW in NumPy float32, operation by operation as its CUDA kernels write it.

Every operation is IEEE float32, rounded to nearest, without fused multiply-adds. bitsandbytes compiles the kernels with
fast-math (fused, approximate division and power, denormals flushed), so a state byte of a GPU may differ from here
where a value lies within a few units of the last place of a midpoint. Blocks are 256 elements of the flat tensor. Both
states start as all-zero bytes with absmax 0; elements that the kernel pads its last block with do not exist here.
"""
import numpy as np

import reference_quant as ref

F32 = np.float32
BLOCK = 256
LEAST_8BIT = 4096       # tensors of fewer elements keep 32-bit states
ZERO_CODE = 127         # of the signed map
MAP_M, MAP_V = ref.dynamic_map(signed=True), ref.dynamic_map(signed=False)


def constants(step, lr, beta1, beta2):
    """(correction1, correction2, step_size) of a step counted from 1; powers in float64 of the float32 betas."""
    correction1 = F32(1) - F32(np.float64(F32(beta1)) ** step)
    correction2 = np.sqrt(F32(1) - F32(np.float64(F32(beta2)) ** step))
    return correction1, correction2, (-F32(lr) * correction2) / correction1


def _requantise(values, code_map):
    """(codes, absmax) of float32 values: value / absmax, then the nearest code; a block of zeros gives NaN, code 0."""
    n_blocks = -(-values.size // BLOCK)
    padded = np.zeros(n_blocks * BLOCK, F32)
    padded[:values.size] = values
    absmax = np.abs(padded).reshape(n_blocks, BLOCK).max(axis=1)
    with np.errstate(invalid="ignore"):
        scaled = values / np.repeat(absmax, BLOCK)[:values.size]
    return ref.nearest_codes(scaled, code_map), absmax


def _keep_sign(codes, m):
    """Moves a code by one where its sign differs from m's. In a block of zeros that wraps 0 round to 255."""
    differs = np.signbit(MAP_M[codes]) != np.signbit(m)
    return np.where(differs, np.where(m > 0, codes + np.uint8(1), codes - np.uint8(1)), codes).astype(np.uint8)


def step_8bit(p, g, state, step, lr, beta1, beta2, eps, weight_decay, grad_scale):
    """New (p, state) of a flat float32 tensor; state is (m codes, v codes, m absmax, v absmax).

    A gradient that is not finite leaves its parameter alone, without decay, and sets its m and v to zero.
    """
    m_codes, v_codes, m_absmax, v_absmax = state
    beta1, beta2, lr = F32(beta1), F32(beta2), F32(lr)
    correction1, correction2, step_size = constants(step, lr, beta1, beta2)
    finite = np.isfinite(g)
    scaled = np.where(finite, g, F32(0)) * F32(grad_scale)

    v = ref.dequantise_dynamic(v_codes, v_absmax, MAP_V, BLOCK)
    v = v * beta2 + ((F32(1) - beta2) * scaled) * scaled
    m = ref.dequantise_dynamic(m_codes, m_absmax, MAP_M, BLOCK)
    m = m * beta1 + (F32(1) - beta1) * scaled
    m, v = np.where(finite, m, F32(0)), np.where(finite, v, F32(0))

    updated = p + step_size * (m / (np.sqrt(v) + correction2 * F32(eps)))
    if weight_decay > 0:
        updated = updated * (F32(1) - lr * F32(weight_decay))

    new_m, m_absmax = _requantise(m, MAP_M)
    new_v, v_absmax = _requantise(v, MAP_V)
    return np.where(finite, updated, p), (_keep_sign(new_m, m), new_v, m_absmax, v_absmax)


def step_32bit(p, g, state, step, lr, beta1, beta2, eps, weight_decay, grad_scale):
    """The same for tensors under LEAST_8BIT elements; state is (m, v) in float32. Non-finite gradients are not tested."""
    m, v = state
    beta1, beta2, lr = F32(beta1), F32(beta2), F32(lr)
    _, correction2, step_size = constants(step, lr, beta1, beta2)
    scaled = F32(grad_scale) * g
    m = m * beta1 + (F32(1) - beta1) * scaled
    v = v * beta2 + (F32(1) - beta2) * (scaled * scaled)
    updated = p + step_size * (m / (np.sqrt(v) + F32(eps) * correction2))
    if weight_decay > 0:
        updated = updated * (F32(1) - lr * F32(weight_decay))
    return updated, (m, v)


def initial_state(n):
    """The state before the first step: 8-bit, or 32-bit for a small tensor."""
    if n < LEAST_8BIT:
        return np.zeros(n, F32), np.zeros(n, F32)
    n_blocks = -(-n // BLOCK)
    return (np.zeros(n, np.uint8), np.zeros(n, np.uint8), np.zeros(n_blocks, F32), np.zeros(n_blocks, F32))


def adamw_step(p, g, state, *options):
    return (step_32bit if p.size < LEAST_8BIT else step_8bit)(p, g, state, *options)
