/* LoRA's products by pairs, with vdpbf16ps (AVX-512 BF16): a matrix of few rows in F32, each element the sum of two
 * BF16 values, by rows of BF16 that are read where they lie.
 *
 * Lanes are ranks in `down` and columns in `gradient`, so nothing is added across lanes. In `down` an accumulator takes
 * two columns of x at a time, ascending: the products of the first parts, then those of the second. In `gradient` it
 * takes one row of x at a time, with both parts of h as the two halves of an operand. So the bits depend on neither the
 * rows beside one nor the thread, and gradients of several calls, one after the other, are those of one. */
#include <math.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/lora.h"
#include "kernels/cpu/simd/vec_tile.h"

enum {
    RANKS = 16, /* of a group: a vector */
    PARTS = 2,
    PACK_UNITS = QR_CPU_GEMM_PARTS_K / 2,
    /* down */
    UNIT = PARTS * RANKS, /* floats of a unit, two of k, of a group */
    BLOCK_UNITS = 256,    /* 32 KiB, which stay in L1 */
    BLOCK_ROWS = 48,      /* of x of a task */
    TILE_ROWS = 12,       /* of x by a vector: accumulators enough for the latency of two products each */
    /* gradient */
    COLS = 256,        /* of a task */
    BLOCK_TOKENS = 64, /* of 256 columns in BF16 are 32 KiB, which stay in L1 */
    STRIP = 32,        /* columns of a tile: two vectors, by eight ranks */
    TILE_RANKS = 8,
};

/* --- W in units: [groups of ranks][units of k][parts][RANKS] ----------------------------------------------------- */

typedef struct packed_matrix {
    const float *w; /* [rank, k], or [k, rank] */
    bool transposed;
    int64_t rank, k, n_units;
    float *units;
} packed_matrix;

static int64_t group_count(int64_t rank) { return qr_ceil_div(rank, RANKS); }

static size_t packed_bytes(int64_t rank, int64_t k) {
    return (size_t)(group_count(rank) * qr_ceil_div(k, 2) * UNIT) * sizeof(float);
}

static const float *group_units(const packed_matrix *m, int64_t group) { return m->units + group * m->n_units * UNIT; }

static void pack_units(void *untyped, int64_t index, int worker) {
    (void)worker;
    static const int8_t parts[PARTS] = {0, 1};
    const packed_matrix *m = untyped;
    const int64_t n_blocks = qr_ceil_div(m->n_units, PACK_UNITS), group = index / n_blocks;
    const int64_t unit = index % n_blocks * PACK_UNITS, n_units = qr_min(m->n_units - unit, PACK_UNITS);
    float block[PARTS * PACK_UNITS * QR_CPU_GEMM_B_STRIDE];
    const qr_cpu_gemm_pack pack = {
        .src = m->w,
        .dtype = QR_DTYPE_F32,
        .along_k = !m->transposed,
        .is_b = true,
        .stride = m->transposed ? m->rank : m->k,
        .first = group * RANKS,
        .n = qr_min(m->rank - group * RANKS, RANKS),
        .k = 2 * unit,
        .n_k = qr_min(m->k - 2 * unit, 2 * PACK_UNITS),
        .n_products = PARTS,
        .part = parts,
        .dst = block,
    };
    qr_cpu_gemm_pack_parts_bf16(&pack);
    float *dst = m->units + (group * m->n_units + unit) * UNIT;
    for (int64_t u = 0; u < n_units; u++) {
        for (int64_t part = 0; part < PARTS; part++) {
            memcpy(dst + u * UNIT + part * RANKS, block + (part * n_units + u) * QR_CPU_GEMM_B_STRIDE,
                   RANKS * sizeof(float));
        }
    }
}

static packed_matrix pack(qr_backend *backend, const float *w, bool transposed, int64_t rank, int64_t k, void *units) {
    packed_matrix m = {w, transposed, rank, k, qr_ceil_div(k, 2), units};
    qr_threads_run(backend->threads, group_count(rank) * qr_ceil_div(m.n_units, PACK_UNITS), pack_units, &m);
    return m;
}

/* --- y = factor · x Wᵀ ------------------------------------------------------------------------------------------- */

typedef struct down_run {
    const qr_cpu_pairs_args *args;
    packed_matrix w;
} down_run;

