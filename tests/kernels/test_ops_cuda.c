/* Every op of the CUDA backend as libqrun_cuda.so has it, on the GPU of this machine, against the reference. Skipped,
 * with the reason, where there is none. */
#include "op_harness.h"

#include "check.h"

#include "kernels/cuda/backend/unsupported.h"

enum { EXIT_SKIPPED = 77 };

/* Two backends: what is repeated must give the same bits. */
static bool add_devices(qr_error *err) {
    qr_backend *one, *two;
    if (qr_backend_cuda_create(op_everything.threads[0], &one, err) != QRUN_OK) { return false; }
    if (qr_backend_cuda_create(op_everything.threads[1], &two, err) != QRUN_OK) { return false; }
    op_add_device(one->isa, one, two);
    return true;
}

static bool is_unsupported(qr_op op) {
    switch (op) {
#define QR_X(name) \
    case QR_OP_##name: return true;
        QR_CUDA_UNSUPPORTED_OPS(QR_X)
#undef QR_X
        default: return false;
    }
}

static void run_op(qr_op op, const char *op_name, const char *test_name, void (*test)(void)) {
    if (is_unsupported(op)) {
        printf("not executed: %s is not in the CUDA backend yet\n", op_name);
        return;
    }
    check_case(test_name, test);
}

/* Many rows on Hopper: the GPU's own kernels and those of every GPU. As many outputs as fill it. */
static void test_linear_with_and_without_wgmma(void) {
    const int n_devices = op_everything.n_devices;
    qr_error err = {0};
    CHECK(setenv("QRUN_FORCE_ISA", "sm_80", 1) == 0);
    CHECK_MSG(add_devices(&err), "%s", err.message);
    CHECK(unsetenv("QRUN_FORCE_ISA") == 0);
    op_linear_same_bits(8 * 1024 + 264, true);
    while (op_everything.n_devices > n_devices) { op_remove_device(); }
}

static void test_limits_are_measured(void) {
    qr_backend *backend = op_everything.devices[0].backends[0];
    qr_backend_limits limits = {0};
    CHECK_INT(backend->measure_limits(backend, 0.1, &limits, NULL), QRUN_OK);
    CHECK(limits.read_bytes_per_second > 0.0 && limits.bf16_flops > 0.0 && limits.f32_flops > 0.0);
}

static void test_small_workspaces_are_refused(void) { op_check_workspaces(is_absent); }

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    if (!op_world_create(add_devices)) { return EXIT_SKIPPED; }
    CHECK_RUN(test_memory_is_counted_and_zeroed);
    CHECK_RUN(test_weight_round_trip);
    CHECK_RUN(test_weight_rows_are_checked);
    CHECK_RUN(test_loading_quantizes_on_the_device);
    CHECK_RUN(test_loading_sends_codes);
    CHECK_RUN(test_transfers_keep_their_order);
    CHECK_RUN(test_limits_are_measured);
#define QR_X(name) run_op(QR_OP_##name, #name, "test_op_" #name, test_op_##name);
    QR_OPS(QR_X)
#undef QR_X
    CHECK_RUN(test_linear_with_and_without_wgmma);
    if (argc == 1) { CHECK_RUN(test_small_workspaces_are_refused); }
    op_world_destroy();
    return check_end();
}
