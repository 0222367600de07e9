#!/usr/bin/env python3
"""A model folder with random weights, for programs that need more than a shape: a server, for one.

    bench/random_model.py --shape bench/shapes/llama-3.2-1b.json --out FOLDER

Shapes of Llama and of Qwen3.5, dense and with experts; weights in BF16, normally distributed with a standard deviation
of 0.02, the same ones every time. `--layers` takes the first layers alone, of a model that is too large. The tokenizer is a byte-level BPE with a word for every id that is not a byte's, so prompts are best given as ids.
`qrun export` writes the folder as a GGUF file. Standard library only.
"""

import argparse
import array
import json
import pathlib
import random
import struct

N_PATTERN = 1 << 18
DEVIATION = 0.02
LLAMA_3_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                 r"|\s+(?!\S)|\s+")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=pathlib.Path, required=True, help="a config.json")
    parser.add_argument("--layers", type=int, help="as many of the shape's layers; all unless given")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder, which must not exist")
    return parser.parse_args()


def attention(config):
    hidden = config["hidden_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    gated = config.get("attn_output_gate", False)
    yield "self_attn.q_proj.weight", [2 * queries if gated else queries, hidden]
    yield "self_attn.k_proj.weight", [keys, hidden]
    yield "self_attn.v_proj.weight", [keys, hidden]
    yield "self_attn.o_proj.weight", [hidden, queries]
    if gated:       # Qwen3.5 norms heads, too
        yield "self_attn.q_norm.weight", [head]
        yield "self_attn.k_norm.weight", [head]


def gated_delta(config):
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    values = config["linear_value_head_dim"] * heads
    mixed = 2 * config["linear_key_head_dim"] * config["linear_num_key_heads"] + values
    yield "linear_attn.in_proj_qkv.weight", [mixed, hidden]
    yield "linear_attn.in_proj_z.weight", [values, hidden]
    yield "linear_attn.in_proj_b.weight", [heads, hidden]
    yield "linear_attn.in_proj_a.weight", [heads, hidden]
    yield "linear_attn.conv1d.weight", [mixed, 1, config["linear_conv_kernel_dim"]]
    yield "linear_attn.A_log", [heads]
    yield "linear_attn.dt_bias", [heads]
    yield "linear_attn.norm.weight", [config["linear_value_head_dim"]]
    yield "linear_attn.out_proj.weight", [hidden, values]


def gated_mlp(prefix, inner, hidden):
    yield prefix + "gate_proj.weight", [inner, hidden]
    yield prefix + "up_proj.weight", [inner, hidden]
    yield prefix + "down_proj.weight", [hidden, inner]


def experts(config):
    hidden, inner, count = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    yield "mlp.gate.weight", [count, hidden]
    yield "mlp.experts.gate_up_proj", [count, 2 * inner, hidden]
    yield "mlp.experts.down_proj", [count, hidden, inner]
    yield from gated_mlp("mlp.shared_expert.", config["shared_expert_intermediate_size"], hidden)
    yield "mlp.shared_expert_gate.weight", [1, hidden]


def tensors(config):
    """Names and shapes, in the order of the file."""
    hidden = config["hidden_size"]
    kinds = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for layer, kind in enumerate(kinds):
        parts = [[("input_layernorm.weight", [hidden])],
                 gated_delta(config) if kind == "linear_attention" else attention(config),
                 [("post_attention_layernorm.weight", [hidden])],
                 experts(config) if "num_experts" in config
                 else gated_mlp("mlp.", config["intermediate_size"], hidden)]
        for part in parts:
            for name, shape in part:
                yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", [hidden]
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", [config["vocab_size"], hidden]


def bf16(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def write_weights(path, config):
    choose = random.Random(0)
    pattern = array.array("H", (bf16(choose.gauss(0, DEVIATION)) for _ in range(N_PATTERN))).tobytes() * 2
    header, offset = {}, 0
    for name, shape in tensors(config):
        size = 2
        for dim in shape:
            size *= dim
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, fields in header.items():
            left = fields["data_offsets"][1] - fields["data_offsets"][0]
            if name.endswith("norm.weight"):
                file.write(struct.pack("<H", bf16(1.0)) * (left // 2))
                left = 0
            while left > 0:     # from another place of the pattern each time, so that no two rows are equal
                start = 2 * choose.randrange(N_PATTERN)
                left -= file.write(pattern[start:start + min(left, N_PATTERN * 2)])


def byte_symbols():
    """The characters that byte-level BPE writes the 256 bytes as."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def write_tokenizer(folder, n_tokens):
    symbols = byte_symbols()
    words = symbols + [symbols[0] * 2] + [f"w{i}" for i in range(len(symbols) + 1, n_tokens)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {word: i for i, word in enumerate(words)}, "merges": [f"{symbols[0]} {symbols[0]}"]}
    split = {"type": "Split", "pattern": {"Regex": LLAMA_3_WORDS}, "behavior": "Isolated", "invert": False}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_of]}, "post_processor": None,
                 "decoder": bytes_of, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def main():
    options = arguments()
    config = json.loads(options.shape.read_text(encoding="utf-8"))
    if options.layers:
        config["num_hidden_layers"] = options.layers
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:options.layers]
    options.out.mkdir(parents=True)
    (options.out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_tokenizer(options.out, config["vocab_size"])
    write_weights(options.out / "model.safetensors", config)


if __name__ == "__main__":
    main()
