#!/usr/bin/env python3
"""Runs the program on mutated model folders: no crash, no hang, no more than three lines, memory near the plan's.

    tests/hostile/hostile_models.py QRUN [--folders 5000] [--seed N] [--jobs N] [--only I] [--keep DIR]

A folder is a copy of a small model of tests/fixtures/models or examples/model, plain or in two shards, or it holds a
GGUF file, as the program under test exports such models. It has one to three things wrong: bytes flipped, files cut,
emptied, swapped, made a pipe, a device or a link, JSON values replaced by nasty ones, keys removed, doubled and renamed,
shapes, types and offsets of tensors changed, sizes made huge. Folder I of a seed is always the same; --only I runs it
alone and --keep keeps it.

Every command must end within LIMIT_SECONDS of computing with a documented exit code. One that fails says so in one to
three lines of "qrun: …". It must not need more memory than the same command on the whole model, plus EXTRA_MIB. A
folder that could not be written must not be there in part.
"""
import argparse
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHIPPED = os.path.join(ROOT, "examples", "model")
LIMIT_SECONDS = 10  # of computing; one that waits has longer, because others may be in the way
WAIT_SECONDS = 60
EXTRA_MIB = 100
MAX_LINES = 3
DOES_NOT_FIT = 6  # the exit code of a plan that ends with such a line
# The commands, with FOLDER and OUT in the place of paths.
COMMANDS = {
    "inspect": ["inspect", "FOLDER", "--tensors"],
    "plan": ["plan", "--model", "FOLDER", "--threads", "1"],
    "generate": ["generate", "--model", "FOLDER", "-p", "a b c", "--max-tokens", "4", "--threads", "1"],
    "chat": ["generate", "--model", "FOLDER", "--chat", "-p", "a b c", "--max-tokens", "4", "--threads", "1"],
    "finetune": ["finetune", "--plan", "--model", "FOLDER", "--threads", "1", "--seq-len", "64"],
    "quantize": ["quantize", "--model", "FOLDER", "--out", "OUT", "--threads", "1"],
    "export": ["export", "--model", "FOLDER", "--out", "OUT.gguf", "--threads", "1", "--quiet"],
}
WRITES = {"quantize": "made", "export": "made.gguf"}  # and nothing else
GGUF = "model.gguf"
EXPORTED = ["llama-llama3", "gemma2", "gemma3", "phi3-longrope", "qwen2", "qwen3", "lfm2"]


# ---- JSON with its pairs, so that keys can be doubled and kept in order ----------------------------------------------


class Pairs(list):
    """An object: a list of [key, value]."""


class Raw(str):
    """Text that is written as it is."""


def load_json(text):
    def make(pairs):
        return Pairs([key, value] for key, value in pairs)

    return json.loads(text, object_pairs_hook=make)


