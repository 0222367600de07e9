#include "op_cuda.h"

#include "check.h"

#include "kernels/cuda/backend/unsupported.h"

bool op_cuda_add_devices(op_cuda_create_fn create, qr_error *err) {
    qr_backend *one, *two;
    if (create(op_everything.threads[0], &one, err) != QRUN_OK) { return false; }
    if (create(op_everything.threads[1], &two, err) != QRUN_OK) { return false; }
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

void op_cuda_check_workspaces(void) { op_check_workspaces(is_unsupported); }

static void run_op(qr_op op, const char *op_name, const char *test_name, void (*test)(void)) {
    if (is_unsupported(op)) {
        printf("not executed: %s is not in the CUDA backend yet\n", op_name);
        return;
    }
    check_case(test_name, test);
}

static double peak_seconds;

static void test_peaks_are_measured(void) {
    qr_backend *backend = op_everything.devices[0].backends[0];
    qr_backend_peaks peaks = {0};
    CHECK_INT(backend->measure_peaks(backend, peak_seconds, &peaks, NULL), QRUN_OK);
    CHECK(peaks.read_bytes_per_second > 0.0 && peaks.bf16_flops > 0.0 && peaks.f32_flops > 0.0);
}

void op_cuda_run_tests(double seconds) {
    peak_seconds = seconds;
    CHECK_RUN(test_memory_is_counted_and_zeroed);
    CHECK_RUN(test_weight_round_trip);
    CHECK_RUN(test_weight_rows_are_checked);
    CHECK_RUN(test_loading_quantizes_on_the_device);
    CHECK_RUN(test_loading_sends_codes);
    CHECK_RUN(test_transfers_keep_their_order);
    CHECK_RUN(test_groups_have_the_bits_of_their_ops);
    CHECK_RUN(test_peaks_are_measured);
#define QR_X(name) run_op(QR_OP_##name, #name, "test_op_" #name, test_op_##name);
    QR_OPS(QR_X)
#undef QR_X
}

void op_cuda_linear_without_wgmma(op_cuda_create_fn create, int64_t n_outputs, bool alone) {
    const int n_devices = op_everything.n_devices;
    qr_error err = {0};
    CHECK(setenv("QRUN_FORCE_ISA", "sm_80", 1) == 0);
    CHECK_MSG(op_cuda_add_devices(create, &err), "%s", err.message);
    CHECK(unsetenv("QRUN_FORCE_ISA") == 0);
    op_linear_same_bits(n_outputs, alone);
    while (op_everything.n_devices > n_devices) { op_remove_device(); }
}
