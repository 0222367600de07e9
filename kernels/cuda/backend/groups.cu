#include "kernels/cuda/backend/groups.h"

#include "kernels/cuda/linear/linear.cuh"

/* The calls that are left, and what of them is an op of a kind. */
struct call_range {
    const qr_op_call *calls;
    int32_t n;

    template <typename T> const T *get(int32_t i, qr_op op) const {
        return i < n && calls[i].op == op ? static_cast<const T *>(calls[i].args) : NULL;
    }
};

/* --- Whether ops may run at the same time --- */

/* Rows of a buffer: what one op writes and another one must not touch. */
struct rows_of_bytes {
    uintptr_t begin;
    int64_t n_rows, row_bytes, stride_bytes;
};

static rows_of_bytes rows_of(const void *begin, qr_dtype dtype, int64_t n_rows, int64_t row, int64_t stride) {
    const int64_t bytes = static_cast<int64_t>(qr_dtype_bytes(dtype));
    return {reinterpret_cast<uintptr_t>(begin), n_rows, row * bytes, stride * bytes};
}

static rows_of_bytes output_of(const qr_linear_args &args) {
    return rows_of(args.y, QR_DTYPE_F32, args.n_rows, args.weight->desc.rows, args.y_stride);
}

/* Not one byte in common: one after the other, or side by side in the rows of one matrix. */
static bool are_apart(const rows_of_bytes &one, const rows_of_bytes &other) {
    const rows_of_bytes &first = one.begin <= other.begin ? one : other, &last = one.begin <= other.begin ? other : one;
    const int64_t distance = static_cast<int64_t>(last.begin - first.begin);
    if (distance >= (first.n_rows - 1) * first.stride_bytes + first.row_bytes) { return true; }
    return first.stride_bytes == last.stride_bytes && distance >= first.row_bytes &&
           distance + last.row_bytes <= first.stride_bytes;
}

/* --- Products of one x --- */

static bool have_one_x(const qr_linear_args &one, const qr_linear_args &other) {
    return one.x == other.x && one.x_dtype == other.x_dtype && one.x_stride == other.x_stride &&
           one.n_rows == other.n_rows && one.weight->desc.cols == other.weight->desc.cols;
}

static bool makes_x(const qr_rms_norm_args &norm, const qr_linear_args &args) {
    return norm.dst == args.x && norm.dst_dtype == args.x_dtype && norm.dst_stride == args.x_stride &&
           norm.n_rows == args.n_rows && norm.n_groups == 1 && norm.dim == args.weight->desc.cols;
}

/* Of products that may run at the same time, at most `most`. */
static int linears_of(const call_range &range, int32_t from, int most, const qr_linear_args **linears) {
    int n = 0;
    for (; n < most; n++) {
        const qr_linear_args *next = range.get<qr_linear_args>(from + n, QR_OP_linear);
        if (next == NULL || (n > 0 && !have_one_x(*linears[0], *next))) { break; }
        bool is_apart = true;
        for (int i = 0; i < n; i++) { is_apart = is_apart && are_apart(output_of(*linears[i]), output_of(*next)); }
        if (!is_apart) { break; }
        linears[n] = next;
    }
    return n;
}

/* Whether the gate is of the outputs of two products, the first of them the gate. */
static bool gates(const qr_gate_args &gate, const qr_linear_args &g, const qr_linear_args &u) {
    return gate.g == g.y && gate.u == u.y && gate.g_stride == g.y_stride && gate.u_stride == u.y_stride &&
           gate.n_rows == g.n_rows && gate.dim == g.weight->desc.rows && gate.dim == u.weight->desc.rows;
}

/* Blocks still read x, or what it is normed of, while others have their results. */
static bool leaves_x(const rows_of_bytes &result, const qr_rms_norm_args *norm, const qr_linear_args &args) {
    const rows_of_bytes x = rows_of(args.x, args.x_dtype, args.n_rows, args.weight->desc.cols, args.x_stride);
    return are_apart(result, x) && (norm == NULL || are_apart(result, rows_of(norm->src, QR_DTYPE_F32, norm->n_rows,
                                                                              norm->dim, norm->src_stride)));
}

