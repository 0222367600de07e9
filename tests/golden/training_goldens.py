"""First-step gradients and 20-step loss curves of PEFT, PyTorch's and transformers' optimisers."""
import contextlib
from dataclasses import dataclass

import torch
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import save_file
from transformers import Adafactor, get_scheduler

import clear_experts
import training_cases as cases

N_STEPS, N_WARMUP, MAX_GRAD_NORM = 20, 3, 1.0
RUNS = ("f32", "f64", "bf16", "bf16-autocast")
CURVE_RUNS = (*RUNS, "f16")
INITIAL_LOSS_SCALE = 65536.0    # of GradScaler
N_STARTS = 8


def rounded(value):
    return float(f"{value:.4g}")


def nll_sum(model, example):
    """Sum over the targets of −log p, in F32 (or F64): one forward over the sequence alone, no padding, no cache."""
    ids, labels = torch.tensor([example["ids"]]), torch.tensor(example["labels"])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=cases.IGNORED, reduction="sum")


def accumulate(model, examples, run, scaler=None):
    """Adds the gradient of the loss of `examples`, one backward per sequence; returns the NLL sum of each."""
    total, sums = cases.n_targets(examples), []
    scale = scaler.scale if scaler else lambda loss: loss
    for example in examples:
        amp = torch.autocast("cpu", torch.bfloat16) if run == "bf16-autocast" else contextlib.nullcontext()
        with amp:
            loss = nll_sum(model, example)
        scale(loss / total).backward()
        sums.append(loss.item())
    return sums


def _relative(tensors, reference):
    """‖a − b‖ / ‖b‖ over all tensors together, and the largest of the tensors' own."""
    def norm(parts):
        return sum(part.double().square().sum().item() for part in parts) ** 0.5
    differences = {name: tensors[name].double() - reference[name].double() for name in reference}
    own = [norm([differences[name]]) / norm([reference[name]]) for name in reference if norm([reference[name]])]
    return rounded(norm(differences.values()) / norm(reference.values())), rounded(max(own))


# ---- first-step gradients

@dataclass(frozen=True)
class Gradients:
    name: str
    base: str
    adapter: str | None     # None: full fine-tuning
    covers: str
    kept: tuple = ()        # parts of the names of the tensors to store; () stores all
    exact: bool = False     # store those of F64: PyTorch's in F32 are nearly as far from them as the test allows, or more
    head: bool = False      # lm_head is trained too, as with modules_to_save
    batch: str = "micro-batch"


