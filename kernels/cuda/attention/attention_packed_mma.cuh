/* attention_packed and its gradient on the tensor cores, for dst of 16 bits: flash attention (Dao, "FlashAttention-2",
 * 2023) with 16 rows a warp or twice 16. Operands are bf16x2 splits (bf16x2_tiles.cuh), so that results differ from
 * those of F32 sums by at most 2^-15 of their terms; K and V that are rounded to BF16 need no low part, and where
 * bf16_products permits it, nothing has one.
 *
 * First, q, K and V (and for the gradient dout) are converted to BF16 in the workspace. Each is read once for every
 * tile of the other side, then in the form that is needed: 16 bytes at a time, straight to shared memory.
 *
 * Tiles are aligned to the beginning of a sequence, and tiles that a warp does not see add nothing, so the order of
 * every sum follows from the sequence alone. */
#ifndef QR_KERNELS_CUDA_ATTENTION_PACKED_MMA_CUH
#define QR_KERNELS_CUDA_ATTENTION_PACKED_MMA_CUH

#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/attention/attention_packed.cuh"
#include "kernels/cuda/device/bf16x2_tiles.cuh"

#define PACKED_LOG2E 1.44269504088896340736F
#define PACKED_LN2 0.69314718055994530942F

/* [heads][n_tokens][tile_row_pitch(head_dim)] BF16, zeros from head_dim on. low: only of split values. */
struct split_rows {
    uint16_t *high, *low;
};

/* Of a query and head: its lse in units of log 2, and delta = sum over head_dim of dout · out. */
struct alignas(8) query_stats {
    float lse2, delta;
};

struct packed_operands {
    split_rows k, v, q, dout;
    query_stats *stats; /* [n_heads][n_tokens] */
};

/* What the operands of the products are. */
enum packed_form {
    PACKED_SPLIT,    /* pairs */
    PACKED_EXACT_KV, /* split, but k and v are in BF16 already */
    PACKED_BF16,     /* k and v are in BF16 already, and everything else is rounded to it */
};

static inline packed_form packed_form_of(const qr_attention_packed_args &args) {
    if (!args.round_kv || args.dst_dtype == QR_DTYPE_F16) { return PACKED_SPLIT; }
    return args.bf16_products ? PACKED_BF16 : PACKED_EXACT_KV;
}

/* attention_packed_operands.cu: the workspace, and filling it. */
size_t qr_cuda_packed_operands_bytes(const qr_attention_packed_args &args, bool is_backward);
qrun_status qr_cuda_packed_forward_operands(qr_cuda_backend &cuda, const qr_attention_packed_args &args,
                                            void *workspace, packed_operands *operands, qr_error *err);
qrun_status qr_cuda_packed_backward_operands(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                                             void *workspace, packed_operands *operands, qr_error *err);

/* The ops over these operands. */
qrun_status qr_cuda_packed_forward(qr_cuda_backend &cuda, const qr_attention_packed_args &args, void *workspace,
                                   qr_error *err);
qrun_status qr_cuda_packed_dq(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                              const packed_operands &operands, qr_error *err);
qrun_status qr_cuda_packed_dkv(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                               const packed_operands &operands, qr_error *err);

/* What a block works on: warps of 16 rows (queries; for dk and dv keys) or twice 16, and some keys or queries at a
 * time, backward in one or two buffers. With these sizes a block has at most 96.5 KB of shared memory (sm_86 and sm_89
 * allow 99), and there are registers enough for …_BLOCKS blocks on a multiprocessor without spills that count. */
template <int DIM, packed_form form> struct packed_shape {
    static constexpr bool KV_SPLIT = form == PACKED_SPLIT; /* what k and v are */
    static constexpr bool PAIRS = true;                    /* what everything else is */
    enum {
        FORWARD_WARPS = 4,
        FORWARD_SIXTEENS = 1, /* of rows, a warp */
        FORWARD_KEYS = DIM <= 128 ? 32 : 16,
        FORWARD_BLOCKS = DIM <= 64 ? 3 : 2,
        FORWARD_KEEPS_Q = DIM <= 128, /* in registers */
        BACKWARD_WARPS = DIM <= 128 ? 4 : 2,
        BACKWARD_BLOCKS = DIM <= 64 ? 3 : 2,
        STAGES = DIM <= 128 || !KV_SPLIT ? 2 : 1,
        DQ_KEYS = DIM <= 128 ? 32 : 16,
        DQ_KEEPS_Q = DIM <= 128,
        DKV_QUERIES = DIM <= 64 || (DIM <= 128 && !KV_SPLIT) ? 32 : 16,
    };
};

