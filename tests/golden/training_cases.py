"""What the training goldens train: base models, adapters, and fixed token ids with their targets."""
import json
import math
import shutil
from dataclasses import dataclass, field

import torch
from peft import LoraConfig, PeftModel, get_peft_model

import bnb_goldens
from families import VOCABULARY
from model_goldens import folder_name, generator_for, load, normal
from peft_goldens import EXPERTS, LLAMA_LINEAR

RANK, ALPHA = 4, 8
IGNORED = -100
MODEL_DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "bf16-autocast": torch.bfloat16,
                "f16": torch.float16}

# PEFT would take gate_proj for the experts' gate_up_proj.
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
SHORT_CONVOLUTION = ["q_proj", "k_proj", "v_proj", "in_proj", "out_proj", "w1", "w2", "w3"]
SHARED_EXPERT = ["shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"]
STREAMS = ["linear_left", "linear_right", "per_layer_input_gate", "per_layer_projection", "per_layer_model_projection",
           *(f"altup_{kind}.{i}" for kind in ("projections", "unembed_projections") for i in range(3))]
TARGETS = {"llama": LLAMA_LINEAR, "qwen3": LLAMA_LINEAR, "gemma3": LLAMA_LINEAR, "gpt2": ["c_attn", "c_proj", "c_fc"],
           "qwen3_5": LLAMA_LINEAR + DELTA,
           "granite": LLAMA_LINEAR, "gemma4": LLAMA_LINEAR,
           "gemma4-moe": ATTENTION + ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
           "gemma4-shared": LLAMA_LINEAR + ["per_layer_input_gate", "per_layer_projection",
                                            "per_layer_model_projection"],
           "gemma3n": LLAMA_LINEAR + STREAMS,
           "qwen3-moe": ATTENTION, "qwen3-moe-stacked": ATTENTION, "qwen2-moe": ATTENTION,
           "qwen3_5-moe": ATTENTION + DELTA + SHARED_EXPERT, "qwen3_5-moe-images": ATTENTION + SHARED_EXPERT,
           "qwen3-next": ATTENTION + ["in_proj_qkvz", "in_proj_ba", "out_proj"],
           "lfm2": SHORT_CONVOLUTION, "lfm2-moe": SHORT_CONVOLUTION, "lfm3": SHORT_CONVOLUTION + ["o_proj", "g_proj"],
           "granite4-spaces": ATTENTION + ["in_proj", "out_proj", "input_linear", "output_linear"],
           "granite4-moe": ATTENTION + ["in_proj", "out_proj"],
           "nemotron-h": ATTENTION + ["in_proj", "up_proj", "down_proj"],    # PEFT refuses out_proj
           "nemotron-h-moe": ATTENTION + ["in_proj", "up_proj", "down_proj"],
           "falcon-h1": LLAMA_LINEAR + ["in_proj"], "falcon-h1-norm": ATTENTION + ["in_proj"],    # as there
           "bamba": LLAMA_LINEAR + ["in_proj", "out_proj"], "apertus": ATTENTION + ["up_proj", "down_proj"],
           "apertus1p5": ATTENTION + ["up_proj", "down_proj"],
           "exaone4": LLAMA_LINEAR, "seed-oss": LLAMA_LINEAR, "mellum": ATTENTION, "qwen3-vl": ATTENTION,
           "youtu": LATENT + ["gate_proj", "up_proj", "down_proj"],
           "deepseek-v2": ["q_proj"] + LATENT[2:], "deepseek-v3": ["q_proj"] + LATENT[2:], "glm4-moe-lite": LATENT,
           "minicpm3": LATENT + ["gate_proj", "up_proj", "down_proj"],
           "glm4-moe": ATTENTION, "ernie4_5": LLAMA_LINEAR, "ernie4_5-moe": ATTENTION,
           "arcee": ATTENTION + ["up_proj", "down_proj"], "jais2": ATTENTION + ["up_proj", "down_proj"], "helium": LLAMA_LINEAR,
           **{family: LLAMA_LINEAR for family in ("cohere", "cohere2", "gemma", "vault-gemma", "stablelm", "internlm3",
                                                  "hyperclovax", "cwm", "granite-swa")},
           "starcoder2": ATTENTION + ["c_fc", "c_proj"], "mistral4": LATENT,
           "solar-open": ATTENTION, "granite-moe-swa": ATTENTION + ["input_linear", "output_linear"],
           "sarvam-mla": ["q_proj"] + LATENT[2:],
           "sarvam-moe": ATTENTION,
           "flex-olmo": ATTENTION,
           "afmoe": ATTENTION,
           "axk1": LATENT,
           "mimo-v2-flash": ATTENTION,
           "laguna": ATTENTION + ["g_proj"],
           "olmo-hybrid": LLAMA_LINEAR + ["a_proj", "b_proj", "g_proj"],
           "kimi-linear": ["q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj"]
           + LATENT[2:],
           "kolibri1": ATTENTION,
           "nemotron": ATTENTION + ["up_proj", "down_proj"],
           **{family: ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
              for family in ("gpt-neox", "gpt-neox-in-turn")},
           "olmo": LLAMA_LINEAR,
           "exaone": LLAMA_LINEAR,
           "nanochat": ATTENTION + ["fc1", "fc2"],
           "cohere2-moe": ATTENTION, "cohere2-moe-rms": ATTENTION,
           "deepseek-v2-groups": ["q_proj"] + LATENT[2:], "deepseek-v3-groups": ["q_proj"] + LATENT[2:],
           "minimax-m2": ATTENTION, "dots1": ATTENTION, "exaone-moe": ATTENTION,
           "hy-v3": ATTENTION,
           "hunyuan": LLAMA_LINEAR, "hunyuan-moe": ATTENTION, "granite-moe": ATTENTION,
           "granite-moe-shared": ATTENTION + ["input_linear", "output_linear"],
           "qwen3-vl-moe": ATTENTION, "qwen2-vl": ATTENTION, "glm4v": ATTENTION + ["gate_up_proj"],
           "glm4v-moe": ATTENTION, "lfm3-vl": ATTENTION + ["g_proj"],
           "glm": ATTENTION + ["gate_up_proj", "down_proj"], "glm4": ATTENTION + ["gate_up_proj", "down_proj"],
           "muse-glimmer": LLAMA_LINEAR, "gpt-oss-wide": ATTENTION, "gpt-oss-full": ATTENTION}
