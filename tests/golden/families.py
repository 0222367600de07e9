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
    rotary_depends_on_length: bool = False
    older_config: dict = field(default_factory=dict)


def _config(hidden, heads, kv_heads, layers, mlp, **more):
    """The keys that all families but GPT-2 share."""
    return dict(vocab_size=VOCABULARY, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
                num_hidden_layers=layers, intermediate_size=mlp, max_position_embeddings=256, bos_token_id=BOS,
                eos_token_id=EOS, pad_token_id=None) | more


def _rope(rope_type, theta=10000.0, **more):
    return dict(rope_parameters=dict(rope_type=rope_type, rope_theta=theta, **more))


# Dividers of the 10 frequencies of a head of 20 (phi3-longrope) and of the 12 of a head of 24 (llama-longrope).
_SHORT_10 = [1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.45, 1.6, 1.8]
_LONG_10 = [1.05, 1.2, 1.5, 1.9, 2.6, 3.7, 5.5, 7.5, 9.0, 11.5]
_SHORT_12 = [1.0, 1.01, 1.03, 1.07, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75]
_LONG_12 = [1.1, 1.3, 1.6, 2.0, 2.4, 3.1, 3.9, 5.0, 6.2, 7.4, 8.8, 10.0]

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
           prompt_lengths=(1, 7, 33, 49, 70), rotary_depends_on_length=True),
    Family("llama-yarn", "llama",
           _config(60, 6, 3, 2, 100, head_dim=24, tie_word_embeddings=True, max_position_embeddings=4096)
           | _rope("yarn", factor=4.0, original_max_position_embeddings=1024, beta_fast=16.0, beta_slow=2.0),
           "yarn rope scaling, ramp from frequency 3 to 6 of 12, attention factor derived from factor"),
    Family("llama-longrope", "llama",
           _config(48, 3, 1, 2, 100, head_dim=24, tie_word_embeddings=True, max_position_embeddings=160)
           | _rope("longrope", factor=4.0, original_max_position_embeddings=40, short_factor=_SHORT_12,
                   long_factor=_LONG_12),
           "longrope on a Llama, lengths below and beyond 40",
           prompt_lengths=(1, 7, 33, 40, 41, 70), rotary_depends_on_length=True),
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
           prompt_lengths=(1, 7, 33, 40, 41, 70), rotary_depends_on_length=True),
    Family("gpt2", "gpt2",
           dict(vocab_size=VOCABULARY, n_embd=40, n_head=5, n_layer=2, n_positions=128, n_inner=172,
                activation_function="gelu_new", layer_norm_epsilon=2e-3, bos_token_id=BOS, eos_token_id=EOS),
           "LayerNorm, learned positions, Conv1D layout, tied head, F32 weights", dtype="float32"),
]