QR_INLINE __m512bh pair_at(const uint16_t *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* sums [n_rows][RANKS] += n_units of k of n_rows rows, a constant after inlining. */
QR_INLINE void down_tile(const uint16_t *x, int64_t x_stride, const float *w, const int n_rows, int64_t n_units,
                         float *sums) {
    qr_vec acc[TILE_ROWS];
    QR_UNROLL for (int r = 0; r < n_rows; r++) { acc[r] = qr_vec_load(sums + r * RANKS); }
    for (int64_t u = 0; u < n_units; u++, x += 2, w += UNIT) {
        const __m512bh first = (__m512bh)qr_vec_load(w), second = (__m512bh)qr_vec_load(w + RANKS);
        QR_UNROLL for (int r = 0; r < n_rows; r++) {
            const __m512bh pair = pair_at(x + r * x_stride);
            acc[r] = _mm512_dpbf16_ps(acc[r], first, pair);
            acc[r] = _mm512_dpbf16_ps(acc[r], second, pair);
        }
    }
    QR_UNROLL for (int r = 0; r < n_rows; r++) { qr_vec_store(sums + r * RANKS, acc[r]); }
}

/* The last of an odd k, which has no neighbour. */
static void down_last(const uint16_t *x, const float *w, float *sums) {
    const __m512bh pair = (__m512bh)_mm512_set1_epi32(*x);
    const __m512 acc = _mm512_dpbf16_ps(qr_vec_load(sums), (__m512bh)qr_vec_load(w), pair);
    qr_vec_store(sums, _mm512_dpbf16_ps(acc, (__m512bh)qr_vec_load(w + RANKS), pair));
}

static void down_group(const down_run *run, int64_t group, int64_t row, int64_t n_rows) {
    const qr_cpu_pairs_args *args = run->args;
    const float *w = group_units(&run->w, group);
    const uint16_t *x = args->x + row * args->x_stride;
    const int64_t n_whole = args->k / 2, n_ranks = qr_min(args->rank - group * RANKS, RANKS);
    float sums[BLOCK_ROWS * RANKS] = {0};
    for (int64_t u = 0; u < n_whole; u += BLOCK_UNITS) {
        const int64_t n_units = qr_min(n_whole - u, BLOCK_UNITS);
        const uint16_t *columns = x + 2 * u;
        int64_t r = 0;
        for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS) {
            down_tile(columns + r * args->x_stride, args->x_stride, w + u * UNIT, TILE_ROWS, n_units, sums + r * RANKS);
        }
        for (; r < n_rows; r++) {
            down_tile(columns + r * args->x_stride, 0, w + u * UNIT, 1, n_units, sums + r * RANKS);
        }
    }
    for (int64_t r = 0; r < n_rows; r++) {
        if (args->k % 2 != 0) { down_last(x + r * args->x_stride + args->k - 1, w + n_whole * UNIT, sums + r * RANKS); }
        const qr_vec scaled = qr_vec_mul(qr_vec_load(sums + r * RANKS), qr_vec_set1(args->factor));
        qr_vec_store_n(args->y + (row + r) * args->y_stride + group * RANKS, scaled, n_ranks);
    }
}

static void down_task(void *untyped, int64_t index, int worker) {
    (void)worker;
    const down_run *run = untyped;
    const int64_t n_groups = group_count(run->args->rank), row = index / n_groups * BLOCK_ROWS;
    down_group(run, index % n_groups, row, qr_min(run->args->n_rows - row, BLOCK_ROWS));
}

static void down(qr_backend *backend, const qr_cpu_pairs_args *args, void *workspace) {
    down_run run = {args, pack(backend, args->w, args->transposed, args->rank, args->k, workspace)};
    qr_threads_run(backend->threads, qr_ceil_div(args->n_rows, BLOCK_ROWS) * group_count(args->rank), down_task, &run);
}

/* --- c += hᵀ x --------------------------------------------------------------------------------------------------- */

typedef struct gradient_run {
    const qr_cpu_pairs_gradient_args *args;
    float *units; /* [groups of ranks][n_rows][RANKS]: the two parts of an element of h */
} gradient_run;

/* The first part, the nearest BF16 value, in the lower half. What is infinite has no second. */
QR_INLINE qr_vec both_parts(qr_vec value) {
    const qr_vec first = qr_vec_round_bf16(value);
    const __mmask16 finite = _mm512_cmp_ps_mask(qr_vec_abs(first), qr_vec_set1(INFINITY), _CMP_LT_OQ);
    const qr_vec second = qr_vec_round_bf16(_mm512_maskz_sub_ps(finite, value, first));
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(second)));
}

static void split_row(void *untyped, int64_t row, int worker) {
    (void)worker;
    const gradient_run *run = untyped;
    const qr_cpu_pairs_gradient_args *args = run->args;
    for (int64_t r = 0; r < args->rank; r += RANKS) {
        const qr_vec value = qr_vec_load_n(args->h + row * args->rank + r, qr_min(args->rank - r, RANKS));
        qr_vec_store(run->units + (r / RANKS * args->n_rows + row) * RANKS, both_parts(value));
    }
}

/* TILE_RANKS ranks by STRIP columns of n_rows rows: sums [ranks][COLS]. */
typedef struct gradient_tile {
    const uint16_t *x;
    const float *units;
    float *sums;
    int64_t n_rows, x_stride;
    __mmask32 there;      /* of the columns */
    const uint16_t *next; /* as many rows that are read later; NULL: there are none */
} gradient_tile;