FAMILIES = ["llama", "qwen3", "gemma3", "gpt2", "qwen3_5", "qwen3-moe", "lfm2", "gpt-oss-full"]


@dataclass(frozen=True)
class Adapter:
    """An adapter on every linear layer of a family. Those of one family share A, and B where it is not zero."""
    name: str
    family: str
    covers: str
    zero_b: bool = False
    options: dict = field(default_factory=dict)


ADAPTERS = {adapter.name: adapter for adapter in [
    *(Adapter(family, family, "A and B random") for family in FAMILIES),
    *(Adapter(f"{family}-zero-b", family, "B zero, as training starts", zero_b=True) for family in FAMILIES),
    Adapter("gpt-oss-wide-zero-b", "gpt-oss-wide", "attention, B zero", zero_b=True),
    Adapter("qwen3-moe-stacked", "qwen3-moe-stacked", "attention, A and B random"),
    *(Adapter(family, family, "A and B random") for family in ("granite", "gemma4", "gemma4-shared")),
    Adapter("gemma3n", "gemma3n", "every linear layer but what mixes residual streams; A and B random"),
    Adapter("gemma4-moe", "gemma4-moe", "attention and the dense MLP; A and B random"),
    Adapter("gemma4-zero-b", "gemma4", "B zero", zero_b=True),
    Adapter("gemma4-moe-zero-b", "gemma4-moe", "attention and the dense MLP; B zero", zero_b=True),
    Adapter("muse-glimmer-zero-b", "muse-glimmer", "every linear layer, gates of attention too; B zero", zero_b=True,
            options=dict(exclude_modules=".*vision.*")),
    Adapter("muse-glimmer", "muse-glimmer", "every linear layer, gates of attention too; A and B random",
            options=dict(exclude_modules=".*vision.*")),
    Adapter("granite4-spaces", "granite4-spaces", "every linear layer; A and B random"),
    Adapter("granite4-moe", "granite4-moe", "attention and state spaces; A and B random"),
    Adapter("nemotron-h", "nemotron-h", "every linear layer but out_proj; A and B random"),
    Adapter("nemotron-h-moe", "nemotron-h-moe", "all but the experts and out_proj; A and B random"),
    Adapter("nemotron-h-moe-experts", "nemotron-h-moe", "experts beside all that; A and B random",
            options=dict(target_parameters=["mixer.experts.up_proj", "mixer.experts.down_proj"])),
    Adapter("falcon-h1", "falcon-h1", "every linear layer but out_proj; A and B random"),
    Adapter("falcon-h1-norm", "falcon-h1-norm", "attention and state spaces but out_proj; A and B random"),
    *(Adapter(family, family, "every linear layer; A and B random") for family in ("bamba", "apertus", "apertus1p5")),
    Adapter("exaone4", "exaone4", "every linear layer; A and B random"),
    Adapter("seed-oss", "seed-oss", "every linear layer; A and B random"),
    Adapter("mellum", "mellum", "attention, A and B random"),
    Adapter("qwen3-vl", "qwen3-vl", "attention of the text model; A and B random"),
    *(Adapter(family, family, "attention of the text model; A and B random")
      for family in ("qwen3-vl-moe", "qwen2-vl", "glm4v-moe")),
    *(Adapter(family, family, "attention, A and B random")
      for family in ("minimax-m2", "dots1", "exaone-moe", "hy-v3", "hunyuan-moe", "granite-moe")),
    Adapter("granite-moe-shared", "granite-moe-shared", "attention and the expert of all tokens; A and B random"),
    *(Adapter(family, family, "every linear layer; A and B random")
      for family in ("hunyuan", "arcee", "helium", "cohere", "cohere2", "gemma", "vault-gemma", "starcoder2", "stablelm",
                     "internlm3", "hyperclovax", "cwm", "granite-swa", "jais2")),
    Adapter("mistral4", "mistral4", "attention of the text model; A and B random",
            options=dict(exclude_modules=".*vision.*")),
    Adapter("solar-open", "solar-open", "attention, A and B random"),
    Adapter("granite-moe-swa", "granite-moe-swa", "attention and the expert of all tokens; A and B random"),
    *(Adapter(family, family, "attention, A and B random") for family in ("deepseek-v2-groups", "deepseek-v3-groups")),
    Adapter("sarvam-mla", "sarvam-mla", "attention, A and B random"),
    Adapter("sarvam-moe", "sarvam-moe", "attention, A and B random"),
    Adapter("flex-olmo", "flex-olmo", "attention, A and B random"),
    Adapter("afmoe", "afmoe", "attention but its gates, A and B random"),
    Adapter("axk1", "axk1", "attention, A and B random"),
    Adapter("olmo-hybrid", "olmo-hybrid", "every linear layer, of attention and of the gated delta rule; A and B random"),
    Adapter("kimi-linear", "kimi-linear",
            "every linear layer of attention and of Kimi delta attention; A and B random"),
    Adapter("mimo-v2-flash", "mimo-v2-flash", "attention, A and B random"),
    Adapter("laguna", "laguna", "attention and its gates, A and B random"),
    Adapter("kolibri1", "kolibri1", "attention, A and B random"),
    Adapter("nemotron", "nemotron", "every linear layer; A and B random"),
    *(Adapter(family, family, "every linear layer; A and B random") for family in ("gpt-neox", "gpt-neox-in-turn")),
    Adapter("olmo", "olmo", "every linear layer; A and B random"),
    Adapter("exaone", "exaone", "every linear layer; A and B random"),
    Adapter("nanochat", "nanochat", "every linear layer; A and B random"),
    *(Adapter(family, family, "attention, A and B random") for family in ("cohere2-moe", "cohere2-moe-rms")),
    Adapter("qwen3-vl-moe-experts", "qwen3-vl-moe", "experts beside attention; A and B random",
            options=dict(target_parameters=EXPERTS)),
    Adapter("glm4v", "glm4v", "attention and gate_up_proj of the text model; A and B random"),
    Adapter("lfm3-vl", "lfm3-vl", "attention of the text model and its gates; A and B random",
            options=dict(exclude_modules=".*vision.*")),
    Adapter("glm4-moe", "glm4-moe", "attention, A and B random"),
    Adapter("ernie4_5-moe", "ernie4_5-moe", "attention, A and B random"),
    *(Adapter(family, family, "every linear layer; A and B random")
      for family in ("ernie4_5", "glm", "glm4", "youtu", "minicpm3")),
    *(Adapter(family, family, "attention, A and B random") for family in ("deepseek-v2", "deepseek-v3",
                                                                          "glm4-moe-lite")),
    Adapter("lfm2-moe", "lfm2-moe", "all but the experts, A and B random"),
    Adapter("lfm2-moe-experts", "lfm2-moe", "experts beside all else; A and B random",
            options=dict(target_parameters=[f"feed_forward.experts.{name}" for name in ("gate_up_proj", "down_proj")])),
    Adapter("lfm3", "lfm3", "every linear layer, gates of attention too; A and B random"),
    Adapter("lfm3-zero-b", "lfm3", "every linear layer, gates of attention too; B zero", zero_b=True),
    Adapter("qwen2-moe", "qwen2-moe", "attention, A and B random"),
    Adapter("qwen3_5-moe", "qwen3_5-moe", "all but the experts, A and B random"),
    Adapter("qwen3_5-moe-images-zero-b", "qwen3_5-moe-images", "attention and the shared expert; B zero", zero_b=True),
    Adapter("qwen3-next", "qwen3-next", "attention and the gated delta rule, head by head; A and B random"),
    Adapter("qwen3-moe-experts", "qwen3-moe", "experts beside attention; A and B random",
            options=dict(target_parameters=EXPERTS)),
    Adapter("qwen3-moe-experts-zero-b", "qwen3-moe", "experts beside attention; B zero", zero_b=True,
            options=dict(target_parameters=EXPERTS)),
    Adapter("qwen3-moe-stacked-experts", "qwen3-moe-stacked", "the last matrices of experts beside attention",
            options=dict(target_parameters=EXPERTS[1:])),
    Adapter("gpt-oss-full-experts", "gpt-oss-full", "experts whose gate and up are in turn; A and B random",
            options=dict(target_parameters=EXPERTS)),
    Adapter("llama-rslora", "llama", "scale alpha/√r", options=dict(use_rslora=True)),
    *(Adapter(f"{family}-dora", family, "magnitudes near ‖W‖ per row", options=dict(use_dora=True))
      for family in ("llama", "gpt2")),
]}


