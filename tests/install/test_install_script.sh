# install.sh from its first line to its last: where it installs, what it says, and what it refuses. Nothing is built or
# installed from packages: what would be built is there already. Environment: QRUN_BUILD, QRUN_SOURCE, CMAKE.
set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-install-script.XXXXXX")
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset DESTDIR

tree=$work/tree
mkdir -p "$tree/scripts" "$tree/build" "$work/bin" "$work/here" "$work/home"
cp "$QRUN_SOURCE/install.sh" "$tree/"
ln -s "$QRUN_BUILD" "$tree/build/release"
printf '#!/bin/sh\n' >"$tree/scripts/install-dependencies.sh"
printf '#!/bin/sh\n[ -z "${BROKEN:-}" ] || exit 1\nfor word in "$@"; do echo "built with <$word>"; done\n' >"$tree/scripts/build.sh"
ln -s "$CMAKE" "$work/bin/cmake"
printf '#!/bin/sh\necho "${QRUN_TEST_USER:-1000}"\n' >"$work/bin/id" # root would install into /usr/local
chmod +x "$tree/install.sh" "$tree"/scripts/* "$work/bin/id"
PATH="$work/bin:$PATH"
export HOME="$work/home"

fail() {
    echo "FAILED: $*"
    sed 's/^/  /' "$work/out"
    exit 1
}

# install CODE ARGUMENTS…: from another folder than the tree.
install() {
    expected=$1
    shift
    code=0
    (cd "$work/here" && "$tree/install.sh" "$@") >"$work/out" 2>&1 || code=$?
    [ "$code" -eq "$expected" ] || fail "install.sh $*: exit code $code, expected $expected"
}

says() { grep -qF -- "$1" "$work/out" || fail "not said: $1"; }

install 0 --prefix "$work/with a space"
says "Installed: $work/with a space/bin/qrun (qrun "
says 'Your PATH lacks it; for this shell: export PATH="'
hint=$(sed -n 's/^Your PATH lacks it; for this shell: //p' "$work/out")
(
    eval "$hint"
    [ "$(command -v qrun)" = "$work/with a space/bin/qrun" ] && qrun --version >/dev/null
) || fail "the line for PATH does not work: $hint"
"$work/with a space/bin/qrun" inspect "$QRUN_SOURCE/examples/model" >/dev/null || fail "the installed program does not run"
test -s "$work/with a space/share/man/man1/qrun-finetune.1" || fail "the manual is not installed"

# Options of both kinds in any order, and folders relative to where the user is.
install 0 -DQRUN_CUDA=OFF --prefix below '-DX=a b'
says "built with <-DQRUN_CUDA=OFF>"
says "built with <-DX=a b>"
test -x "$work/here/below/bin/qrun" || fail "a relative prefix is not taken from the folder of the user"
install 0 --prefix=other
test -x "$work/here/other/bin/qrun" || fail "--prefix=DIR"
install 0
says "Installed: $work/home/.local/bin/qrun"
(PATH="$work/home/.local/bin:$PATH" && install 0 && ! grep -q 'Your PATH lacks it' "$work/out") || fail "a PATH that has it"

# What cannot be, in words, and before anything is built.
echo text >"$work/file"
install 1 --prefix "$work/file/x"
says "cannot write into '$work/file/x'; give another --prefix, or run it as root"
if [ "$(command -p id -u)" -ne 0 ]; then
    mkdir "$work/locked"
    chmod 500 "$work/locked"
    install 1 --prefix "$work/locked"
    says "cannot write into '$work/locked'"
fi
for arguments in --prefix --prefix=; do
    install 2 $arguments
    says "install.sh: --prefix needs a folder"
done
install 2 --prefix ""
install 2 --preifx x
says "'--preifx' is no option of it; there are --prefix DIR"
install 0 --help
says "install.sh [--prefix DIR]"
test "$(wc -l <"$work/out")" -le 6 || fail "--help prints more than the usage"
export BROKEN=yes
install 1 --prefix "$work/unbuilt"
test ! -e "$work/unbuilt/bin/qrun" || fail "installed what was not built"
echo "passed"
