#!/usr/bin/env python3
"""Makes the goldens of merging: what PEFT's merge_and_unload makes of every matrix. See "Merging" in README.md.

    python3 tests/golden/make_merge_goldens.py [--only NAME ...] [--out FOLDER]

Needs what make_model_goldens.py needs, and its fixtures. A second run on the same machine writes identical files.
"""
import argparse
import json
import pathlib
import shutil
from dataclasses import dataclass, field

from make_model_goldens import FIXTURES, merged, write_index   # sets the environment before torch is imported

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

import bnb_goldens
from model_goldens import folder_name, load, normal
from peft_goldens import EXPERTS, LLAMA_LINEAR
from training_cases import by_matrix

N_ROWS = 4      # of a matrix that are stored, from the first to the last
N_EXPERTS = 2   # of a stack: the first and the last


@dataclass(frozen=True)
class Adapter:
    """An adapter that no other golden has."""
    name: str
    base: str
    targets: list
    options: dict = field(default_factory=dict)
    has_tables: bool = False    # the weights of an embedding or a head beside its LoRA, as PEFT saves them by default


ADAPTERS = {adapter.name: adapter for adapter in [
    Adapter("phi3-lora", "phi3", ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    Adapter("gpt2-dora", "gpt2", ["c_attn", "c_proj", "c_fc"], dict(fan_in_fan_out=True, use_dora=True)),
    Adapter("llama-tables", "llama", ["q_proj", "embed_tokens", "lm_head"]),
    Adapter("llama-kept-tables", "llama", ["q_proj", "embed_tokens", "lm_head"], has_tables=True),
    Adapter("gemma3-kept-table", "gemma3", ["q_proj", "embed_tokens"], has_tables=True),
    Adapter("llama-saved", "llama", ["q_proj"], dict(modules_to_save=["lm_head", "norm"])),
    Adapter("llama3-saved-head", "llama-llama3", ["q_proj"], dict(modules_to_save=["lm_head"])),
    Adapter("qwen3-moe-stacked-experts", "qwen3-moe-stacked", ["v_proj"], dict(target_parameters=EXPERTS)),
    Adapter("gpt-oss-attention", "gpt-oss-wide", ["q_proj", "k_proj", "v_proj", "o_proj"]),
]}

CASES = {
    # name: (base, adapter, what it covers)
    "llama-lora": ("llama", "adapters/llama-lora", "every linear layer"),
    "llama-rslora": ("llama", "adapters/llama-rslora", "scale alpha/√r"),
    "llama-patterns": ("llama", "adapters/llama-patterns", "rank_pattern and alpha_pattern"),
    "llama-one-layer": ("llama", "adapters/llama-one-layer", "layers_to_transform: layer 0 stays"),
    "llama-dora": ("llama", "adapters/llama-dora", "DoRA: rows scaled to their magnitudes"),
    "qwen3-lora": ("qwen3", "adapters/qwen3-lora", "tied head, QK norm"),
    "qwen3_5-lora": ("qwen3_5", "training/adapters/qwen3_5", "layers of the gated delta rule"),
    "lfm2-lora": ("lfm2", "training/adapters/lfm2", "layers of short convolutions"),
    "lfm3-lora": ("lfm3", "training/adapters/lfm3", "gates, whose name in an adapter is not the folder's"),
    "granite4-lora": ("granite4-spaces", "training/adapters/granite4-spaces", "layers of state spaces"),
    "falcon-h1-lora": ("falcon-h1", "training/adapters/falcon-h1", "state spaces beside attention"),
    "gemma3n-lora": ("gemma3n", "training/adapters/gemma3n", "what makes and ends residual streams, products beside attention"),
    "apertus1p5-lora": ("apertus1p5", "training/adapters/apertus1p5", "a head of fewer rows than the embedding"),
    "apertus-lora": ("apertus", "training/adapters/apertus", "MLPs of xIELU"),
    "cohere-lora": ("cohere", "training/adapters/cohere", "blocks that read one norm"),
    "starcoder2-lora": ("starcoder2", "training/adapters/starcoder2", "an MLP whose names are GPT-2's"),
    "olmo-hybrid-lora": ("olmo-hybrid", "training/adapters/olmo-hybrid", "q, k and v of the gated delta rule apart"),
    "kimi-linear-lora": ("kimi-linear", "training/adapters/kimi-linear", "names in memory that are not the folder's"),
    "mimo-v2-flash-lora": ("mimo-v2-flash", "training/adapters/mimo-v2-flash", "values shorter than keys"),
    "laguna-lora": ("laguna", "training/adapters/laguna", "heads of several counts, and their gates"),
    "sarvam-moe-lora": ("sarvam-moe", "training/adapters/sarvam-moe", "q, k and v in one tensor of the folder"),
    "gpt-neox-lora": ("gpt-neox", "training/adapters/gpt-neox", "q, k and v of one head after the other"),
    "olmo-lora": ("olmo", "training/adapters/olmo", "LayerNorm without weights"),
    "exaone-lora": ("exaone", "training/adapters/exaone", "names in an adapter that are not the folder's"),
    "axk1-lora": ("axk1", "training/adapters/axk1", "a norm whose name in memory is not the folder's"),
    "nanochat-lora": ("nanochat", "training/adapters/nanochat", "an MLP of fc1 and fc2, no norms"),
    "youtu-lora": ("youtu", "training/adapters/youtu", "latents of queries, keys and values"),
    "nemotron-h-lora": ("nemotron-h", "training/adapters/nemotron-h", "a prefix that is not the folder's"),
    "nemotron-h-moe-experts": ("nemotron-h-moe", "training/adapters/nemotron-h-moe-experts",
                               "experts without a gate, a tensor each"),
    "qwen3-vl-moe-experts": ("qwen3-vl-moe", "training/adapters/qwen3-vl-moe-experts",
                             "stacks of experts with columns for rows"),
    "qwen2-vl-lora": ("qwen2-vl", "training/adapters/qwen2-vl", "names without the wrapper's"),
    "qwen2_5-vl-visual": ("qwen2_5-vl", "adapters/qwen2_5-vl-visual", "an image encoder whose name is not the folder's"),
    "gpt2-lora": ("gpt2", "adapters/gpt2-lora", "fan_in_fan_out: Conv1D matrices are [in, out]"),
    "gpt2-dora": ("gpt2", "merge/adapters/gpt2-dora", "DoRA on Conv1D"),
    "phi3-lora": ("phi3", "merge/adapters/phi3-lora", "fused qkv_proj and gate_up_proj"),
    "llama-tables": ("llama", "merge/adapters/llama-tables", "LoRA on embedding and head"),
    "llama-kept-tables": ("llama", "merge/adapters/llama-kept-tables", "the same, with their own weights beside it"),
    "llama-saved": ("llama", "merge/adapters/llama-saved", "modules_to_save: head and final norm"),
    "llama3-saved-head": ("llama-llama3", "merge/adapters/llama3-saved-head",
                          "modules_to_save: the head of a tied model, which is tied no more"),
    "qwen3-moe-stacked-experts": ("qwen3-moe-stacked", "merge/adapters/qwen3-moe-stacked-experts",
                                  "target_parameters: the experts of a layer, which are in one tensor"),
    "gpt-oss-experts": ("gpt-oss-wide", "adapters/gpt-oss-experts", "experts whose gate and up are in turn"),
    "gpt-oss-mxfp4-experts": ("gpt-oss-mxfp4", "adapters/gpt-oss-experts", "onto experts in MXFP4"),
    "gpt-oss-mxfp4-attention": ("gpt-oss-mxfp4", "merge/adapters/gpt-oss-attention", "beside experts in MXFP4"),
    "llama-nf4-lora": ("llama-nf4", "adapters/llama-lora", "onto dequantised NF4"),
    "llama-nf4-dq-lora": ("llama-nf4-dq", "adapters/llama-lora", "onto dequantised double-quantised NF4"),
    "llama-int8-dora": ("llama-int8", "adapters/llama-dora", "DoRA onto dequantised LLM.int8"),
    "gpt2-nf4-lora": ("gpt2-nf4", "adapters/gpt2-lora", "Conv1D onto dequantised NF4"),
}


def _randomise(adapter, model):
    """A, B and magnitudes as peft_goldens.py makes them; saved modules near the base's own."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name or "lora_embedding_A" in name:
                parameter.copy_(normal(parameter.shape, parameter.shape[1] ** -0.5, "merge", adapter.name, name))
            elif "lora_B" in name or "lora_embedding_B" in name:
                parameter.copy_(normal(parameter.shape, 0.2, "merge", adapter.name, name))
            elif "lora_magnitude_vector" in name:
                parameter.mul_(normal(parameter.shape, 0.1, "merge", adapter.name, name, mean=1.0))
            elif "modules_to_save" in name or adapter.has_tables and \
                    name.endswith(("embed_tokens.base_layer.weight", "lm_head.base_layer.weight")):
                parameter.add_(normal(parameter.shape, 0.1, "merge", adapter.name, name))


def make_adapter(adapter, root):
    folder = root / "merge" / "adapters" / adapter.name
    shutil.rmtree(folder, ignore_errors=True)
    config = LoraConfig(r=3, lora_alpha=7, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                        target_modules=adapter.targets, **adapter.options)
    model = get_peft_model(load(root / "models" / adapter.base, torch.float32), config)
    _randomise(adapter, model)
    model.peft_config["default"].base_model_name_or_path = f"../../../models/{adapter.base}"
    model.save_pretrained(folder, save_embedding_layers=adapter.has_tables)
    (folder / "README.md").unlink(missing_ok=True)
    config_file = folder / "adapter_config.json"
    stored = json.loads(config_file.read_text())
    for key in ("target_modules", "target_parameters"):
        stored[key] = sorted(stored[key]) if stored.get(key) else None
    config_file.write_text(json.dumps(stored, indent=2, sort_keys=True))


def _base(root, base, dtype):
    """The base in dtype; of a quantised folder, with its dequantised matrices in F32 whatever dtype is."""
    if base in bnb_goldens.FOLDERS:
        return bnb_goldens.dequantised_model(root, base, torch.float32, torch.float32)[0]
    return load(root / "models" / base, dtype).to(dtype)    # MXFP4 is decoded to BF16


def _merge_dtype(name, base):
    """What PEFT merges in for the BF16 values: BF16, or F32 and one rounding where that would round twice."""
    stored_f32 = base.startswith("gpt2")
    in_bf16 = ("llama-tables", "llama-kept-tables", "qwen3-moe-stacked-experts", "gpt-oss-experts",
               "gpt-oss-mxfp4-experts", "qwen3-vl-moe-experts", "nemotron-h-moe-experts")    # whose factors PEFT rounds: lora_embedding_A, experts'
    return torch.float32 if stored_f32 or name in in_bf16 else torch.bfloat16


def _folder_name(base, name):
    name = folder_name(base, name)
    if base == "kimi-linear":
        return name.replace(".forget_gate.", ".")
    if base in ("qwen2-vl", "qwen2_5-vl"):
        return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
    return "backbone." + name.removeprefix("model.") if base.startswith("nemotron-h") else name


def _merged(root, base, adapter, dtype):
    """{name: tensor} of what merge_and_unload changes in a model of dtype."""
    before = {name: tensor.clone() for name, tensor in _base(root, base, dtype).state_dict().items()}
    model = PeftModel.from_pretrained(_base(root, base, dtype), root / adapter).merge_and_unload()
    after = model.state_dict()
    changed = {name: tensor for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    if base == "nemotron-h-moe":    # whose folder has a tensor for each expert
        changed = by_matrix(base, changed)
    if base == "qwen3-vl-moe":      # whose folder has [E, in, out]
        changed = {name: tensor.mT.contiguous() if ".experts." in name else tensor for name, tensor in changed.items()}
    return {_folder_name(base, name): tensor for name, tensor in changed.items()}


def _rows(tensor):
    n = tensor.shape[0]
    if tensor.ndim == 1:
        return tensor
    n_kept = N_ROWS if tensor.ndim == 2 else N_EXPERTS
    return tensor[sorted({i * (n - 1) // (n_kept - 1) for i in range(n_kept)})].contiguous()


def make_case(name, root):
    base, adapter, covers = CASES[name]
    full = _merged(root, base, adapter, torch.float32)
    half = _merged(root, base, adapter, _merge_dtype(name, base))
    half = {key: tensor.bfloat16() for key, tensor in half.items()}
    if full.keys() != half.keys():
        raise SystemExit(f"{name}: F32 and BF16 change other tensors")
    tensors = {f"{key}.f32": _rows(tensor) for key, tensor in full.items()}
    tensors |= {f"{key}.bf16": _rows(tensor) for key, tensor in half.items()}
    path = f"merge/{name}.safetensors"
    save_file(tensors, root / path)
    return {"name": name, "covers": covers, "base_folder": f"models/{base}", "adapter_folder": adapter, "values": path,
            "changed": [{"tensor": key, "shape": list(tensor.shape), "sum": tensor.double().sum().item(),
                         "squares": tensor.double().square().sum().item()} for key, tensor in sorted(full.items())]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make these entries only")
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES, help="where to write (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    (options.out / "merge").mkdir(parents=True, exist_ok=True)
    made = []
    for name in CASES:
        if options.only is not None and name not in options.only:
            continue
        print(name, flush=True)
        own = ADAPTERS.get(pathlib.Path(CASES[name][1]).name)
        if own is not None:
            make_adapter(own, options.out)
        made.append(make_case(name, options.out))
    index = options.out / "merge" / "index.json"
    write_index(index, merged(index, {"merges": made}) if options.only else {"merges": made})


if __name__ == "__main__":
    main()
