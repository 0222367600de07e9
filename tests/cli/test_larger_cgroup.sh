# A quantised folder of more than twice the memory of the control group that the process is in generates and takes a
# training step with --offload parameters, with the same bytes: all its pages count, those of the page cache too. The
# program finds the limit by itself. Needs the right to make a group; skipped without.
. "$QRUN_SOURCE/tests/cli/lib.sh"

if [ -n "${QRUN_SANITIZE:-}" ]; then
    echo "skipped: a sanitizer's shadow memory counts too"
    exit 77
fi

# The group of this process, in version 1 or 2, and the names of its files.
limit=$((128 * 1024 * 1024))
path=$(sed -n 's/^[0-9]*:\([a-z_=,]*,\)\{0,1\}memory\(,[^:]*\)\{0,1\}://p' /proc/self/cgroup 2>/dev/null | head -1)
group=/sys/fs/cgroup/memory$path limit_file=memory.limit_in_bytes
if [ -z "$path" ]; then
    path=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null | head -1)
    group=/sys/fs/cgroup$path limit_file=memory.max
fi
[ -d "$group" ] || group=${group%"$path"}
group=${group%/}/qrun-test-$$
remove_group() {
    [ -d "$group" ] && rmdir "$group"
    rm -rf "$work"
}
if ! mkdir "$group" 2>/dev/null; then
    echo "skipped: this process may not make a control group"
    exit 77
fi
trap remove_group EXIT
if [ ! -w "$group/$limit_file" ] || ! echo $limit >"$group/$limit_file"; then
    echo "skipped: a control group here has no limit of memory"
    exit 77
fi
cat >"$work/limited.sh" <<END
echo \$\$ >"$group/cgroup.procs" && exec "\$@"
END
if ! sh "$work/limited.sh" true 2>/dev/null; then
    echo "skipped: this process may not move into a control group"
    exit 77
fi

. "$QRUN_SOURCE/tests/cli/larger.sh"
check_larger $limit sh "$work/limited.sh"

# Without --memory: auto finds that the weights do not fit in here, and that they do outside.
# shellcheck disable=SC2046 # words of options
run_in sh "$work/limited.sh" -- $(larger_answer --offload auto)
expect_code 0
expect_true "the same answer" cmp -s "$work/answer" "$work/out"
finish
