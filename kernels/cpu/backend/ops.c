/* The backend's entries for the ops of vector_ops.h, dispatched to the kernels chosen at creation. */
#include "base/sizes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/delta_scratch.h"
#include "kernels/cpu/state_space_scratch.h"
#include "kernels/cpu/train/train_scratch.h"
#include "kernels/cpu/vector_ops.h"

#define QR_WORKSPACE(name, n_bytes)                                               \
    static size_t workspace_##name(const qr_backend *backend, const void *args) { \
        (void)backend;                                                            \
        const qr_##name##_args *a = args;                                         \
        return n_bytes;                                                           \
    }
QR_WORKSPACE(attention, qr_cpu_attention_workspace(backend, a))
QR_WORKSPACE(attention_packed, qr_cpu_attention_packed_workspace(backend, a))
QR_WORKSPACE(attention_packed_backward, qr_cpu_attention_packed_backward_workspace(backend, a))
QR_WORKSPACE(gated_delta, qr_gated_delta_bytes(a, qr_threads_count(backend->threads)))
QR_WORKSPACE(gated_delta_backward, qr_gated_delta_backward_bytes(&a->forward, qr_threads_count(backend->threads)))
QR_WORKSPACE(state_space, qr_state_space_bytes(a, qr_threads_count(backend->threads)))
QR_WORKSPACE(state_space_backward, qr_state_space_backward_bytes(&a->forward, qr_threads_count(backend->threads)))
QR_WORKSPACE(rms_norm_backward, qr_norm_moments_bytes(a->n_rows, a->n_groups))
QR_WORKSPACE(layer_norm_backward, qr_norm_moments_bytes(a->n_rows, 1))
QR_WORKSPACE(xielu_backward, qr_xielu_backward_bytes(a->forward.n_rows))
QR_WORKSPACE(stream_coefs_backward, qr_stream_coefs_backward_bytes(a->forward.n_rows))
QR_WORKSPACE(adafactor, qr_adafactor_bytes(a->rows, a->cols))
#undef QR_WORKSPACE

#define QR_OP(name, workspace_function, ...)                                                               \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        (void)workspace, (void)err;                                                                        \
        qr_cpu(backend)->kernels->vector_ops->name(__VA_ARGS__);                                           \
        return QRUN_OK;                                                                                    \
    }                                                                                                      \
    const qr_op_impl qr_cpu_op_##name = {                                                                  \
        .supports = qr_op_supports_##name, .workspace_bytes = workspace_function, .run = run_##name};
#define QR_PLAIN(name) QR_OP(name, qr_host_no_workspace, backend, args)
#define QR_SCRATCH(name) QR_OP(name, workspace_##name, backend, args, workspace)
QR_CPU_VECTOR_OPS(QR_PLAIN, QR_SCRATCH)
#undef QR_PLAIN
#undef QR_SCRATCH
#undef QR_OP

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