static bool rotates(const qr_rope_args &rope, const qr_linear_args &args) {
    return rope.x == args.y && rope.x_stride == args.y_stride && rope.n_tokens == args.n_rows &&
           rope.n_heads * rope.head_dim == args.weight->desc.rows;
}

static bool writes_heads(const qr_kv_write_args &write, const qr_linear_args &k, const qr_linear_args &v) {
    const int64_t row = static_cast<int64_t>(write.layout.n_kv_heads) * write.layout.head_dim;
    return !write.layout.keys_are_values && write.k == k.y && write.k_stride == k.y_stride && write.v == v.y &&
           write.v_stride == v.y_stride && write.n_tokens == k.n_rows && row == k.weight->desc.rows &&
           row == v.weight->desc.rows;
}

/* From an op on, what is done with the outputs of q, k and v: rope of q and of k, where they are rotated, and kv_write.
 * The number of ops; 0: something else. */
static int32_t heads_of_linears(const call_range &range, int32_t from, const qr_linear_args *const *linears,
                                heads_ops &ops) {
    int32_t i = from;
    const auto rope_of = [&](const qr_linear_args &args) {
        const qr_rope_args *rope = range.get<qr_rope_args>(i, QR_OP_rope);
        if (rope == NULL || !rotates(*rope, args)) { return static_cast<const qr_rope_args *>(NULL); }
        i++;
        return rope;
    };
    ops.q.rope = rope_of(*linears[0]);
    ops.k.rope = rope_of(*linears[1]);
    ops.write = range.get<qr_kv_write_args>(i, QR_OP_kv_write);
    if (ops.write == NULL || !writes_heads(*ops.write, *linears[1], *linears[2])) { return 0; }
    const int64_t dim = ops.write->layout.head_dim;
    const bool same_dim =
        (ops.q.rope == NULL || ops.q.rope->head_dim == dim) && (ops.k.rope == NULL || ops.k.rope->head_dim == dim);
    const bool accumulates = linears[0]->accumulate || linears[1]->accumulate || linears[2]->accumulate;
    return same_dim && !accumulates ? i + 1 - from : 0;
}

static qrun_status run_linears(qr_cuda_backend &cuda, const call_range &range, int32_t *n_taken, qr_error *err) {
    const qr_linear_args *linears[LINEAR_GROUP_MOST];
    linear_with with = {};
    with.norm = range.get<qr_rms_norm_args>(0, QR_OP_rms_norm);
    const int32_t first = with.norm != NULL ? 1 : 0;
    const int n = linears_of(range, first, LINEAR_GROUP_MOST, linears);
    if (n == 0 || (with.norm != NULL && !makes_x(*with.norm, *linears[0]))) { return QRUN_OK; }
    for (int i = 0; i < n; i++) {
        if (!leaves_x(output_of(*linears[i]), with.norm, *linears[i])) { return QRUN_OK; }
    }
    const qr_gate_args *gate = n == 2 ? range.get<qr_gate_args>(first + 2, QR_OP_gate) : NULL;
    if (gate != NULL && gates(*gate, *linears[0], *linears[1]) &&
        leaves_x(rows_of(gate->dst, gate->dst_dtype, gate->n_rows, gate->dim, gate->dim), with.norm, *linears[0])) {
        with.gate = gate;
    }
    heads_ops heads = {};
    const int32_t n_heads = n == 3 ? heads_of_linears(range, first + n, linears, heads) : 0;
    if (n_heads > 0) {
        with.heads = &heads;
        if (qr_cuda_linear_group_takes(cuda, linears, n, with)) {
            *n_taken = first + n + n_heads;
            return qr_cuda_linear_group(cuda, linears, n, with, err);
        }
        with.heads = NULL;
    }
    const int32_t n_ops = first + n + (with.gate != NULL ? 1 : 0);
    if (n_ops < 2 || !qr_cuda_linear_group_takes(cuda, linears, n, with)) { return QRUN_OK; }
    *n_taken = n_ops;
    return qr_cuda_linear_group(cuda, linears, n, with, err);
}

