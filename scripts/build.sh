#!/bin/sh
# Builds the program and its library for this machine in build/release, and nothing else: no tests, no benchmarks. Where
# there is an NVIDIA GPU and a CUDA toolkit, libqrun_cuda.so is built for that GPU; where one of the two is missing, it
# says so. demo.sh and install.sh call it.
#   build.sh [--print] [-DNAME=VALUE…]   --print: what would be built, and no building
set -eu
cd "$(dirname "$0")/.."

print=no
if [ "${1:-}" = --print ]; then
    print=yes
    shift
fi

# The compute capabilities of this machine's GPUs, such as "8.9", one a line; nothing without a driver that works.
capabilities() {
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$' | sort -u || true
}

# What CMake calls the GPU of this capability. One that the toolkit does not know runs the newest code that it does.
architecture() {
    number=$(echo "$1" | tr -d .)
    [ "$number" != 90 ] || number=90a # Hopper's own instructions
    if "$nvcc" --list-gpu-code 2>/dev/null | grep -qx "sm_$number"; then echo "$number-real"; else echo 90-virtual; fi
}

# Says what becomes of the GPU, and sets $cuda.
choose() {
    nvcc=$(command -v nvcc || true)
    [ -n "$nvcc" ] || nvcc=${QRUN_NVCC:-/usr/local/cuda/bin/nvcc}
    [ -x "$nvcc" ] || nvcc=
    architectures=
    old=
    for capability in $(capabilities); do
        if [ "${capability%%.*}" -lt 8 ]; then
            old=$capability
        elif [ -n "$nvcc" ]; then
            architectures="$architectures${architectures:+;}$(architecture "$capability")"
        else
            architectures=unknown
        fi
    done
    cuda="-DQRUN_CUDA=OFF"
    if [ "$architectures" = unknown ]; then
        echo "GPU: there is one, but no CUDA toolkit (nvcc), so this build is for the CPU alone."
        echo "     Install the toolkit (Debian: nvidia-cuda-toolkit) and run this again."
    elif [ -n "$architectures" ]; then
        echo "GPU: building for it, too ($(echo "$architectures" | tr ';' ' '))."
        cuda="-DQRUN_CUDA=ON -DQRUN_CUDA_ARCHITECTURES=$architectures -DCMAKE_CUDA_COMPILER=$nvcc"
    elif [ -n "$old" ]; then
        echo "GPU: its compute capability is $old and qrun needs 8.0, so this build is for the CPU alone."
    elif [ -n "$nvcc" ]; then
        echo "GPU: there is a CUDA toolkit, but nvidia-smi shows no GPU, so this build is for the CPU alone."
        echo "     -DQRUN_CUDA=ON builds for the GPUs of other machines."
    fi
}

cuda=asked
for argument in "$@"; do
    case $argument in -DQRUN_CUDA=*) cuda= ;; esac
done
[ -z "$cuda" ] || choose
if [ "$print" = yes ]; then
    echo "$cuda $*"
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 1' INT TERM
# shellcheck disable=SC2086 # a list of words is meant
cmake --preset release $cuda "$@" >"$log" 2>&1 || {
    cat "$log"
    exit 1
}
echo "Building (some minutes the first time) …"
cmake --build --preset release --target product -- --quiet
