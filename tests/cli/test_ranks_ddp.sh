# Full fine-tuning in F32 on ranks against torch's DistributedDataParallel over gloo: 20 losses within 1e-5
# (tests/golden/make_ddp_golden.py).
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

golden=$QRUN_SOURCE/tests/fixtures/training/ddp
usual="--model $model --full --dtype f32 --data $golden/ddp.jsonl --seq-len 96 --grad-accum 4 --epochs 20
    --learning-rate 1e-4 --schedule constant"

# compare FOLDER: its losses, line by line, with torch's.
compare() {
    expect_code 0
    sed -nE 's/.*"loss":([0-9.e+-]+).*"grad_norm":([0-9.e+-]+).*/\1 \2/p' "$1/metrics.jsonl" >"$work/got.txt"
    expect_true "there are 20 steps" test "$(wc -l <"$work/got.txt")" -eq 20
    paste -d' ' "$golden/ddp.txt" "$work/got.txt" | awk '
        { d = $1 - $3; if (d < 0) { d = -d }; if (d > most) { most = d }
          n = ($2 - $4) / $2; if (n < 0) { n = -n }; if (n > norm) { norm = n } }
        END { printf "losses differ by %.2g at most, gradient norms by a share of %.2g\n", most, norm
              exit !(NR == 20 && most <= 1e-5 && norm <= 1e-4) }' >"$work/out"
    near=$?
    expect_true "losses are torch's within 1e-5: $(cat "$work/out")" test $near -eq 0
    cat "$work/out"
}

# shellcheck disable=SC2086 # words of options
for zero in 0 2; do
    run_ranks 2 $usual --zero $zero --quiet --out "$work/ranks-$zero"
    compare "$work/ranks-$zero"
done

finish