/* --- Heads --- */

static rows_of_bytes heads_of(const qr_rope_args &rope) {
    return rows_of(rope.x, QR_DTYPE_F32, rope.n_tokens, rope.n_heads * rope.head_dim, rope.x_stride);
}

/* Of each head, in place. */
static bool norms_heads(const qr_rms_norm_args &norm, const qr_rope_args &rope) {
    return norm.src == rope.x && norm.dst == rope.x && norm.dst_dtype == QR_DTYPE_F32 &&
           norm.src_stride == rope.x_stride && norm.dst_stride == rope.x_stride && norm.n_rows == rope.n_tokens &&
           norm.n_groups == rope.n_heads && norm.dim == rope.head_dim && norm.dim <= VEC4_BLOCK_DIM;
}

static bool writes(const qr_kv_write_args &write, const qr_rope_args &rope) {
    return !write.layout.keys_are_values && write.k == rope.x && write.k_stride == rope.x_stride &&
           write.n_tokens == rope.n_tokens && write.layout.n_kv_heads == rope.n_heads &&
           write.layout.head_dim == rope.head_dim;
}

static qrun_status run_heads(qr_cuda_backend &cuda, const call_range &range, int32_t *n_taken, qr_error *err) {
    heads_ops ops = {};
    int32_t i = 0;
    ops.q.norm = range.get<qr_rms_norm_args>(i, QR_OP_rms_norm);
    i += ops.q.norm != NULL ? 1 : 0;
    ops.q.rope = range.get<qr_rope_args>(i++, QR_OP_rope);
    ops.k.norm = range.get<qr_rms_norm_args>(i, QR_OP_rms_norm);
    i += ops.k.norm != NULL ? 1 : 0;
    ops.k.rope = range.get<qr_rope_args>(i++, QR_OP_rope);
    ops.write = range.get<qr_kv_write_args>(i++, QR_OP_kv_write);
    if (ops.q.rope == NULL || ops.k.rope == NULL || ops.write == NULL) { return QRUN_OK; }
    const bool norms_fit = (ops.q.norm == NULL || norms_heads(*ops.q.norm, *ops.q.rope)) &&
                           (ops.k.norm == NULL || norms_heads(*ops.k.norm, *ops.k.rope));
    const qr_kv_write_args &write = *ops.write;
    const rows_of_bytes q = heads_of(*ops.q.rope), k = heads_of(*ops.k.rope);
    const rows_of_bytes v =
        rows_of(write.v, QR_DTYPE_F32, write.n_tokens,
                static_cast<int64_t>(write.layout.n_kv_heads) * write.layout.head_dim, write.v_stride);
    if (!norms_fit || !writes(write, *ops.k.rope) || ops.q.rope->n_tokens != write.n_tokens || !are_apart(q, k) ||
        !are_apart(q, v) || !are_apart(k, v)) {
        return QRUN_OK;
    }
    *n_taken = i;
    return qr_cuda_heads(cuda, ops, err);
}

qrun_status qr_cuda_run_group(qr_backend *backend, const qr_op_call *calls, int32_t n_calls, int32_t *n_taken,
                              qr_error *err) {
    qr_cuda_backend &cuda = *qr_cuda(backend);
    const call_range range = {calls, n_calls};
    *n_taken = 0;
    const qrun_status status = run_linears(cuda, range, n_taken, err);
    return *n_taken > 0 || status != QRUN_OK ? status : run_heads(cuda, range, n_taken, err);
}
