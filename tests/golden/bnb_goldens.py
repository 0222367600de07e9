"""bitsandbytes goldens: single matrices quantised every way, and whole folders quantised by transformers."""
import shutil

import bitsandbytes.functional as bnb
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import reference_quant as ref
from model_goldens import golden_prompts, load, logits_of, normal, recorded_rows

PROMPT_LENGTHS = (7, 33)

# The CPU path computes its midpoints; four come out one unit beside the constants in the CUDA kernel. The larger of the
# two numbers is where the codes differ, because a value must exceed the midpoint.
CPU_MIDPOINTS = (ref.NF4_CODE[:-1] + ref.NF4_CODE[1:]) / np.float32(2.0)
LARGER_MIDPOINTS = np.maximum(CPU_MIDPOINTS, ref.NF4_MIDPOINTS)[CPU_MIDPOINTS != ref.NF4_MIDPOINTS]


def _zero_block_weight():
    weight = normal((4, 80), 0.1, "zero-block")
    weight.view(-1)[64:128] = 0.0       # a whole block
    weight.view(-1)[200:210] = -0.0
    return weight


def _zero_tail_weight():
    weight = normal((3, 43), 0.1, "zero-tail")
    weight.view(-1)[128:] = 0.0         # the one element of the last block
    return weight


def _extreme_weight():
    """Blocks of 64 at the ends of the float32 range, with one non-zero element, and negative throughout."""
    weight = normal((6, 64), 1.0, "extreme")
    weight[0] *= 1e37 / weight[0].abs().max()
    weight[1] *= 1e-36
    weight[2] = 0.0
    weight[2, 17] = -3.0
    weight[3] = -weight[3].abs() - 0.5
    weight[4] = 0.75                    # every element is the absmax
    weight[5, ::2] *= 1e-20
    return weight


def _tie_weight():
    """Block 0: each midpoint exactly and its two neighbours, absmax 1. Block 1: the same, negated, absmax 1."""
    middle = torch.from_numpy(ref.NF4_MIDPOINTS)
    up, down = torch.nextafter(middle, torch.tensor(2.0)), torch.nextafter(middle, torch.tensor(-2.0))
    block = torch.zeros(64)
    block[:45] = torch.cat([middle, up, down])
    block[45] = 1.0
    return torch.stack([block, -block])


# name: (weight, dtype, block size)
def _matrices():
    def random(name, shape):
        return normal(shape, 0.05, "matrix", name)
    return {
        "whole-blocks": (random("whole-blocks", (32, 64)), torch.bfloat16, 64),
        "straddling": (random("straddling", (7, 172)), torch.float16, 64),
        "odd-count": (random("odd-count", (5, 13)), torch.float32, 64),
        "one-short-block": (random("one-short-block", (3, 5)), torch.bfloat16, 64),
        "zero-block": (_zero_block_weight(), torch.bfloat16, 64),
        "zero-tail": (_zero_tail_weight(), torch.float32, 64),
        "extreme": (_extreme_weight(), torch.float32, 64),
        "ties": (_tie_weight(), torch.float32, 64),
        "block-32": (random("block-32", (5, 52)), torch.bfloat16, 32),
        "block-256": (random("block-256", (9, 172)), torch.float16, 256),
        "two-nested-blocks": (random("two-nested-blocks", (100, 172)), torch.bfloat16, 64),
    }


def _require(condition, name, what):
    if not condition:
        raise SystemExit(f"{name}: bitsandbytes and reference_quant.py differ in {what}")


def _bnb_dequantise_nf4(packed, state, shape, dtype):
    """bitsandbytes' dequantised weight, [out, in] in `dtype`.

    The weight is passed off as one column: an odd last dimension makes bitsandbytes take its generic implementation.
    The AVX-512 kernel for even ones takes wrong scales when the row length is a multiple of 16 but not of 64.
    """
    state.dtype, state.shape = dtype, torch.Size((int(np.prod(shape)), 1))
    return bnb.dequantize_4bit(packed, state).reshape(shape)


