"""Tokenizers and chat templates through GGUF: an exported file gives the tokens of the folder that it came from, for every
fixture that such a file can hold; the others are refused by what they have. Needs nothing from PyPI.

    test_gguf_tokenizers.py QRUN PROJECT
"""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

QRUN, PROJECT = sys.argv[1], pathlib.Path(sys.argv[2])
TOKENIZERS = PROJECT / "tests" / "fixtures" / "tokenizers"
# The families' own ways to split; what else there is tests single components, and may be refused.
FAMILIES = {"gemma", "gpt4o", "llama2", "llama3", "mistral_metaspace", "qwen2"}
# What a GGUF file does not hold (docs/formats.md): an added token that is a word of its own alone; runs of spaces that
# are tokens and not merges; whether a space is put before one.
LOST = {"gemma": re.compile("   |▁"), "llama2": re.compile("tag"), "mistral_metaspace": re.compile("^ "),
        "qwen2": re.compile("tag")}
HIDDEN = 32
TEMPLATES = [
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}",
    "{%- for m in messages %}\n[{{ m['role'] | upper }}] {{ m.content | trim }}\r\n{%- endfor %}\n\n",
    "{# naïve 'quotes' \"and\" \\ 🙂 #}{{ messages[0].content }} → {{ 'ü' }}\t",
    "{% for m in messages %}" + "{# a long comment #}" * 4000 + "{{ m.content }}{% endfor %}",
]


def qrun(*arguments, text=""):
    return subprocess.run([QRUN, *map(str, arguments)], capture_output=True, text=True, check=False, input=text)


def ids_of(model, text, *options):
    done = qrun("tokenize", "--plain-text", "--model", model, "--ids", *options, text=text)
    assert done.returncode == 0, f"{model}: {text[:60]!r}: {done.stderr}"
    return done.stdout


def write_zeros(path, shapes):
    header, offset = {}, 0
    for name, shape in shapes.items():
        n_bytes = 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def make_model(tokenizer, folder):
    """A Llama of one layer, all zero, with this tokenizer."""
    folder.mkdir()
    text = (tokenizer / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(text)
    root = json.loads(text)
    vocab = root["model"]["vocab"]
    ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
    size = max([*ids, *(token["id"] for token in root["added_tokens"])]) + 1
    config = dict(model_type="llama", vocab_size=size, hidden_size=HIDDEN, intermediate_size=HIDDEN, num_hidden_layers=1,
                  num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True)
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [size, HIDDEN], "model.norm.weight": [HIDDEN]}
    shapes |= {f"{layer}{name}.weight": [HIDDEN] for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": [HIDDEN, HIDDEN] for name in "qkvo"}
    shapes |= {f"{layer}mlp.{name}_proj.weight": [HIDDEN, HIDDEN] for name in ("gate", "up", "down")}
    write_zeros(folder / "model.safetensors", shapes)


def texts_of(tokenizer):
    """Some of the fixture's own, and all of them in one."""
    lost = LOST.get(tokenizer.name, re.compile("$^"))
    texts = [test["text"] for test in json.loads((tokenizer / "goldens.json").read_text())["tests"]]
    texts = [text for text in dict.fromkeys(texts) if "\0" not in text and not lost.search(text)]
    return [*texts[:: max(1, len(texts) // 16)], "x" + "\n".join(texts)]


def check_tokenizer(tokenizer, work):
    folder, file = work / tokenizer.name, work / f"{tokenizer.name}.gguf"
    make_model(tokenizer, folder)
    done = qrun("export", "--model", folder, "--type", "f32", "--out", file, "--quiet")
    if done.returncode != 0:
        assert done.returncode == 3 and done.stderr.count("\n") == 1, done
        assert tokenizer.name not in FAMILIES, done.stderr
        assert not file.exists()
        return None
    texts = texts_of(tokenizer)
    for text in texts:
        assert ids_of(folder, text) == ids_of(file, text), f"{tokenizer.name}: {text[:60]!r} has other tokens in the file"
    return len(texts)


def check_templates(name, work):
    folder, file = work / name, work / f"{name}.gguf"
    for template in TEMPLATES:
        (folder / "chat_template.jinja").write_text(template, newline="")
        done = qrun("export", "--model", folder, "--type", "f32", "--out", file, "--force", "--quiet")
        assert done.returncode == 0, done.stderr
        for text in ("Hello there!", " naïve\ncafé 🙂 "):
            assert ids_of(folder, text, "--chat") == ids_of(file, text, "--chat"), f"{name}: {template[:60]!r}"


def main():
    found = {}
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for tokenizer in sorted(TOKENIZERS.iterdir()):
            found[tokenizer.name] = check_tokenizer(tokenizer, work)
        for family in sorted(FAMILIES - {"mistral_metaspace"}):  # the space that it puts before a text again
            check_templates(family, work)
    same = {name: n for name, n in found.items() if n}
    print("the same tokens:", ", ".join(f"{name} ({n} texts)" for name, n in same.items()))
    print("refused:", ", ".join(name for name, n in found.items() if n is None))
    assert set(same) >= FAMILIES


if __name__ == "__main__":
    main()