/* One product to a fragment of 16 rows takes no longer than loading the fragment: of k and v each is for 32 queries
 * forward, and q is read again in place of taking the registers of the second sixteen's sums. */
template <int DIM> struct packed_shape<DIM, PACKED_BF16> {
    static constexpr bool KV_SPLIT = false, PAIRS = false;
    enum {
        FORWARD_WARPS = 4,
        FORWARD_SIXTEENS = DIM <= 128 ? 2 : 1,
        FORWARD_KEYS = DIM <= 64 ? 64 : 32,
        FORWARD_BLOCKS = 2,
        FORWARD_KEEPS_Q = false,
        BACKWARD_WARPS = 4,
        BACKWARD_BLOCKS = DIM <= 64 ? 3 : 2,
        STAGES = 2,
        DQ_KEYS = DIM <= 128 ? 32 : 16,
        DQ_KEEPS_Q = DIM <= 128,
        DKV_QUERIES = DIM <= 128 ? 32 : 16,
    };
};

/* Elements in the tiles of `rows` rows. */
static constexpr unsigned split_tile_size(int rows, int dim, bool is_split) {
    return static_cast<unsigned>(rows * tile_row_pitch(dim) * (is_split ? 2 : 1));
}

template <int DIM, bool is_split> static QR_DEVICE split_tile split_tile_at(uint16_t *at, int rows) {
    return {at, is_split ? at + rows * tile_row_pitch(DIM) : at};
}

/* Rows [first_row, first_row + n_rows) of an operand, zeros up to ROWS. */
template <int DIM, int ROWS, int n_threads, bool is_split>
static QR_DEVICE void copy_split_tile(const split_tile &tile, const split_rows &operands, int64_t first_row,
                                      int n_rows) {
    copy_tile<DIM, ROWS, n_threads>(tile.high, operands.high + first_row * tile_row_pitch(DIM), n_rows);
    if (is_split) { copy_tile<DIM, ROWS, n_threads>(tile.low, operands.low + first_row * tile_row_pitch(DIM), n_rows); }
}

/* Two tiles for each stage, at `at` in shared memory: of k and v, or of q and dout. */
template <int DIM, int ROWS, int n_threads, bool is_split> struct staged_tiles {
    enum { SIZE = split_tile_size(ROWS, DIM, is_split) };
    uint16_t *at;

    QR_DEVICE split_tile first(int stage) const { return split_tile_at<DIM, is_split>(at + stage * 2 * SIZE, ROWS); }
    QR_DEVICE split_tile second(int stage) const {
        return split_tile_at<DIM, is_split>(at + (stage * 2 + 1) * SIZE, ROWS);
    }
    QR_DEVICE void copy(int stage, const split_rows &of_first, const split_rows &of_second, int64_t first_row,
                        int n_rows) const {
        copy_split_tile<DIM, ROWS, n_threads, is_split>(first(stage), of_first, first_row, n_rows);
        copy_split_tile<DIM, ROWS, n_threads, is_split>(second(stage), of_second, first_row, n_rows);
    }
};

/* Where a block is: rows [first, first + ROWS) of the sequence [begin, end). No row: first ≥ end. */
struct packed_tile {
    int begin, end, first;
};

/* Tile `index` of the batch. Sequence s has the indices from seq_start[s] / ROWS + s on, which are enough for it; those
 * left over are empty tiles. All lanes of a warp. */
template <int ROWS> static QR_DEVICE packed_tile packed_tile_of(const qr_attention_packed_args &a, int index) {
    int n_begun = 0;
    for (int s = static_cast<int>(lane_index()); s < a.n_seqs; s += WARP_LANES) {
        n_begun += a.seq_start[s] / ROWS + s <= index ? 1 : 0;
    }
    const int seq = warp_sum(n_begun) - 1, begin = a.seq_start[seq];
    return {begin, a.seq_start[seq + 1], begin + (index - (begin / ROWS + seq)) * ROWS};
}

static inline unsigned packed_tiles(const qr_attention_packed_args &args, int rows) {
    return static_cast<unsigned>(args.n_tokens / rows + args.n_seqs);
}

/* A block of the kernels by queries: a tile of ROWS queries of one head. Longest first: the last queries of a sequence,
 * which see most keys, are at the beginning of the grid. */
struct query_block {
    packed_tile tile;
    int head, kv_head;
};

