/* Every op on every CPU backend against the reference. An op of QR_OPS without a test does not link. */
#include "op_harness.h"

#include "check.h"
#include "kernels/cpu/cpu.h"

/* ref keeps the promises of ops.h too. */
static bool add_ref(qr_error *err) {
    qr_backend *one, *two;
    if (qr_backend_ref_create(op_everything.threads[0], &one, err) != QRUN_OK) { return false; }
    if (qr_backend_ref_create(op_everything.threads[1], &two, err) != QRUN_OK) { return false; }
    op_add_device("ref", one, two);
    return true;
}

static bool add_device(const char *isa, bool needed, qr_error *err) {
    qr_backend *backends[2] = {NULL, NULL};
    qr_error refused = {0};
    qrun_status status = qr_backend_cpu_create(isa, op_everything.threads[0], &backends[0], &refused);
    if (status != QRUN_OK && !needed) {
        printf("backend cpu/%s left out: %s\n", isa, refused.message);
        return true;
    }
    if (status == QRUN_OK) { status = qr_backend_cpu_create(isa, op_everything.threads[1], &backends[1], &refused); }
    if (status != QRUN_OK) { return qr_fail(err, status, "%s", refused.message) == QRUN_OK; }
    char label[32];
    snprintf(label, sizeof label, "cpu/%s", isa);
    op_add_device(label, backends[0], backends[1]);
    if (qr_cpu(backends[0])->kernels->matmul_int16 == NULL) { return true; }
    qr_backend *ref;
    if (qr_backend_ref_create_int16(op_everything.threads[0], &ref, err) != QRUN_OK) { return false; }
    op_compare_device_with(ref);
    return true;
}

/* Every instruction set by name; those this machine lacks are refused and left out. Plain C is always there. But where
 * QRUN_TEST_ISAS names some, these alone, and this machine must have them. */
static bool add_devices(qr_error *err) {
    static const char *const isas[] = {"c",        "avx2", "avx512",   "avx512-bf16", "amx-bf16-emulated",
                                       "amx-bf16", "neon", "neon-bf16"};
    const char *given = check_isas();
    bool ok = given != NULL || add_ref(err);
    for (size_t i = 0; given == NULL && ok && i < QR_COUNT_OF(isas); i++) { ok = add_device(isas[i], i == 0, err); }
    while (given != NULL && ok && *given != '\0') {
        char isa[32];
        const int length = (int)strcspn(given, ",");
        snprintf(isa, sizeof isa, "%.*s", length, given);
        ok = add_device(isa, true, err);
        given += length + (given[length] == ',');
    }
    return ok;
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