def _unpacked(packed):
    return np.stack([packed >> 4, packed & 15], axis=1).reshape(-1).astype(int)


def _check_nf4(name, weight, block, packed, absmax):
    """bitsandbytes' CPU path must agree, but for the deviations that README.md lists."""
    theirs, state = bnb.quantize_4bit(weight, quant_type="nf4", blocksize=block)
    n = weight.numel()
    off_by = np.abs(_unpacked(theirs.numpy().reshape(-1)) - _unpacked(packed))[:n]
    scale = np.repeat(absmax, block)[:n]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = weight.float().numpy().reshape(-1) * (np.float32(1.0) / scale)
    exempt = (scale == 0) | np.isin(scaled, LARGER_MIDPOINTS)
    whole = np.arange(n) < n // block * block
    _require((off_by[whole & ~exempt] == 0).all(), name, "codes")
    _require((off_by[~exempt] <= 1).all(), name, "the codes of the last block")
    nonzero = absmax != 0
    _require(np.array_equal(state.absmax.numpy()[nonzero], absmax[nonzero]), name, "absmax")
    for dtype in (torch.float32, torch.bfloat16):
        state.absmax = torch.from_numpy(absmax)
        dequantised = _bnb_dequantise_nf4(torch.from_numpy(packed)[:, None], state, tuple(weight.shape), dtype)
        ours = torch.from_numpy(ref.dequantise_nf4(packed, absmax, tuple(weight.shape), block)).to(dtype)
        _require(torch.equal(dequantised, ours), name, f"dequantised {dtype}")


def _check_nested(name, absmax, offset, codes, nested_absmax):
    """The scales must be equal; the CPU's codes come from a coarse table, so a few may be one off."""
    theirs, state = bnb.quantize_blockwise(torch.from_numpy(absmax) - offset, blocksize=ref.NESTED_BLOCK)
    _require(np.array_equal(state.absmax.numpy(), nested_absmax), name, "nested_absmax")
    off_by = np.abs(theirs.numpy().astype(int) - codes.astype(int))
    _require(off_by.max() <= 1 and off_by.mean() <= 0.02, name, "nested codes")
    restored = bnb.dequantize_blockwise(torch.from_numpy(codes), state) + offset
    _require(np.array_equal(restored.numpy(), ref.dequantise_nested(codes, nested_absmax, offset.item())),
             name, "restored absmax")


def _int8_tensors(name, weight):
    """LLM.int8 of the weight cast to float16; nothing where the cast overflows."""
    half = weight.half()
    if not torch.isfinite(half).all():
        return {}
    codes, scb = ref.quantise_int8(half.numpy())
    theirs, their_scb, _ = bnb.int8_vectorwise_quant(half)
    _require(np.array_equal(theirs.numpy(), codes) and np.array_equal(their_scb.numpy(), scb), name, "int8 codes")
    dequantised = ref.dequantise_int8(codes, scb)
    _require(np.array_equal(torch.ops.bitsandbytes.int8_vectorwise_dequant(theirs, their_scb).numpy(), dequantised),
             name, "dequantised int8")
    return {"int8": codes, "scb": scb, "int8_dequantised_f32": dequantised}


def _matrix_tensors(name, weight, block):
    values = weight.float().numpy()
    packed, absmax = ref.quantise_nf4(values, block)
    _check_nf4(name, weight, block, packed, absmax)
    offset = torch.from_numpy(absmax).mean()
    nested_codes, nested_absmax = ref.quantise_nested(absmax, offset.item())
    _check_nested(name, absmax, offset, nested_codes, nested_absmax)
    dequantised = ref.dequantise_nf4(packed, absmax, values.shape, block)
    arrays = {
        "packed": packed,
        "absmax": absmax,
        "dequantised_f32": dequantised,
        "nested_offset": offset.numpy().reshape(1),
        "nested_codes": nested_codes,
        "nested_absmax": nested_absmax,
        "nested_restored_absmax": ref.dequantise_nested(nested_codes, nested_absmax, offset.item()),
    } | _int8_tensors(name, weight)
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    return tensors | {"weight": weight, "dequantised_bf16": tensors["dequantised_f32"].bfloat16()}


