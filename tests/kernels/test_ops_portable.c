/* Every op with portable numerics: against the reference, and with the same bits on every instruction set. */
#include "op_harness.h"

#include "check.h"

/* Plain C and AVX-512 on vectors of its own, AVX2 on wide ones; others have the kernels of these. */
static bool add_devices(qr_error *err) {
    static const char *const isas[] = {"c", "avx2", "avx512", "amx-bf16-emulated", "neon", "neon-bf16"};
    for (size_t i = 0; i < QR_COUNT_OF(isas); i++) {
        qr_backend *backends[2] = {NULL, NULL};
        qr_error refused = {0};
        qrun_status status = QRUN_OK;
        for (int t = 0; t < 2 && status == QRUN_OK; t++) {
            status = qr_backend_cpu_create_portable(isas[i], op_everything.threads[t], &backends[t], &refused);
        }
        if (status == QRUN_OK) {
            char label[48];
            snprintf(label, sizeof label, "portable cpu/%s", isas[i]);
            op_add_device(label, backends[0], backends[1]);
        } else if (i == 0) {
            return qr_fail(err, status, "%s", refused.message) == QRUN_OK;
        } else {
            printf("backend cpu/%s left out: %s\n", isas[i], refused.message);
        }
    }
    op_everything.same_everywhere = true;
    return true;
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    if (!op_world_create(add_devices)) { return 1; }
#define QR_X(name) CHECK_RUN(test_op_##name);
    QR_OPS(QR_X)
#undef QR_X
    op_world_destroy();
    return check_end();
}