def _fill(adapter, model):
    """A as wide as PEFT's kaiming-uniform(√5) makes it; B large enough that the adapter plainly changes the loss."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                std = 1 / math.sqrt(3 * parameter.shape[1])
                parameter.copy_(normal(parameter.shape, std, "training", adapter.family, name))
            elif "lora_B" in name:
                std = 0.0 if adapter.zero_b else 0.05
                parameter.copy_(normal(parameter.shape, std, "training", adapter.family, name))
            elif "lora_magnitude_vector" in name:
                parameter.mul_(normal(parameter.shape, 0.1, "training", adapter.family, name, mean=1.0))


def make_adapter(adapter, root):
    """Writes the PEFT folder (its README.md removed, its sets sorted); returns its index entry."""
    folder = root / "training" / "adapters" / adapter.name
    shutil.rmtree(folder, ignore_errors=True)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                        target_modules=TARGETS[adapter.family], fan_in_fan_out=adapter.family == "gpt2",
                        **adapter.options)
    model = get_peft_model(load(root / "models" / adapter.family, torch.float32), config)
    _fill(adapter, model)
    model.peft_config["default"].base_model_name_or_path = f"../../../models/{adapter.family}"
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    config_file = folder / "adapter_config.json"
    stored = json.loads(config_file.read_text())
    for key in ("target_modules", "target_parameters"):
        stored[key] = sorted(stored[key]) if stored.get(key) else None
    config_file.write_text(json.dumps(stored, indent=2, sort_keys=True))
    return {"name": adapter.name, "covers": adapter.covers, "folder": f"training/adapters/{adapter.name}",
            "rank": RANK, "alpha": ALPHA}


def base_model(root, base, run):
    """The frozen base in the type of `run`; a quantised one holds its dequantised matrices, rounded in BF16 and F16."""
    dtype = MODEL_DTYPES[run]
    if base not in bnb_goldens.FOLDERS:
        return load(root / "models" / base, dtype).to(dtype)    # MXFP4 is decoded to BF16
    weight_dtype = dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32
    return bnb_goldens.dequantised_model(root, base, dtype, weight_dtype)[0]


def adapted_model(root, base, adapter, run):
    """Base and adapter, the adapter trainable and F32 (PEFT's autocast_adapter_dtype), or F64 in the F64 run."""
    folder = root / "training" / "adapters" / adapter
    model = PeftModel.from_pretrained(base_model(root, base, run), folder, is_trainable=True).eval()
    return model.double() if run == "f64" else model


def full_model(root, base, run):
    """Every weight of the language model trainable and F32: as for F32, or under autocast for the BF16 run."""
    model = load(root / "models" / base, torch.float64 if run == "f64" else torch.float32)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in ("vision", "visual", "projector",
                                                                 "e_score_correction_bias", ".expert_bias")))
    return model


