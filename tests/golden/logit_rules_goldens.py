#!/usr/bin/env python3
"""Makes tests/fixtures/goldens/logit_rules.json: what transformers' logits processors do to logits, in its own order, and
greedy continuations of a fixture under them: see README.md beside this file.

    python3 tests/golden/logit_rules_goldens.py [--out FOLDER]
"""
import argparse
import json
import math
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch  # noqa: E402  (the environment must be set first)
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM, GenerationConfig  # noqa: E402

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
MODEL = "models/llama"
VOCABULARY = 32
LEAST_GAP = 0.02

# name, tokens, how many of them are the prompt, the longest sequence, rules (and repetition_penalty)
ROWS = [
    ("suppress", [5, 6, 7], 2, 9, {"suppress_tokens": [3, 0, 31]}),
    ("suppress nothing", [5, 6, 7], 2, 9, {"suppress_tokens": []}),
    ("begin suppress at the begin", [5, 6], 2, 9, {"begin_suppress_tokens": [4, 8]}),
    ("begin suppress later", [5, 6, 7], 2, 9, {"begin_suppress_tokens": [4, 8]}),
    ("begin suppress and a forced begin", [5], 1, 9, {"begin_suppress_tokens": [4], "forced_bos_token_id": 9}),
    ("begin suppress after a forced begin", [5, 9], 1, 9, {"begin_suppress_tokens": [4], "forced_bos_token_id": 9}),
    ("a forced begin that comes too late", [5, 6], 2, 9, {"forced_bos_token_id": 9}),
    ("forced end", [5, 6, 7], 2, 4, {"forced_eos_token_id": 11}),
    ("forced ends", [5, 6, 7], 2, 4, {"forced_eos_token_id": [11, 12]}),
    ("forced end not yet", [5, 6, 7], 2, 5, {"forced_eos_token_id": 11}),
    ("bad words", [5, 6, 7, 5, 6], 2, 9, {"bad_words_ids": [[3], [6, 8], [5, 6, 9], [7, 6, 10], [1], [1, 2]]}),
    ("bad words longer than the text", [6], 1, 9, {"bad_words_ids": [[5, 6, 9], [6, 12]]}),
    ("no trigram twice", [5, 6, 7, 5, 6, 8, 5, 6], 3, 20, {"no_repeat_ngram_size": 3}),
    ("no bigram twice", [5, 6, 7, 5, 6, 8, 5], 3, 20, {"no_repeat_ngram_size": 2}),
    ("no token twice", [5, 6, 7, 5], 3, 20, {"no_repeat_ngram_size": 1}),
    ("n-gram longer than the text", [5, 6], 1, 20, {"no_repeat_ngram_size": 3}),
    ("no bigram of the prompt", [5, 6, 7, 5, 8, 5], 4, 20, {"encoder_no_repeat_ngram_size": 2}),
    ("no trigram of the prompt", [5, 6, 7, 5, 8, 5, 6], 4, 20, {"encoder_no_repeat_ngram_size": 3}),
    ("favour the prompt", [5, 6, 5, 9, 10], 4, 20, {"encoder_repetition_penalty": 1.7}),
    ("favour and penalise", [5, 6, 5, 9, 10], 3, 20,
     {"encoder_repetition_penalty": 0.8, "repetition_penalty": 1.3}),
    ("min length", [5, 6, 7], 2, 20, {"min_length": 4}),
    ("min length reached", [5, 6, 7], 2, 20, {"min_length": 3}),
    ("min new tokens", [5, 6, 7], 2, 20, {"min_new_tokens": 2}),
    ("min new tokens reached", [5, 6, 7], 2, 20, {"min_new_tokens": 1}),
    ("decay before its start", [5, 6, 7, 8], 2, 20, {"exponential_decay_length_penalty": [2, 1.5]}),
    ("decay", [5, 6, 7, 8, 9, 10], 2, 20, {"exponential_decay_length_penalty": [2, 1.37]}),
    ("decay of an end that is too early", [5, 6, 7, 8, 9, 10], 2, 20,
     {"exponential_decay_length_penalty": [2, 1.37], "min_length": 8}),
    ("biases", [5, 6, 7, 5, 6], 2, 20,
     {"sequence_bias": [[[3], 1.25], [[6, 3], -0.3], [[5, 6, 3], 7.1], [[7, 6, 4], 9.0], [[4], -2.5]]}),
    ("all at once", [5, 6, 7, 5, 6], 2, 20,
     {"sequence_bias": [[[3], 1.25], [[6, 4], -0.3]], "encoder_repetition_penalty": 1.2, "repetition_penalty": 1.1,
      "no_repeat_ngram_size": 3, "bad_words_ids": [[12], [6, 13]], "min_new_tokens": 9, "suppress_tokens": [14],
      "begin_suppress_tokens": [15], "exponential_decay_length_penalty": [1, 1.2]}),
]
EOS = [1, 2]

# Sampling: name, rules, and temperature and the like.
CUTOFFS = [
    ("typical", {"typical_p": 0.5}, {}),
    ("typical, nearly all", {"typical_p": 0.97}, {}),
    ("typical, few", {"typical_p": 0.05}, {"temperature": 0.5}),
    ("typical of top_k", {"typical_p": 0.6}, {"top_k": 9}),
    ("typical of top_p and min_p", {"typical_p": 0.7}, {"temperature": 2.5, "top_p": 0.9, "min_p": 0.02}),
    ("epsilon", {"epsilon_cutoff": 0.03}, {"temperature": 2.0}),
    ("epsilon above all", {"epsilon_cutoff": 0.9}, {"temperature": 3.0}),
    ("epsilon of top_k", {"epsilon_cutoff": 0.08}, {"temperature": 2.0, "top_k": 12}),
    ("eta", {"eta_cutoff": 0.1}, {"temperature": 3.0}),
    ("eta, little entropy", {"eta_cutoff": 0.01}, {"temperature": 0.4}),
    ("all three", {"typical_p": 0.9, "epsilon_cutoff": 0.02, "eta_cutoff": 0.3}, {"temperature": 3.0}),
    ("all three of suppressed logits", {"typical_p": 0.8, "epsilon_cutoff": 0.01, "eta_cutoff": 0.2,
                                        "suppress_tokens": [0, 1, 2, 3, 4, 5]}, {"temperature": 2.0}),
]

