/* linear in AVX2 with x in BF16, for the weights that products of integers do not take (int16_sum.h): those of 16 and
 * 32 bits, and 4-bit ones whose blocks are not whole ones of a row. The weights become BF16 words, which two
 * instructions make two vectors of F32 of, and meet x by FMA.
 *
 * The order of sums. K is walked in blocks of 512. Within a block a sum is made of eight chains, one for each lane of a
 * vector: chain p takes columns 16j + 2p and 16j + 2p + 1 for j = 0, 1, … At the end of the block the chains are added
 * in a fixed tree, and the block to the sum. There are two ways to do that:
 *
 *   decode     for up to QR_CPU_DECODE_ROWS rows of x. Lanes are the chains of one sum, as elements lie that way: 16
 *              words give their even elements and then their odd ones. x has its columns in that order.
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
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vec_tile.h"

typedef float tile_element;
typedef __m256 tile_vector;
#define TILE_STEP QR_VEC
static inline __m256 tile_load(const float *src) { return _mm256_loadu_ps(src); }
static inline __m256 tile_dot(__m256 acc, __m256 w, __m256 x) { return _mm256_fmadd_ps(w, x, acc); }

#include "kernels/cpu/linear/linear_exercise.h"

enum {
    K_BLOCK = 512,
    CHAINS = 8,
    GROUP = 16,         /* weight rows of a tile */
    STRIP = 6,          /* rows of x of a tile */
    CHUNK = 43 * STRIP, /* of a task */
    PIECE = 128,        /* columns that are fetched at once */
    DECODE_X = 2,       /* rows of x that are decoded at once */
};

/* Even and odd elements of 16 BF16 values, as F32. */
QR_INLINE __m256 bf16_even(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
QR_INLINE __m256 bf16_odd(__m256i words) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xFFFF0000)));
}

/* --- x ----------------------------------------------------------------------------------------------------------- */

static void pack_row(const uint16_t *x, int64_t n, int64_t k_stride, void *untyped) {
    for (int64_t k = 0; k < n; k += 16) {
        float *dst = (float *)untyped + k / K_BLOCK * k_stride + k % K_BLOCK;
        uint16_t last[16] = {0};
        const uint16_t *src = n - k >= 16 ? x + k : memcpy(last, x + k, (size_t)(n - k) * sizeof *x);
        const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)src);
        _mm256_storeu_ps(dst, bf16_even(words));
        _mm256_storeu_ps(dst + 8, bf16_odd(words));
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

/* --- Weights as BF16 --------------------------------------------------------------------------------------------- */

QR_INLINE __m256i words_in_order(qr_vec first, qr_vec last) {
    const __m256i a = _mm256_srli_epi32(_mm256_castps_si256(qr_vec_round_to(first, QR_DTYPE_BF16)), 16);
    const __m256i b = _mm256_srli_epi32(_mm256_castps_si256(qr_vec_round_to(last, QR_DTYPE_BF16)), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);
}

/* 16 elements of a ROWS row, which zeros follow up to 64 bytes. */
QR_INLINE __m256i element_words(const qr_weight_format format, const unsigned char *src) {
    switch (format) {
        case QR_WEIGHT_F32: {
            const float *f32 = (const float *)(const void *)src;
            return words_in_order(qr_vec_load(f32), qr_vec_load(f32 + 8));
        }
        case QR_WEIGHT_F16: {
            const uint16_t *f16 = (const uint16_t *)(const void *)src;
            return words_in_order(qr_vec_load_f16_n(f16, 8), qr_vec_load_f16_n(f16 + 8, 8));
        }
        default: return _mm256_loadu_si256((const __m256i *)(const void *)src);
    }
}

QR_INLINE int64_t bytes_of(qr_weight_format format) { return format == QR_WEIGHT_F32 ? 4 : 2; }

QR_INLINE void store_words(uint16_t *dst, __m256i words) { _mm256_storeu_si256((__m256i *)(void *)dst, words); }

/* --- Panels: [groups of 16 rows][chain][n_k / CHAINS][16 rows] ---------------------------------------------------- */

enum { ROW_WORDS = PIECE + 16 }; /* of the rows below: not a multiple of 512 bytes apart */

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
    const uint8_t *ahead; /* what the next call reads; NF4_FLAT: NULL */
} row_words;

/* What is fetched after this tile is prefetched. Where each row's own continuation was, the first columns of the next
 * rows never were (docs/speed.md, AVX2 kernels on Zen 5). */
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
static void fetch_tile(const row_words *w, uint16_t *dst) {
    const qr_cpu_panel *p = w->panel;
    uint16_t words[GROUP * ROW_WORDS];
    if (w->n_rows < GROUP) { memset(words, 0, sizeof words); }
    for (int64_t k = 0; k < p->n_k; k += PIECE) {
        const int64_t n = qr_min(p->n_k - k, PIECE);
        if (p->layout->kind == QR_CPU_ROWS) {
            elements_words(w, k, n, words);
        } else {
            flat_row_words(w, k, n, words);
        }
        pack_tile(words, k, qr_round_up(n, 16), p->n_k_padded, dst);
    }
}