GRADIENTS = [
    *(Gradients(family, family, family, "A and B random") for family in cases.FAMILIES),
    *(Gradients(f"{family}-zero-b", family, f"{family}-zero-b", "B zero: every gradient of A is zero, not stored",
                kept=("lora_B",)) for family in cases.FAMILIES),
    Gradients("gpt-oss-wide-zero-b", "gpt-oss-wide", "gpt-oss-wide-zero-b",
              "through sinks in sliding layers and biases everywhere", kept=("lora_B",)),
    Gradients("gpt-oss-mxfp4-zero-b", "gpt-oss-mxfp4", "gpt-oss-wide-zero-b",
              "through experts that are kept in MXFP4", kept=("lora_B",)),
    Gradients("qwen3-moe-stacked", "qwen3-moe-stacked", "qwen3-moe-stacked",
              "through experts whose shares do not add up to 1"),
    Gradients("qwen2-moe", "qwen2-moe", "qwen2-moe", "through an expert that every token goes to"),
    Gradients("qwen3_5-moe", "qwen3_5-moe", "qwen3_5-moe",
              "all but the experts, through experts and layers of the gated delta rule"),
    Gradients("qwen3-next", "qwen3-next", "qwen3-next", "through projections of the gated delta rule, head by head"),
    Gradients("qwen3-moe-experts", "qwen3-moe", "qwen3-moe-experts", "experts too (target_parameters)"),
    Gradients("qwen3-moe-stacked-experts", "qwen3-moe-stacked", "qwen3-moe-stacked-experts",
              "the last matrices of experts too, whose shares do not add up to 1"),
    Gradients("gpt-oss-full-experts", "gpt-oss-full", "gpt-oss-full-experts",
              "experts too, whose gate and up are in turn, with biases and a clamped gate"),
    Gradients("muse-glimmer", "muse-glimmer", "muse-glimmer", "through gates of a matrix of their own"),
    Gradients("exaone4", "exaone4", "exaone4", "through norms after the blocks, and layers that do not rotate"),
    Gradients("seed-oss", "seed-oss", "seed-oss", "beside biases of queries, keys and values alone"),
    Gradients("mellum", "mellum", "mellum", "through experts, windows and two ways to rotate"),
    Gradients("qwen3-vl", "qwen3-vl", "qwen3-vl", "the text model inside a wrapper with images"),
    Gradients("qwen3-vl-moe", "qwen3-vl-moe", "qwen3-vl-moe", "the text model with experts inside a wrapper"),
    Gradients("qwen3-vl-moe-experts", "qwen3-vl-moe", "qwen3-vl-moe-experts", "experts too, of stacks that are wide"),
    Gradients("qwen3-vl-moe-full", "qwen3-vl-moe", None,
              "every weight of the text model; those of the first layer's experts are stored",
              kept=("language_model.layers.0.mlp.",)),
    Gradients("qwen2-vl", "qwen2-vl", "qwen2-vl", "a wrapper whose tensors are named without it"),
    Gradients("qwen2-vl-full", "qwen2-vl", None, "every weight of it; those of the first layer are stored",
              kept=("layers.0.self_attn",)),
    Gradients("glm4v", "glm4v", "glm4v", "through neighbours that rotate in pairs, and norms after the blocks"),
    Gradients("glm4v-moe", "glm4v-moe", "glm4v-moe", "through experts chosen by sigmoids, inside a wrapper"),
    Gradients("lfm3-vl", "lfm3-vl", "lfm3-vl", "through gates for each head, inside a wrapper"),
    Gradients("minimax-m2", "minimax-m2", "minimax-m2",
              "through norms over all heads, and experts chosen by sigmoids plus a bias"),
    Gradients("dots1", "dots1", "dots1", "through such experts and windows"),
    Gradients("exaone-moe", "exaone-moe", "exaone-moe", "the same, beside layers that do not rotate"),
    Gradients("hy-v3", "hy-v3", "hy-v3", "through such experts and one without a share"),
    Gradients("hunyuan", "hunyuan", "hunyuan", "through norms of heads after rotation"),
    Gradients("hunyuan-full", "hunyuan", None, "every weight; those of the first layer are stored", kept=("layers.0.",)),
    Gradients("hunyuan-moe", "hunyuan-moe", "hunyuan-moe", "the same, and experts"),
    Gradients("arcee", "arcee", "arcee", "through squared ReLU, beside biases in the MLP"),
    Gradients("helium", "helium", "helium", "through neighbours that rotate in pairs"),
    Gradients("cohere", "cohere", "cohere", "through attention and an MLP that read one LayerNorm"),
    Gradients("cohere-full", "cohere", None, "every weight; those of the first layer are stored", kept=("layers.0.",)),
    Gradients("cohere2", "cohere2", "cohere2", "the same, with windows in which alone positions rotate"),
    Gradients("gemma", "gemma", "gemma", "through norms that add 1"),
    Gradients("vault-gemma", "vault-gemma", "vault-gemma", "through soft caps, without norms after the blocks"),
    Gradients("starcoder2", "starcoder2", "starcoder2", "through LayerNorm, and an MLP without a gate"),
    Gradients("stablelm", "stablelm", "stablelm", "through LayerNorm, and heads that rotate in part"),
    Gradients("internlm3", "internlm3", "internlm3", "beside biases everywhere"),
    Gradients("hyperclovax", "hyperclovax", "hyperclovax", "through norms after the blocks and factors"),
    Gradients("cwm", "cwm", "cwm", "through windows in all layers but some"),
    Gradients("granite-swa", "granite-swa", "granite-swa", "through sinks of attention beside factors"),
    Gradients("granite-swa-full", "granite-swa", None, "every weight; those of attention of the first layer are stored",
              kept=("layers.0.self_attn",)),
    Gradients("granite-moe-swa", "granite-moe-swa", "granite-moe-swa", "the same, and experts"),
    Gradients("mistral4", "mistral4", "mistral4", "through queries of latent attention that are scaled by their position"),
    Gradients("mistral4-full", "mistral4", None, "every weight of the text model; those of the first attention are stored",
              kept=("language_model.layers.0.self_attn",)),
    Gradients("solar-open", "solar-open", "solar-open", "through experts chosen by sigmoids in every layer"),
    Gradients("jais2", "jais2", "jais2", "through LayerNorm and squared ReLU, beside biases everywhere"),
    Gradients("sarvam-mla", "sarvam-mla", "sarvam-mla", "through latents under YaRN, and experts chosen by sigmoids",
              batch="clear-latents"),
    Gradients("sarvam-moe", "sarvam-moe", "sarvam-moe", "through queries, keys and values that files have in one"),
    Gradients("flex-olmo", "flex-olmo", "flex-olmo", "through experts and norms after the blocks"),
    Gradients("afmoe", "afmoe", "afmoe", "through gates, norms after the blocks, and experts chosen by sigmoids"),
    Gradients("axk1", "axk1", "axk1", "through latents, and a norm after experts alone"),
    Gradients("axk1-full", "axk1", None, "every weight; those of the norm after experts and the router are stored",
              kept=("layers.1.mlp.post_mlp", "layers.1.mlp.gate")),
    Gradients("olmo-hybrid", "olmo-hybrid", "olmo-hybrid", "through beta that is doubled, and norms on either side"),
    Gradients("olmo-hybrid-full", "olmo-hybrid", None, "every weight; those of the first layer are stored",
              kept=("layers.0.",)),
    Gradients("kimi-linear", "kimi-linear", "kimi-linear", "through a decay of every channel, and what it is made of",
              batch="clear-channels"),
    Gradients("kimi-linear-full", "kimi-linear", None,
              "every weight; those of attention in two layers, a router and the experts' norm are stored",
              kept=("layers.0.self_attn", "layers.1.self_attn", "layers.1.mlp.gate", "layers.1.post_attention"),
              batch="clear-channels"),
    Gradients("mimo-v2-flash", "mimo-v2-flash", "mimo-v2-flash", "through values shorter than keys, and sinks"),
    Gradients("mimo-v2-flash-full", "mimo-v2-flash", None, "every weight; attention of a layer with sinks is stored",
              kept=("layers.1.self_attn",)),
    Gradients("laguna", "laguna", "laguna", "through gates by softplus, and heads of several counts",
              batch="clear-heads"),
    Gradients("laguna-full", "laguna", None, "every weight; attention of a layer with a window is stored",
              kept=("layers.1.self_attn",), batch="clear-heads"),
    Gradients("kolibri1", "kolibri1", "kolibri1", "through experts chosen by logits, and norms after the blocks",
              batch="clear-logits"),
    Gradients("nemotron", "nemotron", "nemotron", "through LayerNorm that adds 1, and squared ReLU"),
    Gradients("nemotron-full", "nemotron", None, "every weight; those of the first layer are stored", kept=("layers.0.",)),
    Gradients("gpt-neox", "gpt-neox", "gpt-neox", "through blocks side by side with a norm each, and q, k and v by head"),
    Gradients("gpt-neox-full", "gpt-neox", None, "every weight; those of the first layer are stored", kept=("layers.0.",)),
    Gradients("gpt-neox-in-turn", "gpt-neox-in-turn", "gpt-neox-in-turn", "the same with one block after the other"),
    Gradients("olmo", "olmo", "olmo", "through LayerNorm without weights"),
    Gradients("olmo-full", "olmo", None, "every weight; those of the first attention and the embedding are stored",
              kept=("layers.0.self_attn", "embed_tokens")),
    Gradients("exaone", "exaone", "exaone", "of names that are not the folder's"),
    Gradients("nanochat", "nanochat", "nanochat", "through norms without weights, and heads that rotate backward"),
    Gradients("nanochat-full", "nanochat", None, "every weight; those of the first layer and the embedding are stored",
              kept=("layers.0.", "embed_tokens")),
    Gradients("cohere2-moe", "cohere2-moe", "cohere2-moe", "through attention and experts that read one LayerNorm"),
    Gradients("cohere2-moe-rms", "cohere2-moe-rms", "cohere2-moe-rms", "the same with RMSNorm and a softmax"),
    Gradients("cohere2-moe-rms-full", "cohere2-moe-rms", None, "every weight; those of the first layer's experts are stored",
              kept=("layers.0.mlp.", "layers.0.input")),
    Gradients("deepseek-v2-groups", "deepseek-v2-groups", "deepseek-v2-groups",
              "through experts from the best groups, a softmax times a factor"),
    Gradients("deepseek-v3-groups", "deepseek-v3-groups", "deepseek-v3-groups",
              "through experts from the best groups, sigmoids plus a bias", batch="clear-groups"),
    Gradients("deepseek-v3-groups-full", "deepseek-v3-groups", None,
              "every weight, experts and router; those of a layer with experts are stored", kept=("layers.1.mlp.",),
              batch="clear-groups"),
    Gradients("granite-moe", "granite-moe", "granite-moe", "through experts and factors"),
    Gradients("granite-moe-shared", "granite-moe-shared", "granite-moe-shared",
              "the same, and an expert of all tokens, adapted too"),
    Gradients("ernie4_5", "ernie4_5", "ernie4_5", "through neighbours that rotate in pairs"),
    Gradients("ernie4_5-moe", "ernie4_5-moe", "ernie4_5-moe",
              "through experts chosen by a softmax plus a bias, and one without a share"),
    Gradients("ernie4_5-moe-full", "ernie4_5-moe", None,
              "every weight; those of a layer with experts are stored", kept=("layers.1.",), batch="clear-experts"),
    Gradients("glm", "glm", "glm", "through neighbours that rotate in pairs, in a quarter of each head"),
    Gradients("glm4", "glm4", "glm4", "the same in half of each head, beside biases and norms after the blocks"),
    Gradients("youtu", "youtu", "youtu", "through latents of queries, and of keys and values"),
    Gradients("minicpm3", "minicpm3", "minicpm3", "the same beside factors on embeddings, blocks and logits"),
    Gradients("deepseek-v2", "deepseek-v2", "deepseek-v2", "through latents of keys and values alone, and experts"),
    Gradients("deepseek-v3", "deepseek-v3", "deepseek-v3", "the same, experts chosen by sigmoids plus a bias"),
    Gradients("glm4-moe-lite", "glm4-moe-lite", "glm4-moe-lite", "through latents of queries, and experts"),
    Gradients("glm4-moe", "glm4-moe", "glm4-moe", "through experts chosen by sigmoids, and one without a share"),
    Gradients("glm4-moe-full", "glm4-moe", None, "every weight; those of the dense layer and of the expert of all tokens are stored",
              kept=("layers.0.", "shared_experts")),
    Gradients("lfm2-moe", "lfm2-moe", "lfm2-moe", "through experts chosen by sigmoids plus a bias, and convolutions"),
    Gradients("lfm2-moe-experts", "lfm2-moe", "lfm2-moe-experts", "experts too, chosen by sigmoids plus a bias"),
    Gradients("lfm3", "lfm3", "lfm3", "through a gate for each head, norms after the blocks and convolutions of 7"),
    Gradients("granite4-spaces", "granite4-spaces", "granite4-spaces", "through state spaces"),
    Gradients("granite4-spaces-full", "granite4-spaces", None,
              "every weight; those of a layer with a state space are stored", kept=("layers.1.",)),
    Gradients("granite4-moe", "granite4-moe", "granite4-moe", "through state spaces of two groups, and experts"),
    Gradients("nemotron-h", "nemotron-h", "nemotron-h", "through layers of one block each, and squared ReLU"),
    Gradients("nemotron-h-full", "nemotron-h", None,
              "every weight; those of an MLP, and of the layer with a state space after it, are stored",
              kept=("layers.0.", "layers.1.")),
    Gradients("nemotron-h-moe", "nemotron-h-moe", "nemotron-h-moe", "through experts without a gate", batch="clear-blocks"),
    Gradients("nemotron-h-moe-experts", "nemotron-h-moe", "nemotron-h-moe-experts",
              "experts too, whose first matrices are alone in their stack", batch="clear-blocks"),
    Gradients("nemotron-h-moe-full", "nemotron-h-moe", None,
              "every weight, experts and router; those of a layer with experts are stored", kept=("layers.2.",),
              batch="clear-blocks"),
    Gradients("falcon-h1", "falcon-h1", "falcon-h1", "through state spaces beside attention, and factors of all"),
    Gradients("falcon-h1-full", "falcon-h1", None, "every weight; those of a layer are stored", kept=("layers.1.",)),
    Gradients("falcon-h1-norm", "falcon-h1-norm", "falcon-h1-norm", "through state spaces with a norm beside attention"),
    Gradients("falcon-h1-norm-full", "falcon-h1-norm", None, "every weight; those of a layer are stored",
              kept=("layers.0.", "embed_tokens")),
    Gradients("bamba", "bamba", "bamba", "through state spaces, attention and biases"),
    Gradients("bamba-full", "bamba", None, "every weight; those of a layer of either kind are stored",
              kept=("layers.0.", "layers.1.")),
    Gradients("apertus", "apertus", "apertus", "through xIELU"),
    Gradients("apertus1p5", "apertus1p5", "apertus1p5", "through a head of fewer rows than the embedding"),
    Gradients("apertus1p5-full", "apertus1p5", None, "every weight; the embedding, and a head of fewer rows, are stored",
              kept=("embed_tokens", "lm_head"), exact=True),
    Gradients("apertus-full", "apertus", None, "every weight, the alphas of xIELU too; those of a layer are stored",
              kept=("layers.1.",)),
    Gradients("granite", "granite", "granite", "through factors on embeddings, scores, blocks and logits"),
    Gradients("gemma3n", "gemma3n", "gemma3n",
              "through four residual streams, a product beside attention, sparse gates and inputs of layers"),
    Gradients("gemma4", "gemma4", "gemma4", "through values that are keys, their norm, and a factor for each layer"),
    Gradients("gemma4-moe", "gemma4-moe", "gemma4-moe",
              "through experts beside a dense MLP, their norms, and shares with scales"),
    Gradients("gemma4-shared", "gemma4-shared", "gemma4-shared",
              "through K/V that several layers read, and their inputs"),
    Gradients("llama-nf4", "llama-nf4", "llama", "NF4 base"),
    Gradients("llama-nf4-dq", "llama-nf4-dq", "llama", "NF4 base, double-quantised"),
    Gradients("llama-rslora", "llama", "llama-rslora", "rsLoRA: scale 4 instead of 2"),
    Gradients("llama-dora", "llama", "llama-dora", "DoRA: magnitudes too; ‖W + ΔW‖ is a constant to the gradient"),
    Gradients("llama-nf4-dora", "llama-nf4", "llama-dora", "DoRA on an NF4 base"),
    Gradients("gpt2-dora", "gpt2", "gpt2-dora", "DoRA of Conv1D layers, which have biases"),
    Gradients("llama-head", "llama", "llama", "lm_head trained beside the adapter; only its gradient is stored",
              kept=("lm_head",), head=True),
    Gradients("llama-full", "llama", None, "full fine-tuning: every weight"),
    Gradients("gpt2-full", "gpt2", None, "every weight: Conv1D, biases, LayerNorm, learned positions, tied head"),
    Gradients("gemma3-full", "gemma3", None, "every weight: scaled tied embedding, norms that add 1"),
    Gradients("qwen3-full", "qwen3", None, "every weight; those of the first layer are stored", kept=("layers.0.",)),
    Gradients("phi3-full", "phi3", None, "every weight, fused projections; those of the first layer are stored",
              kept=("layers.0.",)),
    *(Gradients(f"{family}-full", family, None, "every weight; those of the first layer are stored",
                kept=("layers.0.",)) for family in ("ministral3", "smollm3", "olmo2", "olmo3", "exaone4", "seed-oss",
                                                  "ernie4_5", "glm4", "youtu", "minicpm3", "deepseek-v3")),
    Gradients("granite-full", "granite", None,
              "every weight; those of the first layer and the tied embedding are stored",
              kept=("layers.0.", "embed_tokens")),
    Gradients("gemma4-full", "gemma4", None, "every weight; those of a layer of either kind are stored",
              kept=("layers.0.", "layers.1.")),
    Gradients("gemma4-shared-full", "gemma4-shared", None,
              "every weight; those of layers that share K/V and of the layers' inputs are stored",
              kept=("layers.1.", "layers.5.", "per_layer_model", "per_layer_projection_norm", "embed_tokens.")),
    Gradients("gemma3n-full", "gemma3n", None,
              "every weight, what mixes residual streams too; those of two layers and of all layers' ends are stored",
              kept=("layers.1.", "layers.5.", "altup_", "per_layer_model", "per_layer_projection_norm", "embed_tokens.")),
    Gradients("gemma3n-three-full", "gemma3n-three", None, "every weight, with three streams and without their scale",
              kept=("layers.0.", "altup_")),
    Gradients("muse-glimmer-full", "muse-glimmer", None, "every weight; those of two layers and the head are stored",
              kept=("layers.0.", "layers.3.", "lm_head", "language_model.norm")),
    Gradients("qwen3_5-full", "qwen3_5", None, "every weight, those of the recurrence too; of two layers are stored",
              kept=("layers.0.", "layers.3.")),
    Gradients("lfm2-full", "lfm2", None,
              "every weight, taps of convolutions too; those of a layer of either kind and the last norm are stored",
              kept=("layers.0.", "layers.2.", "embedding_norm")),
    Gradients("lfm3-full", "lfm3", None, "every weight; those of a layer of each kind are stored",
              kept=("layers.0.", "layers.1.", "layers.2.")),
    Gradients("lfm2-moe-full", "lfm2-moe", None,
              "every weight, experts and router, but not the bias; those of a layer with experts are stored",
              kept=("layers.2.",)),
    *(Gradients(f"{family}-full", family, None, covers, kept=("layers.0.",), exact=family == "gemma4-moe")
      for family, covers in (
        ("qwen3-moe", "every weight, experts and router; those of the first layer are stored, as of the next"),
        ("mixtral", "every weight, experts under names of their own"),
        ("qwen3_5-moe-images", "every weight: experts, a shared one and its gate, beside the gated delta rule"),
        ("gemma4-moe", "every weight: experts beside a dense MLP, scales of the router and of experts"),
        ("qwen2-moe", "every weight: experts, a shared one and its gate"))),
    *(Gradients(f"{family}-full", family, None, "every weight; those of the first layer's experts are stored",
                kept=("layers.0.mlp.",), exact=family == "qwen3-next")
      for family in ("qwen3-moe-stacked", "olmoe", "qwen3-next")),
    Gradients("gpt-oss-all-full", "gpt-oss-full", None,
              "every weight: sinks, experts in turn and their biases; those of the first layer are stored",
              kept=("layers.0.",)),
    Gradients("llama-dynamic-lengths", "llama-dynamic", None, "dynamic rope scaling: each sequence by its own length",
              kept=("layers.0.",), batch="lengths"),
    Gradients("phi3-longrope-lengths", "phi3-longrope", None, "longrope: each sequence by its own length",
              kept=("layers.0.",), batch="lengths"),
]


