"""The small random models of the golden tests: one entry per thing that a model family can do differently.

Every model has random weights at awkward sizes (vocabulary 1,003; head counts such as 3/1, 5/5 and 6/3; head_dim 80
or 24 where hidden / heads is something else; MLP sizes that are no multiple of 32), so that nothing works because
a size happened to be round.
"""
from dataclasses import dataclass, field

VOCABULARY = 1003
BOS, EOS = 1, 2
DEFAULT_PROMPT_LENGTHS = (1, 7, 16, 33, 70)


@dataclass(frozen=True)
class Family:
    """One model folder to make. `config` goes to transformers' configuration class of `model_type`."""
    name: str
    model_type: str
    config: dict
    covers: str
    dtype: str = "bfloat16"
    prompt_lengths: tuple = DEFAULT_PROMPT_LENGTHS
    max_shard_size: str = "50GB"
    stacked: bool = False   # experts as transformers 5 holds them, all of a layer in one tensor
    rotary_short_tokens: int | None = None  # the longest sequence with plain (or short) frequencies; None: any
    older_config: dict = field(default_factory=dict)


def _config(hidden, heads, kv_heads, layers, mlp, **more):
    """The keys that all families but GPT-2 share; mlp None: no layer is dense."""
    return dict(vocab_size=VOCABULARY, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
                num_hidden_layers=layers, max_position_embeddings=256, bos_token_id=BOS, eos_token_id=EOS,
                pad_token_id=None) | (dict(intermediate_size=mlp) if mlp is not None else {}) | more


def _rope(rope_type, theta=10000.0, **more):
    return dict(rope_parameters=dict(rope_type=rope_type, rope_theta=theta, **more))


# Dividers of the 10 frequencies of a head of 20 (phi3-longrope) and of the 12 of a head of 24 (llama-longrope).
_SHORT_10 = [1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.45, 1.6, 1.8]
_LONG_10 = [1.05, 1.2, 1.5, 1.9, 2.6, 3.7, 5.5, 7.5, 9.0, 11.5]
_SHORT_12 = [1.0, 1.01, 1.03, 1.07, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75]
_LONG_12 = [1.1, 1.3, 1.6, 2.0, 2.4, 3.1, 3.9, 5.0, 6.2, 7.4, 8.8, 10.0]

def even_config(experts=False):
    """Sizes that are multiples of 16, of which some are none of 32."""
    config = _config(48, 3, 1, 2, 144, head_dim=32, tie_word_embeddings=True) | _rope("default")
    return config | (dict(moe_intermediate_size=16, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True)
                     if experts else {})


