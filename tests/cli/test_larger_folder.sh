# A quantised folder of more than twice the memory that the process may allocate (RLIMIT_DATA) generates and takes a
# training step with --offload parameters, with the same bytes. Needs no rights; test_larger_cgroup.sh counts the page
# cache too.
. "$QRUN_SOURCE/tests/cli/lib.sh"

if [ -n "${QRUN_SANITIZE:-}" ]; then
    echo "skipped: a sanitizer's shadow memory counts too"
    exit 77
fi
. "$QRUN_SOURCE/tests/cli/larger.sh"

limit_kib=$((128 * 1024))
cat >"$work/limited.sh" <<END
ulimit -d $limit_kib && exec "\$@"
END
sh "$work/limited.sh" true 2>/dev/null || {
    echo "skipped: this shell cannot limit a process's memory"
    exit 77
}
check_larger $((limit_kib * 1024)) sh "$work/limited.sh"
finish