def _gradient_run(root, case, run):
    if case.adapter is None:
        model = cases.full_model(root, case.base, run)
    else:
        model = cases.adapted_model(root, case.base, case.adapter, run)
    if case.head:
        model.get_output_embeddings().weight.requires_grad_(True)
    sums = accumulate(model, cases.micro_batch(case.batch), run)
    # Without altup_correct_scale nothing reads Gemma 3n's scales.
    gradients = {name: p.grad.clone() for name, p in cases.trainable(model).items() if p.grad is not None}
    if case.adapter is None:
        gradients = cases.by_matrix(case.base, gradients)
    if case.batch.startswith("clear-"):
        rounded_model = (cases.load(root / "models" / case.base, torch.bfloat16).to(torch.bfloat16)
                         if case.adapter is None else cases.adapted_model(root, case.base, case.adapter, "bf16"))
        if not all(clear_experts.are_clear(model, [rounded_model], example["ids"])
                   for example in cases.micro_batch(case.batch)):
            raise SystemExit(f"{case.name}: the batch leaves a doubt about the experts")
    kept = {name: grad for name, grad in gradients.items() if not case.kept or any(k in name for k in case.kept)}
    for name in gradients.keys() - kept.keys():
        if name.endswith("lora_A.weight") and not case.head and gradients[name].abs().max() != 0:
            raise SystemExit(f"{case.name}: the gradient of {name} is not zero")
    return kept, sums


