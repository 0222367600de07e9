# Installs into a folder of its own, moves it, and uses it as others would: through pkg-config, through CMake, by running
# the program. Environment: QRUN_BUILD, QRUN_SOURCE, QRUN_VERSION, QRUN_LIBDIR, QRUN_SANITIZE, CC, CMAKE.
set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset DESTDIR CFLAGS LDFLAGS LD_LIBRARY_PATH

fail() {
    echo "FAILED: $*"
    exit 1
}

"$CMAKE" --install "$QRUN_BUILD" --prefix "$work/first" >"$work/log" 2>&1 || {
    cat "$work/log"
    fail "cmake --install"
}
mv "$work/first" "$work/moved"
prefix=$work/moved
flags=${QRUN_SANITIZE:+-fsanitize=$QRUN_SANITIZE}

for file in include/qrun.h "$QRUN_LIBDIR/libqrun.so" "$QRUN_LIBDIR/pkgconfig/qrun.pc" bin/qrun; do
    test -e "$prefix/$file" || fail "$file was not installed"
done
test "$(find "$prefix" -name '*.h' | wc -l)" -eq 1 || fail "more than one header was installed"
test -z "$(find "$prefix" -name '*.a')" || fail "an archive was installed"
if grep -rlF -e "$QRUN_SOURCE" -e "$work/first" "$prefix/$QRUN_LIBDIR/cmake" "$prefix/$QRUN_LIBDIR/pkgconfig"; then
    fail "the files above name the folder they were built or installed in"
fi

for name in $("$prefix/bin/qrun" help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    test -s "$prefix/share/man/man1/qrun-$name.1" || fail "there is no manual page for $name"
done
test -s "$prefix/share/man/man1/qrun.1" || fail "there is no manual page for qrun"

export PKG_CONFIG_PATH="$prefix/$QRUN_LIBDIR/pkgconfig"
test "$(pkg-config --modversion qrun)" = "$QRUN_VERSION" || fail "pkg-config gives another version"
# The flags are words to be split.
"$CC" -std=c99 -Wall -Werror $flags "$QRUN_SOURCE/tests/install/program/main.c" -o "$work/by_pkg_config" \
    $(pkg-config --cflags --libs qrun)
test "$(LD_LIBRARY_PATH="$prefix/$QRUN_LIBDIR" "$work/by_pkg_config")" = "$QRUN_VERSION" || fail "built through pkg-config"

"$CMAKE" -S "$QRUN_SOURCE/tests/install/program" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$CC" \
    -DCMAKE_C_FLAGS="$flags" -DQRUN_EXPECTED_VERSION="$QRUN_VERSION" >"$work/log" 2>&1 &&
    "$CMAKE" --build "$work/build" >>"$work/log" 2>&1 || {
    cat "$work/log"
    fail "built through find_package"
}
test "$("$work/build/program")" = "$QRUN_VERSION" || fail "built through find_package: it does not run"

"$prefix/bin/qrun" inspect "$QRUN_SOURCE/examples/model" >/dev/null || fail "the installed program does not run"

if command -v c++ >/dev/null 2>&1; then
    echo '#include <qrun.h>' | c++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" -x c++ - ||
        fail "the header is no C++"
fi
echo "passed"
