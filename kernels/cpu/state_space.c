/* state_space. */
#include "kernels/cpu/state_space_step.h"
#include "kernels/recurrence.h"

struct space_call {
    const qr_state_space_args *args;
    float *columns;   /* [n_threads, state_dim, QR_SPACE_COLUMNS] */
    int64_t n_blocks; /* of columns, a head */
};

/* A block of columns of a head of a sequence. */
static void run_columns(void *arg, int64_t index, int worker) {
    const struct space_call *call = arg;
    const qr_state_space_args *a = call->args;
    const qr_recurrence *r = &a->sequences;
    const int64_t first = index % call->n_blocks * QR_SPACE_COLUMNS, s = index / call->n_blocks / a->n_heads;
    const int32_t head = (int32_t)(index / call->n_blocks % a->n_heads);
    const int64_t n = qr_min(a->head_dim - first, QR_SPACE_COLUMNS), state_dim = a->state_dim;
    if (r->start[s] == r->start[s + 1]) { return; }
    float *state = qr_recurrence_state(r, s), *columns = call->columns + worker * qr_space_column_floats(a);
    const int64_t stride = state != NULL ? a->head_dim : QR_SPACE_COLUMNS;
    if (state != NULL) { columns = state + head * state_dim * a->head_dim + first; }
    for (int64_t i = 0; qr_recurrence_begins(r, s) && i < state_dim; i++) {
        memset(columns + i * stride, 0, (size_t)n * sizeof *columns);
    }
    for (int64_t t = r->start[s]; t < r->start[s + 1]; t++) {
        const space_token in = space_token_at(a, t, head);
        float *dst = a->dst + (t * a->n_heads + head) * a->head_dim + first;
        space_columns(&in, state_dim, columns, columns, stride, first, dst, n);
    }
}

void QR_ISA(qr_cpu_state_space)(const qr_backend *backend, const qr_state_space_args *args, void *workspace) {
    struct space_call call = {
        .args = args, .columns = workspace, .n_blocks = qr_ceil_div(args->head_dim, QR_SPACE_COLUMNS)};
    qr_threads_run(backend->threads, args->sequences.n_seqs * args->n_heads * call.n_blocks, run_columns, &call);
}
