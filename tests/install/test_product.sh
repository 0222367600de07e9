# Everything that an installation takes is built by the target `product`, which is all that demo.sh and install.sh build:
# `cmake --install` works after either, also where there is a CUDA toolkit. Exit code 77 is a skip. Environment:
# QRUN_BUILD.
set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-product.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

cd "$QRUN_BUILD"
[ -e build.ninja ] && command -v ninja >/dev/null || { echo "skipped: not built by ninja"; exit 77; }
ninja -t graph product | grep -oE 'label="[^" ]+' | cut -c8- >"$work/graph"
# One rule makes both links to a library, and the graph has the one that is asked for.
sed -n 's/\.so$/.so.0/p' "$work/graph" | sort -u - "$work/graph" >"$work/built"
ninja -t targets all | sed 's/: [^:]*$//' | sort -u >"$work/buildable"
find . -name cmake_install.cmake -exec grep -hoE "\"$PWD/[^\"]+\"" {} + | tr -d '"' | sed "s|^$PWD/||" | sort -u >"$work/installed"
comm -12 "$work/installed" "$work/buildable" >"$work/wanted"
[ "$(wc -l <"$work/wanted")" -ge 10 ] || { echo "FAILED: what is installed was not recognised"; exit 1; }
comm -23 "$work/wanted" "$work/built" >"$work/missing"
[ ! -s "$work/missing" ] || { echo "FAILED: installed, and not built by product:"; cat "$work/missing"; exit 1; }
echo "$(wc -l <"$work/wanted") files that are installed are built by product"