def trainable(model):
    """{name as PEFT stores the tensor: parameter}, in the model's order."""
    named = ((name.replace(".default", ""), p) for name, p in model.named_parameters() if p.requires_grad)
    return {name.removesuffix(".weight") if "lora_magnitude_vector" in name else name: p for name, p in named}


# {base: what its folder calls the matrices of an expert, and its router}; else the first, and as in memory.
_W_NAMES = ("experts.{}.w1", "experts.{}.w3", "experts.{}.w2")
_EXPERT_NAMES = {"": ("experts.{}.gate_proj", "experts.{}.up_proj", "experts.{}.down_proj"),
                 "mixtral": _W_NAMES, "lfm2-moe": _W_NAMES, "kimi-linear": _W_NAMES}


def _matrices_of_stack(base, name, tensor):
    """A stack [E, …] of gate_up_proj, of up_proj alone, or of down_proj as the matrices of its experts."""
    if name.endswith("experts.up_proj"):
        yield from ((name.replace("experts.up_proj", f"experts.{e}.up_proj.weight"), stack)
                    for e, stack in enumerate(tensor))
        return
    in_turn = base.startswith("gpt-oss")
    names = _EXPERT_NAMES.get(base, _EXPERT_NAMES[""])
    stem, is_out = name.rsplit("experts.", 1)[0], name.endswith("down_proj")
    for e, stack in enumerate(tensor.mT if in_turn else tensor):
        rows = stack.shape[0] // 2
        parts = [stack] if is_out else [stack[0::2], stack[1::2]] if in_turn else [stack[:rows], stack[rows:]]
        for module, matrix in zip(names[2:] if is_out else names[:2], parts):
            yield f"{stem}{module.format(e)}.weight", matrix