def make_gradients(case, root):
    """Writes the F32 gradients; returns the index entry, with what other precisions make of them."""
    runs = ("f32", "f64", "bf16-autocast") if case.adapter is None else RUNS
    results = {run: _gradient_run(root, case, run) for run in runs}
    gradients, sums = results["f64" if case.exact else "f32"]
    gradients = {name: grad.float() for name, grad in gradients.items()}
    total = cases.n_targets(cases.micro_batch(case.batch))
    path = f"training/gradients/{case.name}.safetensors"
    save_file({f"{name}.grad": grad.contiguous() for name, grad in gradients.items()}, root / path)
    entry = {
        "name": case.name,
        "covers": case.covers,
        "base_folder": f"models/{case.base}",
        "adapter_folder": f"training/adapters/{case.adapter}" if case.adapter else None,
        "batch": case.batch,
        "gradients": path,
        "loss": sum(sums) / total,
        "n_targets": total,
        "nll_sums": sums,
    }
    for run in runs[1:]:
        together, largest = _relative(results[run][0], gradients)
        loss = sum(results[run][1]) / total
        entry[run] = {"loss": loss, "gradient_error": together, "max_tensor_error": largest}
    return entry


# ---- loss curves

OPTIMISERS = {
    # name: (class, options, learning rate)
    "adamw": (torch.optim.AdamW, dict(betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01), 1e-2),
    "adafactor": (Adafactor, dict(scale_parameter=False, relative_step=False, warmup_init=False, eps=(1e-30, 1e-3),
                                  clip_threshold=1.0, decay_rate=-0.8, beta1=None, weight_decay=0.01), 1e-2),
    "sgd": (torch.optim.SGD, dict(momentum=0.9, dampening=0.0, nesterov=False, weight_decay=0.0), 2e-1),
}


