# pip installs the package into a fresh environment outside the repository, and there it works: the library inside, the
# program as a command, the licence, the types. The archive of the sources installs too. Environment: QRUN_SOURCE,
# QRUN_BUILD (its library and program are taken), QRUN_SANITIZE, PYTHON.
set -u
[ -z "$QRUN_SANITIZE" ] || {
    echo "skipped: a Python without the sanitizer's run-time library cannot load the library"
    exit 77
}
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-python.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset PYTHONPATH QRUN_LIBRARY
# Nothing is to be fetched: the package needs no other.
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

fail() {
    echo "FAILED: $*"
    sed 's/^/  /' "$work/log" | tail -20
    exit 1
}

"$PYTHON" -m venv "$work/venv" >"$work/log" 2>&1 || {
    echo "skipped: this Python makes no environment with pip"
    exit 77
}
cd "$work" || exit 1
venv/bin/pip install "$QRUN_SOURCE/python" >log 2>&1 || fail "pip install ./python"
model=$QRUN_SOURCE/examples/model

# The same answer as that of the program of the build, from the package, and from the command that came with it.
expected=$("$QRUN" generate --model "$model" --prompt "The sea is" --max-tokens 12)
answer=$(venv/bin/python -c "
import qrun, sys
assert qrun.__file__.startswith('$work/venv'), qrun.__file__
print(qrun.Model(sys.argv[1]).generate('The sea is', max_tokens=12))" "$model" 2>log)
[ "$answer" = "$expected" ] || fail "the package answers '$answer', not '$expected'"
[ "$(venv/bin/qrun generate --model "$model" --prompt "The sea is" --max-tokens 12 2>log)" = "$expected" ] ||
    fail "the command answers something else"
[ "$(venv/bin/python -m qrun generate --model "$model" --prompt "The sea is" --max-tokens 12 2>log)" = "$expected" ] ||
    fail "python -m qrun answers something else"
venv/bin/qrun generate --model nowhere --prompt x >log 2>&1
[ $? -eq 3 ] || fail "the command has exit codes of its own"

venv/bin/pip show --files qrun >log 2>&1 || fail "pip show"
for file in LICENSE qrun/py.typed qrun/bin/qrun qrun/lib/libqrun.so.0 METADATA; do
    grep -q "$file\$" log || fail "$file is not in it"
done
grep -q '^License: MIT$' log || fail "it names no licence"
grep -q '^Requires: $' log || fail "it needs other packages"
venv/bin/pip check >log 2>&1 || fail "pip check"
venv/bin/pip uninstall --yes qrun >log 2>&1 || fail "pip uninstall"
[ -z "$(find venv -path '*qrun*' -type f)" ] || fail "what is left: $(find venv -path '*qrun*' -type f)"

# Both archives, and one installed from the other.
"$PYTHON" "$QRUN_SOURCE/python/build_backend.py" dist >log 2>&1 || fail "build_backend.py"
archive=$(echo dist/qrun-*.tar.gz)
tar tzf "$archive" >log || fail "$archive"
for file in LICENSE README.md PKG-INFO pyproject.toml qrun/py.typed engine/CMakeLists.txt engine/include/qrun.h; do
    grep -q "/$file\$" log || fail "$file is not in $archive"
done
venv/bin/pip install "$archive" >log 2>&1 || fail "pip install $archive"
[ "$(venv/bin/python -c "import qrun; print(qrun.version())")" = "$(venv/bin/qrun --version | sed 's/^qrun //')" ] ||
    fail "package and program are of different versions"

# The tag of a wheel says what its files need: glibc alone, or this machine's libraries too.
echo 'int main(void) { return 0; }' >plain.c
"$CC" plain.c -o plain && "$CC" plain.c -Wl,--no-as-needed -lpcre2-8 -o needy || fail "the compiler"
PYTHONPATH=$QRUN_SOURCE/python "$PYTHON" -c "
from build_backend import platform
files = {name: {'qrun/bin/' + name: (open(name, 'rb').read(), 0o755)} for name in ('plain', 'needy')}
assert platform(files['plain']).startswith('manylinux_2_'), platform(files['plain'])
assert platform(files['needy']).startswith('linux_'), platform(files['needy'])" >log 2>&1 || fail "the tag"
ls dist