def by_matrix(base, tensors):
    """The same tensors, each stack of experts as its matrices, under the names of a folder that has these."""
    result = {}
    for name, tensor in tensors.items():
        if base == "mixtral" or (base == "kimi-linear" and ".layers.0." not in name):    # of which the first is dense
            name = name.replace(".mlp.", ".block_sparse_moe.")
        name = folder_name(base, name)
        if base == "olmo-hybrid" and ".layers.1." not in name:    # layers with a state
            name = (name.replace(".input_layernorm.", ".attention_layer_norm.")
                    .replace(".post_attention_layernorm.", ".feedforward_layer_norm."))
        name = name.replace(".self_attn.forget_gate.", ".self_attn.")
        if base == "mimo-v2-flash":
            name = name.replace(".self_attn.sinks", ".self_attn.attention_sink_bias")
        if base == "laguna":
            name = name.replace(".mlp.shared_experts.", ".mlp.shared_expert.")
        if name.endswith(("experts.gate_up_proj", "experts.up_proj", "experts.down_proj")):
            result |= dict(_matrices_of_stack(base, name, tensor))
        else:
            result[name] = tensor
    return result


def _integers(low, high, n, *key):
    return torch.randint(low, high, (n,), generator=generator_for("training", *key)).tolist()


# {batch: [(length, positions whose labels are ignored, what else makes its ids)]}. Of "lengths" some are beyond what the
# models with dynamic and longrope scaling were trained for, and some are not. "clear-experts" leaves a model no doubt
# about its experts: its last members are the first random sequences of their lengths that do so in ernie4_5-moe, and
# those of "clear-blocks" the first in nemotron-h-moe, with its adapters and without, of "clear-groups" the first in
# deepseek-v3-groups, those of "clear-logits" the first in kolibri1, of "clear-channels" in kimi-linear and of
# "clear-heads" in laguna, with their adapters and without, and those of "clear-latents" the first in sarvam-mla, with
# its adapter.
_MICRO_BATCHES = {
    "micro-batch": [(5, [0, 1]), (17, [0, 1, 2, 3, 9, 10]), (33, [*range(12), 20, 32])],
    "lengths": [(57, [0, 1, 30]), (9, []), (45, [*range(20)]), (53, [*range(3, 40)])],
    "clear-experts": [(5, [0, 1], 0), (17, [0, 1, 2, 3, 9, 10], 28), (33, [*range(12), 20, 32], 49)],
    "clear-groups": [(5, [0, 1], 0), (17, [0, 1, 2, 3, 9, 10], 44), (25, [*range(9), 20], 2594)],
    "clear-logits": [(5, [0, 1], 1), (9, [0, 1, 2, 3], 0), (17, [*range(5), 12], 2)],
    "clear-latents": [(5, [0, 1], 1), (9, [0, 1, 2, 3], 4), (17, [*range(5), 12], 0)],
    "clear-heads": [(5, [0, 1], 2), (9, [0, 1, 2, 3], 0), (17, [*range(5), 12], 32)],
    "clear-channels": [(5, [0, 1], 2), (9, [0, 1, 2, 3], 4), (17, [*range(5), 12], 61)],
    "pairs": [(21, [*range(6)]), (26, [*range(6)]), (13, [*range(4)]), (40, [*range(4)])],
    "clear-blocks": [(5, [0, 1], 12), (17, [0, 1, 2, 3, 9, 10], 34), (25, [*range(9), 20], 787)],
}
MICRO_BATCHES = list(_MICRO_BATCHES)