# name, prompt, new tokens at most, rules (and repetition_penalty)
TEXTS = [
    ("no bigram twice", [7, 8, 9, 7, 8], 40, {"no_repeat_ngram_size": 2}),
    ("suppressed first choices", [3, 141, 59, 26], 20, {}),         # filled in below
    ("bad words", [3, 141, 59, 26], 20, {}),                        # filled in below
    ("an end that comes too early", [17, 400, 33], 20, {"sequence_bias": [[[2], 30.0]], "min_new_tokens": 7}),
    ("an end by length", [17, 400, 33], 20, {"sequence_bias": [[[2], 30.0]], "min_length": 7}),
    ("an end that grows", [17, 400, 33], 40, {"exponential_decay_length_penalty": [3, 1.6]}),
    ("a forced end", [17, 400, 33], 6, {"forced_eos_token_id": 2}),
    ("a forced begin", [17], 6, {"forced_bos_token_id": 99}),
    ("penalties and n-grams", [7, 8, 9, 7, 8], 30, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}),
    ("the prompt favoured", [500, 3, 77, 250, 905, 60], 16, {"encoder_repetition_penalty": 4.0}),
]


def processed(model, tokens, n_prompt, max_length, rules, logits):
    config = GenerationConfig(max_length=max_length, eos_token_id=EOS, pad_token_id=0, **rules)
    config._eos_token_tensor = torch.tensor(EOS)
    processors = model._get_logits_processor(
        generation_config=config, input_ids_seq_length=n_prompt, encoder_input_ids=torch.tensor([tokens[:n_prompt]]),
        logits_processor=[], device="cpu", model_kwargs={})
    return processors(torch.tensor([tokens]), logits.clone())[0]


def numbers(row):
    """As JSON numbers that read back as the same F32; null is −∞."""
    return [None if x == -math.inf else x for x in row.tolist()]


def make_rows(model):
    generator = torch.Generator().manual_seed(11)
    rows = []
    for name, tokens, n_prompt, max_length, rules in ROWS:
        logits = 3 * torch.randn((1, VOCABULARY), generator=generator)
        rows.append({"name": name, "tokens": tokens, "n_prompt": n_prompt, "capacity": max_length, "rules": rules,
                     "logits": numbers(logits[0]),
                     "expected": numbers(processed(model, tokens, n_prompt, max_length, rules, logits))})
    return rows


def make_cutoffs(model):
    generator = torch.Generator().manual_seed(12)
    entries = []
    for name, rules, sampling in CUTOFFS:
        logits = 3 * torch.randn((1, VOCABULARY), generator=generator)
        options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | sampling
        left = processed(model, [5, 6, 7], 2, 20, rules | options | {"do_sample": True}, logits)
        entries.append({"name": name, "rules": rules, **options, "logits": numbers(logits[0]),
                        "kept": [i for i, x in enumerate(left.tolist()) if x != -math.inf]})
    return entries


def greedy(model, prompt, max_new_tokens, rules):
    """The ids, and the number of steps before the first one whose two best logits are too close to tell."""
    result = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
        return_dict_in_generate=True, output_scores=True,
        generation_config=GenerationConfig(do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=2, pad_token_id=0,
                                           **rules))
    gaps = [float(best[0] - best[1]) for best in (scores[0].topk(2).values for scores in result.scores)]
    n_clear = next((step for step, gap in enumerate(gaps) if gap < LEAST_GAP), len(gaps))
    return result.sequences[0, len(prompt):].tolist(), n_clear


def make_texts(model):
    texts = []
    for name, prompt, most, rules in TEXTS:
        plain, _ = greedy(model, prompt, most, {})
        if name == "suppressed first choices":
            rules = {"suppress_tokens": plain[3:5], "begin_suppress_tokens": plain[:1]}
        if name == "bad words":
            rules = {"bad_words_ids": [plain[1:3], plain[5:8], plain[10:11]]}
        ids, n_clear = greedy(model, prompt, most, rules)
        if n_clear < len(ids):
            most = n_clear
            ids, n_clear = greedy(model, prompt, most, rules)
        if ids == plain[:len(ids)] or n_clear < len(ids) or len(ids) < 4:
            raise SystemExit(f"{name}: the rules change nothing, or a step is a tie: {ids}")
        texts.append({"name": name, "prompt": prompt, "max_new_tokens": most, "rules": rules, "ids": ids})
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES, help="where to write (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        sections = {"rows": make_rows(model), "cutoffs": make_cutoffs(model), "texts": make_texts(model)}
    lines = ["{", ' "format": 1,', f' "eos": {EOS},', f' "model": "{MODEL}"']
    for section, entries in sections.items():
        lines[-1] += ","
        lines.append(f' "{section}": [\n' + ",\n".join("  " + json.dumps(entry) for entry in entries) + "\n ]")
    (options.out / "goldens" / "logit_rules.json").write_text("\n".join(lines + ["}"]) + "\n")


if __name__ == "__main__":
    main()
