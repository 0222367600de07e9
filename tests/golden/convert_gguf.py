"""GGUF files of fixtures, written by llama.cpp's own converter, for test_gguf.

    python3 tests/golden/convert_gguf.py LLAMA_CPP

And two small random models with the files that they become, for what export writes: a Qwen3.5, whose value heads are as
many as llama.cpp reorders, and their values of the size of keys, as it wants them; and an LFM2-MoE without a
routed_scaling_factor, which the files cannot say.

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
# And the module of the converter that knows them.
MODELS = {"llama-llama3": "llama", "phi3-longrope": "phi", "gpt-oss-mxfp4": "gpt_oss", "lfm2": "lfm2"}


def save_random(model, folder):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith(".expert_bias"):
                buffer.copy_(torch.randn_like(buffer))
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def make_hybrid(folder):
    torch.manual_seed(11)
    config = transformers.Qwen3_5TextConfig(
        vocab_size=67, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6,
        max_position_embeddings=64, tie_word_embeddings=True)
    save_random(transformers.Qwen3_5ForCausalLM(config), folder)


def make_lfm2_moe(folder):
    torch.manual_seed(12)
    config = transformers.Lfm2MoeConfig(
        vocab_size=67, hidden_size=32, intermediate_size=48, moe_intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, layer_types=["conv", "full_attention", "conv"], conv_L_cache=4,
        num_dense_layers=1, num_experts=3, num_experts_per_tok=2, norm_eps=1e-4,
        rope_parameters=dict(rope_theta=50000.0, rope_type="default"), max_position_embeddings=64,
        tie_word_embeddings=True)
    save_random(transformers.Lfm2MoeForCausalLM(config), folder)


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
    make_lfm2_moe(FIXTURES / "gguf" / "lfm2_moe")
    convert(base, gguf, "lfm2", FIXTURES / "gguf" / "lfm2_moe", FIXTURES / "gguf" / "lfm2_moe.gguf")


if __name__ == "__main__":
    main()
