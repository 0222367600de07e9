"""GGUF files of fixtures, written by llama.cpp's own converter, for test_gguf.

    python3 tests/golden/convert_gguf.py LLAMA_CPP

And a small random Qwen3.5 with the file that it becomes, for what export writes: its value heads are as many as llama.cpp
reorders, and their values of the size of keys, as it wants them.

LLAMA_CPP is a checkout of llama.cpp (the source package of llama-cpp-python has one in vendor/llama.cpp). Needs torch
and transformers. The fixtures have no tokenizer, so the files have none either.
"""
import importlib
import json
import pathlib
import sys

import torch
import transformers

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
MODELS = {"llama-llama3": "llama", "phi3-longrope": "phi", "gpt-oss-mxfp4": "gpt_oss"}  # and the module of the converter that knows them


def make_hybrid(folder):
    torch.manual_seed(11)
    config = transformers.Qwen3_5TextConfig(
        vocab_size=67, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6,
        max_position_embeddings=64, tie_word_embeddings=True)
    model = transformers.Qwen3_5ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def convert(base, gguf, module, folder, out):
    importlib.import_module(f"conversion.{module}")
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    kind = base.ModelBase.from_model_architecture(architecture)
    kind.set_vocab, kind.no_mtp = lambda self: None, True
    kind(folder, gguf.LlamaFileType.MOSTLY_BF16, out).write()


def main():
    llama_cpp = pathlib.Path(sys.argv[1])
    sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
    base = importlib.import_module("conversion.base")
    gguf = importlib.import_module("gguf")
    for name, module in MODELS.items():
        convert(base, gguf, module, FIXTURES / "models" / name, FIXTURES / "gguf" / f"{name}.gguf")
    make_hybrid(FIXTURES / "gguf" / "qwen3_5")
    convert(base, gguf, "qwen", FIXTURES / "gguf" / "qwen3_5", FIXTURES / "gguf" / "qwen3_5.gguf")


if __name__ == "__main__":
    main()
