"""Which of the differences between bitsandbytes' CUDA and CPU steps of 8-bit AdamW moves a loss, and by how much.

    python3 tests/golden/compare_adamw8bit_rules.py

The CUDA step is reference_adamw8bit.py's, which the engine follows. Here a small network is trained with it, in F32,
and again with one rule at a time taken from the CPU step of bitsandbytes 0.50 (`_optimizer_update_8bit_blockwise_cpu`),
whose own quantiser is called; last with all of them. Needs NumPy and bitsandbytes' CPU library, not PyTorch.
"""
import ctypes
import importlib.util
import pathlib

import numpy as np

import reference_adamw8bit as adamw
import reference_quant as ref

F32 = np.float32
N_STEPS, LR, BETAS, EPS, WEIGHT_DECAY = 100, 2e-3, (0.9, 0.999), 1e-8, 0.01
SHOWN = (2, 5, 10, 20, 50, 100)

RULES = {
    "table": "codes from a table of 65,536 bins instead of the nearest code",
    "sign": "no correction of the sign of m's code",
    "decay": "weights decay before the update instead of after it",
    "doubles": "1 - beta, the corrections and lr / correction in F64",
}


def cpu_quantiser():
    folder = pathlib.Path(importlib.util.find_spec("bitsandbytes").submodule_search_locations[0])
    function = ctypes.CDLL(str(folder / "libbitsandbytes_cpu.so")).cquantize_blockwise_cpu_fp32
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong] * 2

    def quantise(values, code_map):
        values, code_map = np.ascontiguousarray(values, F32), np.ascontiguousarray(code_map, F32)
        codes, absmax = np.zeros(values.size, np.uint8), np.zeros(-(-values.size // adamw.BLOCK), F32)
        function(*(a.ctypes.data for a in (code_map, values, absmax, codes)), adamw.BLOCK, values.size)
        return codes, absmax

    return quantise


def step(p, g, state, t, rules, quantise):
    """As reference_adamw8bit.step_8bit for finite gradients, with these rules of the CPU."""
    m_codes, v_codes, m_absmax, v_absmax = state
    real = np.float64 if "doubles" in rules else F32
    beta1, beta2, lr = (real(x) for x in (*BETAS, LR))
    m = ref.dequantise_dynamic(m_codes, m_absmax, adamw.MAP_M, adamw.BLOCK)
    v = ref.dequantise_dynamic(v_codes, v_absmax, adamw.MAP_V, adamw.BLOCK)
    m = (m * F32(beta1) + F32(1 - beta1) * g).astype(F32)
    v = (v * F32(beta2) + F32(1 - beta2) * g * g).astype(F32)
    decayed = F32(1 - lr * real(WEIGHT_DECAY))
    if "decay" in rules:
        p = p * decayed
    if "doubles" in rules:
        correction1, correction2 = 1 - beta1 ** t, np.sqrt(1 - beta2 ** t)
        p = p + F32(-lr / correction1) * (m / (np.sqrt(v) / F32(correction2) + F32(EPS)))
    else:
        _, correction2, step_size = adamw.constants(t, LR, *BETAS)
        p = p + step_size * (m / (np.sqrt(v) + correction2 * F32(EPS)))
    if "decay" not in rules:
        p = p * decayed
    nearest = quantise if "table" in rules else adamw._requantise
    new_m, m_absmax = nearest(m, adamw.MAP_M)
    new_v, v_absmax = nearest(v, adamw.MAP_V)
    if "sign" not in rules:
        new_m = adamw._keep_sign(new_m, m)
    return p.astype(F32), (new_m, new_v, m_absmax, v_absmax)


def fresh_state(n):
    blocks = -(-n // adamw.BLOCK)
    return np.zeros(n, np.uint8), np.zeros(n, np.uint8), np.zeros(blocks, F32), np.zeros(blocks, F32)


def train(rules, quantise, seed):
    """Losses of a network [64, 128, 64] that learns another one's choices; batches and start depend on the seed."""
    random = np.random.default_rng(seed)
    shapes = ((64, 128), (128, 64))
    teacher = [random.standard_normal(s).astype(F32) for s in shapes]
    weights = [(random.standard_normal(s) / np.sqrt(s[0])).astype(F32) for s in shapes]
    states = [fresh_state(w.size) for w in weights]
    losses = []
    for t in range(1, N_STEPS + 1):
        x = random.standard_normal((256, 64)).astype(F32)
        wanted = np.argmax(np.maximum(x @ teacher[0], 0) @ teacher[1], axis=1)
        hidden = np.maximum(x @ weights[0], 0)
        logits = hidden @ weights[1]
        logits = logits - logits.max(axis=1, keepdims=True)
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        rows = np.arange(len(x))
        losses.append(float(-np.log(chances[rows, wanted].astype(np.float64)).mean()))
        chances[rows, wanted] -= 1
        d_logits = (chances / len(x)).astype(F32)
        gradients = [x.T @ ((d_logits @ weights[1].T) * (hidden > 0)), hidden.T @ d_logits]
        for i, g in enumerate(gradients):
            p, states[i] = step(weights[i].reshape(-1), g.reshape(-1).astype(F32), states[i], t, rules, quantise)
            weights[i] = p.reshape(weights[i].shape)
    return np.array(losses)


def main():
    quantise, seeds = cpu_quantiser(), range(3)
    base = [train((), quantise, seed) for seed in seeds]
    print(f"loss {base[0][0]:.3f} to {base[0][-1]:.3f}; the largest relative difference up to step … of {len(seeds)} runs")
    print("".join([f"{'rules of the CPU':18}", *(f"{n:>10}" for n in SHOWN)]))
    for rules in [(name,) for name in RULES] + [tuple(RULES)]:
        differences = [np.abs(train(rules, quantise, seed) / base[seed] - 1) for seed in seeds]
        shown = "".join(f"{max(d[:n].max() for d in differences):10.1e}" for n in SHOWN)
        print(f"{rules[0] if len(rules) == 1 else 'all of them':18}{shown}")
    for name, meaning in RULES.items():
        print(f"  {name}: {meaning}")


if __name__ == "__main__":
    main()
