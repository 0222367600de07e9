"""Folders in formats that are decoded while they are loaded: made from a plain folder with the operations of
transformers or of the format's own package, with the goldens of the model that transformers reads from them."""
import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from compressed_goldens import compressed, mixed
from families import Family, even_config
from integer_goldens import awq, gptq, is_linear
from model_goldens import golden_prompts, load, make_folder

PROMPT_LENGTHS = (7, 33)


def _fp8(tensors, block=None, **more):
    """quant_method fp8: E4M3 with a scale for each block, or (block None) for each matrix."""
    config = FineGrainedFP8Config(weight_block_size=block, modules_to_not_convert=["lm_head"], **more)
    quantise = Fp8Quantize(SimpleNamespace(quantization_config=config))
    result = {}
    for name, tensor in tensors.items():
        result |= quantise.convert({name: tensor}) if is_linear(name, tensor) else {name: tensor}
    return result, config.to_dict() | dict(quant_method="fp8"), None


def _fp8_stacks(tensors, block):
    """transformers leaves out the scales of stacks of experts on loading, so its operation is called here."""
    packed, config, _ = _fp8(tensors, block)
    decode = Fp8Dequantize(None)
    decoded = {name: decode._dequantize_one(tensor, packed[f"{name}_scale_inv"])
               for name, tensor in packed.items() if f"{name}_scale_inv" in packed}
    return packed, config, dict(tensors) | decoded


_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def _mxfp4_of(matrices):
    """[E, in, out] to blocks [E, out, in / 32, 16] and scales [E, out, in / 32]: the nearest values of E2M1, times the
    power of two that the largest of 32 needs (OCP MX)."""
    groups = matrices.float().transpose(1, 2).unflatten(-1, (-1, 32))
    exponents = groups.abs().amax(-1).log2().floor().clamp(-120, 120) - 2
    scaled = groups / exponents.exp2()[..., None]
    codes = (scaled[..., None] - _E2M1).abs().argmin(-1).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def _mxfp4(tensors):
    """gpt-oss as published: its experts in MXFP4, everything else in BF16."""
    result = {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            result[f"{name}_blocks"], result[f"{name}_scales"] = _mxfp4_of(tensor)
        else:
            result[name] = tensor
    return result, dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn",
                        "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]), None


# Sizes that words of 8 codes fill, and groups of 32 do not.
_EVEN = Family("llama-even", "llama", even_config(), "not kept: what is packed from it is")
_EVEN_EXPERTS = Family("qwen3-moe-even", "qwen3_moe", even_config(experts=True), "the same with experts")

# name: (plain folder, or family that none is kept of; how it is packed: its tensors, its quantization_config, and the decoded tensors where transformers
# cannot read the folder itself)
FOLDERS = {
    "llama-fp8": ("llama-llama3", lambda tensors: _fp8(tensors, block=[20, 4])),
    "qwen3-fp8-tensor": ("qwen3", lambda tensors: _fp8(tensors)),
    "qwen3-moe-fp8": ("qwen3-moe", lambda tensors: _fp8(tensors, block=[12, 12], scale_fmt="ue8m0")),
    "gpt-oss-mxfp4": ("gpt-oss-wide", _mxfp4),
    "llama-gptq": (_EVEN, lambda tensors: gptq(tensors, bits=4, group_size=32, biases=True)),
    "llama-gptq-order": (_EVEN, lambda tensors: gptq(tensors, bits=4, group_size=16, desc_act=True, symmetric=False)),
    "qwen3-moe-gptq8": (_EVEN_EXPERTS, lambda tensors: gptq(tensors, bits=8, group_size=-1, symmetric=False,
                                                            checkpoint_format="gptq_v2", scale_dtype=torch.bfloat16)),
    "llama-awq": (_EVEN, lambda tensors: awq(tensors, group_size=16)),
    "qwen3-w4a16": ("qwen3", lambda tensors: compressed(
        tensors, "pack-quantized", num_bits=4, strategy="channel", ignore=("lm_head", "layers.1.mlp"))),
    "qwen3-w4a16-zeros": ("qwen3", lambda tensors: compressed(
        tensors, "pack-quantized", num_bits=4, strategy="group", group_size=10, symmetric=False)),
    "qwen3-w8a16": ("qwen3", lambda tensors: compressed(
        tensors, "pack-quantized", num_bits=8, strategy="tensor", scale_dtype=torch.float16)),
    "qwen3-moe-w8": ("qwen3-moe", lambda tensors: compressed(
        tensors, "int-quantized", num_bits=8, strategy="channel", symmetric=False)),
    "llama-fp8-channel": ("llama-llama3", lambda tensors: compressed(
        tensors, "float-quantized", num_bits=8, type="float", strategy="channel")),
    "llama-fp8-blocks": ("llama-llama3", lambda tensors: compressed(
        tensors, "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[24, 16],
        scale_dtype=torch.float32)),
    "llama-nvfp4": (_EVEN, lambda tensors: compressed(
        tensors, "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)),
    "qwen3-mixed": ("qwen3", lambda tensors: mixed(
        tensors, [(["Linear"], "int-quantized", dict(num_bits=8, strategy="channel")),
                  (["re:.*[qk]_proj$"], "pack-quantized",
                   dict(num_bits=4, strategy="group", group_size=10, symmetric=False)),
                  (["re:.*self_attn\\.v_proj"], "pack-quantized", dict(num_bits=4, strategy="group", group_size=25)),
                  (["re:.*\\.o_proj", "model.layers.0.mlp.up_proj"], "pack-quantized",
                   dict(num_bits=8, strategy="channel")),
                  (["re:.*mlp\\.(gate|up)_proj$"], "float-quantized",
                   dict(num_bits=8, type="float", strategy="channel")),
                  (["re:.*layers\\.0\\.mlp\\.down_proj"], "float-quantized",
                   dict(num_bits=8, type="float", strategy="block", block_structure=[20, 30]))],
        ignore=["lm_head", "re:.*layers\\.1\\.mlp\\.gate_proj"])),
    "qwen3-moe-stacked-fp8": ("qwen3-moe-stacked", lambda tensors: _fp8_stacks(tensors, block=[40, 20])),
}


def _write(folder, tensors, config):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _goldens(folder, name):
    """transformers decodes to the type of the scales, or E8M0 ones to BF16, which loses nothing of E4M3."""
    return golden_prompts(load(folder, torch.float32).to(torch.float32), name, PROMPT_LENGTHS,
                          bf16=load(folder, torch.bfloat16).to(torch.bfloat16))


def make_packed_folder_golden(name, root):
    """Makes the folder and the goldens; returns its index entry."""
    base, pack = FOLDERS[name]
    folder = root / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    if isinstance(base, Family):
        make_folder(base, folder)
    else:
        shutil.copytree(root / "models" / base, folder)
    config = json.loads((folder / "config.json").read_text())
    tensors, quantization, decoded = pack(load_file(folder / "model.safetensors"))
    _write(folder, tensors, config | dict(quantization_config=quantization))
    if decoded is None:
        tensors, prompts = _goldens(folder, name)
    else:
        with tempfile.TemporaryDirectory() as plain:
            _write(Path(plain), decoded, config)
            tensors, prompts = _goldens(plain, name)
    save_file(tensors, root / "goldens" / f"{name}.safetensors")
    return {"name": name, "folder": f"models/{name}", "goldens": f"goldens/{name}.safetensors", "prompts": prompts}
