#!/bin/sh
# Builds qrun for this machine and installs the program, its library, the header, the manual and shell completion.
#   ./install.sh [--prefix DIR] [-DNAME=VALUE…]   DIR: /usr/local for root, ~/.local for others
# Installs the packages it needs first (scripts/install-dependencies.sh), and says which.
set -eu
from=$PWD
cd "$(dirname "$0")"

wrong() {
    echo "install.sh: $1" >&2
    exit 2
}

prefix=$HOME/.local
[ "$(id -u)" -ne 0 ] || prefix=/usr/local
# What is for CMake goes to the end, so that the two kinds may come in any order.
n_left=$#
while [ "$n_left" -gt 0 ]; do
    word=$1
    shift
    n_left=$((n_left - 1))
    case $word in
        --prefix)
            [ "$n_left" -gt 0 ] || wrong "--prefix needs a folder"
            prefix=$1
            shift
            n_left=$((n_left - 1))
            ;;
        --prefix=*) prefix=${word#--prefix=} ;;
        -D*=*) set -- "$@" "$word" ;;
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' install.sh && exit 0 ;;
        *) wrong "'$word' is no option of it; there are --prefix DIR and CMake's -DNAME=VALUE" ;;
    esac
done
[ -n "$prefix" ] || wrong "--prefix needs a folder"
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
