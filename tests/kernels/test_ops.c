/* Every op on every CPU backend against the reference. An op of QR_OPS without a test does not link. */
#include "op_harness.h"

#include "check.h"

/* ref keeps the promises of ops.h too. */
static bool add_ref(qr_error *err) {
    qr_backend *one, *two;
    if (qr_backend_ref_create(op_everything.threads[0], &one, err) != QRUN_OK) { return false; }
    if (qr_backend_ref_create(op_everything.threads[1], &two, err) != QRUN_OK) { return false; }
    op_add_device("ref", one, two);
    return true;
}

/* Every instruction set by name; those this machine lacks are refused and left out. Plain C is always there. */
static bool add_devices(qr_error *err) {
    static const char *const isas[] = {"c",        "avx2", "avx512",   "avx512-bf16", "amx-bf16-emulated",
                                       "amx-bf16", "neon", "neon-bf16"};
    if (!add_ref(err)) { return false; }
    for (size_t i = 0; i < QR_COUNT_OF(isas); i++) {
        qr_backend *backends[2] = {NULL, NULL};
        qr_error refused = {0};
        qrun_status status = qr_backend_cpu_create(isas[i], op_everything.threads[0], &backends[0], &refused);
        if (status != QRUN_OK && i > 0) {
            printf("backend cpu/%s left out: %s\n", isas[i], refused.message);
            continue;
        }
        if (status == QRUN_OK) { status = qr_backend_cpu_create(isas[i], op_everything.threads[1], &backends[1], err); }
        if (status != QRUN_OK) { return false; }
        char label[32];
        snprintf(label, sizeof label, "cpu/%s", isas[i]);
        op_add_device(label, backends[0], backends[1]);
    }
    return true;
}

static void test_small_workspaces_are_refused(void) { op_check_workspaces(NULL); }

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    if (!op_world_create(add_devices)) { return 1; }
    CHECK_RUN(test_memory_is_counted_and_zeroed);
    CHECK_RUN(test_weight_round_trip);
    CHECK_RUN(test_weight_rows_are_checked);
    CHECK_RUN(test_transfers_keep_their_order);
#define QR_X(name) CHECK_RUN(test_op_##name);
    QR_OPS(QR_X)
#undef QR_X
    if (argc == 1) { CHECK_RUN(test_small_workspaces_are_refused); }
    op_world_destroy();
    return check_end();
}
