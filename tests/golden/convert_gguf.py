"""GGUF files of fixtures, written by llama.cpp's own converter, for test_gguf.

    python3 tests/golden/convert_gguf.py LLAMA_CPP

And small random models with the files that they become, for what export writes: a Qwen3.5, whose value heads are as
many as llama.cpp reorders, and their values of the size of keys, as it wants them; an LFM2-MoE without a
routed_scaling_factor, which the files cannot say; and those of RANDOM, of which the Gemma 4 has everything at once.

LLAMA_CPP is a checkout of llama.cpp (the source package of llama-cpp-python has one in vendor/llama.cpp). Needs torch
and transformers. The fixtures have no tokenizer, so the files have none either.
"""
import importlib
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
# And the module of the converter that knows them.
MODELS = {"llama-llama3": "llama", "phi3-longrope": "phi", "gpt-oss-mxfp4": "gpt_oss", "lfm2": "lfm2"}


COMMON = dict(vocab_size=67, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=32)
HYBRID = ["linear_attention", "full_attention", "linear_attention"]
DEEPSEEK = dict(
    intermediate_size=32, moe_intermediate_size=16, n_routed_experts=3, num_experts_per_tok=2, n_shared_experts=1,
    first_k_dense_replace=1, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12, n_group=1,
    topk_group=1, rms_norm_eps=1e-6, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1,
        mscale=0.707, mscale_all_dim=0.707))
# The converter's module, the family in transformers, and its config.
RANDOM = {
    "gemma4": ("gemma", "Gemma4Text", "Gemma4ForCausalLM", dict(
        intermediate_size=48, num_hidden_layers=4, head_dim=8, global_head_dim=16, attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2, use_double_wide_mlp=True,
        num_global_key_value_heads=1, hidden_size_per_layer_input=8, vocab_size_per_layer_input=67, sliding_window=7,
        enable_moe_block=True, num_experts=3, top_k_experts=2, moe_intermediate_size=32, final_logit_softcapping=11.0)),
    "qwen3_next": ("qwen", "Qwen3Next", "Qwen3NextForCausalLM", EXPERTS | dict(
        intermediate_size=32, shared_expert_intermediate_size=32, num_hidden_layers=3, head_dim=16, num_experts=3,
        layer_types=HYBRID, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=6)),
    "granite4": ("granite", "GraniteMoeHybrid", "GraniteMoeHybridForCausalLM", dict(
        intermediate_size=32, shared_intermediate_size=48, num_hidden_layers=3, num_local_experts=3,
        num_experts_per_tok=2, layer_types=HYBRID, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2,
        mamba_expand=2, attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.7, logits_scaling=2.0,
        position_embedding_type=None, tie_word_embeddings=True)),
    "nemotron_h": ("nemotron", "NemotronH", "NemotronHForCausalLM", EXPERTS | dict(
        intermediate_size=32, moe_shared_expert_intermediate_size=48, head_dim=8, n_routed_experts=3, n_group=1,
        topk_group=1, layers_block_type=["linear_attention", "moe", "full_attention"], mamba_num_heads=4,
        mamba_head_dim=16, ssm_state_size=16, n_groups=2, routed_scaling_factor=1.8, num_nextn_predict_layers=0)),
    "glm4_moe": ("glm", "Glm4Moe", "Glm4MoeForCausalLM", EXPERTS | dict(
        intermediate_size=48, num_hidden_layers=2, head_dim=16, n_routed_experts=3, n_shared_experts=2, n_group=1,
        topk_group=1, first_k_dense_replace=1, attention_bias=True, use_qk_norm=True, routed_scaling_factor=1.7)),
    "ernie4_5_moe": ("ernie", "Ernie4_5_Moe", "Ernie4_5_MoeForCausalLM", dict(
        intermediate_size=48, moe_intermediate_size=32, num_hidden_layers=2, moe_num_experts=3, moe_k=2,
        moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=1)),
    "deepseek_v2": ("deepseek", "DeepseekV2", "DeepseekV2ForCausalLM", DEEPSEEK | dict(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=26, q_lora_rank=None, topk_method="greedy",
        norm_topk_prob=False, routed_scaling_factor=1.0)),
    "deepseek_v3": ("deepseek", "DeepseekV3", "DeepseekV3ForCausalLM", DEEPSEEK | dict(
        num_hidden_layers=2, num_key_value_heads=4, q_lora_rank=16, routed_scaling_factor=1.7,
        num_nextn_predict_layers=0)),
}


def save_random(model, folder):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith(("expert_bias", "e_score_correction_bias")):
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


def as_published(folder, copy):
    """What the converter wants of folders, and published ones have: other names than transformers 5 writes."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    kind = config["model_type"]
    if kind == "granitemoehybrid":
        names = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [names[name] for name in config["layer_types"]]
    elif kind == "nemotron_h":
        letters = {"linear_attention": "M", "full_attention": "*", "moe": "E"}
        config["hybrid_override_pattern"] = "".join(letters[name] for name in config.pop("layers_block_type"))
        config["num_hidden_layers"] = len(config["hybrid_override_pattern"])
        config["mamba_d_head"] = config["mamba_head_dim"]
        tensors = load_file(copy / "model.safetensors")
        tensors = {name.replace("model.", "backbone.", 1): tensor for name, tensor in tensors.items()}
        save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    elif kind == "deepseek_v3":
        config["scoring_func"] = "sigmoid"
    elif kind == "gemma4_text":  # the embedding has a row for each token of this file
        vocab = {str(i): i for i in range(config["vocab_size"])}
        (copy / "tokenizer.json").write_text(json.dumps(dict(model=dict(vocab=vocab), added_tokens=[])))
    (copy / "config.json").write_text(json.dumps(config))


def make_all(base, gguf):
    for seed, (name, (module, kind, model, config)) in enumerate(RANDOM.items(), 13):
        torch.manual_seed(seed)
        folder = FIXTURES / "gguf" / name
        config = getattr(transformers, f"{kind}Config")(**COMMON | config)
        save_random(getattr(transformers, model)(config), folder)
        with tempfile.TemporaryDirectory() as work:
            copy = pathlib.Path(work) / name
            as_published(folder, copy)
            convert(base, gguf, module, copy, FIXTURES / "gguf" / f"{name}.gguf")


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
    make_all(base, gguf)


if __name__ == "__main__":
    main()
