/* linear in AVX2 with x in BF16: the weights become BF16 words, which two instructions make two vectors of F32 of, and
 * meet x by FMA.
 *
 * The order of sums. K is walked in blocks of 512. Within a block a sum is made of eight chains, one for each lane of a
 * vector: chain p takes columns 16j + 2p and 16j + 2p + 1 for j = 0, 1, … At the end of the block the chains are added
 * in a fixed tree, and the block to the sum. There are two ways to do that:
 *
 *   decode     for up to QR_CPU_DECODE_ROWS rows of x. Lanes are the chains of one sum, as codes lie that way: 16 words
 *              give their even elements and then their odd ones. x has its columns in that order.
 *   multiply   for more. Lanes are the sums of 16 weight rows. The block's columns are walked chain by chain, so that
 *              the chains need no registers at once: each of 12 accumulators is one chain of a sum, and waits in memory
 *              until its neighbours of the tree are done. x and the weights are packed in that order.
 *
 * The second reads one vector of weights for 12 products, where lanes along K read seven of weights and of x. That is
 * more than a core loads that shares its caches with another thread: there 512 rows take up to a quarter less time, and
 * as much as before where it does not (docs/speed.md). */
#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/words_avx2.h"

typedef float tile_element;
typedef __m256 tile_vector;
#define TILE_STEP QR_VEC
static inline __m256 tile_load(const float *src) { return _mm256_loadu_ps(src); }
static inline __m256 tile_dot(__m256 acc, __m256 w, __m256 x) { return _mm256_fmadd_ps(w, x, acc); }

#include "kernels/cpu/linear/linear_exercise.h"

enum {
    K_BLOCK = AVX2_K_BLOCK,
    CHAINS = 8,
    GROUP = QR_CPU_NF4_GROUP_ROWS, /* weight rows of a tile */
    STRIP = 6,                     /* rows of x of a tile */
    CHUNK = 43 * STRIP,            /* of a task */
    RUN = AVX2_RUN,
    MAX_SCALES = AVX2_MAX_SCALES,
};

/* --- x ----------------------------------------------------------------------------------------------------------- */

static void pack_row(const uint16_t *x, int64_t n, void *untyped) {
    float *dst = untyped;
    for (int64_t k = 0; k < n; k += 16) {
        uint16_t last[16] = {0};
        const uint16_t *src = n - k >= 16 ? x + k : memcpy(last, x + k, (size_t)(n - k) * sizeof *x);
        const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)src);
        _mm256_storeu_ps(dst + k, bf16_even(words));
        _mm256_storeu_ps(dst + k + 8, bf16_odd(words));
    }
}

/* Where column i + c of a K block of n_k columns is, as columns of its chains one after the other; i % 16 == 0. */
QR_INLINE int64_t chain_column(int64_t i, int64_t c, int64_t n_k) {
    return c / 2 * (n_k / CHAINS) + i / CHAINS + c % 2;
}

/* Four columns of six rows. */
QR_INLINE void store_columns(__m128 rows[STRIP], float *const columns[4]) {
    _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
    const __m128 low = _mm_unpacklo_ps(rows[4], rows[5]), high = _mm_unpackhi_ps(rows[4], rows[5]);
    QR_UNROLL for (int c = 0; c < 4; c++) { _mm_storeu_ps(columns[c], rows[c]); }
    _mm_storel_pi((__m64 *)(void *)(columns[0] + 4), low);
    _mm_storeh_pi((__m64 *)(void *)(columns[1] + 4), low);
    _mm_storel_pi((__m64 *)(void *)(columns[2] + 4), high);
    _mm_storeh_pi((__m64 *)(void *)(columns[3] + 4), high);
}

