# What the README and the documentation show of the program's output is what it prints; what the README names exists.
. "$QRUN_SOURCE/tests/cli/lib.sh"
readme=$QRUN_SOURCE/README.md
as_pages_show

# What a process has resident differs between machines.
without_resident() { sed 's/had [0-9.]* [KMG]iB resident/had N resident/'; }

# shown PAGE: every line of $work/lines is a line of the page, spaces and all.
shown() {
    without_resident <"$QRUN_SOURCE/$1" >"$work/page"
    cat "$work/lines" >>"$work/printed"
    while IFS= read -r line; do
        n_checks=$((n_checks + 1))
        echo "$line" | without_resident | grep -qxF -f - "$work/page" || fail "$1 does not show: $line"
    done <"$work/lines"
}

# ---- What demo.sh prints ----

run quantize --model "$model" --out "$work/nf4"
run generate --model "$work/nf4" --prompts "$QRUN_SOURCE/examples/prompts.jsonl" --output "$work/answers.jsonl" --summary \
    --threads 2 --device cpu
expect_code 0
sed -n '/^answers/p; /^prompts/p; /^memory/p' "$work/err" >"$work/lines"
expect_true "there is a summary" test "$(wc -l <"$work/lines")" -eq 3
shown docs/generate.md

run finetune --model "$work/nf4" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/pirate" --max-steps 1 \
    --learning-rate 2e-3 --seq-len 256 --threads 2 --device cpu
expect_code 0
sed -n '/^steps/d; /^tokens/,/^  in all/p; /^memory  /p' "$work/out" >"$work/lines"
expect_true "there is a table" test "$(wc -l <"$work/lines")" -ge 10
shown docs/finetune.md

# The other way round: the lines of the README's transcript that depend on neither machine nor clock were printed.
sed -n '/^```text/,/^```/p' "$readme" | grep -E '^(answers|prompts|data|tokens|trainable|memory|  in all) ' >"$work/lines"
expect_true "the README has a transcript" test "$(wc -l <"$work/lines")" -ge 2
while IFS= read -r line; do
    n_checks=$((n_checks + 1))
    grep -qxF -- "$line" "$work/printed" || fail "the README shows what the program does not print: $line"
done <"$work/lines"

# ---- The commands ----

# "COMMAND --option" for every option of a line that begins with "qrun COMMAND", in the README and in the help texts.
for command in generate chat finetune merge inspect plan tokenize eval quantize bench completion; do
    "$QRUN" help "$command" --all >"$work/help.$command"
done
cat "$readme" "$work"/help.* | sed 's/#.*//' | sed -n 's/^ *\(\$ build\/release\/cli\/\)\{0,1\}qrun  *\([a-z]*\) \(.*\)/\2 \3/p' |
    awk '{ for (i = 2; i <= NF; i++) if ($i ~ /^--[a-z]/) { sub(/=.*/, "", $i); print $1, $i } }' | sort -u >"$work/named"
expect_true "options are named" test "$(wc -l <"$work/named")" -ge 30
while read -r command option; do
    n_checks=$((n_checks + 1))
    [ "$command" != help ] || continue
    grep -q -- "$option" "$work/help.$command" || fail "'qrun $command' has no $option"
done <"$work/named"

# Every file that the README links to is there, with the heading that a link names.
grep -o ']([^)]*)' "$readme" | tr -d '()]' | grep -v '^http' >"$work/links"
expect_true "files are linked" test "$(wc -l <"$work/links")" -ge 5
while read -r link; do
    file=$QRUN_SOURCE/${link%%#*}
    expect_true "$link is there" test -e "$file"
    case $link in
        *#*) expect_true "$link is a heading" sh -c 'sed -n "s/^##* //p" "$1" | tr "A-Z " "a-z-" | tr -cd "a-z0-9_\n-" |
            grep -qx -- "$2"' heading "$file" "${link#*#}" ;;
    esac
done <"$work/links"
finish
