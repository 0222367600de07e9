"""Folders of GPTQ and AWQ: weights rounded to the nearest code, packed as AutoGPTQ, GPTQModel and AutoAWQ pack them,
and decoded again by the published formulas, (code - zero point) * scale. AWQ is decoded by compressed-tensors' own
converter besides, which must agree."""
import torch
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

from model_goldens import generator_for


def is_linear(name, tensor):
    skipped = ("embed_tokens", "lm_head", "mlp.gate.", "visual")
    return tensor.ndim >= 2 and not any(part in name for part in skipped)


def _words(codes, shifts):
    """[..., n] codes to [..., n / len(shifts)] words: code i of a word at bit shifts[i]."""
    groups = codes.to(torch.int64).unflatten(-1, (-1, len(shifts)))
    words = (groups << torch.tensor(shifts)).sum(-1)
    return (words - ((words >> 31) << 32)).to(torch.int32)


def _rounded(weight, groups, bits, symmetric, scale_dtype):
    """[out, in] to codes [out, in], and scales and zero points [n_groups, out] of the groups that columns are in."""
    most, n_groups = 2 ** bits - 1, int(groups.max()) + 1
    low = torch.stack([weight[:, groups == g].amin(1).clamp(max=0) for g in range(n_groups)])
    high = torch.stack([weight[:, groups == g].amax(1).clamp(min=0) for g in range(n_groups)])
    if symmetric:
        scales = (2 * torch.maximum(-low, high) / most).to(scale_dtype)
        zeros = torch.full_like(scales, (most + 1) // 2, dtype=torch.int64)
    else:
        scales = ((high - low) / most).to(scale_dtype)
        zeros = (-low / scales.float()).round().clamp(0, most).to(torch.int64)
        zeros.view(-1)[::37] = 0        # which version 1 of GPTQ stores as all bits set, and a borrow
    codes = (weight / scales.float()[groups].T + zeros[groups].T).round().clamp(0, most).to(torch.int64)
    return codes, scales, zeros


def _decoded(codes, scales, zeros, groups):
    return (codes - zeros[groups].T).float() * scales.float()[groups].T


def _groups(name, columns, size, in_order):
    """The group of each column. desc_act fills groups by the columns' weight in calibration: here, by chance."""
    size = columns if size == -1 else size
    order = torch.arange(columns) if in_order else torch.randperm(columns, generator=generator_for("gptq", name))
    groups = torch.empty(columns, dtype=torch.int64)
    groups[order] = torch.arange(columns) // size
    return groups


def gptq(tensors, bits, group_size, desc_act=False, symmetric=True, checkpoint_format="gptq", biases=False,
         scale_dtype=torch.float16):
    packed, decoded, shifts = {}, {}, list(range(0, 32, bits))
    step = sum(1 << shift for shift in shifts)
    for name, tensor in tensors.items():
        if not is_linear(name, tensor):
            packed[name] = decoded[name] = tensor
            continue
        module, weight = name.removesuffix(".weight"), tensor.float()
        groups = _groups(name, weight.shape[1], group_size, not desc_act)
        codes, scales, zeros = _rounded(weight, groups, bits, symmetric, scale_dtype)
        words = _words(zeros, shifts)
        if checkpoint_format == "gptq":     # less 1 in every code, as GPTQModel subtracts it from words
            words = words.to(torch.int64) - step
            words = (words & 0xFFFFFFFF).sub((words & 0x80000000) << 1).to(torch.int32)
        packed |= {f"{module}.qweight": _words(codes.T.reshape(-1, len(shifts), codes.shape[0]).transpose(1, 2), shifts)
                   .squeeze(-1), f"{module}.qzeros": words, f"{module}.scales": scales,
                   f"{module}.g_idx": groups.to(torch.int32)}
        if biases:
            packed[f"{module}.bias"] = torch.zeros(weight.shape[0], dtype=scale_dtype)
        decoded[name] = _decoded(codes, scales, zeros, groups)
    config = dict(quant_method="gptq", bits=bits, group_size=group_size, desc_act=desc_act, sym=symmetric,
                  checkpoint_format=checkpoint_format, damp_percent=0.01, true_sequential=True, lm_head=False)
    return packed, config, decoded


def awq(tensors, group_size):
    order, packed, decoded = [0, 4, 1, 5, 2, 6, 3, 7], {}, {}
    shifts = [4 * place for place in order]     # rows 0 2 4 6 1 3 5 7 from the lowest bits on
    for name, tensor in tensors.items():
        if not is_linear(name, tensor):
            packed[name] = decoded[name] = tensor
            continue
        module, weight = name.removesuffix(".weight"), tensor.float()
        groups = torch.arange(weight.shape[1]) // group_size
        codes, scales, zeros = _rounded(weight, groups, 4, False, torch.float16)
        parts = [_words(codes.T, shifts), _words(zeros, shifts)]
        packed |= {f"{module}.qweight": parts[0], f"{module}.qzeros": parts[1], f"{module}.scales": scales}
        unpacked = AutoAWQConverter.reverse_awq_order(*AutoAWQConverter.unpack_awq(*parts, 4), 4)
        if not all(torch.equal(theirs & 15, ours) for theirs, ours in zip(unpacked, (codes.T, zeros))):
            raise SystemExit(f"{name}: compressed-tensors unpacks other codes")
        decoded[name] = _decoded(codes, scales, zeros, groups)
    config = dict(quant_method="awq", bits=4, group_size=group_size, zero_point=True, version="gemm",
                  modules_to_not_convert=None)
    return packed, config, decoded