def micro_batch(name="micro-batch"):
    """Ragged sequences of random ids. Labels are as Hugging Face has them: labels[i] is ids[i] or IGNORED."""
    examples = []
    for length, ignored, *attempt in _MICRO_BATCHES[name]:
        ids = _integers(3, VOCABULARY, length, name, length, *attempt)
        examples.append({"ids": ids, "labels": [IGNORED if i in ignored else t for i, t in enumerate(ids)]})
    return examples


_SYMBOLS = 48
_CURVE_LENGTHS = ((9, 21, 5, 33), (13, 2, 26, 17), (30, 8, 11, 19))


def curve_batches():
    """Three batches of four ragged sequences, walks over 48 ids of which each has two successors: learnable."""
    symbols = _integers(3, VOCABULARY, _SYMBOLS, "symbols")
    successors = _integers(0, _SYMBOLS, 2 * _SYMBOLS, "successors")
    batches = []
    for b, lengths in enumerate(_CURVE_LENGTHS):
        batch = []
        for length in lengths:
            turns = _integers(0, 2, length, "walk", b, length)
            state, ids = turns[0] + length % _SYMBOLS, []
            for turn in turns:
                ids.append(symbols[state])
                state = successors[2 * state + turn]
            prompt = length // 4
            batch.append({"ids": ids, "labels": [IGNORED] * prompt + ids[prompt:]})
        batches.append(batch)
    return batches


def n_targets(examples):
    """Tokens that count: the label of the first token never does, because nothing predicts it."""
    return sum(label != IGNORED for example in examples for label in example["labels"][1:])
