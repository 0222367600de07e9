/* What attention over packed sequences and its gradient share: tiles of rows of one head in shared memory.
 *
 * Tiles are aligned to the beginning of a sequence, so the order of every sum follows from the sequence alone. A block
 * is SIDE × SIDE threads; thread (y, x) owns the scores of rows y, y + SIDE … and of columns x, x + SIDE …, PER of
 * each, and of a tile of results the same rows and the elements x, x + SIDE … of the head, COLS of them. Larger heads
 * come in CHUNKS of MAX_CHUNK elements, which take turns in shared memory. */
#ifndef QR_KERNELS_CUDA_ATTENTION_PACKED_CUH
#define QR_KERNELS_CUDA_ATTENTION_PACKED_CUH

#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"

enum { SIDE = 16, PACKED_THREADS = SIDE * SIDE, MAX_CHUNK = 256, MAX_CHUNKS = 2 };

/* Elements [first, first + n) of a head. */
struct head_chunk {
    int32_t first, n;
};

static QR_DEVICE head_chunk chunk_of(const qr_attention_packed_args &a, int chunk) {
    const int32_t first = chunk * MAX_CHUNK, n = a.head_dim - first;
    return {first, n < MAX_CHUNK ? n : static_cast<int32_t>(MAX_CHUNK)};
}

/* Elements of a row in shared memory. */
static __host__ QR_DEVICE int32_t chunk_elements(int32_t head_dim) {
    return head_dim < MAX_CHUNK ? head_dim : static_cast<int32_t>(MAX_CHUNK);
}

/* Rows of a tile lie an odd number of elements apart: neighbours in a column are then in different banks. */
static __host__ QR_DEVICE int32_t tile_pitch(int32_t head_dim) { return chunk_elements(head_dim) | 1; }

static QR_DEVICE unsigned thread_y() { return threadIdx.x / SIDE; }
static QR_DEVICE unsigned thread_x() { return threadIdx.x % SIDE; }

/* Where the sequence of this block lies: rows [begin, end). */
struct packed_rows {
    int64_t begin, end;
};

static QR_DEVICE packed_rows rows_of(const qr_attention_packed_args &a, int64_t seq) {
    return {a.seq_start[seq], a.seq_start[seq + 1]};
}

/* The first row that the query in row t sees. */
static QR_DEVICE int64_t first_seen(const qr_attention_packed_args &a, const packed_rows &rows, int64_t t) {
    return a.window > 0 && t - a.window + 1 > rows.begin ? t - a.window + 1 : rows.begin;
}

static QR_DEVICE bool sees(const qr_attention_packed_args &a, const packed_rows &rows, int64_t query, int64_t key) {
    return query < rows.end && key <= query && key >= first_seen(a, rows, query);
}

/* As a cache would hold it. */
static QR_DEVICE float rounded_kv(const qr_attention_packed_args &a, float value) {
    if (!a.round_kv) { return value; }
    return a.dst_dtype == QR_DTYPE_F16 ? f16_to_f32(f32_to_f16(value)) : bf16_to_f32(f32_to_bf16(value));
}

/* dst [TILE][pitch] = a chunk of rows [first, first + TILE) of one head; zeros from `end` on. */
template <int TILE, bool is_kv>
static __device__ void load_rows(const qr_attention_packed_args &a, const head_chunk &chunk, float *dst,
                                 const float *src, int64_t stride, int64_t first, int64_t end) {
    const int32_t pitch = tile_pitch(a.head_dim);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < TILE * chunk.n; i += PACKED_THREADS) {
        const int32_t row = i / chunk.n, j = i % chunk.n;
        float value = 0.0F;
        if (first + row < end) {
            value = src[(first + row) * stride + chunk.first + j];
            if (is_kv) { value = rounded_kv(a, value); }
        }
        dst[row * pitch + j] = value;
    }
}

/* dots[i][j] += row y + i · SIDE of left times row x + j · SIDE of right, n elements that lie `pitch` apart. */
template <int PER>
static QR_DEVICE void add_tile_dots(const float *left, const float *right, int32_t n, int32_t pitch,
                                    float dots[PER][PER]) {
    for (int32_t k = 0; k < n; k++) {
        float l[PER], r[PER];
#pragma unroll
        for (int i = 0; i < PER; i++) {
            l[i] = left[static_cast<int32_t>(thread_y() + i * SIDE) * pitch + k];
            r[i] = right[static_cast<int32_t>(thread_x() + i * SIDE) * pitch + k];
        }
#pragma unroll
        for (int i = 0; i < PER; i++) {
#pragma unroll
            for (int j = 0; j < PER; j++) { dots[i][j] = fmaf(l[i], r[j], dots[i][j]); }
        }
    }
}

/* sums[i][c] += over r of weights(y + i · SIDE, r) · values[r][x + c · SIDE]; weights [TILE][TILE + 1], read by rows,
 * or by columns where they are `transposed`. Only the first n_rows of the values count, which lie `pitch` apart and
 * have `dim` elements. */
template <int PER, int COLS, bool transposed>
static QR_DEVICE void add_weighted(const float *weights, const float *values, int32_t dim, int32_t pitch, int n_rows,
                                   float sums[PER][COLS]) {
    enum { TILE = PER * SIDE, PITCH = TILE + 1 };
    for (int r = 0; r < n_rows; r++) {
        float w[PER];
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int own = static_cast<int>(thread_y()) + i * SIDE;
            w[i] = weights[transposed ? r * PITCH + own : own * PITCH + r];
        }
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const int32_t j = static_cast<int32_t>(thread_x()) + c * SIDE;
            if (j >= dim) { continue; }
            const float value = values[r * pitch + j];
#pragma unroll
            for (int i = 0; i < PER; i++) { sums[i][c] = fmaf(w[i], value, sums[i][c]); }
        }
    }
}

/* Calls launch(PER, COLS, CHUNKS) as template arguments by the size of a head: tiles of 32 rows up to 128 elements,
 * else of 16, so that four tiles of a chunk fit the shared memory of every supported GPU. */
#define QR_PACKED_DISPATCH(head_dim, function, ...)        \
    ((head_dim) <= 16    ? function<2, 1, 1>(__VA_ARGS__)  \
     : (head_dim) <= 64  ? function<2, 4, 1>(__VA_ARGS__)  \
     : (head_dim) <= 128 ? function<2, 8, 1>(__VA_ARGS__)  \
     : (head_dim) <= 256 ? function<1, 16, 1>(__VA_ARGS__) \
                         : function<1, 16, 2>(__VA_ARGS__))

static inline bool supports_packed(const char *op, const qr_attention_packed_args &args, qr_error *err) {
    if (args.head_dim <= MAX_CHUNKS * MAX_CHUNK) { return true; }
    qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: heads of %d elements are too large for the cuda backend (%d)", op,
            static_cast<int>(args.head_dim), static_cast<int>(MAX_CHUNKS * MAX_CHUNK));
    return false;
}

/* Whether the kernels of attention_packed_mma.cuh compute it. The others do without their permission to round. */
static inline bool packed_on_tensor_cores(const qr_attention_packed_args &args) {
    return args.dst_dtype != QR_DTYPE_F32 && args.head_dim <= MAX_CHUNK;
}

#endif