def dump_json(value):
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(json.dumps(key) + ":" + dump_json(item) for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(dump_json(item) for item in value) + "]"
    return json.dumps(value)


def places(value, found=None):
    """Every (container, position) of a tree of Pairs and lists."""
    if found is None:
        found = []
    if isinstance(value, Pairs):
        for pair in value:
            found.append((pair, 1))
            places(pair[1], found)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            found.append((value, i))
            places(item, found)
    return found


def objects(value, found=None):
    if found is None:
        found = []
    if isinstance(value, Pairs):
        found.append(value)
        for pair in value:
            objects(pair[1], found)
    elif isinstance(value, list):
        for item in value:
            objects(item, found)
    return found


NASTY = [
    "null", "true", "false", "0", "-0", "1", "-1", "1.0", "1e3", "-1e-300", "1e308", "1e999", "2147483647", "2147483648",
    "4294967296", "4294967295", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "1" * 400, "0.1", "NaN", "Infinity", "01", "\"\"", "\"x\"", "\"../../etc/passwd\"",
    "\"/dev/zero\"", "\"\\u0000\"", "\"\\ud800\"", "\"%s%n%d\"", "\"\\u001b[31m\"", "[]", "{}", "[[]]", "[0]", "[-1]",
    "[1,2,3]", "[null]", "{\"a\":1}", "\"nf4\"", "\"fp4\"", "\"float16\"", "\"F32\"", "\"I64\"", "\"llama\"", "\"gpt2\"",
    "\"fp8\"", "\"mxfp4\"", "\"qwen3_5_text\"", "\"gpt_oss\"", "\"gemma4_text\"", "[\"linear_attention\"]",
    "[\"sliding_attention\",\"full_attention\"]", "[128,128]",
]  # fmt: skip


def nasty(rng):
    kind = rng.random()
    if kind < 0.85:
        return Raw(rng.choice(NASTY))
    if kind < 0.90:
        return Raw("[" * 200 + "]" * 200)
    if kind < 0.94:
        return Raw('"' + "x" * rng.choice([1000, 100000, 2000000]) + '"')
    if kind < 0.97:
        return Raw("[" + ",".join(["1"] * rng.choice([100, 100000])) + "]")
    return Raw("{" + ",".join('"k%d":%d' % (i, i) for i in range(rng.choice([10, 20000]))) + "}")


def scaled(value, rng):
    """A number near to another, or far from it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return nasty(rng)
    choices = [value + 1, value - 1, value * 2, -value, value * 1000, value * 10**9, value * 10**15, 0, 1]
    return rng.choice(choices)


def mutate_tree(tree, rng):
    """Changes one thing; says what."""
    kind = rng.choice(["value", "value", "value", "scale", "scale", "remove", "double", "rename", "add", "swap"])
    spots, groups = places(tree), [group for group in objects(tree) if group]
    if kind in ("value", "scale") and spots:
        container, at = rng.choice(spots)
        before = container[at]
        container[at] = nasty(rng) if kind == "value" else scaled(before, rng)
        return "%s: %.40r to %.40r" % (kind, before, container[at])
    if kind == "swap" and len(spots) > 1:
        (a, i), (b, j) = rng.sample(spots, 2)
        a[i], b[j] = b[j], a[i]
        return "values swapped"
    if not groups:
        return "nothing"
    group = rng.choice(groups)
    pair = rng.choice(group)
    if kind == "remove":
        group.remove(pair)
    elif kind == "double":
        group.append([pair[0], rng.choice([pair[1], nasty(rng)])])
    elif kind == "rename":
        pair[0] = rng.choice([pair[0] + "x", pair[0].upper(), "", "x" * 300, "../" + pair[0], pair[0][:-1]])
    else:
        group.append([rng.choice(["rope_scaling", "sliding_window", "quantization_config", "layer_types", "eos_token_id",
                                  "num_key_value_heads", "head_dim", "text_config", "tie_word_embeddings", "zzz",
                                  "rope_parameters", "num_kv_shared_layers", "hidden_size_per_layer_input",
                                  "weight_block_size", "modules_to_not_convert", "swiglu_limit", "num_local_experts",
                                  "num_experts_per_tok", "linear_num_value_heads", "full_attention_interval"]),
                      nasty(rng)])
    return "%s: %.40s" % (kind, pair[0])


# ---- safetensors -----------------------------------------------------------------------------------------------------


def read_safetensors(path):
    """The header as Pairs, and the data."""
    with open(path, "rb") as file:
        bytes_ = file.read()
    length = struct.unpack("<Q", bytes_[:8])[0]
    return load_json(bytes_[8 : 8 + length].decode()), bytes_[8 + length :]


def write_safetensors(path, header, data, length=None):
    text = dump_json(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text) if length is None else length) + text + data)


def get(pairs, key):
    return next((value for name, value in pairs if name == key), None)


def split_in_shards(folder):
    """model.safetensors becomes two shards and an index."""
    header, data = read_safetensors(os.path.join(folder, "model.safetensors"))
    tensors = [pair for pair in header if pair[0] != "__metadata__"]
    weight_map, halves = Pairs(), (tensors[::2], tensors[1::2])
    for i, half in enumerate(halves):
        name, at, made, parts = "model-%05d-of-00002.safetensors" % (i + 1), 0, Pairs(), []
        for key, entry in half:
            begin, end = get(entry, "data_offsets")
            parts.append(data[begin:end])
            made.append([key, Pairs([["dtype", get(entry, "dtype")], ["shape", get(entry, "shape")],
                                     ["data_offsets", [at, at + end - begin]]])])
            at += end - begin
            weight_map.append([key, name])
        write_safetensors(os.path.join(folder, name), made, b"".join(parts))
    os.remove(os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        file.write(dump_json(Pairs([["metadata", Pairs()], ["weight_map", weight_map]])))


def mutate_safetensors(path, rng):
    header, data = read_safetensors(path)
    tensors = [pair for pair in header if pair[0] != "__metadata__"]
    kind = rng.choice(["tree", "tree", "dtype", "shape", "offsets", "length", "values", "state", "swap", "pad"])
    name, entry = rng.choice(tensors)
    shape, offsets = get(entry, "shape"), get(entry, "data_offsets")
    length, what = None, "%s of %s" % (kind, name)
    if kind == "tree":
        what = mutate_tree(header, rng)
    elif kind == "dtype":
        for pair in entry:
            if pair[0] == "dtype":
                pair[1] = rng.choice(["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F4",
                                      "F8_E5M2", "F8_E8M0", "C64", "", "f32"])
    elif kind == "shape":
        for pair in entry:
            if pair[0] == "shape":
                pair[1] = rng.choice([shape[::-1], shape + [1], shape[:-1], [1] + shape, [0], [], [2**32, 2**32],
                                      [2**53], [int(math.prod(shape))], [-1], [1.0], [1] * 9])
    elif kind == "offsets":
        begin, end = offsets
        for pair in entry:
            if pair[0] == "data_offsets":
                pair[1] = rng.choice([[end, begin], [begin, end + 1], [begin + 1, end], [begin - 1, end], [0, 2**53],
                                      [begin, end, end], [begin], [-end, end], [begin, len(data)], [2**62, 2**62]])
    elif kind == "length":
        length = rng.choice([0, 1, 2**63, 2**64 - 1, 100000000, 100000001, len(data), 7])
    elif kind == "values":
        filler = rng.choice([b"\xff", b"\x00", b"\x7f", b"\x80\x7f", b"\x00\x7c", rng.randbytes(64)])
        begin, end = offsets
        data = data[:begin] + (filler * ((end - begin) // len(filler) + 1))[: end - begin] + data[end:]
    elif kind == "state":
        return mutate_state(path, header, data, rng)
    elif kind == "swap":
        other = rng.choice(tensors)[1]
        a, b = next(p for p in entry if p[0] == "data_offsets"), next(p for p in other if p[0] == "data_offsets")
        a[1], b[1] = b[1], a[1]
    elif kind == "pad":
        data += rng.randbytes(rng.choice([1, 8, 5000]))
    write_safetensors(path, header, data, length)
    return what


def mutate_state(path, header, data, rng):
    """Changes the JSON text of a quantisation state, and moves what lies behind it."""
    states = [pair for pair in header if "quant_state" in pair[0]]
    if not states:
        return "no state"
    name, entry = rng.choice(states)
    begin, end = get(entry, "data_offsets")
    tree = load_json(data[begin:end].decode())
    what = mutate_tree(tree, rng)
    text = dump_json(tree).encode()
    grown = len(text) - (end - begin)
    for key, other in header:
        if key == "__metadata__":
            continue
        for pair in other:
            if pair[0] == "data_offsets" and (pair[1][0] >= end or key == name):
                pair[1] = [begin, begin + len(text)] if key == name else [at + grown for at in pair[1]]
            elif pair[0] == "shape" and key == name:
                pair[1] = [len(text)]
    write_safetensors(path, header, data[:begin] + text + data[end:])
    return "state of %s: %s" % (name, what)


# ---- GGUF ------------------------------------------------------------------------------------------------------------

GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of values, by their type
GGUF_STRING, GGUF_ARRAY = 8, 9
ELEMENTS_SEEN = 20  # of a list; vocabularies are long


class GgufWalk:
    """Where the fields of a header are: (offset, bytes, what)."""

    def __init__(self, content):
        self.content, self.at, self.fields = content, 4, []
        self.take(4, "version")
        n_tensors, n_pairs = self.take(8, "count of tensors"), self.take(8, "count of keys")
        for _ in range(n_pairs):
            self.text("key")
            self.value(self.take(4, "type of a value"), True)
        for _ in range(n_tensors):
            self.text("name of a tensor")
            for _ in range(self.take(4, "count of dimensions")):
                self.take(8, "dimension")
            self.take(4, "type of a tensor")
            self.take(8, "offset of a tensor")

    def take(self, n_bytes, what, is_seen=True):
        if is_seen:
            self.fields.append((self.at, n_bytes, what))
        self.at += n_bytes
        if self.at > len(self.content):
            raise ValueError("the header ends past the file")
        return int.from_bytes(self.content[self.at - n_bytes : self.at], "little")

    def text(self, what, is_seen=True):
        length = self.take(8, "length of a " + what, is_seen)
        if is_seen and length:
            self.fields.append((self.at, length, what))
        self.at += length

    def value(self, kind, is_seen):
        if kind == GGUF_STRING:
            self.text("text", is_seen)
        elif kind == GGUF_ARRAY:
            element = self.take(4, "type of a list", is_seen)
            for i in range(self.take(8, "length of a list", is_seen)):
                self.value(element, is_seen and i < ELEMENTS_SEEN)
        else:
            self.take(GGUF_BYTES[kind], "value", is_seen)


def nasty_bytes(n_bytes, before, rng):
    """Another number of as many bytes, near to the one before or far from it."""
    value, most = int.from_bytes(before, "little"), 256**n_bytes
    choices = [0, 1, 2, 3, 7, 8, 9, 12, 13, 255, value + 1, value - 1, value * 2, value // 2, value ^ 32, most - 1,
               most // 2, most // 2 - 1, most // 4, 2**31, 2**32 - 1, 2**53, rng.randrange(most)]
    floats = [0x7FC00000, 0x7F800000, 0xBF800000, 0x00000001]  # not a number, infinite, -1, subnormal
    return (rng.choice(choices + floats) % most).to_bytes(n_bytes, "little")


def mutate_gguf(path, rng):
    with open(path, "rb") as file:
        content = bytearray(file.read())
    fields = GgufWalk(content).fields
    whats = sorted({what for _, _, what in fields})
    what = rng.choice(whats)
    offset, n_bytes, _ = rng.choice([field for field in fields if field[2] == what])
    kind = rng.choice(["replace", "replace", "replace", "copy", "insert", "remove"])
    if kind == "replace" and n_bytes <= 8:
        content[offset : offset + n_bytes] = nasty_bytes(n_bytes, content[offset : offset + n_bytes], rng)
    elif kind == "replace":
        content[offset + rng.randrange(n_bytes)] = rng.randrange(256)
    elif kind == "copy":  # of another field of the kind: two keys, names or offsets alike
        other, n_other, _ = rng.choice([field for field in fields if field[2] == what])
        n = min(n_bytes, n_other)
        content[offset : offset + n] = content[other : other + n]
    elif kind == "insert":
        content[offset:offset] = rng.randbytes(rng.choice([1, 8, 32]))
    else:
        del content[offset : offset + rng.choice([1, n_bytes])]
    with open(path, "wb") as file:
        file.write(content)
    return "%s: %s" % (kind, what)


# ---- files -----------------------------------------------------------------------------------------------------------


def mutate_bytes(path, rng):
    with open(path, "rb") as file:
        content = bytearray(file.read())
    if not content:
        return "nothing"
    most = len(content) if rng.random() < 0.5 else min(len(content), 2000)  # the header, more often than not
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        content[rng.randrange(most)] = rng.randrange(256)
    with open(path, "wb") as file:
        file.write(content)
    return "bytes flipped"


def mutate_file(folder, name, rng):
    path = os.path.join(folder, name)
    kind = rng.choice(["flip", "flip", "cut", "cut", "grow", "empty", "remove", "pipe", "folder", "dangling", "loop",
                       "zero", "other", "swap", "utf16", "zeros"])
    size = os.path.getsize(path)
    if kind == "flip":
        return mutate_bytes(path, rng)
    if kind == "cut":
        os.truncate(path, rng.randrange(size + 1))
    elif kind == "zeros":
        os.truncate(path, rng.choice([0, size // 2]))
        os.truncate(path, size)
    elif kind == "grow":
        with open(path, "ab") as file:
            file.write(rng.choice([b"\0", b"}", b" " * 100000, rng.randbytes(300)]))
    elif kind == "utf16":
        with open(path, "rb") as file:
            text = file.read().decode("latin-1").encode("utf-16")
        with open(path, "wb") as file:
            file.write(text)
    elif kind in ("other", "swap"):
        other = os.path.join(folder, rng.choice(sorted(os.listdir(folder))))
        if kind == "other":
            os.remove(path)
            os.symlink(os.path.basename(other), path)
        elif other != path:
            os.rename(path, path + ".x")
            os.rename(other, path)
            os.rename(path + ".x", other)
        kind += " " + os.path.basename(other)
    else:
        os.remove(path)
        if kind == "empty":
            open(path, "w").close()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            os.mkdir(path)
        elif kind == "dangling":
            os.symlink("nothing", path)
        elif kind == "loop":
            os.symlink(name, path)
        elif kind == "zero":
            os.symlink("/dev/zero", path)
    return kind


def mutate_json(path, rng):
    with open(path, encoding="utf-8") as file:
        tree = load_json(file.read())
    what = mutate_tree(tree, rng)
    with open(path, "w", encoding="utf-8") as file:
        file.write(dump_json(tree))
    return what


def mutate(folder, rng):
    """One change of one file; says which."""
    names = sorted(os.listdir(folder))
    if not names:  # its one file is gone already
        return "nothing"
    name = rng.choices(names, [1 if name.startswith(("generation", "tokenizer")) else 3 for name in names])[0]
    path = os.path.join(folder, name)
    if not os.path.isfile(path) or os.path.islink(path):
        return "nothing"
    what = None
    try:
        if rng.random() < 0.75 and name.endswith(".json"):
            what = mutate_json(path, rng)
        elif rng.random() < 0.75 and name.endswith(".safetensors"):
            what = mutate_safetensors(path, rng)
        elif rng.random() < 0.75 and name.endswith(".gguf"):
            what = mutate_gguf(path, rng)
    except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError):
        pass  # an earlier change has made it something else: change its bytes
    return name + ": " + (what or mutate_file(folder, name, rng))


def bases(exported):
    """Paths of folders and of GGUF files; the shipped model comes last."""
    folders = (os.path.join(ROOT, "tests", "fixtures", "models"), exported)
    return [os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder))] + [SHIPPED]


def pick_base(exported, rng):
    found, kind = bases(exported), rng.random()
    if kind < 0.2:  # the shipped model speaks, so it is worth more
        return found[-1]
    if kind < 0.4:
        return rng.choice([base for base in found if base.endswith(".gguf")])
    return rng.choice(found)


def export_bases(qrun, folder):
    """The shipped model in the types that are written, and models of other families with its tokenizer."""
    jobs = [(SHIPPED, kind) for kind in ("f32", "bf16", "q8_0", "q4_0")]
    jobs += [(os.path.join(ROOT, "tests", "fixtures", "models", name), "auto") for name in EXPORTED]
    for base, kind in jobs:
        with tempfile.TemporaryDirectory() as work:
            make_base(base, False, os.path.join(work, "model"))
            make_exportable(os.path.join(work, "model"))
            out = os.path.join(folder, "%s-%s.gguf" % (os.path.basename(base), kind))
            subprocess.run([qrun, "export", "--model", os.path.join(work, "model"), "--out", out, "--type", kind,
                            "--quiet"], check=True)


def make_exportable(folder):
    """A file has as many tokens as rows, and Gemma's attention has one scale in llama.cpp."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    if "query_pre_attn_scalar" in config:
        config["query_pre_attn_scalar"] = config["head_dim"]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
    n_rows = config["vocab_size"]
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    model = tokenizer["model"]
    model["vocab"] = {token: i for token, i in model["vocab"].items() if i < n_rows}
    model["merges"] = [pair for pair in model["merges"]
                       if {pair[0], pair[1], "".join(pair)} <= set(model["vocab"])]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)


