# --profile: its files are what their formats say, and a run computes the same with it.
. "$QRUN_SOURCE/tests/cli/lib.sh"

command -v python3 >/dev/null 2>&1 || exit 77
head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"

# finetune ARGUMENTS…: of the shipped model, small and quick.
finetune() { run finetune --model "$model" --data "$work/train.jsonl" --seq-len 96 --rank 4 --quiet "$@"; }

# read_profile FOLDER KIND [METRICS]: with our own readers.
read_profile() {
    last="check_profile.py $1"
    python3 "$QRUN_SOURCE/tests/cli/check_profile.py" "$@" >"$work/out" 2>"$work/err"
    code=$?
    expect_code 0
}

# ---- Fine-tuning ----

finetune --max-steps 5 --eval-split 0.1 --out "$work/plain"
expect_code 0
if grep -q phases "$work/plain/metrics.jsonl"; then fail "phases without --profile"; fi
for policy in none full; do
    finetune --max-steps 5 --eval-split 0.1 --eval-every 2 --checkpointing $policy --profile "$work/profile-$policy" --out "$work/$policy"
    expect_code 0
    expect_silent_err
    expect_true "the same adapter" cmp -s "$work/plain/adapter_model.safetensors" "$work/$policy/adapter_model.safetensors"
    read_profile "$work/profile-$policy" finetune "$work/$policy/metrics.jsonl"
    expect_true "the plan that metrics.jsonl has as the peak" \
        grep -q "\"planned\": $(sed -n 's/.*"peak_bytes":\([0-9]*\).*/\1/p' "$work/$policy/metrics.jsonl" | tail -1)," "$work/out"
done
expect_true "phases that add up to the step" python3 -c '
import json, sys
for step in filter(lambda line: "loss" in line, map(json.loads, open(sys.argv[1]))):
    phases = step["phases"]
    assert abs(sum(phases.values()) - step["seconds"]) < 0.1 * step["seconds"] + 1e-3, step
    assert phases["forward"] > 0 and phases["backward"] > 0 and phases["recompute"] > 0 and phases["optimizer"] > 0, step
' "$work/full/metrics.jsonl"
finetune --max-steps 2 --profile "$work/profile-short" --out "$work/short"
expect_code 0
expect_true "of a short run the last step" test -s "$work/profile-short/trace.json"


# ---- The picture ----

for what in "Memory over time, in step 3" "kept for backward" "zoom-16" "Time by op" "layer 1"; do
    expect_true "the report has: $what" grep -qF "$what" "$work/full/report.html"
done
if grep -qF "Memory over time" "$work/plain/report.html"; then fail "a picture without --profile"; fi
if grep -qE "<script|https?://" "$work/full/report.html"; then fail "the report loads something"; fi
expect_true "areas that XML takes" python3 -c '
import re, sys
import xml.etree.ElementTree as xml
page = open(sys.argv[1], encoding="utf-8").read()
picture, = re.findall(r"<svg viewBox=\"0 0 1000 400\".*?</svg>", page, re.DOTALL)
paths = [p for p in xml.fromstring(picture).iter("path") if p.get("class") == "area"]
textures = {p.get("fill") for p in paths}
assert len(paths) == len(textures) >= 6, textures
for path in paths:
    x = [float(v) for v in re.findall(r"[MHL]([-0-9.]+)", path.get("d"))]
    y = [float(v) for v in re.findall(r"(?:V|(?<=\d) )([-0-9.]+)", path.get("d"))]
    assert min(x) >= 0 and max(x) <= 1000 and min(y) >= 18 and max(y) <= 400, path.get("d")
' "$work/full/report.html"

# ---- Generating ----

run generate --model "$model" --prompt "Once upon a time" --max-tokens 12
cp "$work/out" "$work/answer"
run generate --model "$model" --prompt "Once upon a time" --max-tokens 12 --profile "$work/generated"
expect_code 0
expect_true "the same answer" cmp -s "$work/answer" "$work/out"
expect_true "a page" grep -qF "Memory over time" "$work/generated/report.html"
read_profile "$work/generated" generate

# ---- What is refused ----

run finetune --model "$model" --plan --profile "$work/none"
expect_code 2
expect_one_error_line
expect_err "--profile is for a run"
echo text >"$work/file"
finetune --max-steps 1 --profile "$work/file" --out "$work/refused"
expect_code 3
expect_one_error_line
expect_err "cannot make the folder"
finish
