"""Makes one model folder with transformers and computes its golden logits and greedy continuations."""
import hashlib
import json
import math
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import clear_experts
from families import EOS, VOCABULARY

N_GREEDY = 24
FULL_LOGITS_UP_TO = 7     # prompts of at most this many tokens have logits at every position, longer ones at the last
LEAST_GAP = 0.02          # the two best logits of every greedy step differ by at least this much
LEAST_DISTINCT = 6        # and the continuation has at least this many distinct tokens
LOGIT_STD = 3.0
ROUTER_STD = 6.0          # of a router's logits: a choice that rounding may change is between experts that count little
CHOICE_BIASES = (".expert_bias", ".e_score_correction_bias")
EXPERT_BIAS = 0.7         # the largest bias of an expert; evenly spaced, so that sigmoids near 0 and 1 make no ties


def generator_for(*key):
    """A generator that depends on nothing but its key, so that adding a tensor or a model changes no other."""
    digest = hashlib.sha256("/".join(str(part) for part in key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def normal(shape, std, *key, mean=0.0):
    return mean + std * torch.randn(shape, generator=generator_for(*key))


def _random_parameter(family, hidden, name, parameter):
    """Scales that keep activations near 1 and logits near ±3, so that greedy choices are decided, not ties."""
    shape, leaf, gemma = parameter.shape, name.split(".")[-2], family.model_type.startswith("gemma")
    adds_one = (family.model_type in ("gemma2", "gemma3_text", "nemotron")
                or family.model_type.startswith(("qwen3_5", "qwen3_next")) and ".linear_attn." not in name
                or family.model_type == "muse_glimmer" and ".layers." in name)
    if name.endswith(".layer_scalar"):
        return normal(shape, 0.1, family.name, name, mean=0.9)
    if leaf == "modality_router":   # of rows whose norm is 1, by their length: tanh neither 0 nor 1
        return normal(shape, math.sqrt(hidden), family.name, name)
    if leaf in ("prediction_coefs", "correction_coefs"):
        return normal(shape, 0.15, family.name, name)
    if name.endswith(".A_log"):  # states that last for some tokens, and some for many
        return normal(shape, 1.0, family.name, name, mean=-2.0)
    if name.endswith(".dt_bias"):
        return normal(shape, 1.0, family.name, name)
    if leaf == "conv1d":
        return normal(shape, 0.7, family.name, name)
    if leaf == "conv":          # [channels, 1, taps]
        return normal(shape, 1.3 / math.sqrt(shape[2]), family.name, name)
    if name.endswith(CHOICE_BIASES):
        largest = EXPERT_BIAS if family.model_type != "ernie4_5_moe" else EXPERT_BIAS / 4    # beside a softmax
        biases = torch.linspace(-largest, largest, shape[-1])
        return biases[torch.randperm(shape[-1], generator=generator_for(family.name, name))].reshape(shape)
    if leaf == "self_attn" and name.endswith(".sinks"):     # some take nearly all of a head, and some nothing
        return normal(shape, 3.0, family.name, name)
    if name.endswith("_bias"):  # of experts
        return normal(shape, 0.7, family.name, name)
    if parameter.ndim == 1 and name.endswith(".bias"):
        return normal(shape, 0.2, family.name, name)
    if parameter.ndim == 1:
        neutral = 0.0 if adds_one else 1.0
        # Gemma's post-norms decide how much a layer adds: around 3, lest the scaled embedding drown the layers.
        mean = 3.0 if gemma and leaf.startswith("post_") else neutral
        if family.model_type == "gemma3n_text" and leaf.startswith("post_"):     # streams add up, layer by layer
            mean = 1.5
        if family.model_type == "muse_glimmer" and leaf.startswith("post_"):    # layers beside embeddings of size 1
            mean = 1.0
        return normal(shape, 0.2, family.name, name, mean=mean)
    if leaf in ("embed_tokens", "embeddings", "wte", "embed_in", "embed_out", "lm_head"):
        return normal(shape, LOGIT_STD / math.sqrt(hidden), family.name, name)
    if leaf == "wpe":
        return normal(shape, 0.4, family.name, name)
    if name.endswith(("mlp.gate.weight", "mlp.gate.wg.weight", "mlp.router.weight", "mlp.router.gate.weight",
                      "feed_forward.gate.weight", "mixer.gate.weight")):
        return normal(shape, ROUTER_STD / math.sqrt(hidden), family.name, name)
    if family.model_type in ("granitemoe", "granitemoeshared", "granitemoe_swa") and name.endswith("router.weight"):
        return normal(shape, ROUTER_STD / math.sqrt(hidden), family.name, name)
    if name.endswith("router.proj.weight"):     # of rows whose norm is 1
        return normal(shape, ROUTER_STD, family.name, name)
    if parameter.ndim == 3:     # matrices [out, in] of experts
        gain = 3.0 if name.endswith("down_proj") else 1.3
        fan_in = shape[1] if family.model_type == "gpt_oss" else shape[2]    # there [in, out]
        return normal(shape, gain / math.sqrt(fan_in), family.name, name)
    fan_in = shape[0] if family.model_type == "gpt2" else shape[1]
    # Layers must outweigh the embedding in the residual stream, or a tied head repeats its input for ever.
    gain = 2.2 if leaf in ("o_proj", "out_proj", "down_proj", "c_proj", "w2", "fc2", "dense", "dense_4h_to_h") else 1.3
    return normal(shape, gain / math.sqrt(fan_in), family.name, name)


def _auto_class(config):
    """The class of the whole model: a wrapper with images keeps its image encoder."""
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


def _add_heads_of_several_tokens(family, folder):
    """What published folders have beside the model, and transformers drops: the layers of multi-token prediction."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    dtype = getattr(torch, family.dtype)
    for name, shape in {"mtp.norm.weight": (48,), "mtp.layers.0.mlp.up_proj.weight": (92, 48)}.items():
        tensors[name] = normal(shape, 1.0, family.name, name).to(dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def _add_unused_kv(family, folder):
    """What published folders have of layers that read K/V of earlier ones, and transformers passes over."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    dtype = getattr(torch, family.dtype)
    for name, shape in {"k_proj.weight": (24, 60), "v_proj.weight": (24, 60), "k_norm.weight": (24,)}.items():
        name = f"model.layers.3.self_attn.{name}"
        tensors[name] = normal(shape, 1.0, family.name, name).to(dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def _add_layer_ahead(family, folder):
    """Published GLM-4.5 has a layer after the last, which predicts one more token; transformers passes over it."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, shape in {"eh_proj.weight": (48, 96), "enorm.weight": (48,), "mlp.gate.weight": (7, 48)}.items():
        name = f"model.layers.3.{name}"
        tensors[name] = normal(shape, 1.0, family.name, name).to(getattr(torch, family.dtype))
    save_file(tensors, file, metadata={"format": "pt"})


def _write_as_axk1(family, folder):
    """Published A.X K1 has no biases of experts, and a norm after its dense layer, which transformers passes over."""
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if not name.endswith(CHOICE_BIASES)}
    name = "model.layers.0.post_mlp_layernorm.weight"
    tensors[name] = normal((40,), 1.0, family.name, name).to(getattr(torch, family.dtype))
    save_file(tensors, file, metadata={"format": "pt"})


def _write_as_olmo_hybrid(config, folder):
    """Published OLMo Hybrid has convolutions of q, of k and of v; transformers writes three parts that are alike, and
    calls the norm after attention as it calls the one before an MLP."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    for layer, kind in enumerate(config.layer_types):
        stem = f"model.layers.{layer}."
        if kind == "full_attention":
            tensors[stem + "post_attention_layernorm.weight"] = tensors.pop(stem + "feedforward_layer_norm.weight")
            continue
        names = [f"{stem}linear_attn.{part}_conv1d.weight" for part in "qkv"]
        whole = torch.cat([tensors[name] for name in names])
        for name, part in zip(names, whole.split([keys, keys, len(whole) - 2 * keys])):
            tensors[name] = part.contiguous()
    save_file(tensors, file, metadata={"format": "pt"})


def _write_as_kimi_linear(folder):
    """Published dense layers have no names of experts, which transformers gives them too."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in list(tensors):
        for part in ("gate_proj", "up_proj", "down_proj"):
            if name.endswith(f".block_sparse_moe.{part}.weight"):
                tensors[name.replace(".block_sparse_moe.", ".mlp.")] = tensors.pop(name)
    save_file(tensors, file, metadata={"format": "pt"})


def _write_wide_stacks(folder):
    """As published Qwen3-VL-MoE has them: [E, D, 2 M] and [E, M, D]. transformers reads both, and writes the other."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if ".experts." in name:
            tensors[name] = tensors[name].mT.contiguous()
    save_file(tensors, file, metadata={"format": "pt"})


def make_folder(family, folder):
    """Writes the folder with save_pretrained; returns the configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    config = AutoConfig.for_model(family.model_type, **family.config)
    model = _auto_class(config).from_config(config, attn_implementation="eager")
    hidden = config.get_text_config().hidden_size
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random_parameter(family, hidden, name, parameter))
        for name, buffer in model.named_buffers():
            if name.endswith((".layer_scalar",) + CHOICE_BIASES):
                buffer.copy_(_random_parameter(family, hidden, name, buffer))
    biases = {name: bias.clone() for name, bias in [*model.named_buffers(), *model.named_parameters()]
              if name.endswith(CHOICE_BIASES)}
    model.to(getattr(torch, family.dtype))
    for name, bias in biases.items():   # F32, as the model holds them in every type
        module, _, leaf = name.rpartition(".")
        getattr(model.get_submodule(module), leaf).data = bias
    model.save_pretrained(
        folder, max_shard_size=family.max_shard_size, save_original_format=not family.stacked)
    if family.model_type in ("qwen3_5", "qwen3_5_moe"):
        _add_heads_of_several_tokens(family, folder)
    if family.name == "gemma4-shared":
        _add_unused_kv(family, folder)
    if family.name == "glm4-moe":
        _add_layer_ahead(family, folder)
    if family.name == "axk1":
        _write_as_axk1(family, folder)
    if family.name == "olmo-hybrid":
        _write_as_olmo_hybrid(config, folder)
    if family.name == "kimi-linear":
        _write_as_kimi_linear(folder)
    if family.name == "qwen3-vl-moe":
        _write_wide_stacks(folder)
    return config


def _older_lfm_config(family, config):
    """The form of published LFM2 folders. LFM3 has none of before transformers 5: what equals defaults is left out."""
    if family.model_type == "lfm3":
        defaults = AutoConfig.for_model("lfm3", num_hidden_layers=config["num_hidden_layers"]).to_dict()
        for key in ("layer_types", "rope_parameters"):
            if config[key] == defaults[key]:
                config.pop(key)
        return config
    rope_theta = config.pop("rope_parameters")["rope_theta"]
    config["tie_embedding"] = config.pop("tie_word_embeddings")
    if family.model_type == "lfm2":
        config["full_attn_idxs"] = [i for i, kind in enumerate(config.pop("layer_types")) if kind == "full_attention"]
        config["block_ff_dim"] = config.pop("intermediate_size")
    return config | (family.older_config or dict(rope_theta=rope_theta))


def _older_qwen2_vl_config(config):
    """The form of published folders: the keys of the text model are among those of the wrapper."""
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    for key in ("model_type", "layer_types", "dtype", "tie_word_embeddings"):
        text.pop(key, None)
    return config | text | dict(rope_theta=rope["rope_theta"],
                                rope_scaling=dict(type="mrope", mrope_section=rope["mrope_section"]))


def _older_mimo_config(config):
    """The keys of the published folder."""
    rope = config.pop("rope_parameters")
    slides = [int(kind == "sliding_attention") for kind in config.pop("layer_types")]
    sparse = [int(kind == "sparse") for kind in config.pop("mlp_layer_types")]
    return config | dict(
        layernorm_epsilon=config.pop("rms_norm_eps"), rope_theta=rope["full_attention"]["rope_theta"],
        swa_rope_theta=rope["sliding_attention"]["rope_theta"], partial_rotary_factor=0.334, hybrid_layer_pattern=slides,
        moe_layer_freq=sparse, sliding_window_size=config["sliding_window"] - 1, n_shared_experts=None,
        swa_num_key_value_heads=2 * config["num_key_value_heads"], swa_num_attention_heads=config["num_attention_heads"],
        swa_head_dim=config["head_dim"], swa_v_head_dim=config["v_head_dim"], add_full_attention_sink_bias=False,
        add_swa_attention_sink_bias=True, scoring_func="sigmoid", topk_method="noaux_tc")


def _older_kimi_config(config):
    """The keys of the published folder, which counts layers from 1."""
    kinds, sparse = config.pop("layer_types"), config.pop("mlp_layer_types")
    counted = {kind: [i + 1 for i, of in enumerate(kinds) if of == kind] for kind in set(kinds)}
    return config | dict(
        linear_attn_config=dict(
            full_attn_layers=counted["full_attention"], kda_layers=counted["linear_attention"],
            head_dim=config.pop("linear_head_dim"), num_heads=config.pop("linear_num_heads"),
            short_conv_kernel_size=config.pop("linear_conv_kernel_dim")),
        first_k_dense_replace=sparse.index("sparse"), moe_layer_freq=1, moe_router_activation_func="sigmoid",
        mla_use_nope=True, use_grouped_topk=True, num_nextn_predict_layers=0, rope_scaling=None, rope_theta=10000.0)


def older_config(family, folder):
    """The folder's config.json as transformers before version 5 wrote it, which is how models on the hub look."""
    config = json.loads((folder / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    if family.model_type.startswith("gemma4"):
        text = config.get("text_config", config)
        text.pop("per_layer_config")
        text.update(family.older_config)
        return config
    if family.model_type in ("qwen2_vl", "qwen2_5_vl"):
        return _older_qwen2_vl_config(config)
    if family.model_type.endswith("_vl"):
        return config
    if family.model_type.startswith("lfm"):
        return _older_lfm_config(family, config)
    if family.model_type == "mimo_v2_flash":
        return _older_mimo_config(config)
    if family.model_type == "kimi_linear":
        return _older_kimi_config(config)
    if family.model_type == "mellum":   # younger than transformers 5
        return config
    if family.model_type == "laguna":   # as published
        return config | dict(gating_types=["per_head"] * 4 if config["gating"] is True else ["per_element"] * 3,
                             decoder_sparse_step=1, norm_topk_prob=True, partial_rotary_factor=0.5,
                             moe_router_use_sigmoid=True, swa_attention_sink_enabled=False)
    config.pop("layer_types", None)
    config.pop("layers_block_type", None)
    config.pop("_sliding_window_pattern", None)
    rope = config.pop("rope_parameters", None)
    if rope is not None and "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if family.model_type == "sarvam_mla":   # its own names of before transformers had it
        rope["type"] = "deepseek_yarn"
        del rope["rope_type"]
        config["num_experts"] = config.pop("n_routed_experts")
        config["num_shared_experts"] = config.pop("n_shared_experts")
    if family.model_type == "sarvam_moe":   # as published
        for own, usual in dict(num_experts="n_routed_experts", num_shared_experts="n_shared_experts",
                               use_qkv_bias="attention_bias").items():
            config[own] = config.pop(usual)
    if family.model_type == "exaone":   # as published
        for own, usual in dict(num_layers="num_hidden_layers", layer_norm_epsilon="rms_norm_eps",
                               activation_function="hidden_act").items():
            config[own] = config.pop(usual)
    if family.model_type == "gpt_neox":
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
        config["rotary_emb_base"] = rope.pop("rope_theta")
        return config
    if rope is not None:
        config["rope_theta"] = rope.pop("rope_theta")
        partial = rope.pop("partial_rotary_factor", 1.0)
        if partial != 1.0 and "rotary_dim" not in family.older_config:
            config["partial_rotary_factor"] = partial
        if family.model_type == "phi3" and rope["rope_type"] == "longrope":
            rope.pop("original_max_position_embeddings", None)
            rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = rope if rope.get("rope_type") != "default" else None
    config.update(family.older_config)
    return config


def check_older_config(family, config_dict, config):
    """Fails unless transformers reads the older form as the very same model."""
    read = AutoConfig.for_model(**{k: v for k, v in config_dict.items() if k != "torch_dtype"})
    # Not attributes: where layers differ in their heads, the model has no head_dim.
    read, config = read.get_text_config().to_dict(), config.get_text_config().to_dict()
    for key in ("rope_parameters", "layer_types", "sliding_window", "head_dim", "num_experts", "mlp_only_layers",
                "per_layer_config", "intermediate_size", "tie_word_embeddings"):
        older, newer = read.get(key), config.get(key)
        if key == "rope_parameters" and older is not None:
            older.pop("type", None)     # kept by transformers beside rope_type
        if older != newer:
            raise SystemExit(f"{family.name}: the older config.json differs in {key}: {older} instead of {newer}")


def folder_name(base, name):
    """What folders call a parameter, where save_pretrained renames it: gates of LFM3, the norm after A.X K1's experts."""
    if base.startswith("lfm3"):
        name = name.replace(".self_attn.g_proj.", ".self_attn.gate_proj.")
    return name.replace(".mlp.post_mlp_layernorm.", ".post_mlp_layernorm.")


def load(folder, dtype):
    """Experts eagerly too: PyTorch's grouped product takes no rows of odd sizes."""
    config = AutoConfig.from_pretrained(folder)
    return _auto_class(config).from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                               experts_implementation="eager").eval()


@torch.no_grad()
def logits_of(model, ids):
    """F32 logits [len(ids), vocabulary] of one forward over the whole sequence, without a cache.

    Dynamic NTK frequencies in transformers stay at the longest length seen until a short forward resets them: the
    forward of a single token first makes the result depend on this sequence alone.
    """
    model(input_ids=torch.tensor([ids[:1]]), use_cache=False)
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(model, prompt, rotary_short_tokens):
    """The greedy continuation and the gap between the two best logits of each step, by full recomputation.

    Where the rotary parameters depend on the length, a forward of more than rotary_short_tokens is padded on the right
    to the final length len(prompt) + N_GREEDY: attention is causal, so the padding changes nothing but that length.
    """
    ids, gaps = list(prompt), []
    total = len(prompt) + N_GREEDY
    for _ in range(N_GREEDY):
        is_long = rotary_short_tokens is not None and len(ids) > rotary_short_tokens
        padding = [0] * (total - len(ids)) if is_long else []
        best = torch.topk(logits_of(model, ids + padding)[len(ids) - 1], 2)
        gaps.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt):], gaps


def choose_prompt(model, family_name, length, rotary_short_tokens, rounded_models):
    """The first random prompt whose continuation is clear (LEAST_GAP), lively (LEAST_DISTINCT) and never ends, with
    experts that are clear too."""
    for attempt in range(400):
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator_for(family_name, "prompt", length, attempt))
        ids = ids.tolist()
        if not clear_experts.are_clear(model, rounded_models, ids):
            continue
        continuation, gaps = greedy(model, ids, rotary_short_tokens)
        lively = len(set(continuation)) >= LEAST_DISTINCT
        if (lively and min(gaps) >= LEAST_GAP and EOS not in continuation
                and clear_experts.are_clear(model, rounded_models, ids + continuation, 1.0)):
            return ids, continuation, gaps
    raise SystemExit(f"{family_name}: no prompt of {length} tokens has a clear and lively continuation")


def rounded(value):
    return float(f"{value:.6g}")


def errors(name, ids, logits, rounded_logits):
    """How far the logits of a model in a 16-bit type are from those in F32, both of all positions."""
    error = rounded_logits - logits
    recorded_error = recorded_rows(ids, error)
    return {
        f"{name}_error": rounded(recorded_error.abs().max().item()),
        f"{name}_rms_error": rounded(recorded_error.square().mean().sqrt().item()),
        f"{name}_error_all_positions": rounded(error.abs().max().item()),
    }


def prompt_entry(index, ids, logits, continuation, gaps, **rounded_logits):
    """The index entry of one prompt; all logits are of all its positions. rounded_logits: those in bf16 (and f16)."""
    recorded = recorded_rows(ids, logits)
    entry = {
        "ids": ids,
        "logits": f"logits.{index}",
        "first_position": len(ids) - recorded.shape[0],
        "n_positions": recorded.shape[0],
        "max_abs_logit": rounded(recorded.abs().max().item()),
    }
    for name, values in rounded_logits.items():
        entry |= errors(name, ids, logits, values)
    return entry | {
        "greedy": continuation,
        "greedy_gaps": [rounded(gap) for gap in gaps],
        "greedy_rotary_length": len(ids) + N_GREEDY,
    }


def recorded_rows(ids, logits):
    return logits if len(ids) <= FULL_LOGITS_UP_TO else logits[-1:]


def golden_prompts(model, name, lengths, rotary_short_tokens=None, **rounded_models):
    """The logits tensors and the index entries of one prompt of each length. rounded_models: bf16 (and f16)."""
    tensors, prompts = {}, []
    for index, length in enumerate(lengths):
        ids, continuation, gaps = choose_prompt(model, name, length, rotary_short_tokens, rounded_models.values())
        logits = logits_of(model, ids)
        tensors[f"logits.{index}"] = recorded_rows(ids, logits).contiguous()
        rounded_logits = {type_name: logits_of(other, ids) for type_name, other in rounded_models.items()}
        prompts.append(prompt_entry(index, ids, logits, continuation, gaps, **rounded_logits))
    return tensors, prompts


def make_model_golden(family, root):
    """Makes the folder and the goldens of one family; returns its index entry."""
    folder = root / "models" / family.name
    config = make_folder(family, folder)
    older = older_config(family, folder)
    check_older_config(family, older, config)
    older_file = root / "configs" / f"{family.name}.json"
    older_file.parent.mkdir(parents=True, exist_ok=True)
    older_file.write_text(json.dumps(older, indent=2, sort_keys=True) + "\n")

    tensors, prompts = golden_prompts(load(folder, torch.float32), family.name, family.prompt_lengths,
                                      family.rotary_short_tokens, bf16=load(folder, torch.bfloat16),
                                      f16=load(folder, torch.float16))
    save_file(tensors, root / "goldens" / f"{family.name}.safetensors")
    return {
        "name": family.name,
        "covers": family.covers,
        "folder": f"models/{family.name}",
        "older_config": f"configs/{family.name}.json",
        "goldens": f"goldens/{family.name}.safetensors",
        "model_type": family.model_type,
        "weights_dtype": family.dtype,
        "rotary_short_tokens": family.rotary_short_tokens,
        "prompts": prompts,
    }
