# Runs the examples of README.md, CONTRIBUTING.md and docs/*.md: see blocks.awk for what is run. Each page has a scratch
# folder of its own, with examples/ and bench/ of the repository in it, `qrun` on PATH, and pkg-config that finds the
# library as it was built. Also: every option that a page names exists, and every file that it links to.
. "$QRUN_SOURCE/tests/cli/lib.sh"

pages="README.md CONTRIBUTING.md $(cd "$QRUN_SOURCE" && ls docs/*.md)"
n_run=0 n_not_run=0 n_programs=0
touch "$work/out" "$work/err"

# ---- What the examples find ----

mkdir "$work/bin" "$work/pkgconfig" "$work/pages"
ln -s "$QRUN" "$work/bin/qrun"
flags=${QRUN_SANITIZE:+-fsanitize=$QRUN_SANITIZE}
cat >"$work/pkgconfig/qrun.pc" <<EOF
Name: qrun
Description: the library as it was built
Version: 0
Cflags: -I$QRUN_SOURCE/include $flags
Libs: $QRUN_LIBRARY -Wl,-rpath,$(dirname "$QRUN_LIBRARY") $flags
EOF
export PKG_CONFIG_PATH="$work/pkgconfig" PATH="$work/bin:$PATH"
export PYTHONPATH="$QRUN_SOURCE/python" PYTHONDONTWRITEBYTECODE=1

# ---- Running ----

