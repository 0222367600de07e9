/* attention over pages: which kernels a batch is given to. Where dst and the pages are of 16 bits or less and head_dim
 * is a multiple of 16, the tensor cores (attention_mma.cuh); else attention_scalar.cu.
 *
 * On the tensor cores a context of more than one split is shared by a block a split, whose results are joined
 * afterwards; for tokens that come alone, and for a batch of few. Chunks walk over their splits and read each key once
 * for 64 rows. What is launched follows from n_tokens, n_seqs, table_stride, the heads and the window.
 *
 * A sink joins after the last split. */
#include "kernels/cuda/attention/attention.cuh"

enum {
    FEW_TOKENS = 16, /* more than there are sequences: still a block a split for all */
    TOKEN_ROWS = 16, /* of a tile then */
    JOIN_THREADS = 128,
    JOIN_BATCH = 8, /* splits whose sums are under way at once */
};

static bool uses_mma(const qr_attention_args &args) {
    const qr_kv_layout &layout = args.layout;
    return args.dst_dtype != QR_DTYPE_F32 && layout.format != QR_KV_F32 && layout.head_dim % 16 == 0 &&
           layout.head_dim <= 256;
}

/* Splits that the rows of a tile see at most. */
static int32_t slots_of(const qr_attention_args &args) {
    const int64_t in_table = split_of(args.table_stride * QR_KV_PAGE_TOKENS - 1) + 1;
    if (args.window == 0) { return static_cast<int32_t>(in_table); }
    const int64_t span = static_cast<int64_t>(args.window) + TOKEN_ROWS - 1;
    return static_cast<int32_t>(qr_min(in_table, (span - 1) / SPLIT_TOKENS + 2));
}

static bool few_tokens(const qr_attention_args &args) {
    return args.n_tokens <= static_cast<int64_t>(args.n_seqs) + FEW_TOKENS;
}

/* Rows of partial results: of every token of a few, else of a token a sequence. */
static int64_t partial_rows(const qr_attention_args &args) {
    return qr_min(args.n_tokens, static_cast<int64_t>(args.n_seqs) + FEW_TOKENS) * args.n_heads;
}

static size_t attention_workspace(const qr_attention_args &args) {
    const int32_t n_slots = slots_of(args);
    if (!uses_mma(args) || n_slots == 1) { return 0; }
    const size_t partial_bytes = static_cast<size_t>(args.layout.head_dim) * sizeof(float) + sizeof(softmax_state);
    return static_cast<size_t>(partial_rows(args) * n_slots) * partial_bytes;
}

/* A block for one row: joins the partial results of the splits, in order. grid: tokens, or sequences; heads. */
__global__ void attention_join_kernel(qr_attention_args a, attention_tiling tiling, float weight_scale) {
    await_previous();
    admit_next();
    int32_t token = static_cast<int32_t>(blockIdx.x), seq = token;
    if (tiling.part == PART_SINGLE_TOKENS) {
        if (a.q_start[seq + 1] - a.q_start[seq] != 1) { return; }
        token = a.q_start[seq];
    } else {
        seq = last_at_or_before(a.n_seqs, token, [&](int32_t s) { return a.q_start[s]; });
        if (token >= a.q_start[seq + 1]) { return; }
    }
    const int32_t head = static_cast<int32_t>(blockIdx.y), head_dim = a.layout.head_dim;
    const int32_t last = a.first_position[seq] + (token - a.q_start[seq]);
    const int32_t first_split = split_of(first_seen(a, last)), last_split = split_of(last);
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < head_dim; j += JOIN_THREADS) {
        softmax_state joined = {-INFINITY, 0.0F}, states[JOIN_BATCH];
        float sum = 0.0F, sums[JOIN_BATCH];
        for (int32_t split = first_split; split <= last_split; split += JOIN_BATCH) {
#pragma unroll
            for (int i = 0; i < JOIN_BATCH; i++) {
                if (split + i > last_split) { break; }
                const int64_t at = partial_at(a, tiling, seq, token, head, split + i);
                states[i] = tiling.states[at];
                sums[i] = tiling.sums[at * head_dim + j];
            }
#pragma unroll
            for (int i = 0; i < JOIN_BATCH; i++) {
                if (split + i > last_split) { break; }
                const join_factors factors = join_split(joined, states[i]);
                sum = join_sum(sum, sums[i], factors);
            }
        }
        sum *= join_sink(a, head, joined);
        store_from_f32(a.dst, a.dst_dtype, static_cast<int64_t>(token * a.n_heads + head) * head_dim + j,
                       attention_value(sum, joined.total, weight_scale));
    }
}