/* Columns [k, k + n_k) of a strip's rows, n_k a multiple of 16, of which n are there. */
static void pack_strip_block(const uint16_t *const *rows, int64_t k, int64_t n_k, int64_t n, float *dst) {
    for (int64_t i = 0; i < n_k; i += 8) {
        __m128 even[STRIP], odd[STRIP];
        float *of_even[4], *of_odd[4];
        for (int r = 0; r < STRIP; r++) {
            uint16_t some[8] = {0};
            const uint16_t *src = some;
            if (rows[r] != NULL && n - i >= 8) {
                src = rows[r] + k + i;
            } else if (rows[r] != NULL && n > i) {
                memcpy(some, rows[r] + k + i, (size_t)(n - i) * sizeof *src);
            }
            const __m128i words = _mm_loadu_si128((const __m128i *)(const void *)src);
            even[r] = _mm_castsi128_ps(_mm_slli_epi32(words, 16));
            odd[r] = _mm_castsi128_ps(_mm_and_si128(words, _mm_set1_epi32((int)0xFFFF0000)));
        }
        for (int c = 0; c < 4; c++) {
            of_even[c] = dst + chain_column(i / 16 * 16, i % 16 + 2 * c, n_k) * STRIP;
            of_odd[c] = of_even[c] + STRIP;
        }
        store_columns(even, of_even);
        store_columns(odd, of_odd);
    }
}

static void pack_strip(const uint16_t *const *rows, int64_t n, void *untyped) {
    float *dst = untyped;
    const int64_t n_padded = qr_round_up(n, 16);
    for (int64_t k = 0; k < n_padded; k += K_BLOCK) {
        pack_strip_block(rows, k, qr_min(n_padded - k, K_BLOCK), n - k, dst + k * STRIP);
    }
}

/* --- Rows of weights as BF16 ------------------------------------------------------------------------------------- */

/* A run of codes, or its first half, as words in order. */
QR_INLINE void run_words(const uint8_t *run, const nf4_table *tables, const bool half, const bool is_mxfp4,
                         uint16_t *dst) {
    const int n_parts = half ? 2 : 4, parts_of_scale = qr_cpu_scale_cols_of(is_mxfp4) / 32;
    QR_UNROLL for (int part = 0; part < n_parts; part++) {
        __m256i words[2];
        nf4_words(nf4_load_codes(run, part / 2, half), part % 2, &tables[part / parts_of_scale], words);
        store_words(dst + 32 * part, words[0]);
        store_words(dst + 32 * part + 16, words[1]);
    }
}

/* --- Panels: [groups of 16 rows][chain][n_k / CHAINS][16 rows] ---------------------------------------------------- */

enum { ROW_WORDS = RUN + 16 }; /* of the rows below: not a multiple of 512 bytes apart */

/* 16 rows of 16 columns, from `src` on, in the order of a tile: word 2i is row i, and word 2i + 1 row 8 + i. */
QR_INLINE void transpose_words(const uint16_t *src, __m256i columns[16]) {
    __m256i quads[2][8]; /* 4 (and their halves' 8 …) columns of rows 4h … and 8 + 4h … */
    QR_UNROLL for (int h = 0; h < 2; h++) {
        __m256i low[4], high[4];
        QR_UNROLL for (int i = 0; i < 4; i++) {
            const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(src + (4 * h + i) * ROW_WORDS));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(src + (8 + 4 * h + i) * ROW_WORDS));
            low[i] = _mm256_unpacklo_epi16(a, b);
            high[i] = _mm256_unpackhi_epi16(a, b);
        }
        QR_UNROLL for (int half = 0; half < 2; half++) {
            const __m256i *v = half == 0 ? low : high;
            const __m256i low01 = _mm256_unpacklo_epi32(v[0], v[1]), high01 = _mm256_unpackhi_epi32(v[0], v[1]);
            const __m256i low23 = _mm256_unpacklo_epi32(v[2], v[3]), high23 = _mm256_unpackhi_epi32(v[2], v[3]);
            quads[h][4 * half] = _mm256_unpacklo_epi64(low01, low23);
            quads[h][4 * half + 1] = _mm256_unpackhi_epi64(low01, low23);
            quads[h][4 * half + 2] = _mm256_unpacklo_epi64(high01, high23);
            quads[h][4 * half + 3] = _mm256_unpackhi_epi64(high01, high23);
        }
    }
    QR_UNROLL for (int c = 0; c < 8; c++) {
        columns[c] = _mm256_permute2x128_si256(quads[0][c], quads[1][c], 0x20);
        columns[8 + c] = _mm256_permute2x128_si256(quads[0][c], quads[1][c], 0x31);
    }
}

