/* The operands of attention_packed and its gradient, converted to BF16 or bf16x2 splits in the workspace
 * (attention_packed_mma.cuh). A thread takes eight elements of some tokens, all of whose loads are under way before the
 * first is used. Blocks of the same tokens follow each other, head by head, as the rows lie in memory. */
#include "kernels/cuda/attention/attention_packed_mma.cuh"
#include "kernels/cuda/device/vec4.cuh"

enum {
    THREADS = 256,
    PIECES = 4, /* of eight elements a thread, a block's width apart */
};

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

/* What a block takes: a head, or several operands' heads in one count, and pieces of its tokens. chunk_bits: log2 of
 * the threads a row. */
struct head_pieces {
    int n_heads, chunk_bits;

    QR_DEVICE int head() const { return static_cast<int>(blockIdx.x % static_cast<unsigned>(n_heads)); }
    QR_DEVICE int64_t index(int piece) const {
        const int64_t group = blockIdx.x / static_cast<unsigned>(n_heads);
        return (group * PIECES + piece) * THREADS + threadIdx.x;
    }
    QR_DEVICE int64_t token(int piece) const { return index(piece) >> chunk_bits; }
    /* The first of the eight elements; of every piece. */
    QR_DEVICE int element() const { return static_cast<int>(threadIdx.x & ((1U << chunk_bits) - 1)) * 8; }
};

/* Heads of k, of v, of q. */
__global__ void attention_split_qkv_kernel(qr_attention_packed_args a, packed_operands operands, head_pieces pieces,
                                           bool is_aligned) {
    const int row = pieces.head(), j = pieces.element(), n_kv = a.n_kv_heads;
    const float *src = row < n_kv ? a.k : row < 2 * n_kv ? a.v : a.q;
    const split_rows k = operands.k, v = operands.v, q = operands.q, dst = row < n_kv ? k : row < 2 * n_kv ? v : q;
    const int head = row < n_kv ? row : row < 2 * n_kv ? row - n_kv : row - 2 * n_kv;
    float x[PIECES][8];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int64_t token = pieces.token(p);
        if (token >= a.n_tokens) { continue; }
        load_vec8(x[p], src + token * a.qkv_stride + head * a.head_dim, j, a.head_dim, is_aligned);
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int64_t token = pieces.token(p);
        if (token >= a.n_tokens) { continue; }
        if (row < 2 * n_kv) {
#pragma unroll
            for (int i = 0; i < 8; i++) { x[p][i] = rounded_kv(a, x[p][i]); }
        }
        store_vec8(dst, ((head * a.n_tokens + token) << (pieces.chunk_bits + 3)) + j, x[p]);
    }
}

/* Elements [j, j + 8) of a row of n of 16 bits; zeros after its end. aligned: rows begin at multiples of 16 bytes. */
static QR_DEVICE uint4 load_eight16(const uint16_t *row, int j, int n, bool aligned) {
    if (aligned && j + 8 <= n) { return *reinterpret_cast<const uint4 *>(row + j); }
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = j + 2 * i;
        const uint16_t zero = 0;
        pairs[i] = pack16(at < n ? row[at] : zero, at + 1 < n ? row[at + 1] : zero);
    }
    return pack_words(pairs);
}

/* dout, and the stats of its queries: the threads of a row, which are of one warp, add their parts of delta up. delta
 * is of dout as it is multiplied with v: the sum over the keys of p · (dp − delta), which is zero, stays so. */
__global__ void attention_split_dout_kernel(qr_attention_packed_backward_args a, packed_operands operands,
                                            head_pieces pieces, bool dout_aligned, bool out_aligned) {
    const qr_attention_packed_args &f = a.forward;
    const int64_t head = pieces.head();
    const int j = pieces.element();
    float x[PIECES][8], lse[PIECES] = {};
    uint4 out[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int64_t token = pieces.token(p), index = (token < f.n_tokens ? token : 0) * f.n_heads + head;
        load_vec8(x[p], a.dout + index * f.head_dim, j, f.head_dim, dout_aligned);
        out[p] = load_eight16(static_cast<const uint16_t *>(f.dst) + index * f.head_dim, j, f.head_dim, out_aligned);
        if (j == 0) { lse[p] = f.lse[index]; }
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int64_t token = pieces.token(p), row = head * f.n_tokens + token;
        const uint32_t pairs[] = {out[p].x, out[p].y, out[p].z, out[p].w};
        float delta = 0.0F;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint16_t bits = static_cast<uint16_t>(pairs[i / 2] >> i % 2 * 16);
            if (operands.dout.low == NULL) { x[p][i] = bf16_to_f32(f32_to_bf16(x[p][i])); }
            delta = fmaf(x[p][i], f.dst_dtype == QR_DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits), delta);
        }
        for (unsigned mask = 1U << pieces.chunk_bits >> 1; mask > 0; mask /= 2) {
            delta += warp_shuffle_xor(delta, mask);
        }
        if (token >= f.n_tokens) { continue; }
        store_vec8(operands.dout, (row << (pieces.chunk_bits + 3)) + j, x[p]);
        if (j == 0) { operands.stats[row] = {lse[p] * PACKED_LOG2E, delta}; }
    }
}

static head_pieces pieces_of(const qr_attention_packed_args &args, int n_heads) {
    return {n_heads, __builtin_ctz(static_cast<unsigned>(tile_row_pitch(args.head_dim) / 8))};
}

static dim3 grid_of(const qr_attention_packed_args &args, const head_pieces &pieces) {
    dim3 grid = blocks_for(args.n_tokens << pieces.chunk_bits, PIECES * THREADS);
    grid.x *= static_cast<unsigned>(pieces.n_heads);
    return grid;
}

static qrun_status fill_qkv(qr_cuda_backend &cuda, const qr_attention_packed_args &args,
                            const packed_operands &operands, qr_error *err) {
    const head_pieces pieces = pieces_of(args, 2 * args.n_kv_heads + args.n_heads);
    const bool is_aligned = vec4_aligned(args.q, args.qkv_stride) && vec4_aligned(args.k, args.head_dim) &&
                            vec4_aligned(args.v, args.head_dim);
    return QR_LAUNCH(cuda.device, err, attention_split_qkv_kernel, grid_of(args, pieces), THREADS, 0, args, operands,
                     pieces, is_aligned);
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
    const head_pieces pieces = pieces_of(f, f.n_heads);
    const bool out_aligned = reinterpret_cast<uintptr_t>(f.dst) % 16 == 0 && f.head_dim % 8 == 0;
    *operands = {};
    lay_out(operands, static_cast<unsigned char *>(workspace), f, true);
    QR_RETURN_IF_ERROR(fill_qkv(cuda, f, *operands, err));
    return QR_LAUNCH(cuda.device, err, attention_split_dout_kernel, grid_of(f, pieces), THREADS, 0, args, *operands,
                     pieces, vec4_aligned(args.dout, f.head_dim), out_aligned);
}
