"""The files of --profile, read by readers of our own: every form by its published rules, and all of them together.

    check_profile.py FOLDER finetune METRICS.jsonl
    check_profile.py FOLDER generate
"""
import json
import math
import pathlib
import pickle
import pickletools
import struct
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


# ---- memory.pickle: the snapshot of an allocator ----

class Plain(pickle.Unpickler):
    """Data alone: the file names no class and calls nothing."""

    def find_class(self, module, name):
        sys.exit(f"the pickle asks for {module}.{name}")


def check_segments(segments):
    for segment in segments:
        check(sum(b["size"] for b in segment["blocks"]) == segment["total_size"], "blocks do not fill their segment")
        address = segment["address"]
        for block in segment["blocks"]:
            check(block["address"] == address and block["size"] > 0, "blocks do not follow each other")
            check(block["state"] in ("active_allocated", "inactive") and len(block["frames"]) == 1, "a block")
            address += block["size"]
        active = sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated")
        check(active == segment["allocated_size"] == segment["active_size"], "what is allocated")


def replay(trace, segments):
    """Allocations that never overlap, each in a segment, each freed once at most: [(bytes, frames)] at the peak, and in
    the end."""
    ranges = sorted((s["address"], s["address"] + s["total_size"]) for s in segments)
    held, total, peak, at_peak, time = {}, 0, 0, [], 0
    for entry in trace:
        address, size = entry["addr"], entry["size"]
        if entry["action"] == "alloc":
            check(any(b <= address and address + size <= e for b, e in ranges), f"outside of segments: {entry}")
            check(address not in held, f"allocated twice: {entry}")
            check(entry["frames"][0]["name"], "a tensor without a name")
            held[address] = (size, entry["frames"])
            total += size
            check(entry["time_us"] >= time - 1, f"back in time: {entry}")
            time = max(time, entry["time_us"])
            if total > peak:
                peak, at_peak = total, list(held.values())
        elif entry["action"] == "free_requested":
            check(held.pop(address)[0] == size, f"freed by another size: {entry}")
            total -= size
        else:
            check(entry["action"] == "free_completed" and address not in held, f"an action: {entry}")
    return peak, at_peak, total


def check_overlaps(trace):
    """At no time do two allocations share bytes."""
    held = {}
    for entry in trace:
        begin, end = entry["addr"], entry["addr"] + entry["size"]
        if entry["action"] == "alloc":
            for other, size in held.items():
                check(end <= other or other + size <= begin, f"shares its place with {other}: {entry}")
            held[begin] = entry["size"]
        elif entry["action"] == "free_requested":
            del held[begin]


def check_snapshot(of_trace):
    content = (FOLDER / "memory.pickle").read_bytes()
    *_, (last, _, at) = pickletools.genops(content)
    check(last.name == "STOP" and at == len(content) - 1, "no pickle")
    with open(FOLDER / "memory.pickle", "rb") as file:
        snapshot = Plain(file).load()
    check_segments(snapshot["segments"])
    check(sum(s["total_size"] for s in snapshot["segments"]) == of_trace["planned"], "segments are not the plan")
    trace, = snapshot["device_traces"]
    check_overlaps(trace)
    peak, at_peak, left = replay(trace, snapshot["segments"])
    check(peak == of_trace["peak"], f"a peak of {peak} bytes, and of {of_trace['peak']} in the trace")
    check(left == sum(s["allocated_size"] for s in snapshot["segments"]), "what is left at the end")
    names = {frames[0]["name"] for _, frames in at_peak}
    check({"qkv" if KIND == "finetune" else "logits", "model.layers.0.mlp.down_proj.weight"} <= names, "names at the peak")


# ---- events.out.tfevents.…: TFRecords of Event messages ----

def crc_of_byte(byte):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
    return byte


CRC_TABLE = [crc_of_byte(byte) for byte in range(256)]


def crc32c(content):
    crc = 0xffffffff
    for byte in content:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xff]
    return crc ^ 0xffffffff


assert crc32c(b"123456789") == 0xe3069283  # RFC 3720


def check_crc(content, stored):
    crc = crc32c(content)
    check(((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff == struct.unpack("<I", stored)[0], "a checksum")


def records(content):
    at = 0
    while at < len(content):
        length, = struct.unpack_from("<Q", content, at)
        check_crc(content[at:at + 8], content[at + 8:at + 12])
        check_crc(content[at + 12:at + 12 + length], content[at + 12 + length:at + 16 + length])
        yield content[at + 12:at + 12 + length]
        at += 16 + length
    check(at == len(content), "a torn record")


def varint(content, at):
    value, shift = 0, 0
    while True:
        byte = content[at]
        value, shift, at = value | (byte & 0x7f) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def message(content):
    """[(field, value)] of a protocol buffer, by the wire format."""
    fields, at = [], 0
    while at < len(content):
        key, at = varint(content, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(content, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", content, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", content, at)[0], at + 4
        else:
            check(kind == 2, f"wire type {kind}")
            length, at = varint(content, at)
            value, at = content[at:at + length], at + length
        fields.append((key >> 3, value))
    return fields


def read_scalars():
    scalars = {}
    files = sorted(FOLDER.glob("events.out.tfevents.*"))
    check(files, "no events")
    for file in files:
        first, *rest = [message(r) for r in records(file.read_bytes())]
        check(dict(first)[3] == b"brain.Event:2" and dict(first)[1] > 1e9, "how the file begins")
        for event in rest:
            summary = message(dict(event)[5])
            check(all(field == 1 for field, _ in summary), "a summary")
            for _, value in summary:
                tag, number = dict(message(value))[1], dict(message(value))[2]
                scalars.setdefault(tag.decode(), {})[dict(event).get(2, 0)] = number
    return scalars


def check_scalars():
    """What metrics.jsonl beside the folder says, where there is one."""
    scalars = read_scalars()
    if KIND == "generate":
        check(scalars["phases/prefill"][0] > 0 and scalars["phases/decode"][0] > 0, "no phases")
        return
    lines = [json.loads(line) for line in open(sys.argv[3], encoding="utf-8")]
    for step in (line for line in lines if "loss" in line):
        pairs = [("train/loss", step["loss"]), ("train/learning_rate", step["learning_rate"]),
                 ("memory/peak_bytes", step["peak_bytes"])]
        pairs += [(f"phases/{name}", seconds) for name, seconds in step["phases"].items()]
        for tag, value in pairs:
            check(math.isclose(scalars[tag][step["step"]], value, rel_tol=1e-6, abs_tol=1e-6), f"{tag} of {step}")
    for line in (line for line in lines if "eval_loss" in line):
        check(math.isclose(scalars["eval/loss"][line["step"]], line["eval_loss"], rel_tol=1e-6), "an evaluation")


if __name__ == "__main__":
    trace = check_trace()
    check_snapshot(trace)
    check_scalars()
    if KIND == "finetune":
        kept = [e["kept for backward"] for e in trace["live"]]
        check(max(kept) > 0 and kept[0] == 0 and kept[-1] == 0, "what is kept rises and falls")
        check(len({e["args"]["phase"] for e in trace["ops"]} & PHASES) >= 4, "few phases")
    print(json.dumps({"planned": trace["planned"], "peak": trace["peak"]}))
