#!/bin/sh
# Builds the Debian packages of what git has, and checks them as Debian does: lintian finds nothing, and debian/tests pass
# in a root folder that has nothing but Debian's smallest system and these packages (made by debootstrap; needs root).
#   debian.sh [--no-tests]   --no-tests: builds, and lintian
# All of it lies in build/debian. Installs the packages it needs first (scripts/install-dependencies.sh).
set -eu
cd "$(dirname "$0")/.."

tests=yes
[ "${1:-}" != --no-tests ] || tests=
scripts/install-dependencies.sh chrpath debhelper libopenmpi-dev lintian ${tests:+autopkgtest debootstrap}

out=$PWD/build/debian
tree=$out/qrun
rm -rf "$out"
mkdir -p "$tree"
git archive HEAD | tar -x -C "$tree"
(cd "$tree" && dpkg-buildpackage -us -uc >"$out/build.log" 2>&1) || {
    tail -n 40 "$out/build.log"
    exit 1
}
ls "$out"/*.deb
lintian --fail-on error,warning "$out"/*.changes
echo "lintian: nothing to say"
[ -n "$tests" ] || exit 0

# shellcheck disable=SC1091 # the machine's
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
debootstrap --variant=minbase "$suite" "$out/root" >"$out/debootstrap.log"
autopkgtest --output-dir "$out/tests" "$out"/*.deb "$out"/*.dsc -- chroot "$out/root" >"$out/tests.log" 2>&1 || {
    tail -n 40 "$out/tests.log"
    exit 1
}
cat "$out/tests/summary"