@dataclass(frozen=True)
class Curve:
    name: str
    base: str
    adapter: str | None     # None: full fine-tuning
    optimiser: str
    schedule: str
    final: bool = True      # whether the final tensors are stored
    learning_rate: float | None = None
    max_grad_norm: float = MAX_GRAD_NORM
    loraplus_lr_ratio: float | None = None


# What the tests allow a gradient norm of F32 to differ by; PyTorch's own must be well inside, or the curve decides.
MAX_NORM_ERROR = 1e-3

# Where two experts are as good as equal the last bit decides, and runs part: of experts the gentlest curve is kept.
DENSE = [family for family in cases.FAMILIES if "moe" not in family and family != "gpt-oss-full"]
CURVES = [
    *(Curve(f"{family}-adamw", family, f"{family}-zero-b", "adamw", "cosine",
            # With larger steps F32 and F64 choose other experts after a while.
            learning_rate=5e-3 if family == "gpt-oss-full" else None) for family in cases.FAMILIES),
    *(Curve(f"{family}-adafactor", family, f"{family}-zero-b", "adafactor", "linear", family in ("llama", "gpt2"))
      for family in DENSE),
    *(Curve(f"{family}-sgd", family, f"{family}-zero-b", "sgd", "linear", family in ("llama", "gpt2"),
            # Larger steps lead the recurrence to where F32 and F64 part by more than the test allows.
            learning_rate=5e-2 if family == "qwen3_5" else None) for family in DENSE),
    Curve("gemma4-adamw", "gemma4", "gemma4-zero-b", "adamw", "cosine", final=False, learning_rate=3e-3),
    # With adapters on the gated delta rule before experts, F32 and F64 choose other experts after a few steps.
    Curve("qwen3_5-moe-adamw", "qwen3_5-moe-images", "qwen3_5-moe-images-zero-b", "adamw", "cosine",
          learning_rate=8e-3),
    Curve("qwen3-moe-experts-adamw", "qwen3-moe", "qwen3-moe-experts-zero-b", "adamw", "cosine", final=False),
    Curve("qwen3-sgd-clipped-at-times", "qwen3", "qwen3-zero-b", "sgd", "linear", final=False, learning_rate=6e-2,
          max_grad_norm=3.2),
    Curve("llama-adamw-linear", "llama", "llama", "adamw", "linear", final=False),
    Curve("llama-adamw-constant", "llama", "llama-zero-b", "adamw", "constant_with_warmup", final=False),
    Curve("llama-nf4-adamw", "llama-nf4", "llama-zero-b", "adamw", "cosine"),
    Curve("llama-nf4-dq-adamw", "llama-nf4-dq", "llama-zero-b", "adamw", "cosine"),
    Curve("llama-rslora-adamw", "llama", "llama-rslora", "adamw", "cosine", final=False),
    Curve("llama-dora-adamw", "llama", "llama-dora", "adamw", "cosine", final=False),
    # PEFT's LoRA+ counts every vector to B, so DoRA's magnitudes too.
    Curve("llama-loraplus-adamw", "llama", "llama-zero-b", "adamw", "cosine", final=False, learning_rate=2e-3,
          loraplus_lr_ratio=8.0),
    Curve("llama-dora-loraplus-adamw", "llama", "llama-dora", "adamw", "cosine", final=False, learning_rate=2e-3,
          loraplus_lr_ratio=8.0),
    Curve("llama-full-adamw", "llama", None, "adamw", "cosine", final=False, learning_rate=1e-3),
    Curve("gpt2-full-adamw", "gpt2", None, "adamw", "cosine", final=False, learning_rate=1e-3),
    Curve("gpt2-full-adafactor", "gpt2", None, "adafactor", "linear", final=False, learning_rate=1e-3),
    Curve("gemma3-full-adamw", "gemma3", None, "adamw", "linear", final=False, learning_rate=1e-3),
    Curve("gemma3-full-sgd", "gemma3", None, "sgd", "linear", final=False, learning_rate=5e-2),
    *(Curve(f"{family}-full-adamw", family, None, "adamw", "cosine", final=False, learning_rate=rate)
      for family, rate in (("muse-glimmer", 1e-3), ("qwen3_5", 1e-3), ("gemma4-shared", 2e-4))),
    # With larger steps the gradient norms of F32 and F64 part.
    Curve("gemma4-full-adamw", "gemma4", None, "adamw", "constant_with_warmup", final=False, learning_rate=1.2e-4),
    Curve("qwen3-moe-full-adamw", "qwen3-moe", None, "adamw", "constant_with_warmup", final=False, learning_rate=3e-4),
    Curve("muse-glimmer-adamw", "muse-glimmer", "muse-glimmer-zero-b", "adamw", "cosine", final=False),
    Curve("lfm2-full-adamw", "lfm2", None, "adamw", "constant_with_warmup", final=False, learning_rate=3e-4),
    Curve("lfm3-adamw", "lfm3", "lfm3-zero-b", "adamw", "cosine", final=False),
    Curve("gemma4-moe-adafactor", "gemma4-moe", "gemma4-moe-zero-b", "adafactor", "linear", final=False,
          learning_rate=2e-3),
]