def make_matrix_goldens(root):
    """All matrices in one file; returns the index entries."""
    maps = {f"dynamic_map.{kind}": ref.dynamic_map(kind == "signed") for kind in ("signed", "unsigned")}
    for kind in ("signed", "unsigned"):
        _require(np.array_equal(bnb.create_dynamic_map(kind == "signed").numpy(), maps[f"dynamic_map.{kind}"]),
                 kind, "the dynamic map")
    _require(np.array_equal(bnb.get_4bit_type("nf4", device="cpu").numpy(), ref.NF4_CODE), "nf4", "the code")
    tensors = {key: torch.from_numpy(value) for key, value in maps.items()}
    tensors["nf4_code"] = torch.from_numpy(ref.NF4_CODE)
    entries = []
    for name, (weight, dtype, block) in _matrices().items():
        weight = weight.to(dtype).contiguous()
        matrix = _matrix_tensors(name, weight, block)
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in matrix.items()}
        entries.append({
            "name": name,
            "goldens": "goldens/bitsandbytes.safetensors",
            "shape": list(weight.shape),
            "dtype": str(dtype).removeprefix("torch."),
            "blocksize": block,
            "zero_blocks": (matrix["absmax"] == 0).nonzero().reshape(-1).tolist(),
            "int8": "int8" in matrix,
        })
    save_file(tensors, root / "goldens" / "bitsandbytes.safetensors")
    return entries


FOLDERS = {
    # name: (base, quantisation_config options)
    "llama-nf4": ("llama", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                bnb_4bit_compute_dtype=torch.bfloat16)),
    "llama-nf4-dq": ("llama", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                   bnb_4bit_compute_dtype=torch.bfloat16)),
    "llama-int8": ("llama", dict(load_in_8bit=True)),
    "gpt2-nf4": ("gpt2", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)),
    "gpt2-int8": ("gpt2", dict(load_in_8bit=True)),
    "lfm2-nf4": ("lfm2", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)),
}


def fnv1a64(data):
    """FNV-1a over the bytes, 64 bits, as 16 hexadecimal digits: a few lines in any language."""
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def _dequantised_modules(name, stored):
    """{module: float32 [out, in]} of every quantised module of a folder, checked against bitsandbytes."""
    modules = {}
    for key in stored:
        if key.endswith(".SCB"):
            module = key.removesuffix(".SCB")
            codes, scb = stored[f"{module}.weight"], stored[key]
            theirs = torch.ops.bitsandbytes.int8_vectorwise_dequant(codes, scb)
            ours = ref.dequantise_int8(codes.numpy(), scb.numpy())
        elif key.endswith(".weight.absmax"):
            module = key.removesuffix(".weight.absmax")
            prefix = f"{module}.weight."
            packed = stored[f"{module}.weight"]
            parts = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
            state = bnb.QuantState.from_dict(parts, torch.device("cpu"))
            shape, absmax = tuple(state.shape), state.absmax.numpy()
            theirs = _bnb_dequantise_nf4(packed, state, shape, torch.float32)
            if state.nested:
                absmax = ref.dequantise_nested(absmax, state.state2.absmax.numpy(), state.offset.item())
            ours = ref.dequantise_nf4(packed.numpy().reshape(-1), absmax, shape)
        else:
            continue
        _require(np.array_equal(theirs.numpy(), ours), f"{name} {module}", "dequantised weights")
        modules[module] = torch.from_numpy(ours)
    return modules


def _out_in_weight(model, module):
    """The module's weight as [out, in], contiguous (Conv1D keeps [in, out])."""
    target = model.get_submodule(module)
    return (target.weight.t() if _is_conv1d(target) else target.weight).detach().contiguous()


def _is_conv1d(module):
    return type(module).__name__ == "Conv1D"


