# What scripts/build.sh builds: for the GPU where there is one and a toolkit, else for the CPU with the reason. The
# machine is a folder of programs that answer as nvidia-smi and nvcc would. Environment: QRUN_SOURCE.
set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-choice.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
failed=0

mkdir "$work/bin"
for tool in sh dirname timeout grep sort tr sed; do ln -s "$(command -v "$tool")" "$work/bin/$tool"; done

# gpu ANSWER: what nvidia-smi prints; toolkit NAMES: the GPUs that nvcc knows. Without arguments: there is none.
gpu() {
    rm -f "$work/bin/nvidia-smi"
    [ $# -gt 0 ] || return 0
    printf '#!/bin/sh\n%s\n' "$1" >"$work/bin/nvidia-smi"
    chmod +x "$work/bin/nvidia-smi"
}
toolkit() {
    rm -f "$work/bin/nvcc"
    [ $# -gt 0 ] || return 0
    { echo '#!/bin/sh'; for name in "$@"; do echo "echo $name"; done; } >"$work/bin/nvcc"
    chmod +x "$work/bin/nvcc"
}

# expect WHAT [ARGUMENT…]: the answer has this line, or part of a line.
expect() {
    what=$1
    shift
    PATH=$work/bin QRUN_NVCC=/nonexistent "$QRUN_SOURCE/scripts/build.sh" --print "$@" >"$work/out" 2>&1 ||
        { cat "$work/out"; echo "FAILED: build.sh: exit code $?"; failed=1; }
    grep -qF -- "$what" "$work/out" || { echo "FAILED: not said: $what"; sed 's/^/  /' "$work/out"; failed=1; }
}

gpu; toolkit
expect "-DQRUN_CUDA=OFF"
if grep -q GPU "$work/out"; then echo "FAILED: a machine without a GPU is told of one"; failed=1; fi
toolkit sm_80 sm_90a
expect "nvidia-smi shows no GPU"
expect "-DQRUN_CUDA=OFF"
gpu 'echo "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."; exit 9'
expect "-DQRUN_CUDA=OFF"
gpu 'printf "8.0\n9.0\n9.0\n"'
expect "-DQRUN_CUDA=ON -DQRUN_CUDA_ARCHITECTURES=80-real;90a-real -DCMAKE_CUDA_COMPILER=$work/bin/nvcc"
gpu 'echo 12.0'
expect "-DQRUN_CUDA_ARCHITECTURES=90-virtual"
gpu 'echo 7.5'
expect "its compute capability is 7.5 and qrun needs 8.0"
expect "-DQRUN_CUDA=OFF"
gpu 'echo 8.9'
toolkit
expect "no CUDA toolkit (nvcc)"
expect "-DQRUN_CUDA=OFF"
toolkit sm_89
expect "-DQRUN_CUDA=OFF -DX=1" -DQRUN_CUDA=OFF -DX=1
if grep -q -e GPU -e 'QRUN_CUDA=ON' "$work/out"; then echo "FAILED: what was asked for is overruled"; failed=1; fi
exit "$failed"
