# What a portable build carries to another machine, moved away from where it was built: nothing in it needs a library
# that is neither in it nor glibc's, no path to libraries is absolute, and it runs. Environment: QRUN_BUILD, QRUN_SOURCE,
# CMAKE, READELF.
set -eu
export LC_ALL=C
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-portable.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset DESTDIR LD_LIBRARY_PATH QRUN_CUDA_LIBRARY

fail() {
    echo "FAILED: $*"
    exit 1
}

"$CMAKE" --install "$QRUN_BUILD" --component portable_run --strip --prefix "$work/first" >"$work/log" 2>&1 || {
    cat "$work/log"
    fail "cmake --install"
}
mv "$work/first" "$work/moved"
folder=$work/moved
for file in cli/qrun lib/libqrun.so.0 lib/libqrun_cuda.so; do
    test -e "$folder/$file" || fail "$file is not in it"
done

find "$folder" -type f >"$work/files"
while read -r file; do
    name=${file#"$folder/"}
    "$READELF" -d "$file" >"$work/dynamic" || fail "$name: readelf"
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' "$work/dynamic" >"$work/needed"
    test -s "$work/needed" || fail "$name: what it needs was not recognised"
    while read -r library; do
        case $library in
            libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-x86-64.so.2) ;;
            *) test -e "$folder/lib/$library" || fail "$name needs $library, which is not in the folder" ;;
        esac
    done <"$work/needed"
    paths=$(sed -n 's/.*(R[A-Z]*PATH).*\[\(.*\)\]/\1/p' "$work/dynamic")
    case $paths in
        '' | '$ORIGIN' | '$ORIGIN/'*) ;;
        *) fail "$name looks for libraries in $paths" ;;
    esac
    case $paths in *:*) fail "$name looks for libraries in several folders: $paths" ;; esac
    if env -i ldd "$file" | grep -e 'not found' -e libqrun.so -e libcjson | grep -v -F " $folder/"; then
        fail "$name finds the libraries above outside the folder"
    fi
done <"$work/files"

cd "$QRUN_SOURCE"
env -i "$folder/cli/qrun" inspect examples/model >/dev/null || fail "the program does not run"
env -i "$folder/tests/runtime/test_goldens" test_folders_of_bitsandbytes >"$work/log" 2>&1 || {
    cat "$work/log"
    fail "a test does not run"
}

# As on a machine without a GPU, wherever this runs.
code=0
env -i PATH="$PATH" CUDA_VISIBLE_DEVICES= tests/gpu.sh quick "$folder" --out "$work/results" >"$work/log" 2>&1 || code=$?
test "$code" -eq 77 || { cat "$work/log"; fail "tests/gpu.sh without a GPU: exit code $code"; }
cat "$work/log"
echo "$(wc -l <"$work/files") files, $(du -sk "$folder" | cut -f1) KiB"
