# docs/first-hour.md is a session of commands: each is run, and prints what the page shows (transcript.awk says how that
# is compared). With QRUN_UPDATE=1 the page is written anew instead.
. "$QRUN_SOURCE/tests/cli/lib.sh"

page=$QRUN_SOURCE/docs/first-hour.md
as_pages_show
transcript=$QRUN_SOURCE/tests/docs/transcript.awk
mkdir "$work/bin" "$work/hour"
touch "$work/out" "$work/err"
ln -s "$QRUN" "$work/bin/qrun"
ln -s "$QRUN_SOURCE/examples" "$work/hour/examples"
PATH="$work/bin:$PATH"

if ! command -v curl >/dev/null; then
    echo "not run, there is no curl: the last part of the page"
    sed '/^## A server/,$d' "$page" >"$work/page.md"
    page=$work/page.md
fi
awk -v mode=commands -f "$transcript" "$page" >"$work/commands"
(cd "$work/hour" && timeout 250 sh "$work/commands" </dev/null) >"$work/printed" 2>&1
awk -v mode=page -v printed="$work/printed" -f "$transcript" "$page" >"$work/actual.md"
if [ -n "${QRUN_UPDATE:-}" ]; then
    cp "$work/actual.md" "$page"
fi
last=docs/first-hour.md
expect_true "the page has commands" test "$(grep -c '^\$ ' "$page")" -ge 15
awk -v mode=compare -v other="$work/actual.md" -f "$transcript" "$page" >"$work/out" ||
    fail "the page shows what the program does not print: $(cat "$work/out")"
# What the comparison must tell apart, and what it must let pass.
expect_differs() {
    printf '%s\n' "$1" >"$work/a"
    printf '%s\n' "$2" >"$work/b"
    awk -v mode=compare -v other="$work/b" -f "$transcript" "$work/a" >/dev/null && fail "taken for the same: $1 | $2"
    n_checks=$((n_checks + 1))
}
expect_differs "loss 6.38 at step 1" "loss 5.38 at step 1"
expect_differs "loss 6.38 at step 1" "loss 6.38 at step 2"
expect_differs "4 of 4 kept" "3 of 4 kept"
expect_differs "needs 14.2 MiB and" "needs 14.2 MiB or"
expect_differs "one" "one
two"
printf 'in all  20.4 MiB, 0.0336, 1.6 s: 7 tokens/s\n' >"$work/a"
printf 'in all 9.4 KiB, 0.0340, 11.6 s: 812 tokens/s\n' >"$work/b"
expect_true "sizes, times and last digits may differ" awk -v mode=compare -v other="$work/b" -f "$transcript" "$work/a"

finish