def _move(parameters, start):
    """Another start of the same curve: every element times 1 ± at most 2^-12, the same in every type."""
    generator = cases.generator_for("training", "start", start)
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1 + 2.0**-12 * (2 * torch.rand(parameter.shape, generator=generator) - 1))


def _model(root, case, run):
    if case.adapter is None:
        return cases.full_model(root, case.base, run)
    return cases.adapted_model(root, case.base, case.adapter, run)


def _curve_run(root, case, run, start=0, at_step=None):
    """Twenty steps in the order of the HF Trainer: gradients, clip, optimiser, scheduler; in F16 with a GradScaler.
    at_step(parameters, examples, loss): called when a step's gradients are there."""
    model = _model(root, case, run)
    kind, options, learning_rate = OPTIMISERS[case.optimiser]
    parameters = cases.trainable(model)
    if start > 0:
        _move(parameters.values(), start)
    learning_rate = case.learning_rate or learning_rate
    if case.loraplus_lr_ratio is None:
        optimiser = kind(parameters.values(), lr=learning_rate, **options)
    else:
        optimiser = create_loraplus_optimizer(model, kind, lr=learning_rate, loraplus_lr_ratio=case.loraplus_lr_ratio,
                                              loraplus_weight_decay=options["weight_decay"], **options)
    scheduler = get_scheduler(case.schedule, optimiser, num_warmup_steps=N_WARMUP, num_training_steps=N_STEPS)
    scaler = torch.amp.GradScaler("cpu", enabled=run == "f16")
    batches, losses, norms, rates = cases.curve_batches(), [], [], []
    for step in range(N_STEPS):
        examples = batches[step % len(batches)]
        losses.append(sum(accumulate(model, examples, run, scaler)) / cases.n_targets(examples))
        if at_step:
            at_step(parameters, examples, losses[-1])
        scaler.unscale_(optimiser)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), case.max_grad_norm).item())
        rates.append(scheduler.get_last_lr()[0])
        scaler.step(optimiser)
        scaler.update()
        if run == "f16" and scaler.get_scale() != INITIAL_LOSS_SCALE:
            return None     # an overflow: with a step skipped it is another curve
        scheduler.step()
        optimiser.zero_grad()
    return losses, norms, rates, {name: p.detach().clone() for name, p in parameters.items()}


