#!/usr/bin/env python3
"""Matrices that GPTQModel packs, with its own quantization_config, and checksums of what it decodes them to.

    python3 tests/golden/gptqmodel_goldens.py [--out FOLDER]

Needs gptqmodel, which PEFT refuses to stand beside without optimum: give it an environment of its own. It needs no GPU.
"""
import argparse
import itertools
import json
import os
import pathlib
import zlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["GPTQMODEL_DISABLE_PACK_EXT"] = "1"

import torch  # noqa: E402  (the environment must be set first)
from gptqmodel.nn_modules.qlinear.torch import TorchLinear  # noqa: E402
from gptqmodel.quantization import FORMAT, QuantizeConfig  # noqa: E402
from gptqmodel.utils.model import (convert_gptq_v1_to_v2_format_module,  # noqa: E402
                                   convert_gptq_v2_to_v1_format_module)
from safetensors.torch import save_file  # noqa: E402

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
ROWS = 32
# {group size: columns}: groups that columns fill, and a last one that they do not.
COLUMNS = {32: 96, 64: 160, 128: 160, -1: 96}


def _cases():
    """All 4-bit ones; of 8 bits those that differ most."""
    for group, order, symmetric, form in itertools.product(COLUMNS, (False, True), (True, False),
                                                           (FORMAT.GPTQ, FORMAT.GPTQ_V2)):
        if not (group == -1 and order):     # one group has no order
            yield 4, group, order, symmetric, form
    yield from ((8, 64, True, False, FORMAT.GPTQ), (8, -1, False, True, FORMAT.GPTQ_V2))


def _rounded(weight, groups, bits, symmetric):
    """Scales and zero points [rows, groups], as GPTQ finds them."""
    most, n_groups = 2 ** bits - 1, int(groups.max()) + 1
    low = torch.stack([weight[:, groups == g].amin(1).clamp(max=0) for g in range(n_groups)], 1)
    high = torch.stack([weight[:, groups == g].amax(1).clamp(min=0) for g in range(n_groups)], 1)
    if symmetric:
        scales = (2 * torch.maximum(-low, high) / most).half()
        return scales, torch.full_like(scales, (most + 1) // 2).int()
    scales = ((high - low) / most).half()
    return scales, (-low / scales.float()).round().clamp(0, most).int()


def _fnv1a64(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def _make(bits, group, order, symmetric, form):
    name = f"{form.value}-{bits}-{group if group > 0 else 'row'}{'-order' * order}{'' if symmetric else '-zeros'}"
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    columns = COLUMNS[group]
    place = torch.randperm(columns, generator=generator) if order else torch.arange(columns)
    groups = torch.empty(columns, dtype=torch.int32)
    groups[place] = torch.arange(columns, dtype=torch.int32) // (group if group > 0 else columns)
    linear = torch.nn.Linear(columns, ROWS, bias=False)
    linear.weight.data = torch.randn(ROWS, columns, generator=generator)
    linear.weight.data[::7].abs_()      # whose zero point is 0, which version 1 borrows for
    scales, zeros = _rounded(linear.weight.data, groups, bits, symmetric)
    config = QuantizeConfig(bits=bits, group_size=group, desc_act=order, sym=symmetric, format=form)
    module = TorchLinear(bits=bits, group_size=group, sym=symmetric, desc_act=order, in_features=columns,
                         out_features=ROWS, register_buffers=False)
    module.pack(linear, scales.float(), zeros, groups)
    if form == FORMAT.GPTQ:
        convert_gptq_v2_to_v1_format_module(module, config)
    stored = {part: getattr(module, part).clone() for part in ("qweight", "qzeros", "scales", "g_idx")}
    if form == FORMAT.GPTQ:
        convert_gptq_v1_to_v2_format_module(module, bits, torch.int32)
    module.scales = module.scales.float()   # which it multiplies by in F16: one rounding more
    decoded = module.dequantize_weight().T.float().contiguous()
    if not (decoded - linear.weight.data).abs().max() < 4 * scales.float().max():
        raise SystemExit(f"{name}: packed and decoded, the weights are others")
    keys = ("bits", "group_size", "desc_act", "sym", "quant_method", "checkpoint_format", "format")
    entry = {"name": name, "shape": [ROWS, columns], "fnv1a64_f32": _fnv1a64(decoded.numpy().tobytes()),
             "quantization_config": {key: value for key, value in config.to_dict().items() if key in keys}}
    return entry, {f"{name}.{part}": tensor for part, tensor in stored.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES, help="where to write (default: %(default)s)")
    options = parser.parse_args()
    made = [_make(*case) for case in _cases()]
    tensors = {name: tensor.contiguous() for _, parts in made for name, tensor in parts.items()}
    save_file(tensors, options.out / "goldens" / "gptqmodel.safetensors")
    rows = ",\n".join("  " + json.dumps(entry) for entry, _ in made)
    (options.out / "goldens" / "gptqmodel.json").write_text('{\n "format": 1,\n "matrices": [\n' + rows + "\n ]\n}\n")
    print(len(made), "matrices")


if __name__ == "__main__":
    main()
