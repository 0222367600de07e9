# The libraries that scripts/install-dependencies.sh installs are those that the Debian package is built with, but for
# libopenmpi-dev: elsewhere libqrun_mpi.so is built only where somebody has installed it.
# Environment: QRUN_SOURCE.
set -eu
cd "$QRUN_SOURCE"
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

sed -n '/^for package in/,/; do$/p' scripts/install-dependencies.sh | grep -o '[a-z0-9.+-]*-dev' | sort >"$work/installed"
sed -n '/^Build-Depends:/,/^[A-Z]/p' debian/control | grep -o '[a-z0-9.+-]*-dev' | grep -vx libopenmpi-dev | sort >"$work/declared"
test "$(wc -l <"$work/installed")" -ge 4 || { echo "FAILED: the list of packages was not recognised"; exit 1; }
diff "$work/installed" "$work/declared" || { echo "FAILED: install-dependencies.sh (<) and debian/control (>) differ"; exit 1; }