# run_blocks PAGE FOLDER: every block of it, in order.
run_blocks() {
    for block in "$2"/blocks/*; do
        case $block in
            *.sh)
                if grep -q '^curl ' "$block" && ! command -v curl >/dev/null; then
                    echo "not run, there is no curl: $1, block $(basename "$block")"
                    n_not_run=$((n_not_run + 1))
                    continue
                fi
                n_run=$((n_run + 1))
                last="$1, block $(basename "$block")"
                (cd "$2" && timeout 120 sh -eu "$block" </dev/null) >"$work/out" 2>"$work/err" || {
                    fail "this block fails:"
                    sed 's/^/    /' "$block"
                }
                ;;
            *.c)
                n_run=$((n_run + 1)) n_programs=$((n_programs + 1))
                last="$1, block $(basename "$block")"
                name=$(sed -n '1s|^/\* \([a-z_]*\.c\)\(:.*\)\{0,1\}$|\1|p' "$block")
                expect_true "the first line of a C block names its file" test -n "$name"
                cp "$block" "$2/${name:-unnamed.c}"
                # shellcheck disable=SC2046,SC2086 # flags are words to be split
                "${CC:-cc}" -std=c11 -Wall -Wextra -Werror $flags $(pkg-config --cflags qrun) -c "$2/${name:-unnamed.c}" \
                    -o "$work/object.o" >"$work/out" 2>"$work/err" || fail "this program does not compile"
                ;;
            *.python) cat "$block" >>"$2/page.py" ;;
            *.console) n_not_run=$((n_not_run + 1)) ;;
        esac
    done
    [ -e "$2/page.py" ] || return 0
    if [ -n "${QRUN_SANITIZE:-}" ] || ! command -v python3 >/dev/null; then
        n_not_run=$((n_not_run + 1)) # a Python without the sanitizer's run-time library cannot load the library
        return 0
    fi
    n_run=$((n_run + 1))
    last="$1, its Python"
    (cd "$2" && timeout 120 python3 page.py </dev/null) >"$work/out" 2>"$work/err" || fail "this program fails: $(tail -5 "$work/err")"
}

for page in $pages; do
    folder=$work/pages/$(echo "$page" | tr / _)
    mkdir -p "$folder/blocks"
    ln -s "$QRUN_SOURCE/examples" "$QRUN_SOURCE/bench" "$folder/"
    last=$page
    awk -v out="$folder/blocks" -f "$QRUN_SOURCE/tests/docs/blocks.awk" "$QRUN_SOURCE/$page" >"$work/out" ||
        fail "$page cannot be taken apart"
    run_blocks "$page" "$folder"
done
# The program at the top of qrun.h is tests/install/test_header_example.sh.

last="all pages"
expect_true "examples ran" test "$n_run" -ge 10
expect_true "programs were compiled" test "$n_programs" -ge 1

# ---- Options, also of what does not run ----

for command in $(qrun help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    qrun help "$command" --all >"$work/help.$command"
done
find "$work/pages" -path '*/blocks/*' -type f | while read -r block; do
    sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$block" | sed 's/#.*//' | tr '|;&()' '\n' | sed -n 's/^ *qrun  *\([a-z]*\) \(.*\)/\1 \2/p'
done | awk '{ for (i = 2; i <= NF; i++) if ($i ~ /^--[a-z]/) { sub(/=.*/, "", $i); print $1, $i } }' | sort -u >"$work/named"
expect_true "options are named" test "$(wc -l <"$work/named")" -ge 30
while read -r command option; do
    n_checks=$((n_checks + 1))
    [ -e "$work/help.$command" ] || { fail "there is no command 'qrun $command'"; continue; }
    grep -q -e "$option\( \|\$\)" "$work/help.$command" || fail "'qrun $command' has no $option"
done <"$work/named"
# In running text: `--option` of any command.
cat "$work"/help.* >"$work/help"
for page in $pages; do
    sed '/^```/,/^```$/d' "$QRUN_SOURCE/$page" | grep -o '`--[a-z][a-z-]*' | tr -d '`' | sort -u >"$work/named"
    while read -r option; do
        n_checks=$((n_checks + 1))
        grep -q -e "$option\( \|\$\)" "$work/help" || fail "$page names $option, which no command has"
    done <"$work/named"
done

# ---- Links, and where the README says where to read on ----

for page in $pages; do
    base=$(dirname "$QRUN_SOURCE/$page")
    grep -o ']([^)]*)' "$QRUN_SOURCE/$page" | sed 's/^](//; s/)$//; s/#.*//' | grep -v '^http' | sort -u >"$work/links"
    while read -r link; do
        expect_true "$page links to $link" test -z "$link" -o -e "$base/$link"
    done <"$work/links"
done
for page in "$QRUN_SOURCE"/docs/*.md "$QRUN_SOURCE/CONTRIBUTING.md"; do
    expect_true "the README links to $(basename "$page")" grep -q "($(echo "$page" | sed "s|^$QRUN_SOURCE/||"))" "$QRUN_SOURCE/README.md"
done

# ---- Sources: every one that is named exists ----

(cd "$QRUN_SOURCE" && find base quant loaders kernels runtime serve cli tests include cmake -type f) | sed 's|^|/|' >"$work/files"
for page in $pages; do
    sed '/^```/,/^```$/d' "$QRUN_SOURCE/$page" | grep -oE '`[a-z0-9_/.-]+\.(c|h|cc|cu|cuh|cmake)`' | tr -d '`' | sort -u >"$work/named"
    while read -r source; do
        expect_true "$page names $source, which exists" grep -q "/$source\$" "$work/files"
    done <"$work/named"
done

# ---- The drawing of the rooms ----

last="docs/architecture.md"
cd "$QRUN_SOURCE" || exit 1
awk -f tests/docs/rooms.awk loaders/CMakeLists.txt kernels/CMakeLists.txt runtime/CMakeLists.txt cli/CMakeLists.txt \
    >"$work/rooms"
sed -n '/^```text$/,/^```$/p' docs/architecture.md | grep -E '^(loaders|kernels|runtime|cli)(/| |$)' | sed 's/  */ /g' >"$work/drawn"
diff "$work/rooms" "$work/drawn" >"$work/out"
expect_true "docs/architecture.md draws the rooms as CMake has them (see tests/docs/rooms.awk)" test ! -s "$work/out"

echo "$n_run blocks ran ($n_programs of them programs in C), $n_not_run cannot run here"
finish
