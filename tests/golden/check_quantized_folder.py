"""Loads a folder that `qrun quantize` wrote with transformers and bitsandbytes, and holds it against the folder that
these two wrote from the same model: equal tensors in memory, equal logits.

    qrun quantize --model tests/fixtures/models/llama --out /tmp/llama-nf4 --quant nf4
    python3 tests/golden/check_quantized_folder.py /tmp/llama-nf4 tests/fixtures/models/llama-nf4

The second folder may also be the original model, unquantised: it is then quantised by transformers while it is loaded.
"""
import argparse
import sys

import bitsandbytes as bnb
import torch

from check_trained_folder import auto_class

# Of the nested codes, bitsandbytes' CPU path finds some through a coarse table and is one off (README.md).
MAX_NESTED_CODES_OFF = 0.02


def load(folder, config=None):
    """config: how to quantise while loading."""
    options = {} if config is None else {"quantization_config": config}
    model, info = auto_class(folder).from_pretrained(folder, dtype="auto", output_loading_info=True, **options)
    problems = {key: value for key, value in info.items() if value}
    if problems:
        sys.exit(f"{folder}: loaded with {problems}")
    return model.eval()


def quantised_modules(model):
    kinds = (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


def is_nested_code(name, tensor):
    return name.endswith(".weight.absmax") and tensor.dtype == torch.uint8


def compare_states(ours, theirs):
    """Tensors of both, as bitsandbytes holds them; returns how many nested codes differ. Nothing else may."""
    ours, theirs = ours.state_dict(), theirs.state_dict()
    if ours.keys() != theirs.keys():
        sys.exit(f"different tensors: {sorted(ours.keys() ^ theirs.keys())}")
    n_off = n_codes = 0
    for name, tensor in ours.items():
        other = theirs[name]
        if tensor.dtype != other.dtype or tensor.shape != other.shape:
            sys.exit(f"{name}: {tensor.dtype} {tuple(tensor.shape)}, not {other.dtype} {tuple(other.shape)}")
        if is_nested_code(name, tensor):
            off_by = (tensor.int() - other.int()).abs()
            n_off, n_codes = n_off + int((off_by > 0).sum()), n_codes + tensor.numel()
            if off_by.max() > 1:
                sys.exit(f"{name}: a nested code is {off_by.max()} off")
        elif not torch.equal(tensor, other):
            sys.exit(f"{name}: {int((tensor != other).sum())} of {tensor.numel()} values differ")
    if n_off > MAX_NESTED_CODES_OFF * n_codes:
        sys.exit(f"{n_off} of {n_codes} nested codes differ")
    return n_off


def dequantise_4bit(model):
    """Puts plain layers in the place of 4-bit ones, with the weights that bitsandbytes dequantises: its inference on
    CPUs repacks them and takes no sizes that are not multiples of 32. A matrix is passed off as one column, because the
    kernel for others takes wrong scales at some sizes (README.md)."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, bnb.nn.Linear4bit):
            continue
        state = module.weight.quant_state
        shape, state.shape = tuple(state.shape), torch.Size((state.shape.numel(), 1))
        plain = torch.nn.Linear(shape[1], shape[0], bias=module.bias is not None, dtype=state.dtype)
        plain.weight.data = bnb.functional.dequantize_4bit(module.weight.data, state).reshape(shape)
        if module.bias is not None:
            plain.bias.data = module.bias.data.to(state.dtype)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, plain)


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits.float()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("other")
    options = parser.parse_args()
    ours = load(options.folder)
    modules = quantised_modules(ours)
    if not modules:
        sys.exit(f"{options.folder}: transformers sees no quantised module")
    other = load(options.other)
    if not quantised_modules(other):
        other = load(options.other, ours.config.quantization_config)
    if modules.keys() != quantised_modules(other).keys():
        sys.exit("other modules are quantised")
    n_off = compare_states(ours, other)
    vocab_size = ours.config.get_text_config().vocab_size
    ids = torch.randint(3, vocab_size, (1, 33), generator=torch.Generator().manual_seed(1))
    dequantise_4bit(ours)
    dequantise_4bit(other)
    expected = logits(other, ids)
    difference, largest = (logits(ours, ids) - expected).abs().max().item(), expected.abs().max().item()
    print(f"{len(modules)} quantised modules; {n_off} nested codes differ; "
          f"max |logit difference| {difference:.3g} of max |logit| {largest:.3g}")
    if difference > (0.05 * largest if n_off else 0.0):
        sys.exit("the logits differ")
    print("equal")


if __name__ == "__main__":
    main()
