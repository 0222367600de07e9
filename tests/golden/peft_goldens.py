"""LoRA adapters saved by PEFT, with the logits of the base model that carries them unmerged."""
import json
import shutil
from dataclasses import dataclass, field

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

from bnb_goldens import dequantised_model
from model_goldens import golden_prompts, load, normal

PROMPT_LENGTHS = (7, 33)
LLAMA_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@dataclass(frozen=True)
class Adapter:
    name: str
    base: str
    covers: str
    targets: list | None
    options: dict = field(default_factory=dict)


ADAPTERS = [
    Adapter("llama-lora", "llama", "every linear layer, r 5, alpha 10", LLAMA_LINEAR),
    Adapter("llama-rslora", "llama", "rsLoRA (alpha/√r), attention only, r 3, alpha 4", ["q_proj", "v_proj"],
            dict(r=3, lora_alpha=4, use_rslora=True)),
    Adapter("llama-patterns", "llama", "rank_pattern and alpha_pattern, layer 1 only where they say so", LLAMA_LINEAR,
            dict(rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 7},
                 alpha_pattern={"layers.0.self_attn.q_proj": 3, "v_proj": 12})),
    Adapter("llama-one-layer", "llama", "layers_to_transform [1]", ["o_proj", "up_proj"],
            dict(layers_to_transform=[1])),
    Adapter("llama-dora", "llama", "DoRA: lora_magnitude_vector", ["q_proj", "down_proj"], dict(use_dora=True)),
    Adapter("llama-saved", "llama", "modules_to_save: head and last norm", ["q_proj", "v_proj"],
            dict(modules_to_save=["lm_head", "model.norm"])),
    Adapter("gemma3-saved", "gemma3", "modules_to_save: the embedding, which the head stays tied to as it was",
            ["o_proj"], dict(modules_to_save=["embed_tokens"])),
    Adapter("qwen3-lora", "qwen3", "every linear layer of a model with QK norm", LLAMA_LINEAR),
    Adapter("gpt2-lora", "gpt2", "Conv1D layers: fan_in_fan_out true", ["c_attn", "c_proj", "c_fc"],
            dict(fan_in_fan_out=True)),
    Adapter("gpt2-dora", "gpt2", "DoRA of Conv1D layers, which have biases", ["c_attn", "c_proj", "c_fc"],
            dict(fan_in_fan_out=True, use_dora=True)),
    Adapter("qwen3-moe-experts", "qwen3-moe", "target_parameters: both of the experts, beside attention",
            ["q_proj", "o_proj"], dict(target_parameters=EXPERTS)),
    Adapter("mixtral-experts", "mixtral", "target_parameters: the last matrices alone; a checkpoint with older names",
            None, dict(target_parameters=["experts.down_proj"])),
    Adapter("qwen2-moe-experts", "qwen2-moe", "target_parameters: gate and up alone, and the router", ["v_proj"],
            dict(target_parameters=["mlp.experts.gate_up_proj", "mlp.gate.weight"])),
    Adapter("qwen3-moe-all", "qwen3-moe", "every linear layer by its name: PEFT makes parameters of the experts of them",
            LLAMA_LINEAR),
    Adapter("qwen3-moe-patterns", "qwen3-moe", "patterns that name a parameter of the experts, or miss it", ["q_proj"],
            dict(target_parameters=EXPERTS, rank_pattern={"experts.gate_up_proj": 2, "experts": 3},
                 alpha_pattern={"layers.0.mlp.experts.down_proj": 3, "experts": 1})),
    Adapter("qwen2_5-vl-visual", "qwen2_5-vl", "LoRA on the image encoder too, which is left out of the model",
            ["q_proj", "down_proj"]),
    Adapter("gpt-oss-experts", "gpt-oss-wide", "target_parameters of experts whose gate and up are in turn",
            ["q_proj", "o_proj"], dict(target_parameters=EXPERTS)),
]


def _randomise(adapter, model):
    """Non-zero A and B, so large that the adapter changes the logits plainly; magnitudes near what DoRA starts with."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.copy_(normal(parameter.shape, parameter.shape[1] ** -0.5, adapter.name, name))
            elif "lora_B" in name:
                parameter.copy_(normal(parameter.shape, 0.2, adapter.name, name))
            elif "lora_magnitude_vector" in name or "modules_to_save" in name:
                parameter.mul_(normal(parameter.shape, 0.1, adapter.name, name, mean=1.0))


def _make_folder(adapter, folder, base_folder):
    """Writes the adapter with PEFT's save_pretrained, less its README.md and with its sets in sorted order."""
    shutil.rmtree(folder, ignore_errors=True)
    options = dict(r=5, lora_alpha=10, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM") | adapter.options
    model = get_peft_model(load(base_folder, torch.float32), LoraConfig(target_modules=adapter.targets, **options))
    _randomise(adapter, model)
    model.peft_config["default"].base_model_name_or_path = f"../../models/{adapter.base}"
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    config_file = folder / "adapter_config.json"
    config = json.loads(config_file.read_text())
    for key in ("target_modules", "target_parameters"):
        config[key] = sorted(config[key]) if config[key] else None     # sets, whose order changes from run to run
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True))


def _golden(name, covers, base, adapter, models, root):
    """Writes the goldens of `models` (F32, BF16), which carry the adapter; returns the index entry."""
    tensors, prompts = golden_prompts(models[0], name, PROMPT_LENGTHS, bf16=models[1])
    save_file(tensors, root / "goldens" / f"{name}.safetensors")
    return {
        "name": name,
        "covers": covers,
        "base_folder": f"models/{base}",
        "folder": f"adapters/{adapter}",
        "goldens": f"goldens/{name}.safetensors",
        "prompts": prompts,
    }


def make_adapter_golden(adapter, root):
    """Makes the adapter folder and its goldens; returns its index entry."""
    base_folder, folder = root / "models" / adapter.base, root / "adapters" / adapter.name
    _make_folder(adapter, folder, base_folder)
    models = [PeftModel.from_pretrained(load(base_folder, dtype), folder).eval()
              for dtype in (torch.float32, torch.bfloat16)]
    return _golden(adapter.name, adapter.covers, adapter.base, adapter.name, models, root)


QUANTISED = {"llama-nf4-lora": ("llama-nf4", "llama-lora"), "llama-nf4-dora": ("llama-nf4", "llama-dora"),
             "gpt2-int8-lora": ("gpt2-int8", "gpt2-lora")}


def make_quantised_adapter_golden(name, root):
    """An adapter on a quantised base, which holds its dequantised matrices; returns the index entry."""
    base, adapter = QUANTISED[name]
    models = []
    for dtype in (torch.float32, torch.bfloat16):
        model, _ = dequantised_model(root, base, dtype, dtype)
        models.append(PeftModel.from_pretrained(model, root / "adapters" / adapter).eval())
    return _golden(name, "an adapter on a quantised base", base, adapter, models, root)