/* n columns, a multiple of 16, of rows in `src` as columns [k, k + n) of the tile. */
static void pack_tile(const uint16_t *src, int64_t k, int64_t n, int64_t n_k, uint16_t *dst) {
    for (int64_t i = 0; i < n; i += 16) {
        __m256i columns[16];
        transpose_words(src + i, columns);
        QR_UNROLL for (int c = 0; c < 16; c++) { store_words(dst + chain_column(k + i, c, n_k) * GROUP, columns[c]); }
    }
}

/* Columns [k, k + n) of the panel's rows [r, r + n_rows), as words in order. */
typedef struct row_words {
    const qr_cpu_panel *panel;
    int64_t r, n_rows;
    nf4_table tables[GROUP * MAX_SCALES]; /* NF4_GROUPS */
    const uint8_t *ahead;                 /* what the next call reads; NF4_FLAT: NULL */
} row_words;

QR_INLINE void code_words(const row_words *w, int64_t k, int64_t n, const bool is_mxfp4, uint16_t *dst) {
    const qr_cpu_panel *p = w->panel;
    const bool half = n < RUN;
    const uint8_t *run = qr_cpu_nf4_run(p->weight, p->layout, p->row + w->r, p->k + k);
    for (int64_t r = 0; r < w->n_rows; r++) {
        const nf4_table *tables = w->tables + r * tables_of_row(is_mxfp4) + k / qr_cpu_scale_cols_of(is_mxfp4);
        __builtin_prefetch(w->ahead + k / 2 * GROUP + r * 64);
        if (half) {
            run_words(run + r * 32, tables, true, is_mxfp4, dst + r * ROW_WORDS);
        } else {
            run_words(run + r * 64, tables, false, is_mxfp4, dst + r * ROW_WORDS);
        }
    }
}

/* What is fetched after this tile is prefetched. Where each row's own continuation was, the first columns of the next
 * rows never were: INT8, 2048 x 2048, 16 rows of x, one thread of a Zen 5, 1.69 ms instead of 1.42. */
QR_INLINE void element_row_words(const row_words *w, int64_t k, int64_t n, const qr_weight_format format,
                                 uint16_t *dst) {
    const qr_cpu_panel *p = w->panel;
    const int64_t bytes = bytes_of(format), row_bytes = (int64_t)p->layout->row_bytes;
    for (int64_t r = 0; r < w->n_rows; r++) {
        const unsigned char *row = qr_cpu_row(p->weight, p->layout, p->row + w->r + r);
        const unsigned char *src = row + (p->k + k) * bytes, *ahead = w->ahead + r * row_bytes + k * bytes;
        for (int64_t i = 0; i < n * bytes; i += 64) { __builtin_prefetch(ahead + i); }
        for (int64_t i = 0; i < n; i += 16) {
            store_words(dst + r * ROW_WORDS + i, element_words(format, src + i * bytes));
        }
    }
}

static void elements_words(const row_words *w, int64_t k, int64_t n, uint16_t *dst) {
    switch (w->panel->weight->desc.format) {
        case QR_WEIGHT_F32: element_row_words(w, k, n, QR_WEIGHT_F32, dst); break;
        case QR_WEIGHT_F16: element_row_words(w, k, n, QR_WEIGHT_F16, dst); break;
        case QR_WEIGHT_INT8: element_row_words(w, k, n, QR_WEIGHT_INT8, dst); break;
        default: element_row_words(w, k, n, QR_WEIGHT_BF16, dst); break;
    }
}

static void flat_row_words(const row_words *w, int64_t k, int64_t n, uint16_t *dst) {
    qr_cpu_panel part = *w->panel;
    part.k += k;
    part.n_k = n;
    for (int64_t r = 0; r < w->n_rows; r++) {
        qr_cpu_nf4_flat_row_bf16(&part, part.row + w->r + r, dst + r * ROW_WORDS);
        for (int64_t i = n; i % 16 != 0; i++) { dst[r * ROW_WORDS + i] = 0; }
    }
}

