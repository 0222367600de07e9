/* The backend that plans: memory is counted and never made, ops record what they ask for, and copies do nothing. */
#include "check.h"

#include "kernels/op_flops.h"
#include "kernels/plan/plan.h"

static qr_backend *real, *planner;

static void test_memory_is_counted_and_not_made(void) {
    void *large = NULL, *small = NULL;
    size_t now, peak, real_now, real_peak;
    CHECK_INT(planner->memory_create(planner, QR_MEMORY_DEVICE, QR_PLAN_ANY_BYTES, &large, NULL), QRUN_OK);
    CHECK_INT(planner->memory_create(planner, QR_MEMORY_HOST, 100, &small, NULL), QRUN_OK);
    CHECK((uintptr_t)large % 64 == 0 && (uintptr_t)small % 64 == 0);
    CHECK((uintptr_t)small >= (uintptr_t)large + QR_PLAN_ANY_BYTES);
    planner->memory_held(planner, &now, &peak);
    CHECK(now == QR_PLAN_ANY_BYTES + 100 && peak == now);
    planner->memory_destroy(planner, QR_MEMORY_DEVICE, large, QR_PLAN_ANY_BYTES);
    planner->memory_destroy(planner, QR_MEMORY_HOST, small, 100);
    planner->memory_held(planner, &now, &peak);
    CHECK(now == 0 && peak == QR_PLAN_ANY_BYTES + 100);
    real->memory_held(real, &real_now, &real_peak);
    CHECK(real_now == 0 && real_peak == 0);
    qr_error err = {0};
    CHECK_INT(planner->memory_create(planner, QR_MEMORY_DEVICE, SIZE_MAX, &large, &err), QRUN_ERROR_MEMORY);
}

static void test_copies_do_nothing(void) {
    void *device = NULL;
    unsigned char host[16];
    uint64_t ticket;
    memset(host, 0xA5, sizeof host);
    CHECK_INT(planner->memory_create(planner, QR_MEMORY_DEVICE, sizeof host, &device, NULL), QRUN_OK);
    CHECK_INT(planner->copy_in(planner, device, host, sizeof host, NULL), QRUN_OK);
    CHECK_INT(planner->fill_zero(planner, device, sizeof host, NULL), QRUN_OK);
    CHECK_INT(planner->transfer_out(planner, host, device, sizeof host, &ticket, NULL), QRUN_OK);
    CHECK_INT(host[0], 0xA5);
    CHECK_INT(planner->copy_out(planner, host, device, sizeof host, NULL), QRUN_OK);
    CHECK(host[0] == 0 && host[15] == 0);
    planner->memory_destroy(planner, QR_MEMORY_DEVICE, device, sizeof host);
}

/* What the real backend would ask for, at most, without anything being computed. */
static void test_ops_record_what_they_ask_for(void) {
    const qr_weight weight = {.desc = {.format = QR_WEIGHT_NF4, .block = 64, .rows = 128, .cols = 256}};
    const qr_workspace any = {.n_bytes = QR_PLAN_ANY_BYTES};
    CHECK(planner->weight_bytes(planner, &weight.desc) == real->weight_bytes(real, &weight.desc));
    size_t most = 0;
    for (int64_t n = 1; n <= 64; n *= 4) {
        const qr_linear_args args = {
            .weight = &weight, .x_dtype = QR_DTYPE_BF16, .n_rows = n, .x_stride = 256, .y_stride = 128};
        const size_t needed = qr_linear_workspace(real, &args);
        CHECK(qr_linear_workspace(planner, &args) == needed);
        CHECK_INT(qr_linear(planner, &args, any, NULL), QRUN_OK);
        most = needed > most ? needed : most;
    }
    const qr_planned *planned = qr_backend_planned(planner);
    CHECK(planned->workspace_bytes == most);
    CHECK_INT(planned->n_calls, 4);
    CHECK(planned->flops == 2.0 * (1 + 4 + 16 + 64) * 128.0 * 256.0);
    qr_error err = {0};
    const qr_linear_args wrong = {
        .weight = &weight, .x_dtype = QR_DTYPE_BF16, .n_rows = 1, .x_stride = 255, .y_stride = 128};
    CHECK_INT(qr_linear(planner, &wrong, any, &err), QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(err.message, "linear: x has a row stride") != NULL, "message is \"%s\"", err.message);
    CHECK_INT(qr_backend_planned(planner)->n_calls, 4);
}

/* The sums of what each token of a sequence sees, with a window and without. */
static void test_flops_of_attention(void) {
    qr_attention_packed_args args = {.n_tokens = 10, .n_heads = 3, .head_dim = 8, .max_seq_tokens = 10};
    CHECK(fabs(qr_op_flops(QR_OP_attention_packed, &args) - 4.0 * 55 * 3 * 8) < 1e-9);
    args.window = 4; /* 1 + 2 + 3 + 7 · 4 */
    CHECK(fabs(qr_op_flops(QR_OP_attention_packed, &args) - 4.0 * 34 * 3 * 8) < 1e-9);
    const qr_attention_packed_backward_args backward = {.forward = args};
    CHECK(fabs(qr_op_flops(QR_OP_attention_packed_backward, &backward) - 10.0 * 34 * 3 * 8) < 1e-9);
    const qr_add_args add = {.n = 100};
    CHECK(qr_op_flops(QR_OP_add, &add) == 0.0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qr_threads *threads = NULL;
    qr_error err = {0};
    if (qr_threads_create(2, &threads, &err) != QRUN_OK ||
        qr_backend_cpu_create("c", threads, &real, &err) != QRUN_OK ||
        qr_backend_plan_create(real, &planner, &err) != QRUN_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    CHECK_RUN(test_memory_is_counted_and_not_made);
    CHECK_RUN(test_copies_do_nothing);
    CHECK_RUN(test_ops_record_what_they_ask_for);
    CHECK_RUN(test_flops_of_attention);
    qr_backend_destroy(planner);
    qr_backend_destroy(real);
    qr_threads_destroy(threads);
    return check_end();
}
