/* The operands of attention_packed and its gradient, converted to BF16 or bf16x2 splits in the workspace
 * (attention_packed_mma.cuh), a thread for eight elements. */
#include "kernels/cuda/attention/attention_packed_mma.cuh"
#include "kernels/cuda/device/vec4.cuh"

enum { THREADS = 256 };

/* --- The workspace --- */

static size_t rows_at(split_rows *operands, unsigned char *workspace, size_t at, int64_t n_heads,
                      const qr_attention_packed_args &args, bool is_split) {
    const size_t n_bytes =
        static_cast<size_t>(n_heads * args.n_tokens * tile_row_pitch(args.head_dim)) * sizeof(uint16_t);
    if (workspace != NULL) {
        operands->high = reinterpret_cast<uint16_t *>(workspace + at);
        operands->low = is_split ? reinterpret_cast<uint16_t *>(workspace + at + n_bytes) : NULL;
    }
    return at + (is_split ? 2 : 1) * n_bytes;
}

/* Bytes of the workspace; without one, nothing else. */
static size_t lay_out(packed_operands *operands, unsigned char *workspace, const qr_attention_packed_args &args,
                      bool is_backward) {
    const packed_form form = packed_form_of(args);
    const bool kv_split = form == PACKED_SPLIT, split = form != PACKED_BF16;
    size_t at = rows_at(&operands->k, workspace, 0, args.n_kv_heads, args, kv_split);
    at = rows_at(&operands->v, workspace, at, args.n_kv_heads, args, kv_split);
    at = rows_at(&operands->q, workspace, at, args.n_heads, args, split);
    if (!is_backward) { return at; }
    at = rows_at(&operands->dout, workspace, at, args.n_heads, args, split);
    if (workspace != NULL) { operands->stats = reinterpret_cast<query_stats *>(workspace + at); }
    return at + static_cast<size_t>(args.n_tokens * args.n_heads) * sizeof(query_stats);
}

size_t qr_cuda_packed_operands_bytes(const qr_attention_packed_args &args, bool is_backward) {
    packed_operands operands;
    return lay_out(&operands, NULL, args, is_backward);
}

/* --- Filling it --- */

static QR_DEVICE void store_vec8(const split_rows &rows, int64_t at, const float x[8]) {
    uint4 high, low;
    split_vec8(x, high, low);
    *reinterpret_cast<uint4 *>(rows.high + at) = high;
    if (rows.low != NULL) { *reinterpret_cast<uint4 *>(rows.low + at) = low; }
}

/* A thread's eight elements: of this token, from element j on. chunk_bits: log2 of the threads a row. */
struct eight_place {
    int64_t token;
    int j;
};

static QR_DEVICE eight_place eight_place_of(int chunk_bits) {
    const int64_t i = global_thread();
    return {i >> chunk_bits, static_cast<int>(i & ((1 << chunk_bits) - 1)) * 8};
}

/* The y dimension of the grid: heads of k, of v, of q. */
__global__ void attention_split_qkv_kernel(qr_attention_packed_args a, packed_operands operands, int chunk_bits,
                                           bool is_aligned) {
    const eight_place place = eight_place_of(chunk_bits);
    if (place.token >= a.n_tokens) { return; }
    const int row = static_cast<int>(blockIdx.y), n_kv = a.n_kv_heads;
    const float *src = row < n_kv ? a.k : row < 2 * n_kv ? a.v : a.q;
    const split_rows &dst = row < n_kv ? operands.k : row < 2 * n_kv ? operands.v : operands.q;
    const int head = row < n_kv ? row : row < 2 * n_kv ? row - n_kv : row - 2 * n_kv;
    float x[8];
    load_vec8(x, src + place.token * a.qkv_stride + head * a.head_dim, place.j, a.head_dim, is_aligned);
    if (row < 2 * n_kv) {
#pragma unroll
        for (int i = 0; i < 8; i++) { x[i] = rounded_kv(a, x[i]); }
    }
    store_vec8(dst, ((head * a.n_tokens + place.token) << (chunk_bits + 3)) + place.j, x);
}

/* dout, and the stats of its queries: the threads of a row, which are of one warp, add their parts of delta up. delta
 * is of dout as it is multiplied with v: the sum over the keys of p · (dp − delta), which is zero, stays so. */
__global__ void attention_split_dout_kernel(qr_attention_packed_backward_args a, packed_operands operands,
                                            int chunk_bits, bool is_aligned) {
    const qr_attention_packed_args &f = a.forward;
    const eight_place place = eight_place_of(chunk_bits);
    const bool is_inside = place.token < f.n_tokens;
    const int64_t head = blockIdx.y, index = (is_inside ? place.token : 0) * f.n_heads + head;
    float x[8];
    load_vec8(x, a.dout + index * f.head_dim, place.j, f.head_dim, is_aligned);
    float delta = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (operands.dout.low == NULL) { x[i] = bf16_to_f32(f32_to_bf16(x[i])); }
        if (place.j + i >= f.head_dim) { continue; }
        delta = fmaf(x[i], load_as_f32(f.dst, f.dst_dtype, index * f.head_dim + place.j + i), delta);
    }
    for (unsigned mask = 1U << chunk_bits >> 1; mask > 0; mask /= 2) { delta += warp_shuffle_xor(delta, mask); }
    if (!is_inside) { return; }
    const int64_t row = head * f.n_tokens + place.token;
    store_vec8(operands.dout, (row << (chunk_bits + 3)) + place.j, x);
    if (place.j == 0) { operands.stats[row] = {f.lse[index] * PACKED_LOG2E, delta}; }
}

static qrun_status fill_qkv(qr_cuda_backend &cuda, const qr_attention_packed_args &args,
                            const packed_operands &operands, qr_error *err) {
    const int chunk_bits = __builtin_ctz(static_cast<unsigned>(tile_row_pitch(args.head_dim) / 8));
    const bool is_aligned = vec4_aligned(args.q, args.qkv_stride) && vec4_aligned(args.k, args.head_dim) &&
                            vec4_aligned(args.v, args.head_dim);
    dim3 grid = blocks_for(args.n_tokens << chunk_bits, THREADS);
    grid.y = static_cast<unsigned>(2 * args.n_kv_heads + args.n_heads);
    return QR_LAUNCH(cuda.device, err, attention_split_qkv_kernel, grid, THREADS, 0, args, operands, chunk_bits,
                     is_aligned);
}

qrun_status qr_cuda_packed_forward_operands(qr_cuda_backend &cuda, const qr_attention_packed_args &args,
                                            void *workspace, packed_operands *operands, qr_error *err) {
    *operands = {};
    lay_out(operands, static_cast<unsigned char *>(workspace), args, false);
    return fill_qkv(cuda, args, *operands, err);
}

qrun_status qr_cuda_packed_backward_operands(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                                             void *workspace, packed_operands *operands, qr_error *err) {
    const qr_attention_packed_args &f = args.forward;
    const int chunk_bits = __builtin_ctz(static_cast<unsigned>(tile_row_pitch(f.head_dim) / 8));
    *operands = {};
    lay_out(operands, static_cast<unsigned char *>(workspace), f, true);
    QR_RETURN_IF_ERROR(fill_qkv(cuda, f, *operands, err));
    dim3 grid = blocks_for(f.n_tokens << chunk_bits, THREADS);
    grid.y = static_cast<unsigned>(f.n_heads);
    return QR_LAUNCH(cuda.device, err, attention_split_dout_kernel, grid, THREADS, 0, args, *operands, chunk_bits,
                     vec4_aligned(args.dout, f.head_dim));
}