static void multiply_gradient(const gradient_tile *t) {
    const __m512i low = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5,
                                         4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __m512 acc[TILE_RANKS][2];
    QR_UNROLL for (int r = 0; r < TILE_RANKS; r++) {
        QR_UNROLL for (int v = 0; v < 2; v++) { acc[r][v] = qr_vec_load(t->sums + r * COLS + 16 * v); }
    }
    for (int64_t i = 0; i < t->n_rows; i++) {
        if (t->next != NULL) { _mm_prefetch((const void *)(t->next + i * t->x_stride), _MM_HINT_T0); }
        const __m512i x = _mm512_maskz_loadu_epi16(t->there, t->x + i * t->x_stride);
        const __m512bh twice[2] = {(__m512bh)_mm512_permutexvar_epi16(low, x),
                                   (__m512bh)_mm512_permutexvar_epi16(high, x)};
        QR_UNROLL for (int r = 0; r < TILE_RANKS; r++) {
            const __m512bh h = (__m512bh)_mm512_castps_si512(qr_vec_set1(t->units[i * RANKS + r]));
            QR_UNROLL for (int v = 0; v < 2; v++) { acc[r][v] = _mm512_dpbf16_ps(acc[r][v], h, twice[v]); }
        }
    }
    QR_UNROLL for (int r = 0; r < TILE_RANKS; r++) {
        QR_UNROLL for (int v = 0; v < 2; v++) { qr_vec_store(t->sums + r * COLS + 16 * v, acc[r][v]); }
    }
}

/* Columns [col, col + n_cols) of a group. */
static void gradient_group(const gradient_run *run, int64_t group, int64_t col, int64_t n_cols, float *sums) {
    const qr_cpu_pairs_gradient_args *args = run->args;
    const int64_t n_ranks = qr_min(args->rank - group * RANKS, RANKS);
    for (int64_t row = 0; row < args->n_rows; row += BLOCK_TOKENS) {
        const bool next_is_whole = row + 2 * BLOCK_TOKENS <= args->n_rows;
        for (int64_t c = 0; c < n_cols; c += STRIP) {
            const uint16_t *x = args->x + row * args->x_stride + col + c;
            for (int64_t r = 0; r < n_ranks; r += TILE_RANKS) {
                const gradient_tile tile = {
                    .x = x,
                    .units = run->units + (group * args->n_rows + row) * RANKS + r,
                    .sums = sums + r * COLS + c,
                    .n_rows = qr_min(args->n_rows - row, BLOCK_TOKENS),
                    .x_stride = args->x_stride,
                    .there = n_cols - c >= STRIP ? 0xFFFFFFFFU : (1U << (n_cols - c)) - 1,
                    .next = next_is_whole && r == 0 ? x + BLOCK_TOKENS * args->x_stride : NULL,
                };
                multiply_gradient(&tile);
            }
        }
    }
}

static float *gradient_at(const qr_cpu_pairs_gradient_args *args, int64_t rank, int64_t col) {
    return args->c + (args->c_transposed ? col * args->rank + rank : rank * args->n + col);
}

static void gradient_task(void *untyped, int64_t index, int worker) {
    (void)worker;
    const gradient_run *run = untyped;
    const qr_cpu_pairs_gradient_args *args = run->args;
    const int64_t n_groups = group_count(args->rank), group = index % n_groups, col = index / n_groups * COLS;
    const int64_t n_cols = qr_min(args->n - col, COLS), n_ranks = qr_min(args->rank - group * RANKS, RANKS);
    const int64_t step = args->c_transposed ? args->rank : 1;
    float sums[RANKS * COLS] = {0};
    for (int64_t r = 0; r < n_ranks; r++) {
        const float *c = gradient_at(args, group * RANKS + r, col);
        for (int64_t j = 0; j < n_cols; j++) { sums[r * COLS + j] = c[j * step]; }
    }
    gradient_group(run, group, col, n_cols, sums);
    for (int64_t r = 0; r < n_ranks; r++) {
        float *c = gradient_at(args, group * RANKS + r, col);
        for (int64_t j = 0; j < n_cols; j++) { c[j * step] = sums[r * COLS + j]; }
    }
}

static void gradient(qr_backend *backend, const qr_cpu_pairs_gradient_args *args, void *workspace) {
    gradient_run run = {args, workspace};
    qr_threads_run(backend->threads, args->n_rows, split_row, &run);
    qr_threads_run(backend->threads, qr_ceil_div(args->n, COLS) * group_count(args->rank), gradient_task, &run);
}

const qr_cpu_lora_pairs qr_cpu_lora_pairs_bf16 = {
    .workspace_bytes = packed_bytes,
    .down = down,
    .gradient = gradient,
};
