# A conversation at a terminal: chat_terminal.py types it.
. "$QRUN_SOURCE/tests/cli/lib.sh"

command -v python3 >/dev/null || skip "no python3 to type with"
last="chat_terminal.py"
: >"$work/err"
python3 "$QRUN_SOURCE/tests/cli/chat_terminal.py" "$QRUN" "$model" >"$work/out" 2>&1
code=$?
expect_code 0
finish
