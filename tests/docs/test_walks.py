"""The lines that qrun prints for other programs, run as they are printed: those after finetune, merge and export
(docs/finetune.md, "In other programs"), and the conversion of a Parquet file.

    test_walks.py QRUN PROJECT

Each tool is taken from this Python or from one that QRUN_WALKS_PYTHON names (several: with ':' between them). What
cannot be had is named. Skipped (77) where nothing can.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

QRUN, PROJECT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PYTHONS = [sys.executable, *filter(None, os.environ.get("QRUN_WALKS_PYTHON", "").split(":")),
           *filter(None, [os.environ.get("QRUN_LLAMA_CPP_PYTHON")])]
QUESTIONS = ["Hello!", "I feel sad today."]
EXACT = ["--quant", "f32", "--dtype", "f32", "--kv", "f32", "--temperature", "0"]
N_TOKENS = 24

CHAT = """
import json, sys
def ask(model, tokenizer):
    import torch
    for question in json.loads(sys.argv[1]):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                            return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            answer = model.float().generate(ids, max_new_tokens=int(sys.argv[2]), do_sample=False)
        print(json.dumps(tokenizer.decode(answer[0][ids.shape[1]:], skip_special_tokens=True)))
"""
LLAMA_CPP = """
import json, sys
import llama_cpp
arguments = json.loads(sys.argv[3])
model = llama_cpp.Llama(arguments["m"], lora_path=arguments.get("lora"), n_ctx=256, n_threads=1, verbose=False, type_k=0,
                        type_v=0, use_mmap="lora" not in arguments)
for question in json.loads(sys.argv[1]):
    answer = model.create_chat_completion([{"role": "user", "content": question}], max_tokens=int(sys.argv[2]),
                                          temperature=0, top_k=1)
    print(json.dumps(answer["choices"][0]["message"]["content"]))
