"""Folders of compressed-tensors: its own compressors pack the weights, and decode them with scales in F32."""
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.utils.match import is_match, match_targets

from integer_goldens import is_linear


def _grid(weight, args):
    """The weight's least and largest value in each block of a scale, [grid rows, grid columns]."""
    rows, columns = weight.shape
    height, width = {"tensor": (rows, columns), "channel": (1, columns), "group": (1, args.group_size),
                     "tensor_group": (1, args.group_size), "block": args.block_structure}[args.strategy]
    blocks = [[weight[r:r + height, c:c + width] for c in range(0, columns, width)] for r in range(0, rows, height)]
    return (torch.tensor([[float(block.min()) for block in line] for line in blocks]).clamp(max=0),
            torch.tensor([[float(block.max()) for block in line] for line in blocks]).clamp(min=0))


def _parameters(weight, args, scale_dtype):
    low, high = (grid.flatten() if args.strategy == "tensor" else grid for grid in _grid(weight, args))
    largest = torch.maximum(-low, high)
    if args.type == "float" and args.num_bits == 4:
        whole = torch.tensor([448.0 * 6.0 / float(largest.max())])
        scales = (largest * whole / 6.0).to(torch.float8_e4m3fn).float()
        return dict(weight_scale=scales, weight_global_scale=whole)
    if args.type == "float":
        return dict(weight_scale=(largest / 448.0).to(scale_dtype))
    most = 2 ** args.num_bits - 1
    if args.symmetric:
        return dict(weight_scale=(2 * largest / most).to(scale_dtype))
    scales = ((high - low) / most).to(scale_dtype)
    zeros = (-low / scales.float()).round() - (most + 1) // 2
    return dict(weight_scale=scales, weight_zero_point=zeros.clamp(-(most + 1) // 2, most // 2).to(torch.int8))


def _in_f32(state):
    """What is decoded with scales of 16 bits is rounded to 16 bits by the package."""
    halves = (torch.bfloat16, torch.float16)
    return {name: tensor.float() if tensor.dtype in halves else tensor for name, tensor in state.items()}


def _pack(module, weight, scheme, scale_dtype):
    """The tensors of one matrix, and what they decode to."""
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    state = compressor.compress(dict(weight=weight) | _parameters(weight, scheme.weights, scale_dtype), scheme)
    if scheme.format == CompressionFormat.nvfp4_pack_quantized.value:
        decoded = _nvfp4(state)
    else:
        decoded = compressor.decompress(_in_f32(state), scheme)["weight"].float()
    if decoded.shape != weight.shape:
        raise SystemExit(f"{module}: compressed-tensors decodes another shape")
    return {f"{module}.{part}": value for part, value in state.items()}, decoded


def _compressed(tensors, config, scheme_of, scale_dtype):
    """scheme_of: of a module's name; None leaves it as it is."""
    packed, decoded = {}, {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        scheme = scheme_of(module) if is_linear(name, tensor) else None
        if scheme is None:
            packed[name] = decoded[name] = tensor
            continue
        parts, decoded[name] = _pack(module, tensor.float(), scheme, scale_dtype)
        packed |= parts
    return packed, config.to_dict(), decoded


def compressed(tensors, format, scale_dtype=torch.bfloat16, ignore=("lm_head",), **weights):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), format=format)
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=format, ignore=list(ignore),
                                quantization_status="compressed")
    return _compressed(tensors, config, lambda module: None if any(part in module for part in ignore) else scheme,
                       scale_dtype)


def mixed(tensors, groups, ignore, scale_dtype=torch.bfloat16):
    """Several groups, each (targets, format, weights). Which one a module is of is the package's own decision: exact
    names before patterns ("re:…") before classes, and nothing that `ignore` names."""
    schemes = {f"group_{i}": QuantizationScheme(targets=targets, weights=QuantizationArgs(**weights), format=format)
               for i, (targets, format, weights) in enumerate(groups)}
    config = QuantizationConfig(config_groups=schemes, format=CompressionFormat.mixed_precision.value, ignore=ignore,
                                quantization_status="compressed")
    by_target = {target: scheme for scheme in schemes.values() for target in scheme.targets}
    linear = torch.nn.Linear(1, 1)

    def scheme_of(module):
        if not is_match(module, linear, list(by_target), ignore):
            return None
        return by_target[match_targets(module, linear, by_target)[0]]

    used = {id(scheme_of(name.removesuffix(".weight"))) for name, tensor in tensors.items() if is_linear(name, tensor)}
    if used != {id(scheme) for scheme in [*schemes.values(), None]}:
        raise SystemExit("a group has no module, or none is left out")
    return _compressed(tensors, config, scheme_of, scale_dtype)


def _nvfp4(state):
    """The package decodes to BF16; its own functions, in F32."""
    packed = state["weight_packed"]
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2).float()
    scales = state["weight_scale"].float() / state["weight_global_scale"]
    return (codes.unflatten(-1, (-1, 16)) * scales[..., None]).flatten(-2)
