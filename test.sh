#!/bin/sh
# Builds everything and runs all tests. Installs the packages it needs first (see scripts/install-dependencies.sh).
#   ./test.sh [PRESET [CTEST OPTION…]]   PRESET: dev (the default), asan-ubsan, tsan, scalar …; see CMakePresets.json
set -eu
cd "$(dirname "$0")"

preset=${1:-dev}
[ $# -eq 0 ] || shift
case $preset in
    fuzz) scripts/install-dependencies.sh clang libclang-rt-14-dev ;;
    *) scripts/install-dependencies.sh ;;
esac

cmake --preset "$preset" >build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
rm -f build-configure.log
cmake --build --preset "$preset" -- --quiet
if [ ! -d ../shared/data ] && [ -z "${QRUN_SHARED_DATA:-}" ]; then
    echo "Note: ../shared/data is not here; the tests on real tokenizers, templates and models say that they are skipped."
fi
# One more than there are cores: some tests wait for a clock.
exec ctest --test-dir "build/$preset" --output-on-failure -j $(($(nproc) + 1)) "$@"
