"""Loads a folder that `qrun finetune --full` wrote with transformers, and holds qrun's log-probabilities of a random
prompt against transformers', both in F32.

    qrun finetune --model MODEL --data train.jsonl --full --max-steps 2 --out /tmp/trained
    QRUN=build/release/cli/qrun python3 tests/golden/check_trained_folder.py /tmp/trained

Nothing may be missing in the folder, and nothing too much. Of a model with an image encoder the language model alone
is compared.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

N_TOKENS = 33
MAX_ERROR = 1e-4    # of the largest log-probability


def auto_class(folder):
    """Some wrappers with an image encoder have a class without it, and others have none."""
    is_causal = type(AutoConfig.from_pretrained(folder)) in AutoModelForCausalLM._model_mapping
    return AutoModelForCausalLM if is_causal else AutoModelForImageTextToText


def load(folder):
    model, info = auto_class(folder).from_pretrained(folder, dtype=torch.float32, output_loading_info=True,
                                                     experts_implementation="eager")
    problems = {key: value for key, value in info.items() if value}
    if problems:
        sys.exit(f"{folder}: loaded with {problems}")
    return model.eval()


def of_transformers(model, ids):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    return torch.log_softmax(logits, dim=-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


def of_qrun(folder, ids):
    request = json.dumps({"token_ids": ids, "prompt_logprobs": 1, "prompt_only": True})
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
        prompts.write(request + "\n")
        prompts.flush()
        done = subprocess.run([os.environ.get("QRUN", "qrun"), "generate", "--model", folder, "--prompts", prompts.name,
                               "--quant", "f32", "--dtype", "f32"], stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout)
    return torch.tensor([entry["logprob"] for entry in answer["prompt_logprobs"][1:]], dtype=torch.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    options = parser.parse_args()
    model = load(options.folder)
    text = model.config.get_text_config()
    vocab_size = getattr(text, "output_vocab_size", None) or text.vocab_size
    ids = torch.randint(3, vocab_size, (N_TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = of_transformers(model, ids)
    error = ((of_qrun(options.folder, ids) - expected).abs().max() / expected.abs().max()).item()
    print(f"{options.folder}: {sum(p.numel() for p in model.parameters())} weights; relative error {error:.2g}")
    if not error <= MAX_ERROR:
        sys.exit("the log-probabilities differ")


if __name__ == "__main__":
    main()
