"""Embeddings of committed model folders as transformers computes them: the hidden states after the final norm, of the last
token or their mean, scaled to length 1. F32 throughout. Some again with the tables of tokens in INT8: every row as
LLM.int8 stores a row of a matrix, and dequantised.

    python3 tests/golden/embedding_goldens.py
"""
import json
import pathlib

import torch
from transformers import AutoModel

from reference_quant import dequantise_int8, quantise_int8

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
FOLDERS = ["llama", "gemma3", "gpt2", "qwen3", "olmo2"]
INT8_FOLDERS = ["llama", "olmo2", "qwen3", "gemma4"]    # untied, untied, tied, and with a table of inputs for each layer


def embed(model, ids):
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].double()
    pooled = {"last": hidden[-1], "mean": hidden.mean(0)}
    return {name: [round(x, 7) for x in (vector / vector.norm()).tolist()] for name, vector in pooled.items()}


@torch.no_grad()
def hold_in_int8(model):
    for name, table in model.named_parameters():
        if name.endswith(("embed_tokens.weight", "embed_tokens_per_layer.weight")):
            table.copy_(torch.from_numpy(dequantise_int8(*quantise_int8(table.half().numpy()))))


def main():
    goldens = []
    for name in FOLDERS + [f"{name} in INT8" for name in INT8_FOLDERS]:
        name, *in_int8 = name.split(" ", 1)
        model = AutoModel.from_pretrained(FIXTURES / "models" / name, dtype=torch.float32, attn_implementation="eager")
        if in_int8:
            hold_in_int8(model)
        for ids in ([5], [3, 17, 99, 5, 240], [(7 + 31 * i * i) % 900 + 3 for i in range(40)]):
            golden = {"folder": f"models/{name}"} | ({"tables": "int8"} if in_int8 else {}) | {"ids": ids}
            goldens.append(golden | embed(model.eval(), ids))
    lines = ",\n".join(json.dumps(golden, separators=(",", ":")) for golden in goldens)
    (FIXTURES / "goldens" / "embeddings.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
