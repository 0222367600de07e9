"""Exported files as llama.cpp sees them: the same tokens, the same greedy text, the same perplexity, every family.

    test_llama_cpp.py QRUN PROJECT

Skipped (77) where the package llama-cpp-python is not installed. QRUN_LLAMA_CPP_PYTHON names a Python that has it.
"""
import itertools
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import llama_cpp
    import numpy as np
except ImportError:
    # A virtual environment's Python is a link to the one that it was made with: its name tells them apart, not its file.
    python = os.environ.pop("QRUN_LLAMA_CPP_PYTHON", None)
    if python:
        os.execv(python, [python, *sys.argv])
    print(f"SKIPPED: the Python package llama-cpp-python is not installed for {sys.executable}")
    sys.exit(77)

QRUN, PROJECT = sys.argv[1], pathlib.Path(sys.argv[2])
MODELS = PROJECT / "tests" / "fixtures" / "models"
SHARED = pathlib.Path(os.environ.get("QRUN_SHARED_DATA", PROJECT.parent / "shared" / "data"))
SHIPPED = PROJECT / "examples" / "model"
STORIES = SHARED / "models" / "stories260K-hf"

# Families by fixture: tokens of the prompt and of the answer. Some have a window that llama.cpp does not have, and
# their files say it as the context. For longrope it takes the long dividers wherever the context is long.
USUAL = (40, 24)
FAMILIES = {"llama": USUAL, "llama-llama3": USUAL, "llama-linear": USUAL, "mistral": (4, 4), "qwen2": USUAL,
            "qwen3": USUAL, "phi3": USUAL, "phi3-partial": (4, 5), "phi3-longrope": (60, 24), "ministral3": USUAL,
            "smollm3": USUAL, "olmo2": USUAL, "olmo3": USUAL, "gpt2": USUAL, "gemma2": USUAL, "gemma3": USUAL,
            "mixtral": USUAL, "mixtral-stacked": USUAL, "lfm2": USUAL, "lfm2-untied": USUAL, "lfm2-moe": USUAL,
            "gemma4": USUAL, "gemma4-moe": USUAL, "qwen3-vl": USUAL, "seed-oss": USUAL, "exaone4": USUAL,
            "ernie4_5": USUAL, "ernie4_5-moe": USUAL, "glm4": USUAL, "glm4-moe": USUAL, "glm4-moe-plain": USUAL,
            "granite": USUAL, "granite4": USUAL, "granite4-spaces": USUAL, "nemotron-h": USUAL,
            "minicpm3": USUAL, "glm4-moe-lite": USUAL, "iquest-coder": USUAL}
# Small models of tests/golden/convert_gguf.py.
CONVERTED = ("gemma4", "qwen3_next", "granite4", "nemotron_h", "glm4_moe", "ernie4_5_moe", "deepseek_v2",
             "deepseek_v3")
