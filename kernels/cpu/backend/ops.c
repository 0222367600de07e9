/* The backend's entries for the ops of vector_ops.h: checks by op_check, dispatch by the level chosen at creation. */
#include "base/sizes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/train/train_scratch.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/op_check.h"

static const qr_cpu_vector_ops *vector_ops(const qr_backend *backend) {
#if defined(__x86_64__) && !defined(QRUN_SCALAR)
    const qr_cpu_level level = qr_cpu(backend)->isa->level;
    if (level >= QR_CPU_AVX512) { return &qr_cpu_vector_ops_avx512; }
    if (level >= QR_CPU_AVX2) { return &qr_cpu_vector_ops_avx2; }
#else
    (void)backend;
#endif
    return &qr_cpu_vector_ops_c;
}

static size_t workspace_none(const qr_backend *backend, const void *args) {
    (void)backend, (void)args;
    return 0;
}

static size_t workspace_attention(const qr_backend *backend, const void *args) {
    return qr_cpu_attention_workspace(backend, args);
}

static size_t workspace_attention_packed(const qr_backend *backend, const void *args) {
    return qr_cpu_attention_packed_workspace(backend, args);
}

static size_t workspace_attention_packed_backward(const qr_backend *backend, const void *args) {
    return qr_cpu_attention_packed_backward_workspace(backend, args);
}

static size_t workspace_rms_norm_backward(const qr_backend *backend, const void *args) {
    (void)backend;
    const qr_rms_norm_backward_args *a = args;
    return qr_norm_moments_bytes(a->n_rows, a->n_groups);
}

static size_t workspace_layer_norm_backward(const qr_backend *backend, const void *args) {
    (void)backend;
    const qr_layer_norm_backward_args *a = args;
    return qr_norm_moments_bytes(a->n_rows, 1);
}

static size_t workspace_sum_squares(const qr_backend *backend, const void *args) {
    (void)backend;
    const qr_sum_squares_args *a = args;
    return qr_squares_bytes(a->n);
}

static size_t workspace_adafactor(const qr_backend *backend, const void *args) {
    (void)backend;
    const qr_adafactor_args *a = args;
    return qr_adafactor_bytes(a->rows, a->cols);
}

#define workspace_quantize workspace_none
#define workspace_embedding workspace_none
#define workspace_gather_rows workspace_none
#define workspace_rms_norm workspace_none
#define workspace_layer_norm workspace_none
#define workspace_dora workspace_none
#define workspace_dora_backward workspace_none
#define workspace_rope_table workspace_none
#define workspace_rope workspace_none
#define workspace_kv_write workspace_none
#define workspace_activation workspace_none
#define workspace_gate workspace_none
#define workspace_add workspace_none
#define workspace_softcap workspace_none
#define workspace_nll workspace_none
#define workspace_rope_backward workspace_none
#define workspace_activation_backward workspace_none
#define workspace_gate_backward workspace_none
#define workspace_cross_entropy workspace_none
#define workspace_embedding_backward workspace_none
#define workspace_scatter_rows workspace_none
#define workspace_dropout workspace_none
#define workspace_round_act workspace_none
#define workspace_store_weight workspace_none
#define workspace_adamw workspace_none
#define workspace_adamw8bit workspace_none
#define workspace_sgd workspace_none

#define QR_X(name)                                                                                         \
    static bool supports_##name(const qr_backend *backend, const void *args, qr_error *err) {              \
        (void)backend;                                                                                     \
        return qr_check_##name(args, err);                                                                 \
    }                                                                                                      \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        (void)err;                                                                                         \
        vector_ops(backend)->name(backend, args, workspace);                                               \
        return QRUN_OK;                                                                                    \
    }                                                                                                      \
    const qr_op_impl qr_cpu_op_##name = {supports_##name, workspace_##name, run_##name};
QR_CPU_VECTOR_OPS(QR_X)
#undef QR_X

struct range_loop {
    qr_range_fn fn;
    const void *args;
    int64_t n, grain;
};

static void run_range(void *arg, int64_t index, int worker) {
    (void)worker;
    const struct range_loop *loop = arg;
    loop->fn(loop->args, index * loop->grain, qr_min(loop->n, (index + 1) * loop->grain));
}

/* A range of 16 Ki elements takes 2 … 10 µs; handing one out costs well under one, a sleeping worker about 50. */
void qr_cpu_run_ranges(const qr_backend *backend, int64_t n, int64_t cost, qr_range_fn fn, const void *args) {
    enum { RANGE_COST = 16384, ALONE_COST = 2 * RANGE_COST };
    const int64_t grain = n <= ALONE_COST / cost ? n : qr_max(1, RANGE_COST / cost);
    struct range_loop loop = {.fn = fn, .args = args, .n = n, .grain = grain};
    qr_threads_run(backend->threads, qr_ceil_div(n, grain), run_range, &loop);
}