def _max_loss_error(losses, reference):
    return rounded(max(abs(a - b) / b for a, b in zip(losses, reference)))


def _peers_runs(case):
    """The runs in 16 bits that tests compare with."""
    return ("bf16-autocast",) if case.adapter is None else ("bf16", "f16")


def start_loss_errors(case, root):
    """{run: max_loss_error of each start, against F32 from the same one}; one in which a gradient overflows is left out.

    Roundings to 16 bits add up along a run, and lead it as far from F32 as they happen to. So the largest error of
    20 steps varies by a factor of three between such starts, and with the CPU's order of sums."""
    errors = {run: [] for run in _peers_runs(case)}
    for start in range(1, N_STARTS + 1):
        reference = _curve_run(root, case, "f32", start)[0]
        for run in errors:
            result = _curve_run(root, case, run, start)
            if result is not None:
                errors[run].append(_max_loss_error(result[0], reference))
    return errors


def errors_along(case, root):
    """{run: errors of loss and gradient in 16 bits at the parameters of each step of the F32 curve}: nothing adds up,
    so they are the arithmetic's own. The root of the mean square of the losses', the mean of the gradients'."""
    models = {run: _model(root, case, run) for run in _peers_runs(case)}
    errors = {run: ([], []) for run in models}

    def at_step(reference, examples, expected):
        gradients = {name: p.grad.clone() for name, p in reference.items()}
        for run, model in models.items():
            scale = INITIAL_LOSS_SCALE if run == "f16" else 1.0
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=run == "f16")
            parameters = cases.trainable(model)
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(reference[name])
                    parameter.grad = None
            loss = sum(accumulate(model, examples, run, scaler)) / cases.n_targets(examples)
            errors[run][0].append((loss - expected) / expected)
            errors[run][1].append(_relative({name: p.grad / scale for name, p in parameters.items()}, gradients)[0])

    _curve_run(root, case, "f32", at_step=at_step)
    return {run: {"loss_error": rounded((sum(e * e for e in losses) / len(losses)) ** 0.5),
                  "gradient_error": rounded(sum(gradients) / len(gradients))}
            for run, (losses, gradients) in errors.items()}