template <int ROWS> static QR_DEVICE query_block query_block_of(const qr_attention_packed_args &a) {
    const int n_tiles = static_cast<int>(gridDim.x) / a.n_heads;
    const int head = static_cast<int>(blockIdx.x) % a.n_heads;
    return {packed_tile_of<ROWS>(a, n_tiles - 1 - static_cast<int>(blockIdx.x) / a.n_heads), head,
            head / (a.n_heads / a.n_kv_heads)};
}

/* The tiles of KEYS keys that a tile of queries sees anything of. */
struct key_range {
    int first, n_tiles;
};

template <int ROWS, int KEYS>
static QR_DEVICE key_range keys_seen(const qr_attention_packed_args &a, const packed_tile &tile) {
    const int behind = tile.first - tile.begin - a.window + 1, unseen = a.window > 0 && behind > 0 ? behind : 0;
    const int first = tile.begin + unseen / KEYS * KEYS;
    const int end = tile.first + ROWS < tile.end ? tile.first + ROWS : tile.end;
    return {first, (end - first + KEYS - 1) / KEYS};
}

static QR_DEVICE bool sees_key(const qr_attention_packed_args &a, int query, int key) {
    return (key <= query) & ((a.window == 0) | (query - key < a.window)); /* of lanes: no branches */
}

/* Whether each of n_queries queries sees each of n_keys keys, and whether any does. */
static QR_DEVICE bool all_seen(const qr_attention_packed_args &a, int query, int n_queries, int key, int n_keys) {
    return key + n_keys - 1 <= query && sees_key(a, query + n_queries - 1, key);
}

static QR_DEVICE bool any_seen(const qr_attention_packed_args &a, int query, int n_queries, int key, int n_keys) {
    return key <= query + n_queries - 1 && (a.window == 0 || query - (key + n_keys - 1) < a.window);
}

/* The row of element i of a lane's four of a product, and its column, to which 8 · n is added. */
static QR_DEVICE int row_of(int i) { return static_cast<int>(lane_index()) / 4 + i / 2 * 8; }
static QR_DEVICE int column_of(int i) { return static_cast<int>(lane_index()) % 4 * 2 + i % 2; }

/* Two neighbours [j, j + 1] of a row of dim floats, at 8 bytes where `is_even`. */
static QR_DEVICE void store_two(float *row, int j, int dim, bool is_even, float first, float second) {
    if (j + 1 < dim && is_even) {
        *reinterpret_cast<uint2 *>(row + j) = make_uint2(__float_as_uint(first), __float_as_uint(second));
        return;
    }
    if (j < dim) { row[j] = first; }
    if (j + 1 < dim) { row[j + 1] = second; }
}

/* Rows of a gradient from a warp's sums, times `factor`: rows [first, end) of a view, 16 at most. */
template <int DIM>
static QR_DEVICE void store_gradient_rows(float *dst, int64_t stride, int dim, int first, int end,
                                          const float (*sums)[4], float factor) {
    const bool is_even = reinterpret_cast<uintptr_t>(dst) % 8 == 0 && stride % 2 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + row_of(2 * half);
        if (row >= end) { continue; }
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            store_two(dst + row * stride, 8 * n + column_of(0), dim, is_even, sums[n][2 * half] * factor,
                      sums[n][2 * half + 1] * factor);
        }
    }
}

/* Calls function<DIM, operands>(...) by the size of a head and what the operands are. Dims from head_dim on are
 * multiplied as zeros. */
#define QR_PACKED_MMA_DISPATCH(args, function, ...)                                                                    \
    (packed_form_of(args) == PACKED_SPLIT ? QR_PACKED_MMA_BY_DIM((args).head_dim, function, PACKED_SPLIT, __VA_ARGS__) \
     : packed_form_of(args) == PACKED_EXACT_KV                                                                         \
         ? QR_PACKED_MMA_BY_DIM((args).head_dim, function, PACKED_EXACT_KV, __VA_ARGS__)                               \
         : QR_PACKED_MMA_BY_DIM((args).head_dim, function, PACKED_BF16, __VA_ARGS__))
#define QR_PACKED_MMA_BY_DIM(head_dim, function, form, ...) \
    ((head_dim) <= 64    ? function<64, form>(__VA_ARGS__)  \
     : (head_dim) <= 96  ? function<96, form>(__VA_ARGS__)  \
     : (head_dim) <= 128 ? function<128, form>(__VA_ARGS__) \
                         : function<256, form>(__VA_ARGS__))

#endif
