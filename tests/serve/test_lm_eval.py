"""lm-eval (local-completions) scores the shipped model through qrun serve. Every log-likelihood, and so the score, equals
what follows from the log-probabilities of qrun generate, exactly. Skipped (77) where lm-eval is not installed.

    test_lm_eval.py QRUN MODEL
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import urllib.request

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
try:
    import lm_eval
    import lm_eval.tasks
    import transformers  # noqa: F401  the tokenizer on lm-eval's side
except ImportError as missing:
    print(f"SKIPPED: the Python package {missing.name} is not installed")
    sys.exit(77)

QRUN, MODEL = sys.argv[1], sys.argv[2]
DOCS = [
    {"text": "Once upon a", "choices": ["time", "boat", "king"], "answer": 0},
    {"text": "The dog ran to the", "choices": ["sky is", "park", "seven"], "answer": 1},
    {"text": "She opened the", "choices": ["door", "was", "happily"], "answer": 0},
    {"text": "They were very", "choices": ["run", "happy", "the"], "answer": 1},
    {"text": "It was a cold", "choices": ["day", "said", "of"], "answer": 0},
    {"text": "\"Thank you,\" he", "choices": ["said", "green", "because"], "answer": 0},
    {"text": "The na\u00efve boy saw a \U0001f600", "choices": ["and", "smile", "caf\u00e9"], "answer": 1},
]
TASK = """
task: qrun_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc}}
  - {{metric: acc_norm}}
"""


def ask(address, path, body):
    request = urllib.request.Request(address + path, json.dumps(body).encode())
    return json.loads(urllib.request.urlopen(request, timeout=60).read())


def lm_eval_results(address, folder):
    data = folder / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    (folder / "qrun_local.yaml").write_text(TASK.format(data=data))
    os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": "model", "base_url": f"{address}/v1/completions", "tokenizer": str(pathlib.Path(MODEL)),
                    "num_concurrent": 3, "tokenized_requests": True, "max_length": 256},
        tasks=["qrun_local"], task_manager=lm_eval.tasks.TaskManager(include_path=str(folder)),
        bootstrap_iters=0, log_samples=True)


def own_likelihoods(address):
    """[[(sum of log p, whether it is the greedy continuation)] of a document's choices], by qrun generate."""
    requests, contexts = [], []
    for doc in DOCS:
        context = ask(address, "/tokenize", {"prompt": doc["text"], "add_special_tokens": False})["tokens"]
        for choice in doc["choices"]:
            whole = ask(address, "/tokenize", {"prompt": f"{doc['text']} {choice}", "add_special_tokens": False})
            requests.append({"token_ids": whole["tokens"], "prompt_only": True, "prompt_logprobs": 1})
            contexts.append(len(context))
    done = subprocess.run([QRUN, "generate", "--model", MODEL, "--prompts", "-", "--output", "-", "--quiet"],
                          input="".join(json.dumps(request) + "\n" for request in requests), capture_output=True,
                          text=True, check=True)
    answers = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda answer: answer["index"])
    likelihoods = []
    for answer, n_context in zip(answers, contexts, strict=True):
        tokens = answer["prompt_logprobs"][n_context:]
        # nine digits tell a float from its neighbours
        values = [struct.unpack("f", struct.pack("f", token["logprob"]))[0] for token in tokens]
        likelihoods.append((sum(values), all(t["logprob"] == t["top"][0]["logprob"] for t in tokens)))
    rest = iter(likelihoods)
    return [[next(rest) for _ in doc["choices"]] for doc in DOCS]


def main():
    server = subprocess.Popen([QRUN, "serve", "--model", MODEL, "--model-name", "model", "--port", "0", "--quiet"],
                              stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        own = own_likelihoods(address)
        with tempfile.TemporaryDirectory() as folder:
            results = lm_eval_results(address, pathlib.Path(folder))
    finally:
        server.terminate()
    assert server.wait(30) == 0
    samples = sorted(results["samples"]["qrun_local"], key=lambda sample: sample["doc_id"])
    samples = [sample for sample in samples if sample["filter"] == "none"]
    assert len(samples) == len(DOCS)
    n_right = 0
    for sample, likelihoods in zip(samples, own, strict=True):
        given = [tuple(response[0]) for response in sample["resps"]]
        assert [(float(value), bool(greedy)) for value, greedy in given] == likelihoods, (given, likelihoods)
        best = max(range(len(likelihoods)), key=lambda i: likelihoods[i][0])
        n_right += best == sample["doc"]["answer"]
    score = results["results"]["qrun_local"]["acc,none"]
    assert score == n_right / len(DOCS), (score, n_right)
    print(f"lm-eval: acc {score:.3f}, {sum(len(doc['choices']) for doc in DOCS)} log-likelihoods equal to the bit")


main()