/* One tile of the panel. Rows past the matrix's last are zeros. */
QR_INLINE void fetch_tile(const row_words *w, const bool is_mxfp4, uint16_t *dst) {
    const qr_cpu_panel *p = w->panel;
    uint16_t words[GROUP * ROW_WORDS];
    if (w->n_rows < GROUP) { memset(words, 0, sizeof words); }
    for (int64_t k = 0; k < p->n_k; k += RUN) {
        const int64_t n = qr_min(p->n_k - k, RUN);
        switch (p->layout->kind) {
            case QR_CPU_ROWS: elements_words(w, k, n, words); break;
            case QR_CPU_NF4_GROUPS: code_words(w, k, n, is_mxfp4, words); break;
            case QR_CPU_NF4_FLAT: flat_row_words(w, k, n, words); break;
        }
        pack_tile(words, k, qr_round_up(n, 16), p->n_k_padded, dst);
    }
}

static void fetch(const qr_cpu_panel *p) {
    const qr_weight_format format = p->weight->desc.format;
    for (int64_t r = 0; r < p->n_rows; r += GROUP) {
        row_words w;
        w.panel = p;
        w.r = r;
        w.n_rows = qr_min(p->n_rows - r, GROUP);
        w.ahead = NULL;
        uint16_t *dst = (uint16_t *)p->dst + r * K_BLOCK;
        int64_t next_row, next_k;
        qr_cpu_position_ahead(p, p->row + r, w.n_rows, &next_row, &next_k);
        if (p->layout->kind == QR_CPU_ROWS) {
            w.ahead = (const uint8_t *)qr_cpu_row(p->weight, p->layout, next_row) + next_k * bytes_of(format);
        } else if (p->layout->kind == QR_CPU_NF4_GROUPS) {
            w.ahead = qr_cpu_nf4_run(p->weight, p->layout, next_row, next_k);
            qr_cpu_nf4_tables_avx2(p, p->row + r, w.n_rows, p->k, p->n_k, w.tables);
        }
        if (format == QR_WEIGHT_MXFP4) {
            fetch_tile(&w, true, dst);
        } else {
            fetch_tile(&w, false, dst);
        }
    }
}

/* --- Many rows of x ---------------------------------------------------------------------------------------------- */

/* Even and odd elements of 16 words in memory. The mask is an operand in memory: GCC would keep it in a register, and
 * one of the 12 accumulators in memory. */
QR_INLINE void load_words(const uint16_t *src, __m256 *even, __m256 *odd) {
    static const uint32_t mask[8] __attribute__((aligned(32))) = {0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000,
                                                                  0xFFFF0000, 0xFFFF0000, 0xFFFF0000, 0xFFFF0000};
    __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)src), upper;
    __asm__("vpand %2, %1, %0" : "=x"(upper), "+x"(words) : "m"(mask));
    *even = bf16_even(words);
    *odd = _mm256_castsi256_ps(upper);
}

/* acc += w · x, in the register that acc is in. With its intrinsic GCC moves accumulators about and keeps one in memory
 * (docs/speed.md, Zen 3). */
QR_INLINE void add_product(__m256 *acc, __m256 w, __m256 x) {
    __asm__("vfmadd231ps %1, %2, %0" : "+x"(*acc) : "x"(w), "x"(x));
}

/* n_steps columns of a chain: 16 weight rows by n_x rows of x. */
QR_INLINE void add_chain(__m256 acc[STRIP][2], const uint16_t *w, const float *x, const int n_steps, const int n_x) {
    QR_UNROLL for (int step = 0; step < n_steps; step++) {
        __m256 even, odd;
        load_words(w + step * GROUP, &even, &odd);
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            const __m256 xi = _mm256_broadcast_ss(x + step * STRIP + i);
            add_product(&acc[i][0], even, xi);
            add_product(&acc[i][1], odd, xi);
        }
    }
}

