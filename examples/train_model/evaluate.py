#!/usr/bin/env python3
"""Perplexity of a model folder on a text, measured with transformers in F32, cut into windows as `qrun eval` cuts it.

The text is one stream of tokens in windows of the model's context; each window begins with BOS, which is not scored.
"""

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, type=Path)
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    text = options.text.read_text(encoding="utf-8")
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    room = model.config.max_position_embeddings - 1
    total = 0.0
    for start in range(0, len(ids), room):
        window = torch.tensor([[tokenizer.bos_token_id] + ids[start:start + room]])
        with torch.no_grad():
            logits = model(window).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
    print(f"{len(ids)} tokens, {len(text.encode()) / len(ids):.2f} bytes per token, "
          f"mean loss {total / len(ids):.4f}, perplexity {math.exp(total / len(ids)):.3f}")


if __name__ == "__main__":
    main()