def _check_folder(name, base_folder, stored, modules):
    """The stored codes and scales must be what reference_quant.py makes of the base folder's weights (a few nested
    codes aside, which the CPU finds through its coarse table)."""
    model = load(base_folder, torch.float32)
    for module in modules:
        weight = _out_in_weight(model, module).numpy()
        parts = {k.removeprefix(f"{module}."): v.numpy() for k, v in stored.items() if k.startswith(f"{module}.")}
        what = f"{name} {module}"
        if "SCB" in parts:
            codes, scb = ref.quantise_int8(weight.astype(np.float16))
            _require(np.array_equal(parts["weight"], codes) and np.array_equal(parts["SCB"], scb), what, "int8 codes")
            continue
        packed, absmax = ref.quantise_nf4(weight)
        _require(np.array_equal(parts["weight"].reshape(-1), packed), what, "codes")
        if "weight.nested_absmax" not in parts:
            _require(np.array_equal(parts["weight.absmax"], absmax), what, "absmax")
            continue
        offset = torch.from_numpy(absmax).mean().item()
        nested_codes, nested_absmax = ref.quantise_nested(absmax, offset)
        _require(np.array_equal(parts["weight.nested_absmax"], nested_absmax), what, "nested_absmax")
        _require((parts["weight.absmax"] != nested_codes).mean() <= 0.02, what, "nested codes")


def dequantised_model(root, name, dtype, weight_dtype):
    """A quantised folder's model in `dtype`: its quantised modules hold the dequantised matrices rounded to
    weight_dtype, everything else the tensors of the folder. Also returns {module: float32 [out, in]}."""
    base, _ = FOLDERS[name]
    stored = load_file(root / "models" / name / "model.safetensors")
    modules = _dequantised_modules(name, stored)
    plain = {key: tensor for key, tensor in stored.items() if not key.startswith(tuple(f"{m}." for m in modules))}
    biases = {key: stored[key] for key in (f"{module}.bias" for module in modules) if key in stored}
    model = load(root / "models" / base, dtype)
    model.load_state_dict(plain | biases, strict=False)
    with torch.no_grad():
        for module, weight in modules.items():
            target = model.get_submodule(module)
            target.weight.copy_((weight.t() if _is_conv1d(target) else weight).to(weight_dtype))
    return model, modules


def make_quantised_folder_golden(name, root):
    """Quantises and saves with transformers; goldens of the model that holds the dequantised weights."""
    base, options = FOLDERS[name]
    base_folder, folder = root / "models" / base, root / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    quantised = AutoModelForCausalLM.from_pretrained(
        base_folder, quantization_config=BitsAndBytesConfig(**options), dtype="auto")
    quantised.save_pretrained(folder)
    model, modules = dequantised_model(root, name, torch.float32, torch.float32)
    _check_folder(name, base_folder, load_file(folder / "model.safetensors"), modules)
    rounded_model, _ = dequantised_model(root, name, torch.float32, torch.bfloat16)
    bf16_model, _ = dequantised_model(root, name, torch.bfloat16, torch.bfloat16)
    tensors, prompts = golden_prompts(model, name, PROMPT_LENGTHS, bf16=bf16_model)
    for index, prompt in enumerate(prompts):
        key = f"logits_bf16_weights.{index}"
        tensors[key] = recorded_rows(prompt["ids"], logits_of(rounded_model, prompt["ids"])).contiguous()
        prompt["logits_bf16_weights"] = key
    save_file(tensors, root / "goldens" / f"{name}.safetensors")
    return {
        "name": name,
        "base_folder": f"models/{base}",
        "folder": f"models/{name}",
        "goldens": f"goldens/{name}.safetensors",
        "modules": [{"name": module, "shape": list(weight.shape),
                     "fnv1a64_f32": fnv1a64(weight.numpy().tobytes()),
                     "fnv1a64_bf16": fnv1a64(weight.bfloat16().view(torch.uint8).numpy().tobytes())}
                    for module, weight in modules.items()],
        "prompts": prompts,
    }