FAMILIES = [
    Family("llama", "llama",
           _config(48, 3, 1, 2, 172, head_dim=80, tie_word_embeddings=False, rms_norm_eps=2e-3) | _rope("default"),
           "plain Llama: untied head, head_dim 80 with hidden 48, one K/V head"),
    Family("llama-llama3", "llama",
           _config(60, 5, 5, 2, 172, tie_word_embeddings=True, rms_norm_eps=1e-5)
           | _rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64),
           "llama3 rope scaling, tied head"),
    Family("llama-linear", "llama",
           _config(54, 9, 3, 2, 100, head_dim=16, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
           | _rope("linear", factor=2.5),
           "linear rope scaling, biases on every linear layer (attention_bias, mlp_bias), F16 weights",
           dtype="float16"),
    Family("llama-dynamic", "llama",
           _config(60, 3, 3, 2, 108, tie_word_embeddings=True, max_position_embeddings=48)
           | _rope("dynamic", factor=2.0),
           "dynamic NTK rope scaling, lengths below and beyond max_position_embeddings 48",
           prompt_lengths=(1, 7, 33, 49, 70), rotary_short_tokens=48),
    Family("llama-yarn", "llama",
           _config(60, 6, 3, 2, 100, head_dim=24, tie_word_embeddings=True, max_position_embeddings=4096)
           | _rope("yarn", factor=4.0, original_max_position_embeddings=1024, beta_fast=16.0, beta_slow=2.0),
           "yarn rope scaling, ramp from frequency 3 to 6 of 12, attention factor derived from factor"),
    Family("llama-longrope", "llama",
           _config(48, 3, 1, 2, 100, head_dim=24, tie_word_embeddings=True, max_position_embeddings=160)
           | _rope("longrope", factor=4.0, original_max_position_embeddings=40, short_factor=_SHORT_12,
                   long_factor=_LONG_12),
           "longrope on a Llama, lengths below and beyond 40",
           prompt_lengths=(1, 7, 33, 40, 41, 70), rotary_short_tokens=40),
    Family("mistral", "mistral",
           _config(48, 6, 3, 2, 140, head_dim=24, tie_word_embeddings=True, sliding_window=8)
           | _rope("default", 1000000.0),
           "sliding window of 8 in every layer", prompt_lengths=(1, 7, 8, 9, 33, 70, 130)),
    Family("qwen2", "qwen2",
           _config(60, 6, 3, 2, 172, tie_word_embeddings=True, use_sliding_window=False, sliding_window=8)
           | _rope("default", 1000000.0),
           "QKV biases; sliding window switched off (the older config.json still names one); several shards",
           max_shard_size="100KB", older_config=dict(sliding_window=8, max_window_layers=1)),
    Family("qwen2-window", "qwen2",
           _config(60, 5, 1, 4, 76, tie_word_embeddings=True, use_sliding_window=True, sliding_window=8,
                   max_window_layers=2) | _rope("default", 1000000.0),
           "QKV biases; layers 2 and 3 slide (use_sliding_window, max_window_layers)"),
    Family("qwen3", "qwen3",
           _config(50, 5, 5, 2, 100, head_dim=48, tie_word_embeddings=True, rms_norm_eps=2e-3)
           | _rope("default", 1000000.0),
           "RMS norm on each query and key head, 5 heads of 48 with hidden 50"),
    Family("gemma2", "gemma2",
           _config(48, 6, 3, 3, 108, head_dim=24, sliding_window=8, query_pre_attn_scalar=20,
                   final_logit_softcapping=15.0, attn_logit_softcapping=6.0, tie_word_embeddings=True)
           | _rope("default"),
           "soft-capped attention scores and logits, local and global layers in turn, query_pre_attn_scalar, "
           "post-norms, GeGLU, scaled embedding"),
    Family("gemma3", "gemma3_text",
           _config(48, 3, 1, 4, 92, head_dim=40, sliding_window=8, query_pre_attn_scalar=30,
                   tie_word_embeddings=True,
                   rms_norm_eps=2e-3,
                   layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                   rope_parameters=dict(
                       sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                       full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0))),
           "two rotary bases (global one with linear scaling), QK norm, every third layer global, tied head",
           older_config=dict(sliding_window_pattern=3)),
    Family("gemma4", "gemma4_text",
           _config(48, 6, 3, 5, 92, head_dim=24, sliding_window=7, rms_norm_eps=2e-3, tie_word_embeddings=True,
                   global_head_dim=40, num_global_key_value_heads=2, attention_k_eq_v=True,
                   hidden_size_per_layer_input=0, final_logit_softcapping=11.0,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                                "full_attention"]),
           "heads of 40 in full attention beside 24 in sliding layers, other K/V heads; values that are keys, normed; "
           "proportional rotary positions; a factor for each layer", prompt_lengths=(1, 7, 8, 33, 70),
           older_config=dict(global_head_dim=40, num_global_key_value_heads=2)),
    Family("gemma4-shared", "gemma4_text",
           _config(60, 5, 1, 6, 76, head_dim=24, sliding_window=7, rms_norm_eps=2e-3, tie_word_embeddings=True,
                   global_head_dim=40, num_kv_shared_layers=3, use_double_wide_mlp=True,
                   hidden_size_per_layer_input=20, vocab_size_per_layer_input=VOCABULARY + 4, attention_bias=True,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                                "full_attention", "full_attention"]),
           "layers that read K/V of earlier ones, with MLPs twice as wide and weights that nobody uses; inputs of each "
           "layer from a table of its own; biases of attention", prompt_lengths=(1, 7, 8, 33, 70),
           older_config=dict(global_head_dim=40)),
    Family("gemma4-moe", "gemma4_text",
           _config(48, 6, 3, 4, 60, head_dim=24, sliding_window=7, rms_norm_eps=2e-3, tie_word_embeddings=True,
                   global_head_dim=40, num_global_key_value_heads=2, attention_k_eq_v=True,
                   hidden_size_per_layer_input=0, final_logit_softcapping=11.0, enable_moe_block=True, num_experts=7,
                   top_k_experts=3, moe_intermediate_size=20,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
           "3 of 7 experts beside a dense MLP, with norms of their own before and after; a norm of the router, and a "
           "scale of each expert's share", prompt_lengths=(1, 7, 33, 70),
           older_config=dict(global_head_dim=40, num_global_key_value_heads=2)),
    Family("gemma4-images", "gemma4",
           dict(text_config=_config(48, 3, 1, 2, 60, head_dim=16, sliding_window=7, global_head_dim=24, pad_token_id=0,
                                    hidden_size_per_layer_input=0,
                                    layer_types=["sliding_attention", "full_attention"],
                                    use_bidirectional_attention="vision"),
                vision_config=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                   num_key_value_heads=2, head_dim=8, global_head_dim=8, patch_size=4,
                                   position_embedding_size=16),
                audio_config=None, tie_word_embeddings=True),
           "the wrapper with images (text_config, model.vision_tower.*, model.embed_vision.*)",
           prompt_lengths=(1, 7, 33), older_config=dict(global_head_dim=24)),
    Family("phi3", "phi3",
           _config(48, 3, 3, 2, 172, tie_word_embeddings=False, sliding_window=None,
                   original_max_position_embeddings=256) | _rope("default"),
           "fused qkv_proj and gate_up_proj, untied head, head_dim 16"),
    Family("phi3-partial", "phi3",
           _config(48, 3, 3, 2, 108, tie_word_embeddings=True, sliding_window=9,
                   original_max_position_embeddings=256) | _rope("default", partial_rotary_factor=0.75),
           "partial_rotary_factor 0.75 (12 of 16 elements of a head rotate), sliding window of 9"),
    Family("phi3-longrope", "phi3",
           _config(60, 3, 1, 2, 108, tie_word_embeddings=True, original_max_position_embeddings=40,
                   max_position_embeddings=160)
           | _rope("longrope", short_factor=_SHORT_10, long_factor=_LONG_10),
           "longrope as Phi-3 uses it, lengths below and beyond 40",
           prompt_lengths=(1, 7, 33, 40, 41, 70), rotary_short_tokens=40),
    Family("ministral3", "ministral3",
           _config(48, 6, 3, 2, 140, head_dim=24, tie_word_embeddings=True, sliding_window=None)
           | _rope("yarn", 1000000.0, factor=4.0, original_max_position_embeddings=20, beta_fast=32.0, beta_slow=1.0,
                   mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5),
           "queries scaled by the logarithm of their position, YaRN", prompt_lengths=(1, 7, 20, 21, 70, 130)),
    Family("smollm3", "smollm3",
           _config(60, 5, 5, 5, 76, tie_word_embeddings=True) | _rope("default", 2000000.0),
           "every fourth layer without rotary positions", prompt_lengths=(1, 7, 33, 70)),
    Family("smollm3-window", "smollm3",
           _config(48, 6, 3, 3, 76, tie_word_embeddings=True, no_rope_layers=[0, 1, 0], use_sliding_window=True,
                   sliding_window=8) | _rope("default", 2000000.0),
           "no_rope_layers given; the layers without rotary positions slide", prompt_lengths=(1, 7, 33, 70)),
    Family("olmo2", "olmo2",
           _config(48, 3, 3, 3, 172, tie_word_embeddings=False, rms_norm_eps=2e-3) | _rope("default", 500000.0),
           "norms after the blocks alone, QK norm over all heads together", prompt_lengths=(1, 7, 33, 70)),
    Family("olmo3", "olmo3",
           _config(60, 6, 2, 5, 92, tie_word_embeddings=False, sliding_window=8, rms_norm_eps=2e-3,
                   rope_parameters=dict(
                       sliding_attention=dict(rope_type="default", rope_theta=500000.0),
                       full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0,
                                           original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0))),
           "as OLMo 2, grouped K/V heads, every fourth layer global with YaRN", prompt_lengths=(1, 7, 33, 70)),
    Family("qwen2-moe", "qwen2_moe",
           _config(48, 6, 3, 3, 60, tie_word_embeddings=False, moe_intermediate_size=28, num_experts=7,
                   num_experts_per_tok=3, shared_expert_intermediate_size=52, mlp_only_layers=[2],
                   use_sliding_window=True, max_window_layers=2, sliding_window=8) | _rope("default", 1000000.0),
           "an expert that every token goes to, with a share of its own; QKV biases; layer 0 slides",
           prompt_lengths=(1, 7, 33, 70), older_config=dict(sliding_window=8)),
    Family("qwen3-moe", "qwen3_moe",
           _config(48, 6, 3, 3, 76, head_dim=24, tie_word_embeddings=True, moe_intermediate_size=36, num_experts=7,
                   num_experts_per_tok=3, norm_topk_prob=True, mlp_only_layers=[1]) | _rope("default", 1000000.0),
           "3 of 7 experts, one matrix each, shares that add up to 1; layer 1 without experts",
           prompt_lengths=(1, 7, 33, 70)),
    Family("qwen3-moe-stacked", "qwen3_moe",
           _config(60, 5, 1, 2, 76, head_dim=24, tie_word_embeddings=True, moe_intermediate_size=20, num_experts=7,
                   num_experts_per_tok=3, norm_topk_prob=False, use_sliding_window=True, sliding_window=8)
           | _rope("default", 1000000.0),
           "the experts of a layer in one tensor, shares that do not add up to 1, sliding window of 8",
           prompt_lengths=(1, 7, 33, 70), stacked=True),
    Family("mixtral", "mixtral",
           _config(48, 3, 1, 2, 44, head_dim=40, tie_word_embeddings=False, num_local_experts=7,
                   num_experts_per_tok=3, sliding_window=None) | _rope("default", 1000000.0),
           "names of its own for router and experts", prompt_lengths=(1, 7, 33, 70)),
    Family("mixtral-stacked", "mixtral",
           _config(50, 5, 5, 2, 28, tie_word_embeddings=True, num_local_experts=5, num_experts_per_tok=3,
                   sliding_window=None) | _rope("default", 1000000.0),
           "the names of transformers 5", prompt_lengths=(1, 7, 33, 70), stacked=True),
    Family("olmoe", "olmoe",
           _config(48, 6, 3, 2, 52, tie_word_embeddings=False, num_experts=7, num_experts_per_tok=3,
                   norm_topk_prob=False, clip_qkv=None) | _rope("default"),
           "QK norm over all heads before experts", prompt_lengths=(1, 7, 33, 70), dtype="float32"),
    Family("granite", "granite",
           _config(60, 5, 1, 3, 92, tie_word_embeddings=True, embedding_multiplier=0.4, attention_multiplier=0.11,
                   residual_multiplier=0.7, logits_scaling=0.6, attention_bias=True, mlp_bias=True)
           | _rope("default", 10000000.0),
           "factors on embeddings, scores, blocks and logits; biases", prompt_lengths=(1, 7, 33, 70)),
    Family("granite4", "granitemoehybrid",
           _config(60, 5, 1, 3, None, tie_word_embeddings=True, embedding_multiplier=0.4, attention_multiplier=0.11,
                   residual_multiplier=0.7, logits_scaling=0.6, attention_bias=True, num_local_experts=0,
                   num_experts_per_tok=0, shared_intermediate_size=92, position_embedding_type="rope",
                   layer_types=["full_attention"] * 3, mamba_n_heads=5, mamba_d_head=24, time_step_limit=[0.0, 1.0])
           | _rope("default", 10000000.0),
           "Granite 4 without Mamba layers and experts: gate and up in one matrix", prompt_lengths=(1, 7, 33),
           older_config=dict(layer_types=["attention"] * 3)),
    Family("granite4-nope", "granitemoehybrid",
           _config(48, 3, 3, 2, None, tie_word_embeddings=False, num_local_experts=0, num_experts_per_tok=0,
                   shared_intermediate_size=76, position_embedding_type=None, attention_multiplier=0.2,
                   layer_types=["full_attention"] * 2, mamba_n_heads=3, mamba_d_head=32, time_step_limit=[0.0, 1.0])
           | _rope("default"),
           "no rotary positions", prompt_lengths=(1, 7, 33), older_config=dict(layer_types=["attention"] * 2)),
    Family("granite4-spaces", "granitemoehybrid",
           _config(60, 5, 1, 5, None, tie_word_embeddings=True, embedding_multiplier=0.4, attention_multiplier=0.11,
                   residual_multiplier=0.7, logits_scaling=0.6, num_local_experts=0, num_experts_per_tok=0,
                   shared_intermediate_size=92, position_embedding_type=None, rms_norm_eps=2e-3,
                   layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention",
                                "linear_attention"],
                   mamba_n_heads=5, mamba_d_head=24, mamba_d_state=20, mamba_n_groups=1, time_step_limit=[0.0, 6e4])
           | _rope("default", 10000000.0),
           "Mamba-2 in four of five layers, all heads of one group, no rotary positions",
           prompt_lengths=(1, 7, 33, 70, 130),
           older_config=dict(layer_types=["mamba", "mamba", "attention", "mamba", "mamba"])),
    Family("granite4-moe", "granitemoehybrid",
           _config(48, 3, 3, 3, 28, tie_word_embeddings=False, num_local_experts=7, num_experts_per_tok=3,
                   shared_intermediate_size=36, position_embedding_type="rope", attention_multiplier=0.2,
                   residual_multiplier=0.7, layer_types=["linear_attention", "full_attention", "linear_attention"],
                   mamba_n_heads=6, mamba_d_head=16, mamba_d_state=9, mamba_n_groups=2, mamba_d_conv=3,
                   mamba_conv_bias=False, time_step_limit=[0.0, 6e4])
           | _rope("default"),
           "Mamba-2 of two groups without a bias of its convolution; experts beside one of all tokens",
           prompt_lengths=(1, 7, 24), older_config=dict(layer_types=["mamba", "attention", "mamba"])),
    Family("nemotron-h", "nemotron_h",
           {key: value for key, value in _config(60, 3, 1, 7, 76, head_dim=24, tie_word_embeddings=False,
                                                 layer_norm_epsilon=2e-3, mlp_bias=True, mamba_num_heads=6,
                                                 mamba_head_dim=24, ssm_state_size=20, n_groups=3,
                                                 time_step_min=1e-30).items() if key != "num_hidden_layers"}
           | dict(layers_block_type=["mlp", "linear_attention", "linear_attention", "full_attention", "mlp", "mlp",
                                     "linear_attention"]),
           "layers of one block each: Mamba-2 of three groups, attention, MLPs of squared ReLU with biases",
           prompt_lengths=(1, 7, 33, 70, 130), older_config=dict(
               hybrid_override_pattern="-MM*--M", num_hidden_layers=7, time_step_limit=[0.0, float("inf")])),
    Family("nemotron-h-moe", "nemotron_h",
           {key: value for key, value in _config(48, 6, 3, 6, 52, head_dim=16, tie_word_embeddings=False,
                                                 mamba_num_heads=4, mamba_head_dim=20, ssm_state_size=12, n_groups=2,
                                                 conv_kernel=3, use_conv_bias=False, time_step_min=1e-30,
                                                 n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
                                                 moe_shared_expert_intermediate_size=36,
                                                 routed_scaling_factor=1.8).items() if key != "num_hidden_layers"}
           | dict(layers_block_type=["linear_attention", "moe", "moe", "mlp", "full_attention", "moe"]),
           "3 of 7 experts of squared ReLU without a gate, beside one of all tokens, chosen by sigmoids plus a bias",
           prompt_lengths=(1, 7, 24), older_config=dict(
               hybrid_override_pattern="MEE-*E", num_hidden_layers=6, time_step_limit=[0.0, float("inf")])),
    Family("falcon-h1", "falcon_h1",
           _config(60, 5, 1, 3, 92, head_dim=24, tie_word_embeddings=False, rms_norm_eps=2e-3, mamba_d_ssm=70,
                   mamba_n_heads=5, mamba_d_head=14, mamba_d_state=20, mamba_n_groups=1, embedding_multiplier=0.6,
                   lm_head_multiplier=1.4, key_multiplier=0.6, attention_in_multiplier=0.8,
                   attention_out_multiplier=1.3, ssm_in_multiplier=1.2, ssm_out_multiplier=0.7,
                   mlp_multipliers=[0.7, 1.2], ssm_multipliers=[0.8, 1.1, 0.9, 1.3, 0.6], time_step_limit=[0.0, 6e4])
           | _rope("default", 100000000000.0),
           "attention and Mamba-2 side by side in every layer, without a norm; factors of all that it makes",
           prompt_lengths=(1, 7, 33, 70, 130)),
    Family("falcon-h1-norm", "falcon_h1",
           _config(48, 6, 3, 2, 76, tie_word_embeddings=True, mamba_d_ssm=None, mamba_expand=1, mamba_n_heads=6,
                   mamba_d_state=9, mamba_n_groups=3, mamba_d_conv=3, mamba_conv_bias=False, mamba_rms_norm=True,
                   mamba_norm_before_gate=False, time_step_limit=[0.0, 6e4])
           | _rope("linear", factor=2.5),
           "Mamba-2 of three groups with a norm after its gate, beside attention; no factors", prompt_lengths=(1, 7, 33)),
    Family("bamba", "bamba",
           _config(60, 5, 1, 4, 92, head_dim=24, tie_word_embeddings=False, rms_norm_eps=2e-3, attn_layer_indices=[1, 3],
                   mamba_n_heads=5, mamba_d_head=24, mamba_d_state=20, mamba_n_groups=1, attention_bias=True,
                   mlp_bias=True, time_step_limit=[0.0, 6e4])
           | _rope("default"),
           "Mamba-2 in two of four layers, heads of which half rotates in the others, biases",
           prompt_lengths=(1, 7, 33, 70, 130)),
    Family("apertus", "apertus",
           _config(60, 6, 3, 3, 172, head_dim=24, tie_word_embeddings=False, hidden_act="xielu", attention_bias=True)
           | _rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64),
           "xIELU with two learned numbers a layer, norms of heads, biases of attention"),
    Family("gpt-oss", "gpt_oss",
           _config(60, 6, 3, 4, 36, head_dim=24, tie_word_embeddings=False, num_local_experts=7, num_experts_per_tok=3,
                   sliding_window=7, max_position_embeddings=4096, swiglu_limit=2.5)
           | _rope("yarn", 150000.0, factor=4.0, original_max_position_embeddings=1024, beta_fast=32.0, beta_slow=1.0,
                   truncate=False),
           "attention sinks, biases on q, k, v, o, router and experts, a clamped gate, sliding layers in turn",
           prompt_lengths=(1, 7, 33, 70)),
    Family("gpt-oss-wide", "gpt_oss",
           _config(64, 3, 1, 2, 32, head_dim=24, tie_word_embeddings=False, num_local_experts=7, num_experts_per_tok=3,
                   sliding_window=7, max_position_embeddings=4096)
           | _rope("yarn", 150000.0, factor=32.0, original_max_position_embeddings=128, beta_fast=32.0, beta_slow=1.0,
                   truncate=False),
           "sizes that MXFP4 has blocks for, the limit of the published models", prompt_lengths=(1, 33)),
    Family("gpt-oss-full", "gpt_oss",
           _config(48, 5, 5, 2, 44, head_dim=40, tie_word_embeddings=True, num_local_experts=5, num_experts_per_tok=2,
                   sliding_window=7, max_position_embeddings=4096, attention_bias=False, swiglu_alpha=1.5,
                   layer_types=["full_attention", "full_attention"])
           | _rope("linear", 150000.0, factor=2.0),
           "no layer slides, no biases of attention, another alpha; tied head",
           prompt_lengths=(1, 7, 33, 70),
           older_config=dict(layer_types=["full_attention", "full_attention"])),
    Family("qwen3_5", "qwen3_5_text",
           _config(60, 5, 1, 5, 100, head_dim=24, tie_word_embeddings=True, rms_norm_eps=2e-3,
                   linear_num_key_heads=3, linear_num_value_heads=9, linear_key_head_dim=20,
                   linear_value_head_dim=12, full_attention_interval=4)
           | _rope("default", 1000000.0, partial_rotary_factor=0.25),
           "gated DeltaNet in four of five layers, three value heads a key head; gated attention, 6 of 24 elements "
           "of a head rotate", prompt_lengths=(1, 7, 33, 70, 130)),
    Family("qwen3_5-images", "qwen3_5",
           dict(text_config=_config(48, 3, 3, 3, 92, head_dim=32, linear_num_key_heads=5, linear_num_value_heads=5,
                                    linear_key_head_dim=17, linear_value_head_dim=9, linear_conv_kernel_dim=3,
                                    attention_bias=True, pad_token_id=0,
                                    layer_types=["full_attention", "linear_attention", "linear_attention"])
                | _rope("default", 1000000.0, mrope_interleaved=True, mrope_section=[2, 1, 1]),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48,
                                   patch_size=4, num_position_embeddings=16),
                tie_word_embeddings=False, image_token_id=5, video_token_id=6, vision_start_token_id=7,
                vision_end_token_id=8),
           "the wrapper with images (text_config, model.visual.*, mtp.*), untied head, convolution of 3, biases",
           prompt_lengths=(1, 7, 33, 70)),
    Family("qwen3-vl", "qwen3_vl",
           dict(text_config=_config(48, 3, 1, 3, 92, head_dim=32, pad_token_id=0, rms_norm_eps=2e-3)
                | _rope("default", 1000000.0, mrope_interleaved=True, mrope_section=[6, 5, 5]),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48,
                                   patch_size=4, num_position_embeddings=16, deepstack_visual_indexes=[0]),
                tie_word_embeddings=True, image_token_id=5, video_token_id=6, vision_start_token_id=7,
                vision_end_token_id=8),
           "as Qwen3, inside a wrapper with images (text_config, model.visual.*), tied head",
           prompt_lengths=(1, 7, 33, 70)),
    Family("qwen3-vl-moe", "qwen3_vl_moe",
           dict(text_config=_config(48, 3, 1, 3, 60, head_dim=32, pad_token_id=0, rms_norm_eps=2e-3,
                                    moe_intermediate_size=20, num_experts=7, num_experts_per_tok=3,
                                    mlp_only_layers=[1])
                | _rope("default", 1000000.0, mrope_interleaved=True, mrope_section=[6, 5, 5]),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48,
                                   patch_size=4, num_position_embeddings=16, deepstack_visual_indexes=[0]),
                tie_word_embeddings=False, image_token_id=5, video_token_id=6, vision_start_token_id=7,
                vision_end_token_id=8),
           "as Qwen3-MoE, inside a wrapper with images; stacks of experts with columns for rows, as published ones are",
           prompt_lengths=(1, 7, 33, 70)),
    Family("qwen2-vl", "qwen2_vl",
           dict(text_config=_config(48, 3, 1, 2, 92, pad_token_id=0)
                | _rope("default", 1000000.0, mrope_section=[2, 3, 3]),
                vision_config=dict(depth=1, embed_dim=16, hidden_size=48, num_heads=2, mlp_ratio=2, patch_size=4),
                tie_word_embeddings=True, image_token_id=5, video_token_id=6, vision_start_token_id=7,
                vision_end_token_id=8),
           "as Qwen2, inside a wrapper with images whose tensors are visual.* and model.*, and whose config.json on the "
           "hub has the text model's keys among its own", prompt_lengths=(1, 7, 33, 70)),
    Family("qwen2_5-vl", "qwen2_5_vl",
           dict(text_config=_config(60, 5, 5, 3, 76, pad_token_id=0, rms_norm_eps=2e-3, use_sliding_window=True,
                                    sliding_window=8, max_window_layers=1)
                | _rope("default", 1000000.0, mrope_section=[2, 2, 2]),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=60,
                                   patch_size=4, fullatt_block_indexes=[0]),
                tie_word_embeddings=False, image_token_id=5, video_token_id=6, vision_start_token_id=7,
                vision_end_token_id=8),
           "the same with windows in two layers, untied head", prompt_lengths=(1, 7, 33, 70)),
    Family("exaone4_5", "exaone4_5",
           dict(text_config=_config(48, 6, 2, 4, 60, model_type="exaone4", pad_token_id=0, sliding_window=8,
                                    sliding_window_pattern=4) | _rope("default", 1000000.0),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, num_key_value_heads=1,
                                   out_hidden_size=48, patch_size=4, fullatt_block_indexes=[0]),
                tie_word_embeddings=False, image_token_id=5, video_token_id=6),
           "EXAONE 4 inside a wrapper with images", prompt_lengths=(1, 7, 33)),
    Family("exaone4", "exaone4",
           _config(48, 6, 2, 5, 92, tie_word_embeddings=False, sliding_window=8, sliding_window_pattern=4,
                   rms_norm_eps=2e-3) | _rope("default", 1000000.0),
           "norms after the blocks alone, norms of each head, every fourth layer global and without rotation",
           prompt_lengths=(1, 7, 33, 70)),
    Family("exaone4-full", "exaone4",
           _config(60, 5, 5, 2, 76, head_dim=16, tie_word_embeddings=True, sliding_window=None,
                   sliding_window_pattern=None, layer_types=["full_attention"] * 2)
           | _rope("llama3", 1000000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64),
           "the same without windows: every layer rotates", older_config=dict(layer_types=["full_attention"] * 2)),
    Family("mellum", "mellum",
           _config(48, 6, 3, 4, 60, head_dim=16, tie_word_embeddings=False, moe_intermediate_size=20, num_experts=7,
                   num_experts_per_tok=3, norm_topk_prob=True, sliding_window=8, rms_norm_eps=2e-3,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                   mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
                   rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                                        full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0,
                                                            original_max_position_embeddings=64))),
           "experts as Qwen3-MoE's, in the layers that mlp_layer_types names; windows, and two ways to rotate",
           prompt_lengths=(1, 7, 33, 61)),
    Family("ministral", "ministral",
           _config(48, 6, 2, 3, 92, head_dim=24, tie_word_embeddings=False, sliding_window=8,
                   layer_types=["full_attention", "sliding_attention", "sliding_attention"])
           | _rope("default", 1000000.0),
           "as Mistral, with windows in the layers that layer_types names", prompt_lengths=(1, 7, 33, 70),
           older_config=dict(layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    Family("iquest-coder", "iquestcoder",
           _config(48, 6, 3, 2, 92, head_dim=24, tie_word_embeddings=False) | _rope("default", 500000.0),
           "as Llama, heads of 24 with hidden 48"),
    Family("seed-oss", "seed_oss",
           _config(60, 6, 3, 2, 100, head_dim=24, tie_word_embeddings=False) | _rope("default", 1000000.0),
           "biases of queries, keys and values alone; heads of 24 with hidden 60", prompt_lengths=(1, 7, 33, 70)),
    Family("qwen3_5-moe", "qwen3_5_moe_text",
           _config(60, 5, 1, 5, None, head_dim=24, tie_word_embeddings=False, rms_norm_eps=2e-3,
                   linear_num_key_heads=3, linear_num_value_heads=9, linear_key_head_dim=20,
                   linear_value_head_dim=12, full_attention_interval=4, moe_intermediate_size=28, num_experts=7,
                   num_experts_per_tok=3, shared_expert_intermediate_size=20)
           | _rope("default", 1000000.0, partial_rotary_factor=0.25),
           "gated DeltaNet in four of five layers, 3 of 7 experts and a shared one in all, in one tensor a layer",
           prompt_lengths=(1, 7, 33, 70), stacked=True),
    Family("qwen3_5-moe-images", "qwen3_5_moe",
           dict(text_config=_config(48, 3, 3, 3, None, head_dim=32, linear_num_key_heads=5, linear_num_value_heads=5,
                                    linear_key_head_dim=17, linear_value_head_dim=9, linear_conv_kernel_dim=3,
                                    moe_intermediate_size=20, num_experts=5, num_experts_per_tok=2,
                                    shared_expert_intermediate_size=36,
                                    layer_types=["linear_attention", "full_attention", "linear_attention"])
                | _rope("default", 1000000.0, mrope_interleaved=True, mrope_section=[2, 1, 1]),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48,
                                   patch_size=4, num_position_embeddings=16),
                tie_word_embeddings=False, image_token_id=5, video_token_id=6, vision_start_token_id=7,
                vision_end_token_id=8),
           "the wrapper with images around experts, one matrix each (text_config, model.visual.*, mtp.*)",
           prompt_lengths=(1, 7, 33)),
    Family("muse-glimmer", "muse_glimmer",
           dict(text_config=_config(60, 5, 1, 5, 100, head_dim=24, rms_norm_eps=2e-3, post_norm_eps=3e-4,
                                    sliding_window=7, qk_scale_factor=2.3, output_multiplier=0.7,
                                    final_logit_softcapping=9.0, pad_token_id=0)
                | _rope("default", 1000000.0),
                vision_config=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                   patch_size=4, pos_emb_height=4, pos_emb_width=4),
                out_hidden_size=64, projector_hidden_size=24, tie_word_embeddings=False, image_token_id=1,
                video_token_id=2),
           "normed embeddings, heads normed without weights, gates of attention from a matrix of their own, two layers "
           "without rotary positions, norms after blocks with an epsilon of their own; the wrapper with images",
           prompt_lengths=(1, 7, 8, 33, 70)),
    Family("qwen3-next", "qwen3_next",
           _config(48, 6, 3, 5, 76, head_dim=24, tie_word_embeddings=False, linear_num_key_heads=3,
                   linear_num_value_heads=6, linear_key_head_dim=20, linear_value_head_dim=12,
                   moe_intermediate_size=28, num_experts=7, num_experts_per_tok=3,
                   shared_expert_intermediate_size=20, mlp_only_layers=[1])
           | _rope("default", 1000000.0, partial_rotary_factor=0.25),
           "projections of the gated delta rule head by head, two value heads a key head; layer 1 without experts",
           prompt_lengths=(1, 7, 33, 70, 130)),
    Family("gpt2", "gpt2",
           dict(vocab_size=VOCABULARY, n_embd=40, n_head=5, n_layer=2, n_positions=128, n_inner=172,
                activation_function="gelu_new", layer_norm_epsilon=2e-3, bos_token_id=BOS, eos_token_id=EOS),
           "LayerNorm, learned positions, Conv1D layout, tied head, F32 weights", dtype="float32"),
    Family("lfm2", "lfm2",
           _config(48, 3, 1, 5, 110, tie_word_embeddings=True, norm_eps=2e-3, block_auto_adjust_ff_dim=True,
                   block_ffn_dim_multiplier=1.1, block_multiple_of=12,
                   layer_types=["conv", "conv", "full_attention", "conv", "full_attention"])
           | _rope("default", 50000.0),
           "gated short convolutions in three of five layers, QK norm; MLPs whose size comes from a rule: 84 of 110",
           prompt_lengths=(1, 2, 7, 33, 70)),
    Family("lfm2-untied", "lfm2",
           _config(40, 4, 2, 3, 76, tie_word_embeddings=False, conv_L_cache=4, block_auto_adjust_ff_dim=False,
                   block_multiple_of=16, layer_types=["full_attention", "conv", "conv"])
           | _rope("default", 1000000.0),
           "convolution of 4, MLPs of the size given, untied head", prompt_lengths=(1, 3, 7, 33),
           older_config=dict(theta=1000000.0)),
    Family("lfm2-moe", "lfm2_moe",
           _config(48, 6, 3, 4, 60, tie_word_embeddings=True, norm_eps=2e-3, num_dense_layers=2,
                   moe_intermediate_size=20, num_experts=7, num_experts_per_tok=3, use_expert_bias=True,
                   norm_topk_prob=True, routed_scaling_factor=1.7,
                   layer_types=["conv", "full_attention", "conv", "full_attention"])
           | _rope("default", 1000000.0),
           "3 of 7 experts after two dense layers, chosen by sigmoids plus an F32 bias that is in no share; shares "
           "that add up to 1.7", prompt_lengths=(1, 7, 16, 33)),
    Family("lfm2-moe-stacked", "lfm2_moe",
           _config(40, 5, 1, 3, 52, tie_word_embeddings=False, num_dense_layers=1, moe_intermediate_size=28,
                   num_experts=5, num_experts_per_tok=4, use_expert_bias=False, norm_topk_prob=False,
                   layer_types=["conv", "full_attention", "conv"])
           | _rope("default", 50000.0),
           "the experts of a layer in one tensor, after a dense layer; no bias, sigmoids as they are for shares",
           prompt_lengths=(1, 7, 33, 70), stacked=True),
    Family("glm4-moe", "glm4_moe",
           _config(48, 6, 2, 3, 92, head_dim=16, tie_word_embeddings=False, attention_bias=True, rms_norm_eps=2e-3,
                   n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=2,
                   first_k_dense_replace=1, routed_scaling_factor=1.7, use_qk_norm=True, num_nextn_predict_layers=1)
           | _rope("default", 1000000.0, partial_rotary_factor=0.5),
           "3 of 7 experts after a dense layer, chosen by sigmoids plus a bias, beside an expert of all tokens; heads "
           "rotated in part, biases of queries, keys and values; a layer after the last", prompt_lengths=(1, 7, 16, 33)),
    Family("glm4-moe-plain", "glm4_moe",
           _config(40, 5, 5, 2, 52, head_dim=24, tie_word_embeddings=True, n_routed_experts=5, num_experts_per_tok=4,
                   moe_intermediate_size=28, n_shared_experts=1, first_k_dense_replace=0, norm_topk_prob=False)
           | _rope("default", 10000.0, partial_rotary_factor=0.5),
           "the same without norms of heads and biases of attention, every layer with experts, sigmoids as shares",
           prompt_lengths=(1, 7, 16, 33)),
    Family("ernie4_5", "ernie4_5",
           _config(50, 5, 5, 3, 100, head_dim=44, tie_word_embeddings=True, rms_norm_eps=2e-3)
           | _rope("default", 500000.0),
           "neighbours are a pair that rotates; 5 heads of 44 with hidden 50, tied head"),
    Family("ernie4_5-biases", "ernie4_5",
           _config(48, 6, 3, 2, 172, head_dim=24, tie_word_embeddings=False, use_bias=True)
           | _rope("linear", 10000.0, factor=2.5),
           "the same with linear rope scaling and biases everywhere, untied head, F16 weights", dtype="float16",
           prompt_lengths=(1, 7, 33, 70)),
    Family("ernie4_5-moe", "ernie4_5_moe",
           _config(48, 6, 3, 3, 92, tie_word_embeddings=True, rms_norm_eps=2e-3, moe_num_experts=7, moe_k=3,
                   moe_intermediate_size=20, moe_num_shared_experts=2) | _rope("default", 500000.0),
           "3 of 7 experts after a dense layer, chosen by a softmax plus an F32 bias that is in no share, beside an "
           "expert of all tokens; neighbours are a pair that rotates", prompt_lengths=(1, 7, 16, 24)),
    Family("ernie4_5-moe-plain", "ernie4_5_moe",
           _config(40, 5, 5, 5, 52, tie_word_embeddings=False, moe_num_experts=5, moe_k=4, moe_intermediate_size=28,
                   moe_num_shared_experts=0, moe_layer_start_index=1, moe_layer_end_index=3, moe_layer_interval=2)
           | _rope("default", 10000.0),
           "the same without an expert of all tokens; layers 1 and 3 of five with experts",
           prompt_lengths=(1, 7, 16, 24)),
    Family("glm", "glm",
           _config(48, 3, 1, 2, 108, head_dim=24, tie_word_embeddings=True, attention_bias=False)
           | _rope("default", 10000.0, partial_rotary_factor=0.25),
           "a quarter of each head rotates, neighbours in pairs; fused gate_up_proj, no biases",
           prompt_lengths=(1, 7, 33, 70)),
    Family("glm4", "glm4",
           _config(60, 6, 2, 3, 92, head_dim=20, tie_word_embeddings=False, attention_bias=True, rms_norm_eps=2e-3)
           | _rope("default", 10000.0, partial_rotary_factor=0.5),
           "half of each head rotates, neighbours in pairs; norms before and after the blocks, fused gate_up_proj, "
           "biases of queries, keys and values"),
    Family("glm4v", "glm4v",
           dict(text_config=_config(60, 6, 2, 3, 92, pad_token_id=0, rms_norm_eps=2e-3)
                | _rope("default", 10000.0, partial_rotary_factor=0.8, mrope_section=[2, 1, 1]),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=60,
                                   patch_size=4, image_size=16),
                tie_word_embeddings=False, image_token_id=5, video_token_id=6),
           "as GLM-4, inside a wrapper with images; 8 of 10 elements of each head rotate, neighbours in pairs",
           prompt_lengths=(1, 7, 33, 70)),
    Family("glm4v-moe", "glm4v_moe",
           dict(text_config=_config(48, 6, 2, 3, 92, head_dim=16, pad_token_id=0, attention_bias=True,
                                    n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=20,
                                    n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.7)
                | _rope("default", 10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]),
                vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48,
                                   patch_size=4, image_size=16),
                tie_word_embeddings=False, image_token_id=5, video_token_id=6),
           "as GLM-4.5 without norms of heads, inside a wrapper with images", prompt_lengths=(1, 7, 16, 33)),
    Family("youtu", "youtu",
           _config(48, 3, 3, 3, 92, tie_word_embeddings=True, rms_norm_eps=2e-3, attention_bias=True, q_lora_rank=36,
                   kv_lora_rank=28, qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=24)
           | _rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.8),
           "latents of queries and of keys and values, heads of 32 for keys and 24 for values; biases of what makes "
           "latents; YaRN whose factors scale scores"),
    Family("deepseek-v2", "deepseek_v2",
           _config(48, 3, 3, 3, 76, tie_word_embeddings=False, rms_norm_eps=2e-3, q_lora_rank=None, kv_lora_rank=20,
                   qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=6, num_experts_per_tok=3,
                   moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1)
           | _rope("default"),
           "3 of 6 experts after a dense layer, shares as the softmax has them, beside an expert of all tokens; queries "
           "without a latent", prompt_lengths=(1, 7, 33, 70)),
    Family("deepseek-v3", "deepseek_v3",
           _config(40, 4, 4, 3, 68, tie_word_embeddings=False, q_lora_rank=None, kv_lora_rank=24,
                   qk_nope_head_dim=14, qk_rope_head_dim=10, v_head_dim=24, n_routed_experts=7, num_experts_per_tok=3,
                   moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
                   routed_scaling_factor=1.6, rope_interleave=False, num_nextn_predict_layers=0)
           | _rope("default"),
           "3 of 7 experts after a dense layer, chosen by sigmoids plus a bias; elements half a rotated part apart are "
           "a pair, heads of 24 for keys and values", prompt_lengths=(1, 7, 16, 24)),
    Family("glm4-moe-lite", "glm4_moe_lite",
           _config(48, 3, 3, 3, 84, tie_word_embeddings=False, rms_norm_eps=2e-3, q_lora_rank=30, kv_lora_rank=22,
                   qk_nope_head_dim=12, qk_rope_head_dim=12, v_head_dim=24, n_routed_experts=5, num_experts_per_tok=2,
                   moe_intermediate_size=24, n_shared_experts=1, routed_scaling_factor=1.8,
                   mlp_layer_types=["dense", "sparse", "sparse"])
           | _rope("default", 1000000.0),
           "2 of 5 experts after a dense layer, and latents of queries, keys and values", prompt_lengths=(1, 7, 16, 21)),
    Family("minicpm3", "minicpm3",
           _config(52, 4, 4, 4, 60, tie_word_embeddings=True, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=8,
                   qk_rope_head_dim=20, scale_emb=3, scale_depth=1.6, dim_model_base=40)
           | _rope("longrope", short_factor=_SHORT_10, long_factor=_LONG_10, original_max_position_embeddings=64,
                   factor=4.0),
           "factors on embeddings, blocks and logits; heads of 28 for keys and 13 for values; longrope",
           rotary_short_tokens=64),
    Family("lfm3", "lfm3",
           _config(48, 3, 1, 5, 60, head_dim=24, tie_word_embeddings=True, norm_eps=2e-3, sliding_window=7,
                   layer_types=["conv", "sliding_attention", "full_attention", "conv", "full_attention"],
                   rope_parameters=dict(
                       sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                       full_attention=dict(rope_type="proportional", rope_theta=1000000.0,
                                           partial_rotary_factor=0.35))),
           "convolutions of 7, a sliding layer and global ones with proportional rotary positions (4 of 12 "
           "frequencies); a gate for each head, norms after the blocks", prompt_lengths=(1, 7, 8, 33, 70)),
    Family("lfm3-plain", "lfm3",
           _config(40, 5, 5, 5, 52, head_dim=16, tie_word_embeddings=True, sliding_window=5, conv_L_cache=3,
                   use_sandwich_norm=False, use_attention_gate=False),
           "no gates and no norms after the blocks; layers and rotary positions that the older config.json leaves to "
           "the defaults", prompt_lengths=(1, 5, 6, 33, 70)),
    Family("lfm2-vl", "lfm2_vl",
           dict(text_config=_config(40, 4, 2, 3, 76, model_type="lfm2", pad_token_id=0, tie_word_embeddings=True,
                                    block_auto_adjust_ff_dim=False, layer_types=["conv", "full_attention", "conv"])
                | _rope("default", 1000000.0),
                vision_config=dict(model_type="siglip2_vision_model", hidden_size=16, intermediate_size=24,
                                   num_hidden_layers=1, num_attention_heads=2, num_patches=16, patch_size=4),
                tie_word_embeddings=True, image_token_id=5, projector_hidden_size=24),
           "LFM2 inside a wrapper with images", prompt_lengths=(1, 3, 7, 33)),
    Family("lfm3-vl", "lfm3_vl",
           dict(text_config=_config(40, 4, 2, 3, 52, model_type="lfm3", head_dim=16, pad_token_id=0,
                                    tie_word_embeddings=True, sliding_window=5,
                                    layer_types=["conv", "sliding_attention", "full_attention"]),
                vision_config=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
                                   num_key_value_heads=1, patch_size=4),
                tie_word_embeddings=True, image_token_id=5, video_token_id=6, vision_start_token_id=7,
                vision_end_token_id=8, projector_hidden_size=24),
           "LFM3 inside a wrapper with images", prompt_lengths=(1, 5, 33)),
    Family("minimax-m2", "minimax_m2",
           _config(48, 6, 2, 3, 20, head_dim=16, tie_word_embeddings=False, num_local_experts=7,
                   num_experts_per_tok=3) | _rope("default", 5000000.0, partial_rotary_factor=0.5),
           "3 of 7 experts chosen by sigmoids plus a bias, whose names are Mixtral's; norms of queries and keys over all "
           "heads, of which half rotates", prompt_lengths=(1, 7, 16, 33), older_config=dict(rotary_dim=8)),
    Family("dots1", "dots1",
           _config(40, 5, 5, 3, 52, head_dim=24, tie_word_embeddings=False, n_routed_experts=7, num_experts_per_tok=3,
                   moe_intermediate_size=20, n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=True,
                   routed_scaling_factor=1.7, sliding_window=8, max_window_layers=1)
           | _rope("default", 10000.0),
           "as Qwen3 with experts of DeepSeek-V3's kind after a dense layer; windows in the layers after the first",
           prompt_lengths=(1, 7, 16, 24)),
    Family("exaone-moe", "exaone_moe",
           _config(48, 6, 2, 4, 60, tie_word_embeddings=False, num_experts=7, num_experts_per_tok=3,
                   moe_intermediate_size=20, num_shared_experts=1, sliding_window=8, sliding_window_pattern=4,
                   mlp_layer_types=["dense", "sparse", "dense", "sparse"])
           | _rope("default", 1000000.0),
           "3 of 7 experts in two layers, chosen by sigmoids plus a bias; every fourth layer global and without "
           "rotation", prompt_lengths=(1, 7, 16, 20)),
    Family("hy-v3", "hy_v3",
           _config(48, 6, 3, 3, 60, head_dim=24, tie_word_embeddings=True, num_experts=7, num_experts_per_tok=3,
                   moe_intermediate_size=20, num_shared_experts=1, router_scaling_factor=1.6)
           | _rope("default", 10000.0),
           "3 of 7 experts after a dense layer, chosen by sigmoids plus a bias, beside one of all tokens; names that "
           "files have otherwise than memory", prompt_lengths=(1, 7, 16, 24)),
    Family("hunyuan", "hunyuan_v1_dense",
           _config(48, 6, 3, 2, 92, head_dim=24, tie_word_embeddings=True)
           | _rope("dynamic", 10000.0, alpha=50.0, factor=1.0),
           "norms of heads after rotation, whose base a fixed alpha scales", prompt_lengths=(1, 7, 33, 70)),
    Family("hunyuan-moe", "hunyuan_v1_moe",
           _config(40, 5, 1, 2, 28, head_dim=16, tie_word_embeddings=False, num_experts=5, moe_topk=[2, 2])
           | _rope("dynamic", 10000.0, alpha=20.0, factor=1.0),
           "the same with 2 of 5 experts and one of all tokens, all of one size", prompt_lengths=(1, 7, 33)),
    Family("granite-moe", "granitemoe",
           _config(48, 6, 3, 3, 28, tie_word_embeddings=True, num_local_experts=7, num_experts_per_tok=3,
                   embedding_multiplier=0.9, residual_multiplier=1.3, attention_multiplier=0.4, logits_scaling=1.4)
           | _rope("default", 10000.0),
           "3 of 7 experts in stacks, with Granite's factors", prompt_lengths=(1, 7, 33, 70)),
    Family("granite-moe-shared", "granitemoeshared",
           _config(40, 5, 5, 2, 20, tie_word_embeddings=False, num_local_experts=5, num_experts_per_tok=3,
                   shared_intermediate_size=36, residual_multiplier=0.8, attention_multiplier=0.3)
           | _rope("default", 10000.0),
           "the same beside an expert of all tokens", prompt_lengths=(1, 7, 33)),
    Family("arcee", "arcee",
           _config(48, 6, 3, 2, 92, head_dim=24, tie_word_embeddings=False, mlp_bias=True) | _rope("default", 10000.0),
           "squared ReLU without a gate, biases in the MLP", prompt_lengths=(1, 7, 33, 70)),
    Family("helium", "helium",
           _config(48, 3, 1, 3, 76, head_dim=16, tie_word_embeddings=True, attention_bias=True)
           | _rope("default", 100000.0),
           "neighbours are a pair that rotates, biases of queries, keys and values", prompt_lengths=(1, 7, 33, 70)),
    Family("cohere", "cohere",
           _config(48, 6, 3, 2, 92, tie_word_embeddings=True, attention_bias=True, logit_scale=0.3,
                   layer_norm_eps=2e-3) | _rope("default", 10000.0),
           "attention and MLP side by side, which read one LayerNorm without a bias; a factor of the logits",
           prompt_lengths=(1, 7, 33, 70)),
    Family("cohere2", "cohere2",
           _config(60, 5, 1, 5, 76, tie_word_embeddings=True, sliding_window=8, logit_scale=0.25)
           | _rope("default", 50000.0),
           "the same, with windows in which alone positions rotate", prompt_lengths=(1, 7, 8, 33, 70),
           older_config=dict(sliding_window_pattern=4)),
    Family("gemma", "gemma",
           _config(48, 3, 1, 2, 92, head_dim=24, rms_norm_eps=2e-3, tie_word_embeddings=True) | _rope("default"),
           "the first Gemma: GeGLU, norms that add 1, embeddings scaled", prompt_lengths=(1, 7, 33, 70),
           older_config=dict(hidden_act="gelu")),
    Family("vault-gemma", "vaultgemma",
           _config(48, 6, 3, 3, 76, head_dim=24, sliding_window=8, query_pre_attn_scalar=20,
                   final_logit_softcapping=15.0, attn_logit_softcapping=6.0, tie_word_embeddings=True)
           | _rope("default"),
           "Gemma 2 without norms after the blocks", prompt_lengths=(1, 7, 8, 33, 70)),
    Family("starcoder2", "starcoder2",
           _config(48, 6, 3, 2, 92, tie_word_embeddings=True, sliding_window=8, norm_epsilon=2e-3)
           | _rope("default", 100000.0),
           "LayerNorm with biases, an MLP without a gate, biases everywhere, a window", prompt_lengths=(1, 7, 8, 33, 70)),
    Family("stablelm", "stablelm",
           _config(64, 2, 2, 2, 76, tie_word_embeddings=False, use_qkv_bias=True, layer_norm_eps=2e-3)
           | _rope("default", partial_rotary_factor=0.25),
           "LayerNorm with biases before a gated MLP, biases of q, k and v, a quarter of a head rotates",
           prompt_lengths=(1, 7, 33, 70)),
    Family("internlm3", "internlm3",
           _config(54, 9, 3, 2, 100, head_dim=16, tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
           | _rope("default", 50000.0),
           "Llama with biases everywhere, by keys of its own", prompt_lengths=(1, 7, 33),
           older_config=dict(qkv_bias=True, bias=True)),
    Family("hyperclovax", "hyperclovax",
           _config(48, 3, 1, 2, 92, tie_word_embeddings=False, attention_multiplier=0.3, embedding_multiplier=2.5,
                   residual_multiplier=0.7, logits_scaling=0.4, head_dim=16) | _rope("default", 100000.0),
           "norms after the blocks beside Granite's factors, of which that of logits multiplies",
           prompt_lengths=(1, 7, 33, 70)),
    Family("cwm", "cwm",
           _config(48, 6, 3, 5, 76, head_dim=24, tie_word_embeddings=False, sliding_window=8)
           | _rope("llama3", 1000000.0, factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64),
           "Llama with windows in all layers but every fourth from the first", prompt_lengths=(1, 7, 8, 33, 70)),
    Family("solar-open", "solar_open",
           _config(40, 4, 2, 2, None, head_dim=16, tie_word_embeddings=False, n_routed_experts=7,
                   num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=1, routed_scaling_factor=1.6)
           | _rope("default", 1000000.0),
           "3 of 7 experts by sigmoids plus a bias in every layer, and one without a share", prompt_lengths=(1, 7, 16)),
    Family("granite-swa", "granite_swa",
           _config(48, 6, 3, 5, 76, tie_word_embeddings=True, sliding_window=8, attention_multiplier=0.3,
                   embedding_multiplier=2.5, residual_multiplier=0.7, logits_scaling=1.5,
                   layer_rope_theta=[0, 50000.0, 50000.0, 50000.0, 0]) | _rope("default", 10000.0),
           "sinks of attention beside Granite's factors; layers without a window do not rotate",
           prompt_lengths=(1, 7, 8, 33, 70)),
    Family("granite-moe-swa", "granitemoe_swa",
           _config(48, 6, 3, 4, 20, tie_word_embeddings=True, sliding_window=8, num_local_experts=5,
                   num_experts_per_tok=3, shared_intermediate_size=36, residual_multiplier=0.8,
                   attention_multiplier=0.3) | _rope("default", 10000.0),
           "the same with experts, one of them of all tokens", prompt_lengths=(1, 7, 8, 33)),
    Family("mistral4", "mistral3",
           dict(text_config=_config(
                    48, 3, 3, 2, 76, model_type="mistral4", tie_word_embeddings=False, q_lora_rank=24,
                    kv_lora_rank=20, qk_nope_head_dim=14, qk_rope_head_dim=10, v_head_dim=20, n_routed_experts=6,
                    num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=1,
                    rope_interleave=True, max_position_embeddings=512)
                | _rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=16.0, beta_slow=2.0,
                        mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4, partial_rotary_factor=10 / 24),
                vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                                   num_attention_heads=2, head_dim=8, image_size=16, patch_size=4),
                tie_word_embeddings=False, image_token_index=5),
           "latent attention whose queries are scaled by their position, rotated part or not; softmax routers; a wrapper "
           "with images", prompt_lengths=(1, 7, 15, 16, 17, 33, 70)),
    Family("jais2", "jais2",
           _config(56, 4, 2, 2, 92, tie_word_embeddings=False, layer_norm_eps=2e-3) | _rope("default", 500000.0),
           "LayerNorm with biases, squared ReLU without a gate, biases everywhere", prompt_lengths=(1, 7, 33, 70)),
    Family("sarvam-mla", "sarvam_mla",
           _config(40, 4, None, 3, 68, tie_word_embeddings=False, q_lora_rank=None, kv_lora_rank=24, qk_nope_head_dim=14,
                   qk_rope_head_dim=10, v_head_dim=20, n_routed_experts=7, num_experts_per_tok=3,
                   moe_intermediate_size=20, n_shared_experts=1, routed_scaling_factor=1.6)
           | _rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=16.0, beta_slow=2.0,
                   mscale=1.0, mscale_all_dim=1.0),
           "DeepSeek-V3 by other keys: queries without a latent, YaRN by another name, one dense layer",
           prompt_lengths=(1, 7, 16, 24), older_config=dict(head_dim=34)),
    Family("sarvam-moe", "sarvam_moe",
           _config(40, 5, 1, 3, 68, head_dim=16, tie_word_embeddings=False, n_routed_experts=7, num_experts_per_tok=3,
                   moe_intermediate_size=20, n_shared_experts=1, routed_scaling_factor=1.6, rms_norm_eps=2e-3)
           | _rope("default", 8000000.0),
           "GLM-4.5 whose heads rotate as a whole, as published: queries, keys and values in one tensor, other names",
           prompt_lengths=(1, 7, 16),
           older_config=dict(score_function="sigmoid", moe_router_enable_expert_bias=True, use_bias=False,
                             moe_shared_expert_intermediate_size=20)),
    Family("flex-olmo", "flex_olmo",
           _config(48, 6, 2, 3, 28, tie_word_embeddings=False, num_experts=7, num_experts_per_tok=5, rms_norm_eps=2e-3)
           | _rope("default", 500000.0),
           "5 of 7 experts between norms after the blocks alone; norms of queries and keys over all heads",
           prompt_lengths=(1, 7, 33, 70)),
    Family("afmoe", "afmoe",
           _config(48, 6, 2, 5, 60, head_dim=16, tie_word_embeddings=False, num_experts=7, num_experts_per_tok=3,
                   moe_intermediate_size=20, num_shared_experts=1, num_dense_layers=2, route_scale=1.6, sliding_window=8,
                   mup_enabled=True, rms_norm_eps=2e-3, global_attn_every_n_layers=4) | _rope("default", 10000.0),
           "gates of attention's output, norms before and after the blocks, windows in which alone positions rotate; 3 "
           "of 7 experts chosen by sigmoids plus a bias; embeddings that a factor scales", prompt_lengths=(1, 7, 8, 20)),
    Family("axk1", "axk1",
           _config(40, 4, 4, 3, 68, tie_word_embeddings=False, q_lora_rank=28, kv_lora_rank=24, qk_nope_head_dim=14,
                   qk_rope_head_dim=10, v_head_dim=20, n_routed_experts=8, num_experts_per_tok=2,
                   moe_intermediate_size=20, n_shared_experts=1, n_group=1, topk_group=1, routed_scaling_factor=1.6,
                   rms_norm_eps=2e-3) | _rope("default", 10000.0),
           "DeepSeek-V3 with a norm after experts, which the file has of a dense layer too, and without biases of "
           "experts", prompt_lengths=(1, 7, 13), older_config=dict(first_k_dense_replace=1)),
    Family("kolibri1", "kolibri1",
           _config(48, 6, 2, 3, None, head_dim=16, tie_word_embeddings=False, num_experts=5, num_experts_per_tok=2,
                   moe_intermediate_size=20, shared_expert_intermediate_size=28, norm_topk_prob=True, sliding_window=6,
                   rms_norm_eps=2e-3, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
           | _rope("default", 10000.0),
           "2 of 5 experts chosen by logits plus a bias and weighed by sigmoids, in every layer; norms before and after "
           "the blocks; windows in which alone positions rotate", prompt_lengths=(1, 5, 9),
           older_config=dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    Family("nemotron", "nemotron",
           _config(48, 6, 2, 3, 92, head_dim=24, tie_word_embeddings=False, norm_eps=2e-3)
           | _rope("default", 10000.0, partial_rotary_factor=0.5),
           "LayerNorm that adds 1, squared ReLU without a gate, half of a head rotates", prompt_lengths=(1, 7, 33, 70)),
    Family("nanochat", "nanochat",
           _config(48, 6, 2, 3, 92, tie_word_embeddings=False, rms_norm_eps=2e-3, final_logit_softcapping=11.0)
           | _rope("default", 10000.0),
           "norms without weights, of embeddings and of heads after rotation too, which is the other way around; squared "
           "ReLU; soft-capped logits", prompt_lengths=(1, 7, 33, 70)),
    Family("cohere2-moe", "cohere2_moe",
           _config(48, 6, 2, 4, 20, head_dim=16, tie_word_embeddings=True, sliding_window=6, logit_scale=0.3,
                   num_experts=5, num_experts_per_tok=2, num_shared_experts=1, expert_selection_fn="sigmoid",
                   shared_expert_combination_strategy="sum", prefix_dense_intermediate_size=52, layer_norm_eps=2e-3,
                   layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
                   mlp_layer_types=["dense", "sparse", "sparse", "sparse"], sliding_window_pattern=2)
           | _rope("default", 50000.0),
           "attention and experts side by side: 2 of 5, chosen by logits and weighed by sigmoids, beside one of all "
           "tokens; a dense layer that rotates without a window", prompt_lengths=(1, 5, 9),
           older_config=dict(layer_types=["full_attention", "sliding_attention", "full_attention",
                                          "sliding_attention"])),
    Family("cohere2-moe-rms", "cohere2_moe",
           _config(40, 5, 1, 4, 28, head_dim=16, tie_word_embeddings=True, sliding_window=6, logit_scale=0.3,
                   num_experts=7, num_experts_per_tok=3, rms_norm_eps=2e-3) | _rope("default", 10000.0),
           "the same with RMSNorm and a softmax over those chosen, without dense layers", prompt_lengths=(1, 7, 33),
           older_config=dict(sliding_window_pattern=4)),
    Family("olmo-hybrid", "olmo_hybrid",
           _config(48, 6, 2, 3, 68, tie_word_embeddings=False, linear_num_key_heads=2, linear_num_value_heads=4,
                   linear_key_head_dim=12, linear_value_head_dim=20, rms_norm_eps=2e-3,
                   layer_types=["linear_attention", "full_attention", "linear_attention"],
                   rope_parameters=dict(rope_type="default", rope_theta=None)),
           "the gated delta rule with q, k and v apart, whose beta is doubled; norms before its blocks and after those of "
           "attention, which norms all heads together and has no positions; the folder as published",
           older_config=dict(layer_types=["linear_attention", "full_attention", "linear_attention"])),
    Family("olmo-hybrid-rope", "olmo_hybrid",
           _config(40, 5, 5, 2, 60, tie_word_embeddings=True, linear_num_key_heads=4, linear_num_value_heads=4,
                   linear_allow_neg_eigval=False, rms_norm_eps=1e-5, layer_types=["full_attention", "linear_attention"])
           | _rope("default", 20000.0),
           "the same with positions and beta as it is; the folder as transformers writes it", prompt_lengths=(1, 7, 33),
           older_config=dict(layer_types=["full_attention", "linear_attention"])),
    Family("mimo-v2-flash", "mimo_v2_flash",
           _config(48, 6, 1, 3, 68, head_dim=24, v_head_dim=16, tie_word_embeddings=False, n_routed_experts=6,
                   num_experts_per_tok=2, moe_intermediate_size=20, sliding_window=6, rms_norm_eps=2e-3,
                   attention_value_scale=0.6, routed_scaling_factor=1.3),
           "values shorter than keys, with a factor; windows with sinks, more heads of keys and another base; a third of "
           "a head rotates; 2 of 6 experts chosen by sigmoids plus a bias", prompt_lengths=(1, 5, 9, 17)),
    Family("gpt-neox", "gpt_neox",
           _config(48, 3, None, 3, 92, tie_word_embeddings=False, layer_norm_eps=2e-3, use_parallel_residual=True)
           | _rope("default", 10000.0, partial_rotary_factor=0.25),
           "attention and MLP side by side, each with a LayerNorm of its own; q, k and v of one head after the other in "
           "one matrix; a quarter of a head rotates", prompt_lengths=(1, 7, 33, 70)),
    Family("gpt-neox-in-turn", "gpt_neox",
           _config(40, 5, None, 2, 76, tie_word_embeddings=True, use_parallel_residual=False, attention_bias=False)
           | _rope("default", 20000.0, partial_rotary_factor=1.0),
           "the same with the MLP after attention, a tied head, and without attention's biases", prompt_lengths=(1, 7, 33)),
    Family("deepseek-v2-groups", "deepseek_v2",
           _config(48, 3, 3, 2, 76, tie_word_embeddings=False, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=16,
                   qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=12, num_experts_per_tok=3,
                   moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=0, n_group=4, topk_group=2,
                   topk_method="group_limited_greedy", routed_scaling_factor=1.6)
           | _rope("default"),
           "3 of 12 experts, from the 2 of 4 groups whose best expert is best; shares times 1.6",
           prompt_lengths=(1, 7, 13, 24)),
    Family("deepseek-v3-groups", "deepseek_v3",
           _config(40, 4, 4, 2, 68, tie_word_embeddings=False, q_lora_rank=None, kv_lora_rank=24, qk_nope_head_dim=14,
                   qk_rope_head_dim=10, v_head_dim=20, n_routed_experts=12, num_experts_per_tok=3,
                   moe_intermediate_size=20, n_shared_experts=1, first_k_dense_replace=0, n_group=4, topk_group=2,
                   routed_scaling_factor=1.6, num_nextn_predict_layers=0)
           | _rope("default"),
           "3 of 12 experts, from the 2 of 4 groups whose two best experts have the largest sum",
           prompt_lengths=(1, 7, 16)),
]
