#!/bin/sh
# Builds qrun for this machine and installs the program, its library, the header, the manual and shell completion.
#   ./install.sh [--prefix DIR] [-DNAME=VALUE…]   DIR: /usr/local for root, ~/.local for others
# Installs the packages it needs first (scripts/install-dependencies.sh), and says which.
set -eu
from=$PWD
cd "$(dirname "$0")"

prefix=$HOME/.local
[ "$(id -u)" -ne 0 ] || prefix=/usr/local
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:?--prefix needs a folder} && shift 2 ;;
        --prefix=*) prefix=${1#--prefix=} && shift ;;
        -D*=*) break ;;
        -h | --help) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d && exit 0 ;;
        *) echo "install.sh: '$1' is no option of it; there are --prefix DIR and CMake's -DNAME=VALUE" >&2 && exit 2 ;;
    esac
done
case $prefix in /*) ;; *) prefix=$from/$prefix ;; esac
if ! mkdir -p "$prefix" || [ ! -w "$prefix" ]; then
    echo "install.sh: cannot write into '$prefix'; give another --prefix, or run it as root" >&2
    exit 1
fi

scripts/install-dependencies.sh
scripts/build.sh "$@"
cmake --install build/release --prefix "$prefix" >/dev/null
echo "Installed: $prefix/bin/qrun ($("$prefix/bin/qrun" --version))"
case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) echo "Your PATH lacks it; for this shell: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
