#!/usr/bin/env python3
"""Perplexity of the real stories260K model holding bitsandbytes' dequantised weights.

    python3 tests/golden/eval_stories_dequantised.py DATA_DIR [--out FILE]

DATA_DIR is the folder of real data beside the checkout; it holds models/stories260K-hf and
models/stories260K.nll.json. Linear layers alone are quantised; embedding, tied head and norms stay F32. Prints JSON
and, with --out, writes it: figures only, no data. The negative log-likelihoods are those of tokens 1 … n−1 of each
story, given the ones before, in F32 arithmetic, summed in float64.
"""
import argparse
import json
import math
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402  (the environment must be set first)
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import reference_quant as ref  # noqa: E402


def _nf4(weight):
    packed, absmax = ref.quantise_nf4(weight)
    return ref.dequantise_nf4(packed, absmax, weight.shape)


def _nf4_double_quantised(weight):
    packed, absmax = ref.quantise_nf4(weight)
    offset = torch.from_numpy(absmax).mean().item()
    absmax = ref.dequantise_nested(*ref.quantise_nested(absmax, offset), offset)
    return ref.dequantise_nf4(packed, absmax, weight.shape)


def _int8(weight):
    return ref.dequantise_int8(*ref.quantise_int8(weight.astype("float16")))


FORMATS = {"f32": lambda weight: weight, "nf4": _nf4, "nf4-dq": _nf4_double_quantised, "int8": _int8}


@torch.no_grad()
def _model_with(folder, dequantised):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.weight.copy_(torch.from_numpy(dequantised(module.weight.numpy())))
    return model


@torch.no_grad()
def _evaluate(model, stories):
    total, count = 0.0, 0
    for ids in stories:
        log_probabilities = torch.log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0].double(), dim=-1)
        total -= log_probabilities[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum().item()
        count += len(ids) - 1
    mean = total / count
    return {"n_tokens": count, "mean_nll": round(mean, 6), "perplexity": round(math.exp(mean), 5)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    models = options.data_dir / "models"
    stories = [story["ids"] for story in json.loads((models / "stories260K.nll.json").read_text())["docs"]]
    results = {name: _evaluate(_model_with(models / "stories260K-hf", dequantised), stories)
               for name, dequantised in FORMATS.items()}
    text = json.dumps(results, indent=1) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
