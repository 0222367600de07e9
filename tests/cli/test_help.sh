# Help of the program and of every command; completion scripts; the version.
. "$QRUN_SOURCE/tests/cli/lib.sh"

commands="generate chat serve finetune merge inspect plan tokenize eval quantize bench export completion"

run help
expect_code 0
expect_silent_err
for command in $commands; do expect_out "$command"; done
expect_out "Exit codes"
cp "$work/out" "$work/help"
run --help
expect_code 0
expect_true "--help equals help" cmp -s "$work/out" "$work/help"
run
expect_code 2
expect_out "Usage"

run --version
expect_code 0
expect_true "the version is a version" grep -Eqx 'qrun [0-9]+\.[0-9]+\.[0-9]+' "$work/out"

for command in $commands; do
    run help "$command"
    expect_code 0
    expect_silent_err
    expect_out "qrun $command: "
    expect_out "Usage"
    expect_out "Examples"
    expect_out "qrun help $command --all"
    expect_true "the help of $command is one screen" test "$(wc -l <"$work/out")" -le 50
    for pair in '()' '[]' '{}'; do
        expect_true "the help of $command closes every ${pair%?}" test \
            "$(tr -dc "\\${pair%?}" <"$work/out" | wc -c)" -eq "$(tr -dc "\\${pair#?}" <"$work/out" | wc -c)"
    done
    sed -n '/^Examples$/,/^More$/p' "$work/out" | sed '1d;$d' >"$work/examples"
    expect_true "examples of $command are indented" sh -c "! grep -v '^$' '$work/examples' | grep -qv '^  '"
    expect_true "no two lines of the help of $command are empty" sh -c "uniq -d '$work/out' | grep -c '^$' | grep -qx 0"
    cp "$work/out" "$work/help"
    run "$command" --help
    expect_code 0
    expect_true "$command --help equals help $command" cmp -s "$work/out" "$work/help"
    run help "$command" --all
    expect_code 0
    expect_silent_err
    expect_out "Options from a file"
    expect_true "exit codes are said once" sh -c "! grep -q 'Exit codes' '$work/out'"
    expect_true "no line of the help of $command is wider than 100 columns" \
        test "$(awk '{ if (length($0) > widest) widest = length($0) } END { print widest }' "$work/out")" -le 100
    expect_true "no escape sequences without a terminal" sh -c "! grep -q '$(printf '\033')' '$work/out'"
    expect_true "explanations in the help of $command begin in one column" sh -c "sed 's/…/x/g' '$work/out' |
        awk '/^  (-[a-z],|   ) --/ && match(\$0, /[^ ]  +[^ ]/) && RSTART + RLENGTH != 30 { exit 1 }'"
    cp "$work/out" "$work/help"
    run "$command" --help --all
    expect_true "$command --help --all equals help $command --all" cmp -s "$work/out" "$work/help"
    run help --all "$command"
    expect_true "in either order" cmp -s "$work/out" "$work/help"
    run "$command" -h
    expect_code 0
done

# What is asked of help in other words, and what it cannot answer.
run help
cp "$work/out" "$work/help"
for word in help --help -h; do
    run help $word
    expect_code 0
    expect_true "help $word equals help" cmp -s "$work/out" "$work/help"
done
run help --all
expect_code 2
expect_one_error_line
expect_err "of which command? 'qrun help COMMAND --all'"
run help finetune rank alpha
expect_code 2
expect_one_error_line
expect_err "'alpha' is more"
run help finetune ""
expect_code 2
expect_one_error_line

# One option, by its name or another program's.
run help finetune learning-rate
expect_code 0
expect_out "--learning-rate X"
expect_out "Highest learning rate. Default: 2e-4"
expect_true "and no other" test "$(grep -c '^ .* --' "$work/out")" -eq 1
run help finetune --rank
expect_code 0
expect_out "-r, --rank N"
run help finetune lr
expect_code 0
expect_out "'lr' is '--learning-rate' here."
run help finetune frobnicate
expect_code 2
expect_one_error_line
expect_err "'qrun help finetune --all' lists them"

# The options of `generate` that users look for.
run help generate --all
for option in model adapter prompt prompts chat system tools template-arg enable-thinking temperature top-k top-p min-p \
    repetition-penalty presence-penalty frequency-penalty seed stop max-tokens n logprobs ignore-eos quant quant-head \
    quant-embedding dtype kv threads device memory context max-sequences output resume; do
    expect_out "--$option"
done

# The manual has a page for every command, with every option that help shows.
run help --man
expect_code 0
for command in $commands; do expect_out "qrun\\-$command"; done
for command in $commands; do
    run help --man "$command"
    expect_code 0
    expect_silent_err
    expect_true "the page of $command has no unknown request" sh -c \
        "! grep '^[.'\'']' '$work/out' | grep -qv '^\.\(TH\|SH\|SS\|TP\|PP\|IP\|nf\|fi\)'"
    "$QRUN" help "$command" --all | sed -n 's/^  \(-[a-z],\|   \) --\([a-z0-9-]*\).*/\2/p' | sed 's/-/\\-/g' >"$work/options"
    while read -r option; do expect_out "\\-\\-$option"; done <"$work/options"
done
run help --man nonsense
expect_code 2
expect_one_error_line

# Completion knows every option that help shows.
for shell in bash zsh fish; do
    run completion $shell
    expect_code 0
    expect_silent_err
    cp "$work/out" "$work/completion.$shell"
done
for command in $commands; do
    "$QRUN" help "$command" --all | sed -n 's/^  \(-[a-z],\|   \) --\([a-z-]*\).*/\2/p' >"$work/options"
    while read -r option; do
        expect_true "bash completes --$option" grep -q -- "--$option" "$work/completion.bash"
        expect_true "zsh completes --$option" grep -q -- "--$option" "$work/completion.zsh"
        expect_true "fish completes --$option" grep -q -- "-l $option" "$work/completion.fish"
    done <"$work/options"
done
if command -v bash >/dev/null; then
    cat >"$work/complete.bash" <<'BASH'
source "$1"
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _qrun 2>/dev/null; echo "${COMPREPLY[*]}"; }
complete_words qrun gen
complete_words qrun generate --quant-
complete_words qrun generate --quant nf4-
complete_words qrun quantize --quant ""
complete_words qrun help b
BASH
    bash "$work/complete.bash" "$work/completion.bash" >"$work/out" 2>"$work/err"
    printf '%s\n' generate '--quant-head --quant-embedding' nf4-dq "nf4-dq nf4 int8 mixed mxfp4" bench >"$work/expected"
    last="bash completion"
    expect_true "bash completes commands, options and values" cmp -s "$work/out" "$work/expected"
fi
if command -v zsh >/dev/null; then expect_true "zsh parses it" zsh -n "$work/completion.zsh"; fi
if command -v fish >/dev/null; then expect_true "fish parses it" fish -n "$work/completion.fish"; fi
finish