# What llama.cpp has of these alone; the fixtures have other values.
CHANGES = {"gemma2": {"query_pre_attn_scalar": 24}, "gemma3": {"query_pre_attn_scalar": 40},
           "lfm2-moe": {"routed_scaling_factor": 1.0},
           "glm4-moe-lite": {"rms_norm_eps": 1e-6},
           "minicpm3": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
           "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 5}}
TOKENIZERS = ("gemma", "llama2", "llama3", "mistral_metaspace", "qwen2", "gpt4o")
TEXTS = ["Once upon a time, there was a little girl", " two  spaces,\ttab\n\nlines ", "It's 1234567 o'clock, she'll say",
         "naïve café — Привет, мир! 你好 🙂", "", "a", "x = [i**2 for i in range(10)]  # ok", "<s> </s> <|bos|>"]


def qrun(*arguments, **options):
    done = subprocess.run([QRUN, *map(str, arguments)], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"qrun {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def load(path, n_ctx=512):
    return llama_cpp.Llama(str(path), n_ctx=n_ctx, logits_all=True, verbose=False, n_threads=1, n_threads_batch=1,
                           type_k=0, type_v=0, flash_attn=False, yarn_attn_factor=-1, yarn_beta_fast=-1,
                           yarn_beta_slow=-1)  # what the file says, not what the package says


def greedy_ids(model, ids, n):
    model.reset()
    model.eval(ids)
    answer = []
    for _ in range(n):
        answer.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(answer[-1:])
    return answer


def check_family(name, folder, n_prompt, n, work):
    """Greedy tokens of random models: near ties may fall either way, so the two best logits must be near then."""
    out = work / "family.gguf"
    qrun("export", "--model", folder, "--type", "f32", "--out", out, "--force", "--quiet")
    model = load(out, 256)
    for start in (3, 11):
        ids = [(start + 37 * i) % model.n_vocab() for i in range(n_prompt)]
        request = {"token_ids": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        (work / "request.jsonl").write_text(json.dumps(request) + "\n")
        answer = json.loads(qrun("generate", "--model", folder, "--quant", "f32", "--dtype", "f32", "--kv", "f32",
                                 "--prompts", work / "request.jsonl"))["token_ids"]
        read = json.loads(qrun("generate", "--model", out, "--quant", "f32", "--dtype", "f32", "--kv", "f32",
                               "--prompts", work / "request.jsonl"))["token_ids"]
        assert read == answer, f"{name}: the file answers {read} here, and the folder {answer}"
        theirs = greedy_ids(model, ids, n)
        for i, (a, b) in enumerate(zip(answer, theirs, strict=True)):
            if a == b:
                continue
            logits = model.scores[n_prompt + i - 1]
            gap = abs(float(logits[a] - logits[b])) / float(np.abs(logits).max())
            assert gap < 1e-3, f"{name}: token {i} is {a} here and {b} in llama.cpp, {gap:.3g} apart"
            n = i
            break
        print(f"{name}: {n} greedy tokens equal from {n_prompt}")


def check_tokens(folder, path, model):
    for text in TEXTS:
        theirs = model.tokenize(text.encode(), add_bos=True, special=False)
        for source in (folder, path):
            ours = [int(word) for word in qrun("tokenize", "--model", source, "--ids", input=text).split()]
            assert ours == theirs, f"{source}: {text!r} is {ours} here and {theirs} in llama.cpp"
    print(f"{folder.name}: the same tokens of {len(TEXTS)} texts")


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))


def make_model(tokenizer, folder):
    """A Llama of one layer, all zero, with the tokenizer of another folder."""
    shutil.copytree(tokenizer, folder)
    root = json.loads((folder / "tokenizer.json").read_text())
    ids = [*root["model"]["vocab"].values(), *(token["id"] for token in root["added_tokens"])]
    size, hidden = max(ids) + 1, 32
    config = dict(model_type="llama", vocab_size=size, hidden_size=hidden, intermediate_size=hidden,
                  num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
                  tie_word_embeddings=True)
    (folder / "config.json").write_text(json.dumps(config))
    layer, square, vector = "model.layers.0.", np.zeros((hidden, hidden), "float32"), np.zeros(hidden, "float32")
    tensors = {"model.embed_tokens.weight": np.zeros((size, hidden), "float32"), "model.norm.weight": vector}
    tensors |= {f"{layer}{name}.weight": vector for name in ("input_layernorm", "post_attention_layernorm")}
    tensors |= {f"{layer}self_attn.{name}_proj.weight": square for name in "qkvo"}
    tensors |= {f"{layer}mlp.{name}_proj.weight": square for name in ("gate", "up", "down")}
    write_tensors(folder / "model.safetensors", tensors)


def experts_of(kind, block, hidden):
    """The shapes of a layer's experts."""
    mlps = [(f"{block}experts.{e}.", 32) for e in range(7)]
    shapes = {f"{block}gate": (7, hidden)}
    if kind in ("qwen2_moe", "qwen3_5_moe_text"):
        mlps.append((f"{block}shared_expert.", 48))
        shapes[f"{block}shared_expert_gate"] = (1, hidden)
    for prefix, size in mlps:
        shapes |= {f"{prefix}gate_proj": (size, hidden), f"{prefix}up_proj": (size, hidden),
                   f"{prefix}down_proj": (hidden, size)}
    return shapes


def make_random(kind, folder):
    """A random model as llama.cpp knows the family; the fixtures have layers or heads that it does not."""
    random = np.random.default_rng(5)
    hidden, head_dim, heads, n_layers = 64, 32, 2, 3
    kv_heads, is_hybrid = heads if kind == "olmoe" else 1, kind.startswith("qwen3_5")
    config = dict(model_type=kind, vocab_size=1003, hidden_size=hidden, num_hidden_layers=n_layers,
                  num_attention_heads=heads, num_key_value_heads=kv_heads, num_experts=7, num_experts_per_tok=3,
                  max_position_embeddings=256, norm_topk_prob=kind == "qwen3_moe", moe_intermediate_size=32,
                  shared_expert_intermediate_size=48, intermediate_size=32, tie_word_embeddings=False,
                  rms_norm_eps=1e-6, rope_theta=10000.0)
    if is_hybrid:
        del config["rope_theta"]
        config |= dict(layer_types=["linear_attention", "full_attention", "linear_attention"], linear_conv_kernel_dim=4,
                       linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
                       linear_num_value_heads=6, rope_parameters=dict(rope_theta=10000.0, partial_rotary_factor=0.25,
                                                                      rope_type="default"))
    if kind == "qwen3_moe" or is_hybrid:
        config["head_dim"] = head_dim
    shapes = {"model.embed_tokens": (1003, hidden), "lm_head": (1003, hidden), "model.norm": (hidden,)}
    bare = {}
    for layer in range(n_layers):
        attn, block = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        shapes |= {f"model.layers.{layer}.{name}": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        if is_hybrid and layer != 1:
            delta = f"model.layers.{layer}.linear_attn."
            shapes |= {f"{delta}in_proj_qkv": (160, hidden), f"{delta}in_proj_z": (96, hidden),
                       f"{delta}in_proj_b": (6, hidden), f"{delta}in_proj_a": (6, hidden),
                       f"{delta}out_proj": (hidden, 96), f"{delta}norm": (16,), f"{delta}conv1d": (160, 1, 4)}
            bare |= {f"{delta}A_log": random.uniform(0, 2, 6), f"{delta}dt_bias": random.normal(0, 1, 6)}
        else:
            gates = 2 if is_hybrid else 1
            shapes |= {f"{attn}q_proj": (gates * heads * head_dim, hidden), f"{attn}o_proj": (hidden, heads * head_dim)}
            shapes |= {f"{attn}{name}_proj": (kv_heads * head_dim, hidden) for name in "kv"}
        if f"{attn}q_proj" in shapes and kind != "qwen2_moe":
            norms = (heads * head_dim, kv_heads * head_dim) if kind == "olmoe" else (head_dim, head_dim)
            shapes |= {f"{attn}q_norm": norms[:1], f"{attn}k_norm": norms[1:]}
        if kind == "qwen3_5_text":
            shapes |= {f"{block}{name}_proj": (32, hidden) for name in ("gate", "up")} | {f"{block}down_proj": (hidden, 32)}
        else:
            shapes |= experts_of(kind, block, hidden)
    mean = 0 if is_hybrid else 1
    tensors = {f"{name}.weight": random.normal(mean if "norm" in name else 0, 0.2 if "conv" in name else 0.1, shape)
               for name, shape in shapes.items()} | bare
    if kind == "qwen2_moe":
        tensors |= {name.replace("weight", "bias"): random.normal(0, 0.1, values.shape[0])
                    for name, values in tensors.items() if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", {name: values.astype("float32") for name, values in tensors.items()})


def check_tokenizer(tokenizer, text, work):
    """Every way to split: what begins and ends a text too."""
    folder, out = work / tokenizer.name, work / f"{tokenizer.name}.gguf"
    make_model(tokenizer, folder)
    qrun("export", "--model", folder, "--out", out, "--quiet")
    model = llama_cpp.Llama(str(out), vocab_only=True, verbose=False)
    for text in ["Hello, it's 12345  o'clock", text]:
        theirs = model.tokenize(text.encode(), add_bos=True, special=False)
        for source in (folder, out):
            ours = [int(word) for word in qrun("tokenize", "--model", source, "--ids", input=text).split()]
            assert ours == theirs, f"{source}: other tokens than llama.cpp's"
    print(f"{tokenizer.name}: the same {len(theirs)} tokens")


def make_exaone4(folder):
    """llama.cpp takes windows, and layers that do not rotate, where this family has 64 layers."""
    random, hidden, n_layers = np.random.default_rng(8), 32, 64
    config = dict(model_type="exaone4", vocab_size=101, hidden_size=hidden, num_hidden_layers=n_layers,
                  intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                  sliding_window=6, sliding_window_pattern=4, tie_word_embeddings=False)
    shapes = {"model.embed_tokens": (101, hidden), "lm_head": (101, hidden), "model.norm": (hidden,)}
    for layer in range(n_layers):
        prefix, rows = f"model.layers.{layer}.", {"q": 32, "k": 16, "v": 16, "o": 32}
        shapes |= {f"{prefix}{name}_layernorm": (hidden,) for name in ("post_attention", "post_feedforward")}
        shapes |= {f"{prefix}self_attn.{name}_proj": (n, 32) for name, n in rows.items()}
        shapes |= {f"{prefix}self_attn.{name}_norm": (8,) for name in "qk"}
        shapes |= {f"{prefix}mlp.{name}_proj": (32, 32) for name in ("gate", "up", "down")}
    tensors = {f"{name}.weight": random.normal(1 if "norm" in name else 0, 0.1, shape).astype("float32")
               for name, shape in shapes.items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", tensors)


def check_gemma4_tokenizer(tokenizer, work):
    """Gemma 4 has a kind of its own there: merges of UTF-8 with marks for spaces."""
    folder, out = work / "gemma4-tokenizer", work / "gemma4-tokenizer.gguf"
    shutil.copytree(tokenizer, folder)
    root = json.loads((folder / "tokenizer.json").read_text())
    size = max([*root["model"]["vocab"].values(), *(token["id"] for token in root["added_tokens"])]) + 1
    config = dict(model_type="gemma4_text", vocab_size=size, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
                  num_attention_heads=2, num_key_value_heads=1, head_dim=16, global_head_dim=16,
                  max_position_embeddings=64, layer_types=["sliding_attention", "full_attention"],
                  hidden_size_per_layer_input=0, sliding_window=8)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": (size, 32), "model.norm": (32,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}_layernorm": (32,) for name in
                   ("input", "post_attention", "pre_feedforward", "post_feedforward")}
        shapes |= {f"{prefix}self_attn.{name}_norm": (16,) for name in "qk"}
        shapes |= {f"{prefix}self_attn.{name}_proj": (n, 32) for name, n in {"q": 32, "k": 16, "v": 16, "o": 32}.items()}
        shapes |= {f"{prefix}mlp.{name}_proj": (32, 32) for name in ("gate", "up", "down")}
    tensors = {f"{name}.weight": np.zeros(shape, "float32") for name, shape in shapes.items()}
    tensors |= {f"model.layers.{layer}.layer_scalar": np.ones(1, "float32") for layer in range(2)}
    write_tensors(folder / "model.safetensors", tensors)
    qrun("export", "--model", folder, "--out", out, "--quiet")
    check_tokens(folder, out, llama_cpp.Llama(str(out), vocab_only=True, verbose=False))


def perplexity(model, ids):
    model.reset()
    model.eval(ids)
    logits = model.scores[:len(ids) - 1].astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(ids) - 1), ids[1:]]
    return math.exp(-float(np.mean(chosen - np.log(np.exp(shifted).sum(axis=1)))))


def our_perplexity(path, text, n):
    result = json.loads(qrun("eval", "--model", path, "--text", text, "--window", 512, "--max-tokens", n, "--quant",
                             "f32", "--dtype", "f32", "--json"))
    assert result["tokens"] == n
    return result["perplexity"]


def check_model(folder, text, work):
    f16, q8 = work / "model-f16.gguf", work / "model-q8.gguf"
    qrun("export", "--model", folder, "--type", "f16", "--out", f16, "--force", "--quiet")
    qrun("export", "--model", folder, "--out", q8, "--force", "--quiet")
    model = load(f16)
    check_tokens(folder, f16, model)
    prompt = "Once upon a time, there was"
    theirs = model.create_completion(prompt, max_tokens=60, temperature=0, top_k=1)["choices"][0]["text"]
    for source in (folder, f16):
        ours = qrun("generate", "--model", source, "--prompt", prompt, "--max-tokens", 60, "--temperature", 0, "--quant",
                    "f16", "--dtype", "f32", "--kv", "f32")
        assert ours.rstrip("\n") == theirs.rstrip("\n"), f"{source}: {ours!r}, llama.cpp: {theirs!r}"
    print(f"{folder.name}: the same greedy text in F16")
    n = 400
    ids = model.tokenize(pathlib.Path(text).read_bytes()[:20000], add_bos=True, special=False)[:n + 1]
    here, there = our_perplexity(q8, text, n), perplexity(load(q8), ids)
    whole = our_perplexity(folder, text, n)  # what the format itself costs depends on the model
    print(f"{folder.name}: perplexity {whole:.5f} of the folder, {here:.5f} and in llama.cpp {there:.5f} of Q8_0")
    assert abs(there / here - 1) < 1e-3
    return there / whole - 1


def make_hybrid_adapter(base, folder):
    """LoRA on the layers of make_random whose rows or columns llama.cpp has in another order."""
    random, rank, tensors = np.random.default_rng(6), 4, {}
    names = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_a", "linear_attn.out_proj")
    sizes = {"in_proj_qkv": (160, 64), "in_proj_z": (96, 64), "in_proj_a": (6, 64), "out_proj": (64, 96)}
    for layer, name in itertools.product((0, 2), names):
        rows, cols = sizes[name.split(".")[1]]
        module = f"base_model.model.model.layers.{layer}.{name}."
        tensors[f"{module}lora_A.weight"] = random.normal(0, 0.2, (rank, cols)).astype("float32")
        tensors[f"{module}lora_B.weight"] = random.normal(0, 0.2, (rows, rank)).astype("float32")
    folder.mkdir()
    config = dict(peft_type="LORA", r=rank, lora_alpha=8, target_modules=[name.split(".")[1] for name in names],
                  base_model_name_or_path=str(base), task_type="CAUSAL_LM")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_tensors(folder / "adapter_model.safetensors", tensors)


def check_lora(folder, adapter, work, is_alone=True):
    """An adapter of its own: llama.cpp with it answers as qrun does. And merged into the model's file. One on matrices
    that are two tensors there is refused alone, and merged all the same."""
    base, lora, merged = work / "base.gguf", work / "lora.gguf", work / "merged.gguf"
    for extra, out in (((), base), (("--adapter", adapter), merged)):
        out.unlink(missing_ok=True)
        qrun("export", "--model", folder, "--type", "f32", "--out", out, "--quiet", *extra)
    lora.unlink(missing_ok=True)
    command = ["export", "--model", folder, "--adapter", adapter, "--format", "gguf-lora", "--out", lora, "--quiet"]
    if is_alone:
        qrun(*command)
    else:
        done = subprocess.run([QRUN, *map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "is two tensors in llama.cpp" in done.stderr, done.stderr
    ids = [(7 + 37 * i) % 1003 for i in range(20)]
    request = {"token_ids": ids, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    (work / "request.jsonl").write_text(json.dumps(request) + "\n")
    ours = json.loads(qrun("generate", "--model", folder, "--adapter", adapter, "--quant", "f32", "--dtype", "f32",
                           "--kv", "f32", "--prompts", work / "request.jsonl"))["token_ids"]
    if is_alone:
        model = llama_cpp.Llama(str(base), lora_path=str(lora), n_ctx=128, logits_all=True, verbose=False, n_threads=1,
                                type_k=0, type_v=0, use_mmap=False)
        assert greedy_ids(model, ids, 16) == ours
    assert greedy_ids(load(merged, 256), ids, 16) == ours
    assert greedy_ids(load(base, 256), ids, 16) != ours
    print(f"{adapter.name}: 16 greedy tokens equal {'with the adapter, and ' if is_alone else ''}merged")


def main():
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for family, (n_prompt, n) in FAMILIES.items():
            folder = MODELS / family
            if family in CHANGES:
                folder = work / family
                subprocess.run(["cp", "-r", MODELS / family, folder], check=True)
                config = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps(config | CHANGES[family]))
            check_family(family, folder, n_prompt, n, work)
        for name in CONVERTED:
            check_family(name, PROJECT / "tests" / "fixtures" / "gguf" / name, 20, 20, work)
        make_exaone4(work / "exaone4-windows")
        check_family("exaone4-windows", work / "exaone4-windows", *USUAL, work)
        check_gemma4_tokenizer(PROJECT / "tests" / "fixtures" / "tokenizers" / "gemma", work)
        for kind in ("qwen3_moe", "qwen2_moe", "olmoe", "qwen3_5_text", "qwen3_5_moe_text"):
            make_random(kind, work / kind)
            check_family(kind, work / kind, *USUAL, work)
        check_lora(MODELS / "llama", PROJECT / "tests" / "fixtures" / "adapters" / "llama-lora", work)
        trained = PROJECT / "tests" / "fixtures" / "training" / "adapters"
        check_lora(MODELS / "lfm2", trained / "lfm2", work)
        check_lora(work / "lfm2-moe", trained / "lfm2-moe", work)
        for name in ("gemma4-moe", "granite", "nemotron-h", "glm4-moe", "ernie4_5-moe"):
            check_lora(MODELS / name, trained / name, work)
        check_lora(MODELS / "granite4-spaces", trained / "granite4-spaces", work, is_alone=False)
        check_lora(work / "glm4-moe-lite", trained / "glm4-moe-lite", work, is_alone=False)
        make_hybrid_adapter(work / "qwen3_5_text", work / "hybrid-lora")
        check_lora(work / "qwen3_5_text", work / "hybrid-lora", work)
        for tokenizer in TOKENIZERS:
            check_tokenizer(PROJECT / "tests" / "fixtures" / "tokenizers" / tokenizer, " | ".join(TEXTS[:-1]), work)
        assert abs(check_model(SHIPPED, PROJECT / "examples" / "eval.txt", work)) < 1e-3
        if STORIES.is_dir():
            check_model(STORIES, PROJECT / "examples" / "eval.txt", work)
            text = (SHARED / "tokenizers" / "goldens" / "llama-bpe.inp").read_text()
            for tokenizer in ("llama-3.2", "gpt2", "phi-3-mini", "llama-2/support/token_config"):
                check_tokenizer(SHARED / "tokenizers" / tokenizer, text, work)
        else:
            print(f"{SHARED} is absent: its models and tokenizers are not checked")


if __name__ == "__main__":
    main()