static qrun_status launch_mma(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_tiling &tiling,
                              bool large, qr_error *err) {
    switch (args.layout.format) {
        case QR_KV_INT8: return qr_cuda_attention_mma<kv_int8>(cuda, args, tiling, large, err);
        case QR_KV_F16: return qr_cuda_attention_mma<kv_f16>(cuda, args, tiling, large, err);
        default: return qr_cuda_attention_mma<kv_bf16>(cuda, args, tiling, large, err);
    }
}

/* A block a split, and the join. */
static qrun_status launch_splits(qr_cuda_backend &cuda, const qr_attention_args &args, attention_tiling tiling,
                                 void *workspace, qr_error *err) {
    tiling.sums = static_cast<float *>(workspace);
    tiling.states =
        reinterpret_cast<softmax_state *>(tiling.sums + partial_rows(args) * tiling.n_slots * args.layout.head_dim);
    QR_RETURN_IF_ERROR(launch_mma(cuda, args, tiling, false, err));
    const int64_t n_tokens = tiling.part == PART_SINGLE_TOKENS ? args.n_seqs : args.n_tokens;
    const dim3 grid(static_cast<unsigned>(n_tokens), static_cast<unsigned>(args.n_heads));
    return QR_LAUNCH_EARLY(cuda.device, err, attention_join_kernel, grid, JOIN_THREADS, 0, args, tiling,
                           args.layout.format == QR_KV_F16 ? F16_WEIGHT_SCALE : 1.0F);
}

static qrun_status run_attention(qr_cuda_backend &cuda, const qr_attention_args &args, void *workspace, qr_error *err) {
    if (!uses_mma(args)) { return qr_cuda_attention_scalar(cuda, args, err); }
    attention_tiling tiling = {};
    tiling.part = PART_ALL;
    tiling.group = args.n_heads / args.layout.n_kv_heads;
    tiling.n_slots = slots_of(args);
    tiling.score_factor = args.softcap > 0.0F ? args.scale / args.softcap : args.scale * LOG2_E;
    tiling.score_cap = args.softcap * LOG2_E;
    tiling.q_pairs = reinterpret_cast<uintptr_t>(args.q) % 8 == 0 && args.q_stride % 2 == 0;
    const bool few = few_tokens(args);
    if (tiling.n_slots == 1) { return launch_mma(cuda, args, tiling, !few, err); }
    if (few) { return launch_splits(cuda, args, tiling, workspace, err); }
    tiling.part = PART_SINGLE_TOKENS;
    QR_RETURN_IF_ERROR(launch_splits(cuda, args, tiling, workspace, err));
    tiling.part = PART_CHUNKS;
    return launch_mma(cuda, args, tiling, true, err);
}

static bool supports_attention(const qr_attention_args &args, qr_error *err) {
    if (args.n_tokens > INT32_MAX / 2 / args.n_heads) {
        qr_fail(err, QRUN_ERROR_ARGUMENT,
                "attention: %lld tokens of %d heads are more than 2^30 rows; make the steps smaller",
                static_cast<long long>(args.n_tokens), static_cast<int>(args.n_heads));
        return false;
    }
    if (uses_mma(args) && reinterpret_cast<uintptr_t>(args.pages) % 16 != 0) {
        qr_fail(err, QRUN_ERROR_ARGUMENT, "attention: the pages must begin at a multiple of 16 bytes");
        return false;
    }
    return true;
}

QR_CUDA_OP_IF(attention, supports_attention, attention_workspace, run_attention)