def make_base(base, sharded, folder):
    """A whole model with the shipped tokenizer, where it has none of its own."""
    os.makedirs(folder)
    if base.endswith(".gguf"):
        shutil.copyfile(base, os.path.join(folder, GGUF))
        return
    for source in (SHIPPED, base):
        for name in os.listdir(source):
            if source == base or name.startswith("tokenizer"):
                shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
    if os.path.exists(os.path.join(folder, "README.md")):
        os.remove(os.path.join(folder, "README.md"))
    if sharded and os.path.exists(os.path.join(folder, "model.safetensors")):
        split_in_shards(folder)


def base_of(arguments, index):
    """The base of folder `index`, and what the folder's other draws come from."""
    rng = random.Random("%s %d" % (arguments.seed, index))
    return pick_base(arguments.exported, rng), rng


def make_folder(arguments, index, folder):
    """Folder `index` of a seed. Returns its base and what was done to it."""
    base, rng = base_of(arguments, index)
    sharded = rng.random() < 0.3
    make_base(base, sharded, folder)
    done = [mutate(folder, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    return base, done


# ---- running ---------------------------------------------------------------------------------------------------------


class Outcome:
    def __init__(self, code, seconds, rss_mib, err, timed_out):
        self.code, self.seconds, self.rss_mib, self.err, self.timed_out = code, seconds, rss_mib, err, timed_out


def cpu_seconds(pid):
    """What a process has computed so far: other programs on the machine do not count."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(qrun, arguments, work):
    """Runs the program to its end, or to the limit."""
    with open(os.path.join(work, "err"), "wb") as err, open(os.path.join(work, "out-text"), "wb") as out:
        start = time.monotonic()
        process = subprocess.Popen([qrun] + arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=work)
        timed_out, wait = False, 0.002
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid != 0:
                break
            waited = time.monotonic() - start
            is_busy = waited > LIMIT_SECONDS and cpu_seconds(process.pid) > LIMIT_SECONDS
            if not timed_out and (is_busy or waited > WAIT_SECONDS):
                timed_out = True
                process.send_signal(signal.SIGKILL)
            time.sleep(wait)
            wait = min(wait * 1.5, 0.05)
        process.returncode = os.waitstatus_to_exitcode(status)
    with open(os.path.join(work, "err"), "rb") as file:
        text = file.read(100000).decode("utf-8", "replace")
    if process.returncode == DOES_NOT_FIT:  # a plan ends with its verdict, on stdout
        with open(os.path.join(work, "out-text"), "rb") as file:
            verdicts = file.read(100000).decode("utf-8", "replace").splitlines()
        text += "".join("qrun: %s\n" % line for line in verdicts if line.startswith("does not fit: "))
    return Outcome(process.returncode, time.monotonic() - start, usage.ru_maxrss / 1024, text, timed_out)


def arguments_of(command, base, work):
    folder = os.path.join(work, "model", GGUF if base.endswith(".gguf") else "")
    words = {"FOLDER": folder, "OUT": os.path.join(work, "made"), "OUT.gguf": os.path.join(work, "made.gguf")}
    return [words.get(word, word) for word in COMMANDS[command]]


def documented_codes(qrun):
    """What `qrun help` says, but for those of a failure of qrun itself and of an interruption."""
    text = subprocess.run([qrun, "help"], capture_output=True, text=True, check=True).stdout
    codes = set(int(code) for code in re.findall(r"^ +(\d+)  ", text[text.find("Exit codes") :], re.M))
    if not {0, 1, 2, 3, 4, 5, 130} <= codes:
        sys.exit("`qrun help` does not list the exit codes: %s" % sorted(codes))
    return codes - {5, 130}


def judge(outcome, command, codes, base_mib, work):
    """What is wrong, or None."""
    lines = outcome.err.splitlines()
    if outcome.timed_out:
        return "did not end within %d seconds" % LIMIT_SECONDS
    if outcome.code not in codes:
        return "exit code %d" % outcome.code
    if outcome.code != 0 and not 1 <= len(lines) <= MAX_LINES:
        return "%d lines" % len(lines)
    if outcome.code != 0 and not all(line.startswith("qrun: ") for line in lines):
        return 'a line does not begin with "qrun: "'
    if outcome.rss_mib > base_mib + EXTRA_MIB:
        return "%.0f MiB, where the whole model needs %.0f" % (outcome.rss_mib, base_mib)
    left = [name for name in os.listdir(work) if name.startswith("made")]
    if command in WRITES and left != ([WRITES[command]] if outcome.code == 0 else []):
        return "left %s" % left
    return None


def clear_made(work):
    for name in os.listdir(work):
        path = os.path.join(work, name)
        if name.startswith("made") and os.path.isdir(path):
            shutil.rmtree(path)
        elif name.startswith("made"):
            os.remove(path)


def try_folder(job):
    """Every command on one folder: a list of (command, code, seconds, MiB, wrong, err) and what the folder is."""
    arguments, index, codes, base_mib = job
    work = tempfile.mkdtemp(prefix="qrun-hostile-", dir=arguments.scratch)
    folder = os.path.join(work, "model")
    try:
        base, done = make_folder(arguments, index, folder)
        results = []
        for command in arguments.commands:
            outcome = run(arguments.qrun, arguments_of(command, base, work), work)
            wrong = judge(outcome, command, codes, base_mib[(base, command)], work)
            clear_made(work)
            results.append((command, outcome.code, outcome.seconds, outcome.rss_mib, wrong, outcome.err))
        if arguments.keep:
            shutil.copytree(folder, os.path.join(arguments.keep, str(index)), symlinks=True)
        return index, os.path.basename(base), done, results
    finally:
        shutil.rmtree(work, ignore_errors=True)


def measure_base(job):
    """What the commands need on a whole model, which they must accept."""
    arguments, base = job
    work = tempfile.mkdtemp(prefix="qrun-hostile-", dir=arguments.scratch)
    try:
        make_base(base, False, os.path.join(work, "model"))
        found = {}
        for command in arguments.commands:
            outcome = run(arguments.qrun, arguments_of(command, base, work), work)
            if outcome.code != 0 and command not in WRITES:
                raise RuntimeError("%s of the whole %s: %s" % (command, base, outcome.err))
            found[(base, command)] = outcome.rss_mib
        return found
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("qrun")
    parser.add_argument("--folders", type=int, default=150)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--commands", type=lambda text: text.split(","), default=list(COMMANDS))
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--only", type=int, help="this folder alone, with all that the program says")
    parser.add_argument("--keep", help="a folder to keep the made folders in")
    parser.add_argument("--scratch", help="where to work; the folder for temporary files otherwise")
    arguments = parser.parse_args()
    os.environ["LC_ALL"] = "C.UTF-8"
    os.environ.setdefault("ASAN_OPTIONS", "exitcode=99:quarantine_size_mb=4:hard_rss_limit_mb=2000:detect_leaks=1")
    os.environ.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    codes = documented_codes(arguments.qrun)
    print("seed %s, %d folders" % (arguments.seed, arguments.folders), flush=True)
    indices = [arguments.only] if arguments.only is not None else range(arguments.first,
                                                                        arguments.first + arguments.folders)
    base_mib, counts, n_wrong = {}, {}, 0
    slowest, largest = (0, ""), (0, "")
    exported = tempfile.TemporaryDirectory(prefix="qrun-hostile-", dir=arguments.scratch)
    arguments.exported = exported.name
    export_bases(arguments.qrun, exported.name)
    with multiprocessing.Pool(arguments.jobs) as pool:
        used = sorted({base_of(arguments, index)[0] for index in indices})
        for found in pool.imap_unordered(measure_base, [(arguments, base) for base in used]):
            base_mib.update(found)
        jobs = [(arguments, index, codes, base_mib) for index in indices]
        for index, base, done, results in pool.imap_unordered(try_folder, jobs):
            for command, code, seconds, mib, wrong, err in results:
                counts[(command, code)] = counts.get((command, code), 0) + 1
                name = "%s of folder %d" % (command, index)
                slowest, largest = max(slowest, (seconds, name)), max(largest, (mib, name))
                n_wrong += wrong is not None
                if wrong is not None or arguments.only is not None:
                    print("%s %s of folder %d (%s; %s): %s" % ("FAILED" if wrong else "ok", command, index, base,
                                                              "; ".join(done), wrong or "exit code %d" % code))
                    print("".join("    %s\n" % line for line in err.splitlines()[:40]), end="", flush=True)
    for (command, code), n in sorted(counts.items()):
        print("%-9s exit code %d: %d" % (command, code, n))
    exported.cleanup()
    print("slowest %.2f s (%s), most memory %.0f MiB (%s)" % (slowest + largest))
    print("%d of %d runs were wrong" % (n_wrong, sum(counts.values())))
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
