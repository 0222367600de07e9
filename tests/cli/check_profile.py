"""The files of --profile, read by readers of our own: every form by its published rules, and all of them together.

    check_profile.py FOLDER finetune|generate
"""
import json
import pathlib
import sys

FOLDER, KIND = pathlib.Path(sys.argv[1]), sys.argv[2]
PHASES = {"finetune": {"data", "forward", "loss", "backward", "recompute", "optimizer", "other"},
          "generate": {"prefill", "decode", "sample", "other"}}[KIND]


def check(holds, what):
    if not holds:
        sys.exit(f"{FOLDER}: {what}")


# ---- trace.json: Chrome's trace event format ----

def check_slices(slices):
    """Slices of a track follow each other, as Perfetto asks of those that are not nested."""
    check(slices, "a track without slices")
    for before, after in zip(slices, slices[1:]):
        check(before["ts"] + before["dur"] <= after["ts"] + 1e-3, f"slices overlap: {before} {after}")


def check_trace():
    trace = json.loads((FOLDER / "trace.json").read_text())
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    check(sorted(names.values()) == ["layers", "ops", "phases"], f"tracks {names}")
    tracks = {name: [e for e in events if e["ph"] == "X" and e["tid"] == tid] for tid, name in names.items()}
    for slices in tracks.values():
        check_slices(slices)
    ops = tracks["ops"]
    check({e["name"] for e in tracks["phases"]} <= PHASES, "an unknown phase")
    check({"linear", "rms_norm"} <= {e["name"] for e in ops}, "no ops")
    check(any(e["name"] == "linear" and " x " in e["args"]["shape"] and e["args"]["layer"] == 1 for e in ops),
          "no product of layer 1")
    check({e["name"] for e in tracks["layers"]} >= {"layer 0 attention", "layer 0 mlp"}, "no parts of layers")
    live = [e["args"] for e in events if e["ph"] == "C"]
    check(all(e["name"] == "live bytes" for e in events if e["ph"] == "C") and len(live) > 10, "no live bytes")
    planned = trace["otherData"]["planned_bytes"]
    check(all(v >= 0 for e in live for v in e.values()), "less than nothing is live")
    peak = max(sum(e.values()) for e in live)
    check(0.3 * planned < peak <= planned, f"{peak} bytes are live, of {planned} planned")
    check(trace["otherData"]["dropped_events"] == 0, "events are missing")
    return {"planned": planned, "peak": peak, "live": live, "ops": ops}


if __name__ == "__main__":
    trace = check_trace()
    if KIND == "finetune":
        kept = [e["kept for backward"] for e in trace["live"]]
        check(max(kept) > 0 and kept[0] == 0 and kept[-1] == 0, "what is kept rises and falls")
        check(len({e["args"]["phase"] for e in trace["ops"]} & PHASES) >= 4, "few phases")
    print(json.dumps({"planned": trace["planned"], "peak": trace["peak"]}))