def make_curve(case, root):
    """Writes the final F32 tensors where they are kept; returns the index entry."""
    runs = ("f32", "f64", "bf16-autocast") if case.adapter is None else CURVE_RUNS
    results = {run: _curve_run(root, case, run) for run in runs}
    losses, norms, rates, final = results["f32"]
    if not losses[-1] < 0.8 * losses[0]:
        raise SystemExit(f"{case.name}: the loss only went from {losses[0]} to {losses[-1]}")
    apart = max(abs(a - b) / b for a, b in zip(norms, results["f64"][1]))
    if not apart <= MAX_NORM_ERROR / 4:
        raise SystemExit(f"{case.name}: gradient norms of F32 and F64 differ by {apart}: no curve to compare with")
    path = f"training/curves/{case.name}.safetensors" if case.final else None
    if path:
        save_file({name: tensor.contiguous() for name, tensor in final.items()}, root / path)
    entry = {
        "name": case.name,
        "base_folder": f"models/{case.base}",
        "adapter_folder": f"training/adapters/{case.adapter}" if case.adapter else None,
        "final": path,
        "optimiser": case.optimiser,
        "schedule": case.schedule,
        "base_lr": case.learning_rate or OPTIMISERS[case.optimiser][2],
        "n_warmup": N_WARMUP,
        "max_grad_norm": case.max_grad_norm,
        "lr": rates,
        "loss": losses,
        "grad_norm": norms,
    }
    if case.loraplus_lr_ratio is not None:
        entry["loraplus_lr_ratio"] = case.loraplus_lr_ratio
    for run in runs[1:]:
        if results[run] is None:
            continue
        together, largest = _relative(results[run][3], final)
        entry[run] = {} if run == "f64" else {"loss": results[run][0]}
        entry[run] |= {
            "max_loss_error": _max_loss_error(results[run][0], losses),
            "final_error": together,
            "max_tensor_error": largest,
        }
    starts, along = start_loss_errors(case, root), errors_along(case, root)
    for run in starts:
        if run in entry:
            entry[run] |= {"start_loss_errors": starts[run], "along": along[run]}
    return entry


# ---- loss scale

# name: initial scale, growth, backoff, window, steps, and those that overflow. None has a scale below 1, where ours
# stays and GradScaler's does not.
LOSS_SCALES = {
    # At once and in a row; one step before a doubling; at the very step after one; again while few steps are good.
    "default": (65536, 2.0, 0.5, 2000, 16000,
                {1, 2, 3, 2003 + 1999, 4002 + 2001, 6004, 6010, *range(14000, 14014)}),
    "every-step": (16, 2.0, 0.5, 1, 160, set(range(3, 160, 7))),    # up to the largest float, and on there
    "no-powers": (1000, 1.5, 0.3, 7, 700, {*range(20, 700, 33), 21, 22, 54}),
    "steep": (1 << 32, 1024.0, 0.001, 50, 4000, {*range(100, 4000, 111), 101}),
}


def make_loss_scale(name):
    """GradScaler over steps of which some overflow: at which steps the scale changed, and to what."""
    initial, growth, backoff, window, n_steps, overflows = LOSS_SCALES[name]
    parameter = torch.nn.Parameter(torch.ones(1))
    optimiser = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler("cpu") if name == "default" else torch.amp.GradScaler(
        "cpu", init_scale=float(initial), growth_factor=growth, backoff_factor=backoff, growth_interval=window)
    changes, scale = [], float(initial)
    for step in range(1, n_steps + 1):
        factor = float("inf") if step in overflows else 1.0
        (scaler.scale(parameter.sum()) * factor).backward()
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
        if scaler.get_scale() != scale:
            scale = scaler.get_scale()
            changes.append([step, scale])
    assert min(scale for _, scale in changes) >= 1
    return {"name": name, "initial": initial, "growth": growth, "backoff": backoff, "window": window,
            "n_steps": n_steps, "overflows": sorted(overflows), "changes": changes}


# ---- schedules

SCHEDULE_STEPS = 50
SCHEDULES = [(kind, warmup) for kind in ("constant", "linear", "cosine") for warmup in (0, 7)]


def make_schedule(kind, n_warmup):
    """The factors of the base learning rate of steps 1 … 50; the first with warm-up is 0, as in transformers."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name = "constant_with_warmup" if kind == "constant" and n_warmup else kind
    scheduler = get_scheduler(name, optimiser, num_warmup_steps=n_warmup, num_training_steps=SCHEDULE_STEPS)
    factors = []
    for _ in range(SCHEDULE_STEPS):
        factors.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    return {"name": f"{kind}-{n_warmup}", "schedule": kind, "n_warmup": n_warmup, "n_steps": SCHEDULE_STEPS,
            "factors": factors}
