"""Embeddings of committed model folders as transformers computes them: the hidden states after the final norm, of the last
token or their mean, scaled to length 1. F32 throughout.

    python3 tests/golden/embedding_goldens.py
"""
import json
import pathlib

import torch
from transformers import AutoModel

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
FOLDERS = ["llama", "gemma3", "gpt2", "qwen3", "olmo2"]


def embed(model, ids):
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].double()
    pooled = {"last": hidden[-1], "mean": hidden.mean(0)}
    return {name: [round(x, 7) for x in (vector / vector.norm()).tolist()] for name, vector in pooled.items()}


def main():
    goldens = []
    for name in FOLDERS:
        model = AutoModel.from_pretrained(FIXTURES / "models" / name, dtype=torch.float32, attn_implementation="eager")
        for ids in ([5], [3, 17, 99, 5, 240], [(7 + 31 * i * i) % 900 + 3 for i in range(40)]):
            goldens.append({"folder": f"models/{name}", "ids": ids} | embed(model.eval(), ids))
    lines = ",\n".join(json.dumps(golden, separators=(",", ":")) for golden in goldens)
    (FIXTURES / "goldens" / "embeddings.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