static void fetch(const qr_cpu_panel *p) {
    const qr_weight_format format = p->weight->desc.format;
    for (int64_t r = 0; r < p->n_rows; r += GROUP) {
        row_words w = {.panel = p, .r = r, .n_rows = qr_min(p->n_rows - r, GROUP)};
        int64_t next_row, next_k;
        qr_cpu_position_ahead(p, p->row + r, w.n_rows, &next_row, &next_k);
        if (p->layout->kind == QR_CPU_ROWS) {
            w.ahead = (const uint8_t *)qr_cpu_row(p->weight, p->layout, next_row) + next_k * bytes_of(format);
        }
        fetch_tile(&w, (uint16_t *)p->dst + r * K_BLOCK);
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

/* --- A few rows of x: elements as they are stored ---------------------------------------------------------------- */

/* 16 columns of a row: their even and odd elements, with n_x rows of x. */
QR_INLINE void add_columns(__m256 *acc, __m256i words, const float *x, int64_t x_stride, const int n_x) {
    const __m256 even = bf16_even(words), odd = bf16_odd(words);
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        acc[i] = _mm256_fmadd_ps(even, _mm256_loadu_ps(x + i * x_stride), acc[i]);
        acc[i] = _mm256_fmadd_ps(odd, _mm256_loadu_ps(x + i * x_stride + 8), acc[i]);
    }
}

/* One K block of QR_TILE_ROWS rows that are stored as they are, times up to two rows of x. The rows follow each other
 * in memory, and `ahead` bytes after the first are prefetched in the order of addresses. */
QR_INLINE void decode_elements(const unsigned char *const rows[QR_TILE_ROWS], int64_t ahead, int64_t n_k,
                               const float *x, int64_t x_stride, const int n_x, const qr_weight_format format,
                               float *sums, int64_t sum_stride, bool first) {
    const int64_t bytes = bytes_of(format), ahead_bytes = QR_TILE_ROWS * 16 * bytes;
    __m256 acc[QR_TILE_ROWS][DECODE_X];
    QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) { acc[r][0] = acc[r][1] = _mm256_setzero_ps(); }
    for (int64_t k = 0; k < n_k; k += 16) {
        const unsigned char *next = rows[0] + ahead + k / 16 * ahead_bytes;
        for (int64_t i = 0; i < ahead_bytes; i += 64) { __builtin_prefetch(next + i); }
        QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) {
            add_columns(acc[r], element_words(format, rows[r] + k * bytes), x + k, x_stride, n_x);
        }
    }
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        const qr_vec four[QR_TILE_ROWS] = {acc[0][i], acc[1][i], acc[2][i], acc[3][i]};
        qr_vec_reduce(four, sums + i * sum_stride, first);
    }
}

QR_INLINE void decode_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const qr_weight_format format) {
    enum { AHEAD_BYTES = 12288 };
    const int64_t bytes = bytes_of(format), x_stride = product->x_stride, sum_stride = product->sum_stride;
    for (int64_t r = 0; r < p->n_rows; r += QR_TILE_ROWS) {
        for (int64_t k = 0; k < product->n_k; k += K_BLOCK) {
            const int64_t ahead = AHEAD_BYTES + (QR_TILE_ROWS - 1) * k * bytes, n_k = qr_min(product->n_k - k, K_BLOCK);
            const unsigned char *rows[QR_TILE_ROWS];
            for (int64_t i = 0; i < QR_TILE_ROWS; i++) { /* past the panel's end its last row again */
                const int64_t row = p->row + qr_min(r + i, p->n_rows - 1);
                rows[i] = (const unsigned char *)qr_cpu_row(p->weight, p->layout, row) + k * bytes;
            }
            for (int64_t i = 0; i < product->n_x; i += DECODE_X) {
                const float *x = (const float *)product->x + i * x_stride + k;
                float *sums = product->sums + i * sum_stride + r;
                if (product->n_x - i >= DECODE_X) {
                    decode_elements(rows, ahead, n_k, x, x_stride, DECODE_X, format, sums, sum_stride, k == 0);
                } else {
                    decode_elements(rows, ahead, n_k, x, x_stride, 1, format, sums, sum_stride, k == 0);
                }
            }
        }
    }
}

/* NF4_FLAT is never decoded. */
static bool decode(const qr_cpu_panel *p, const qr_cpu_product *product) {
    switch (p->weight->desc.format) {
        case QR_WEIGHT_F32: decode_rows(p, product, QR_WEIGHT_F32); break;
        case QR_WEIGHT_F16: decode_rows(p, product, QR_WEIGHT_F16); break;
        default: decode_rows(p, product, QR_WEIGHT_BF16); break;
    }
    return true;
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
    .decode = decode,
    .exercise = exercise,
    .exercise_flops = EXERCISE_FLOPS,
};