/* 16 weight rows by n_x rows of a strip, n_m columns of each chain. */
QR_INLINE void multiply_tile(const uint16_t *w, const float *x, int64_t n_m, const int n_x, float *sums,
                             int64_t sum_stride, bool first) {
    enum { STEPS = 8 };
    __m256 waiting[3][STRIP][2];
    int n_waiting = 0;
    for (int chain = 0; chain < CHAINS; chain++) {
        __m256 acc[STRIP][2];
        QR_UNROLL for (int i = 0; i < n_x; i++) { acc[i][0] = acc[i][1] = _mm256_setzero_ps(); }
        int64_t m = 0;
        for (; m + STEPS <= n_m; m += STEPS, w += STEPS * GROUP, x += STEPS * STRIP) {
            __asm__("" : "+r"(w), "+r"(x)); /* else GCC keeps what the next round loads in registers */
            add_chain(acc, w, x, STEPS, n_x);
        }
        for (; m < n_m; m += 2, w += 2 * GROUP, x += 2 * STRIP) { /* columns are a multiple of 16 */
            __asm__("" : "+r"(w), "+r"(x));
            add_chain(acc, w, x, 2, n_x);
        }
        for (int done = chain; done % 2 == 1; done /= 2) { /* its neighbour of the tree, and theirs */
            n_waiting--;
            QR_UNROLL for (int i = 0; i < n_x; i++) {
                acc[i][0] = _mm256_add_ps(waiting[n_waiting][i][0], acc[i][0]);
                acc[i][1] = _mm256_add_ps(waiting[n_waiting][i][1], acc[i][1]);
            }
        }
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            waiting[n_waiting][i][0] = acc[i][0];
            waiting[n_waiting][i][1] = acc[i][1];
        }
        n_waiting++;
    }
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        QR_UNROLL for (int v = 0; v < 2; v++) {
            float *sum = sums + i * sum_stride + 8 * v;
            _mm256_storeu_ps(sum, first ? waiting[0][i][v] : _mm256_add_ps(_mm256_loadu_ps(sum), waiting[0][i][v]));
        }
    }
}

/* The panel by n_x rows of a strip, the first of them row i of the product. A function each, so that the loops of one
 * do not take registers from another's. */
#define MULTIPLY_STRIP(n_x)                                                                                          \
    static __attribute__((noinline)) void multiply_strip_##n_x(const qr_cpu_product *p, const float *x, int64_t i) { \
        for (int64_t o = 0; o < p->n_w; o += GROUP) {                                                                \
            multiply_tile((const uint16_t *)p->w + o * K_BLOCK, x, p->n_k / CHAINS, n_x,                             \
                          p->sums + i * p->sum_stride + o, p->sum_stride, p->first);                                 \
        }                                                                                                            \
    }
MULTIPLY_STRIP(1)
MULTIPLY_STRIP(2)
MULTIPLY_STRIP(3)
MULTIPLY_STRIP(4)
MULTIPLY_STRIP(5)
MULTIPLY_STRIP(6)
#undef MULTIPLY_STRIP

static void multiply(const qr_cpu_product *p) {
    for (int64_t i = 0, n; i < p->n_x; i += n) {
        const int64_t row = p->x_skip + i, in_strip = row % STRIP;
        const float *x = (const float *)p->x + row / STRIP * STRIP * p->x_stride + in_strip;
        n = qr_min(p->n_x - i, STRIP - in_strip);
        switch (n) {
            case 6: multiply_strip_6(p, x, i); break;
            case 5: multiply_strip_5(p, x, i); break;
            case 4: multiply_strip_4(p, x, i); break;
            case 3: multiply_strip_3(p, x, i); break;
            case 2: multiply_strip_2(p, x, i); break;
            default: multiply_strip_1(p, x, i); break;
        }
    }
}

static const qr_cpu_strips strips = {
    .rows = STRIP,
    .above_rows = QR_CPU_DECODE_ROWS,
    .chunk_rows = CHUNK,
    .pack = pack_strip,
    .fetch = fetch,
    .multiply = multiply,
};

const qr_cpu_matmul qr_cpu_matmul_bf16_chains_avx2 = {
    .element_bytes = 4,
    .k_block = K_BLOCK,
    .k_step = 16,
    .piece_rows = GROUP,
    .x_dtype = QR_DTYPE_BF16,
    .strips = &strips,
    .pack_row = pack_row,
    .decode = qr_cpu_decode_avx2,
    .exercise = exercise,
    .exercise_flops = EXERCISE_FLOPS,
};
