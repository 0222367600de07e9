# A conversation at a terminal that redraws: chat_editor.py types it.
. "$QRUN_SOURCE/tests/cli/lib.sh"

command -v python3 >/dev/null || skip "no python3 to type with"
last="chat_editor.py"
: >"$work/err"
mkdir "$work/state"
PYTHONDONTWRITEBYTECODE=1 python3 "$QRUN_SOURCE/tests/cli/chat_editor.py" "$QRUN" "$model" "$work/state" >"$work/out" 2>&1
code=$?
expect_code 0
finish
