#!/bin/sh
# Installs what building and testing qrun needs from the packages of Debian or Ubuntu, and only what is missing. Says what
# it installs before it does; asks for sudo only when something is missing and the caller is not root.
#   install-dependencies.sh [PACKAGE…]   further packages: scripts/check asks for clang-format-14 and clang-tidy-14;
#                                        mpirun is in openmpi-bin, and libopenmpi-dev builds libqrun_mpi.so
set -eu

missing=
for package in build-essential cmake ninja-build pkg-config libcjson-dev libedit-dev libevent-dev libpcre2-dev \
    libssl-dev libutf8proc-dev libyaml-dev libzstd-dev zlib1g-dev "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "qrun needs these packages, under the names Debian gives them:$missing" >&2
    echo "This machine has no apt-get; please install them by hand and run this again." >&2
    exit 1
fi
echo "Installing:$missing"
sudo=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "Please install them as root: apt-get install$missing" >&2; exit 1; }
    sudo=sudo
fi
$sudo apt-get update -qq
# shellcheck disable=SC2086 # a list of words is meant
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
