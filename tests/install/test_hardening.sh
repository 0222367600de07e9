# How the programs and libraries of a build are linked: nothing is ever loaded from the working folder, and the usual
# protections are on. Arguments: the build folder, the program, the library,
# the sanitizers (empty: none).
set -eu
export LC_ALL=C
failed=0
fail() {
    echo "FAILED: $1"
    failed=1
}

n_binaries=0
for file in $(find "$1" -type f \( -perm -u+x -o -name '*.so*' \) ! -path '*/CMakeFiles/*'); do
    readelf -h "$file" >"${TMPDIR:-/tmp}/qrun-elf.$$" 2>/dev/null || continue
    n_binaries=$((n_binaries + 1))
    # An empty element of the search path is the working folder: an untrusted model's, say.
    path=$(readelf -d "$file" | sed -n 's/.*(R[UN]*PATH).*\[\(.*\)\]$/\1/p')
    case ":$path:" in
        ::) ;;
        *::*) fail "$file: its library path has an empty element: $path" ;;
    esac
    for element in $(echo "$path" | tr ':' ' '); do
        case $element in
            '$ORIGIN'*) ;;
            *) fail "$file: its library path names a place that is not relative to it: $element" ;;
        esac
    done
done
rm -f "${TMPDIR:-/tmp}/qrun-elf.$$"
[ "$n_binaries" -gt 10 ] || fail "only $n_binaries programs and libraries were found in $1"

for file in "$2" "$3"; do
    readelf -h "$file" | grep -q 'DYN' || fail "$file: is not position-independent"
    readelf -l "$file" | grep -q GNU_RELRO || fail "$file: has no RELRO"
    readelf -d "$file" | grep -q -e BIND_NOW -e 'FLAGS_1.*NOW' || fail "$file: symbols are bound late"
    readelf -lW "$file" | grep GNU_STACK | grep -q 'RW ' || fail "$file: its stack is executable"
    [ -z "$4" ] || continue
    nm -D "$file" | grep -q __stack_chk_fail || fail "$file: has no stack protector"
    nm -D "$file" | grep -q 'printf_chk' || fail "$file: _FORTIFY_SOURCE is off"
    if [ "$(uname -m)" = x86_64 ]; then
        objdump -d "$file" | grep -q endbr64 || fail "$file: -fcf-protection is off"
    fi
done
[ "$failed" = 0 ] && echo "$n_binaries programs and libraries"
exit "$failed"
