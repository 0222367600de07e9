#!/usr/bin/env python3
"""Train the small Llama model on a corpus and write it as a Hugging Face folder in BF16.

The folder must hold the tokenizer already (train_tokenizer.py). A checkpoint (weights, optimiser, step) is written
beside the exported folder as OUT.state.pt; --resume continues from it.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

CONTEXT = 512
IGNORED = -100


def encode(corpus, tokenizer):
    """Token lists, one per document, each at most CONTEXT + 1 long; chats through the tokenizer's own template."""
    texts = []
    with open(corpus, encoding="utf-8") as lines:
        for line in lines:
            doc = json.loads(line)
            texts.append(tokenizer.bos_token + doc["text"] + tokenizer.eos_token if "text" in doc
                         else tokenizer.apply_chat_template(doc["messages"], tokenize=False))
    encoded = []
    for start in range(0, len(texts), 4096):
        encoded += tokenizer(texts[start:start + 4096], add_special_tokens=False)["input_ids"]
    return [ids[:CONTEXT + 1] for ids in encoded]


def pack(documents, seed):
    """Rows [n, CONTEXT + 1] of whole documents: of 64 waiting, the longest that fits; what is left over is IGNORED."""
    order = list(range(len(documents)))
    random.Random(seed).shuffle(order)
    rows, row, waiting = [], [], []
    while order or waiting:
        while order and len(waiting) < 64:
            waiting.append(documents[order.pop()])
        fitting = [d for d in waiting if len(d) <= CONTEXT + 1 - len(row)]
        if fitting:
            longest = max(fitting, key=len)
            waiting.remove(longest)
            row += longest
        if not fitting or not (order or waiting):
            rows.append(row + [IGNORED] * (CONTEXT + 1 - len(row)))
            row = []
    return torch.tensor(rows)


def make_model(tokenizer):
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=True, initializer_range=0.04, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id)
    model = LlamaForCausalLM(config)
    # Names are used alike, so training moves their embeddings alike. What tells them apart is what they begin with, and
    # at the usual deviation of 0.02 that is too little for the model to learn soon which name to write again.
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.09)
    return model


def export(model, tokenizer, out):
    """Write config.json, generation_config.json and BF16 model.safetensors; the tokenizer is in the folder already."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.config.dtype = torch.bfloat16
    copy.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|end|>")],
        do_sample=True, temperature=0.8, top_p=0.95)
    copy.save_pretrained(out)


def learning_rate(peak, steps_here, progress, warmup=200):
    """Cosine over progress, 0 to 1, down to 3 % of the peak; warmed up over the first steps of this process."""
    return peak * min(1.0, (steps_here + 1) / warmup) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * progress)))


def mean_loss(model, inputs, targets):
    """Next-token cross-entropy; the matrix products in BF16, the loss in F32."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def save_state(path, model, optimizer, step):
    partial = path.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
    partial.replace(path)


def train(model, tokenizer, rows, options):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    state_path, first = options.out.with_suffix(".state.pt"), 0
    if options.resume:
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    compiled = torch.compile(mean_loss) if options.compile else mean_loss

    started, seen, running, progress = time.monotonic(), 0, None, 0.0
    for step in range(first, options.steps):
        if options.minutes:
            progress = max(progress, (time.monotonic() - started) / (60 * options.minutes))
        progress = min(1.0, max(progress, step / options.steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options.learning_rate, step - first, progress)
        at = step * options.batch % (len(rows) - options.batch + 1)
        batch = rows[at:at + options.batch]
        loss = compiled(model, batch[:, :-1].clamp(min=0), batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen += batch[:, 1:].numel()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        if (step + 1) % options.log_every == 0:
            print(f"step {step + 1}/{options.steps} loss {running:.4f} "
                  f"{seen / (time.monotonic() - started):.0f} tokens/s", flush=True)
        last = progress >= 1.0 or step + 1 == options.steps
        if (step + 1) % options.save_every == 0 or last:
            save_state(state_path, model, optimizer, step + 1)
            export(model, tokenizer, options.out)
        if last:
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--out", required=True, type=Path, help="model folder that holds the tokenizer")
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--minutes", type=float, help="end the schedule after this time even if steps are left")
    parser.add_argument("--batch", type=int, default=4, help=f"rows of {CONTEXT} tokens per step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=300)
    parser.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.out)
    rows = pack(encode(options.corpus, tokenizer), options.seed)
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(rows)} rows, "
          f"{(rows != IGNORED).sum().item()} tokens", flush=True)
    train(model, tokenizer, rows, options)


if __name__ == "__main__":
    main()
