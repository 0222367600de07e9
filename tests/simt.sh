#!/bin/sh
# The tests of whole models and of training over the CUDA backend, its kernels executed by the CPU (tests/simt).
# They take more than a quarter of an hour; the ordinary suite runs parts of them.
#   tests/simt.sh [BUILD]   BUILD: a build folder with the tests built; build/dev by default
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/dev}
QRUN_CUDA_LIBRARY=$PWD/$build/tests/simt/libqrun_cuda_simt.so
export QRUN_CUDA_LIBRARY
[ -r "$QRUN_CUDA_LIBRARY" ] || { echo "there is no $QRUN_CUDA_LIBRARY; build it first"; exit 1; }
"$build/tests/kernels/test_ops_simt"
"$build/tests/runtime/test_goldens"
"$build/tests/train/test_training"
