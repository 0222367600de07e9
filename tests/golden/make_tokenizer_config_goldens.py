#!/usr/bin/env python3
"""What transformers adds to a text, by tokenizer_class, model_type, add_bos_token and add_eos_token.

    make_tokenizer_config_goldens.py --out tests/fixtures/tokenizer_configs.json

Each test is a tokenizer of tests/fixtures/tokenizers with a tokenizer_config.json and a config.json, and the ids of
TEXT. The script fails where add_bos_token or add_eos_token changes them: test_tokenizer writes all nine combinations.
Needs transformers (5.23 made the committed file).
"""
import argparse
import itertools
import json
import pathlib
import shutil
import tempfile

from transformers import AutoTokenizer
from transformers.utils import logging

TOKENIZERS = pathlib.Path(__file__).parent.parent / "fixtures" / "tokenizers"
TEXT = "<|end|>"  # an added token, so that no class of transformers splits it in its own way
NAMED = [("llama3", "<s>", "</s>"), ("llama2", "<s>", "</s>"), ("qwen2", "<|endoftext|>", "<|end|>"), ("llama3", None, None)]
CLASSES = (None, "PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2TokenizerFast", "CodeLlamaTokenizerFast", "GPTNeoXTokenizer")
MODEL_TYPES = (None, "llama", "mistral", "ministral3", "mistral3", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_text", "phi3",
               "smollm3", "olmo2", "olmo3", "gpt2")


def without_none(**members):
    return {key: value for key, value in members.items() if value is not None}


def encode(folder, members, model_type):
    """The ids of TEXT."""
    (folder / "tokenizer_config.json").write_text(json.dumps(members))
    (folder / "config.json").unlink(missing_ok=True)
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)(TEXT).input_ids


def tests():
    for (name, bos, eos), cls, model_type in itertools.product(NAMED, CLASSES, MODEL_TYPES):
        members = without_none(bos_token=bos, eos_token=eos, tokenizer_class=cls)
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            shutil.copy(TOKENIZERS / name / "tokenizer.json", folder)
            ids = encode(folder, members, model_type)
            for add_bos, add_eos in itertools.product((None, True, False), repeat=2):
                keys = without_none(add_bos_token=add_bos, add_eos_token=add_eos)
                if encode(folder, members | keys, model_type) != ids:
                    raise SystemExit(f"{name}, {members}, {model_type}: {keys} changes what is added")
        yield without_none(tokenizer=name, **members, model_type=model_type, ids=ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    body = ",\n".join(json.dumps(test, separators=(",", ":")) for test in tests())
    arguments.out.write_text(f'{{"text":{json.dumps(TEXT)},"tests":[\n{body}\n]}}\n')


if __name__ == "__main__":
    main()