"""


def python_with(*modules):
    for python in PYTHONS:
        if subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True, check=False).returncode == 0:
            return python
    return None


def run(*arguments):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def shell(line):
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"$ {line}\n{done.stderr}")


def lines_for_others(printed):
    """{"GGUF": "qrun export …", "PEFT": …} of what a command printed."""
    return dict(re.findall(r"^  (\S+) +(\S.*)$", printed.split("Elsewhere:\n")[-1], re.MULTILINE))


def ours(model, *options):
    return [run("qrun", "generate", "--model", model, *options, "--chat", "--prompt", question, "--max-tokens", N_TOKENS,
                *EXACT).rstrip("\n") for question in QUESTIONS]


def theirs(python, program, *arguments):
    printed = run(python, "-c", program, json.dumps(QUESTIONS), N_TOKENS, *arguments)
    return [json.loads(line).rstrip("\n") for line in printed.splitlines()]


def same(what, expected, found):
    assert [text.strip() for text in expected] == [text.strip() for text in found], f"{what}: {found}, qrun: {expected}"
    print(f"{what}: the same answers")


def llama_cpp(python, line):
    words = shlex.split(line)
    assert words[0] == "llama-cli", line
    arguments = dict(zip((word.lstrip("-") for word in words[1::2]), words[2::2], strict=True))
    return theirs(python, LLAMA_CPP, json.dumps(arguments))


def walk_ollama(line):
    """The Modelfile is written in any case; ollama is not on PyPI."""
    begin, create = line.split(" && ")
    shell(begin)
    for entry in pathlib.Path("Modelfile").read_text().splitlines():
        word, path = entry.split(" ", 1)
        assert word in ("FROM", "ADAPTER") and (path == "./MODEL.gguf" or pathlib.Path(path).is_file()), entry
    if shutil.which("ollama"):
        shell(create)
        return "its model is created"
    return "only the Modelfile: ollama is not installed"


def walk_adapter():
    printed = run("qrun", "finetune", "--model", "examples/model", "--data", "examples/finetune/pirate.jsonl", "--out",
                  "pirate", "--seq-len", 256, "--max-steps", 60, "--learning-rate", "5e-3", "--quant", "bf16")
    lines = lines_for_others(printed)
    assert set(lines) == {"GGUF", "llama.cpp", "ollama", "vLLM", "PEFT"}, lines
    assert ours("examples/model", "--adapter", "pirate") != ours("examples/model"), "nothing was learned"
    shell(lines["GGUF"])
    lora = run("qrun", "export", "--model", "examples/model", "--adapter", "pirate", "--format", "gguf-lora", "--out",
               "lora.gguf")
    run("qrun", "export", "--model", "examples/model", "--type", "f32", "--out", "MODEL.gguf", "--quiet")
    python = python_with("llama_cpp")
    if python:
        # In 8 bits llama.cpp rounds activations too, so its words may be others; in 32 bits they are the same.
        assert all(llama_cpp(python, lines["llama.cpp"])), "no answers of the file in 8 bits"
        os.remove("pirate.gguf")
        shell(lines["GGUF"] + " --type f32")
        same("llama.cpp", ours("pirate.gguf"), llama_cpp(python, lines["llama.cpp"]))
        same("llama.cpp, the adapter alone", ours("examples/model", "--adapter", "pirate"),
             llama_cpp(python, lines_for_others(lora)["llama.cpp"]))
    print("ollama:", walk_ollama(lines["ollama"]))
    walk_ollama(lines_for_others(lora)["ollama"])
    print("vLLM: not run, its wheel needs a GPU:", lines["vLLM"])
    peft = python_with("peft", "transformers", "torch")
    if peft:
        program = CHAT + "import peft, transformers\n" + (
            f"ask({lines['PEFT']}, transformers.AutoTokenizer.from_pretrained('examples/model'))")
        same("PEFT", ours("examples/model", "--adapter", "pirate"), theirs(peft, program))
    return {"llama-cpp-python": python, "peft": peft}


def walk_merged():
    lines = lines_for_others(run("qrun", "merge", "--model", "examples/model", "--adapter", "pirate", "--out", "merged",
                                 "--dtype", "f32"))
    assert set(lines) == {"GGUF", "llama.cpp", "ollama", "vLLM", "Python"}, lines
    shell(lines["GGUF"])
    assert pathlib.Path("merged.gguf").is_file()
    python = python_with("transformers", "torch")
    if python:
        program = CHAT + "import transformers\n" + (
            f"ask({lines['Python']}, transformers.AutoTokenizer.from_pretrained('merged'))")
        same("transformers", ours("merged"), theirs(python, program))
    return {"transformers": python}


def walk_parquet():
    python = python_with("pandas", "pyarrow")
    if python:
        run(python, "-c", """
import pandas
talk = [{"role": "user", "content": "Who, \\"you\\"?\\nSay!"}, {"role": "assistant", "content": "A sailor: naïve café 🙂"}]
pandas.DataFrame({"messages": [talk, talk[:1] + [{"role": "assistant", "content": "Me."}]]}).to_parquet("talk.parquet")
""")
        refused = subprocess.run(["qrun", "finetune", "--model", "examples/model", "--data", "talk.parquet", "--show-mask",
                                  "2"], capture_output=True, text=True, check=False)
        assert refused.returncode == 3, refused
        line = re.search(r'convert it with: python3 (-c ".*") \(', refused.stderr)[1]
        shell(f"{shlex.quote(python)} {line}")
        shown = run("qrun", "finetune", "--model", "examples/model", "--data", "talk.parquet.jsonl", "--seq-len", 256,
                    "--show-mask", 2)
        assert "Who, \"you\"?\nSay!<|end|><|assistant|>«A sailor: naïve café 🙂<|end|>»" in shown, shown
        assert "«Me.<|end|>»" in shown, shown
        print("Parquet: the printed line converts it")
    return {"pandas with pyarrow": python}


def main():
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.symlink(PROJECT / "examples", "examples")
        os.mkdir("bin")
        os.symlink(QRUN, "bin/qrun")
        os.environ["PATH"] = f"{name}/bin:{os.environ['PATH']}"
        os.environ["HF_HUB_OFFLINE"] = "1"
        found = walk_adapter() | walk_merged() | walk_parquet()
        os.chdir(PROJECT)
    missing = [tool for tool, python in found.items() if python is None]
    if missing:
        print("not run, not installed for any Python here:", ", ".join(missing))
    sys.exit(77 if len(missing) == len(found) else 0)


if __name__ == "__main__":
    main()
