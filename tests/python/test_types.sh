# The package and its examples pass mypy --strict. Environment: QRUN_SOURCE, QRUN_BUILD, PYTHON.
set -u
venv=$QRUN_BUILD/venv-mypy # kept: it is made once for a build folder
mypy() {
    if "$PYTHON" -m mypy --version >/dev/null 2>&1; then "$PYTHON" -m mypy "$@"; else "$venv/bin/python" -m mypy "$@"; fi
}
if ! mypy --version >/dev/null 2>&1; then
    { "$PYTHON" -m venv "$venv" && timeout 200 "$venv/bin/pip" install --quiet mypy; } >/dev/null 2>&1 || {
        echo "skipped: there is no mypy, and pip cannot get it"
        exit 77
    }
fi
cd "$QRUN_SOURCE/python" || exit 1
mypy --strict --cache-dir "$QRUN_BUILD/mypy" qrun build_backend.py generate_api.py ../examples/python || exit 1
cat >"$QRUN_BUILD/typed.py" <<'END'
import qrun

model = qrun.Model("x", quant="nf5")
model.generate("x", max_tokens="3")
text: int = model.generate("x").text
END
n=$(mypy --strict --cache-dir "$QRUN_BUILD/mypy" "$QRUN_BUILD/typed.py" | grep -c 'error:')
[ "$n" -eq 3 ] || {
    echo "FAILED: of three mistakes, mypy sees $n"
    exit 1
}
