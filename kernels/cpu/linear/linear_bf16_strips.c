/* linear in AVX-512 BF16 for many rows of x: lanes are the sums of 16 weight rows.
 *
 * Where lanes run along K (linear_microkernel.h), lane c of an accumulator takes columns 32s + 2c and 32s + 2c + 1 of a
 * K block, s ascending, and the 16 lanes are added in a tree at its end: some 50 shuffles and additions for 24 sums,
 * during which nothing is multiplied. Here a block's columns are walked lane by lane of those, a chain after the other.
 * An accumulator is then one chain of 16 sums, and the tree is an addition of accumulators: the chain that is done
 * waits in memory for its neighbour. Both give the same bits.
 *
 * x and the weights are packed in the order in which they are read: a unit is the pair of columns that one lane of
 * vdpbf16ps takes. Two cores of a Zen 5 server (1.0 TFLOP/s), NF4 double-quantised, 8192 x 2048, share of the peak with
 * lanes along K and here: 66 rows of x 69 and 75 %, 130 rows 75 and 84, 256 rows 77 and 89, 1,024 rows 76 and 93. */
#include "kernels/cpu/linear/linear_bf16.h"

#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/simd/vec_units.h"

enum {
    K_BLOCK = QR_CPU_BF16_K_BLOCK,
    STEP = 32, /* columns of a step: a unit of each chain */
    CHAINS = 16,
    STRIP = 8,   /* rows of x of a tile */
    VECTORS = 2, /* of weight rows of a tile: with 8 rows of x, 16 accumulators, which hide the latency */
    TILE_ROWS = 16 * VECTORS,
    GROUP = QR_CPU_NF4_GROUP_ROWS,
    CHUNK = 1024,                /* rows of x of a task */
    ROW_STRIDE = K_BLOCK + STEP, /* of fetched rows, in elements: not a multiple of 512 bytes */
    TREE_DEPTH = 5,
    /* Packing the weights costs more than it gains with fewer rows. 64 rows, NF4 double-quantised, two cores, lanes
     * along K and here: 8192 x 2048 2.8 to 4.1 and 2.9 ms, 2048 x 8192 3.1 to 3.2 and 2.8; 48 rows 2.2 to 3.3 and 2.3.
     */
    ABOVE_ROWS = 56,
};

/* The chains in the order in which the tree takes them (qr_vec_reduce): the halves of the vector, then neighbours. */
static const int8_t chain_at[CHAINS] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};

/* --- x: [K block][chain][step][STRIP units] -------------------------------------------------------------------- */

static void pack(const uint16_t *const *rows, int64_t n, void *untyped) {
    const int64_t n_padded = qr_round_up(n, STEP);
    for (int64_t k0 = 0; k0 < n_padded; k0 += K_BLOCK) {
        float *dst = (float *)untyped + k0 / 2 * STRIP;
        const int64_t n_steps = qr_min(n_padded - k0, K_BLOCK) / STEP;
        for (int64_t s = 0; s < n_steps; s++) {
            const int64_t k = k0 + STEP * s;
            const __mmask32 there = n - k >= STEP ? 0xFFFFFFFFU : (1U << (n - k)) - 1;
            qr_vec v[QR_VEC];
            for (int r = 0; r < QR_VEC; r++) {
                const bool some = r < STRIP && rows[r] != NULL;
                v[r] = some ? _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, rows[r] + k)) : qr_vec_zero();
            }
            qr_vec_transpose(v);
            QR_UNROLL for (int c = 0; c < CHAINS; c++) {
                _mm256_storeu_ps(dst + (c * n_steps + s) * STRIP, _mm512_castps512_ps256(v[chain_at[c]]));
            }
        }
    }
}

/* --- Weights: [tiles of 32 rows][chain][step][32 units] -------------------------------------------------------- */

/* Floats from chain to chain, of which 16 are not used: else a step's vectors would all fall into one set of L1. */
QR_INLINE int64_t chain_stride(int64_t n_steps) { return n_steps * TILE_ROWS + 16; }

enum { TILE_FLOATS = TILE_ROWS * ROW_STRIDE / 2 }; /* of a panel */

/* 16 rows of elements, `stride` bytes apart, into a vector of each step of a tile. ahead: bytes from a row to what is
 * prefetched; 0: nothing. */
QR_INLINE void pack_group(const unsigned char *rows, size_t stride, size_t ahead, int64_t n_steps, float *dst) {
    for (int64_t s = 0; s < n_steps; s++) {
        qr_vec v[QR_VEC];
        QR_UNROLL for (int r = 0; r < GROUP; r++) {
            const unsigned char *src = rows + (size_t)r * stride + (size_t)s * STEP * sizeof(uint16_t);
            if (ahead != 0) { _mm_prefetch(src + ahead, _MM_HINT_T0); }
            v[r] = _mm512_castsi512_ps(_mm512_loadu_si512(src));
        }
        qr_vec_transpose(v);
        QR_UNROLL for (int c = 0; c < CHAINS; c++) {
            qr_vec_store(dst + c * chain_stride(n_steps) + s * TILE_ROWS, v[chain_at[c]]);
        }
    }
}

/* Rows of BF16 from where they are: they end with zeros up to 64 bytes. */
static void pack_stored(const qr_cpu_panel *p, float *dst) {
    const unsigned char *rows = (const unsigned char *)qr_cpu_row(p->weight, p->layout, p->row);
    pack_group(rows + p->k * (int64_t)sizeof(uint16_t), p->layout->row_bytes, GROUP * p->layout->row_bytes,
               p->n_k_padded / STEP, dst);
}

static void pack_fetched(const qr_cpu_panel *p, float *dst) {
    uint16_t rows[GROUP * ROW_STRIDE] __attribute__((aligned(64)));
    qr_cpu_panel group = *p;
    group.k_block = 0; /* the next rows of this K block follow */
    group.dst = rows;
    group.dst_stride = ROW_STRIDE;
    if (p->n_rows > 0) { qr_cpu_fetch_bf16(&group); }
    for (int64_t i = p->n_rows; i < GROUP; i++) {
        memset(rows + i * ROW_STRIDE, 0, (size_t)p->n_k_padded * sizeof *rows);
    }
    pack_group((const unsigned char *)rows, ROW_STRIDE * sizeof *rows, 0, p->n_k_padded / STEP, dst);
}

static void fetch(const qr_cpu_panel *p) {
    for (int64_t r = 0; r < qr_round_up(p->n_rows, TILE_ROWS); r += GROUP) {
        float *dst = (float *)p->dst + r / TILE_ROWS * TILE_FLOATS + r % TILE_ROWS;
        qr_cpu_panel group = *p;
        group.row += r;
        group.n_rows = qr_max(qr_min(p->n_rows - r, GROUP), 0);
        if (p->weight->desc.format == QR_WEIGHT_BF16 && group.n_rows == GROUP) {
            pack_stored(&group, dst);
        } else {
            pack_fetched(&group, dst);
        }
    }
}

/* --- Products -------------------------------------------------------------------------------------------------- */

typedef __m512 tile_sums[STRIP][VECTORS];

QR_INLINE void add_steps(tile_sums acc, const float *w, const float *x, const int n_steps, const int n_x) {
    QR_UNROLL for (int s = 0; s < n_steps; s++) {
        __m512bh wv[VECTORS];
        QR_UNROLL for (int v = 0; v < VECTORS; v++) { wv[v] = (__m512bh)qr_vec_load(w + s * TILE_ROWS + 16 * v); }
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            const __m512bh xi = (__m512bh)qr_vec_set1(x[s * STRIP + i]);
            QR_UNROLL for (int v = 0; v < VECTORS; v++) { acc[i][v] = _mm512_dpbf16_ps(acc[i][v], wv[v], xi); }
        }
    }
}

/* A tile of weight rows by n_x rows of a strip. ahead: NULL, or asked for, some with each chain. to_next: from x to
 * what is prefetched, in floats; 0: nothing. */
QR_INLINE void multiply_tile(const float *w, const float *x, int64_t n_steps, const int n_x, int64_t to_next,
                             qr_cpu_ahead *ahead, float *sums, int64_t sum_stride, bool first) {
    tile_sums waiting[TREE_DEPTH];
    int n_waiting = 0;
    for (int chain = 0; chain < CHAINS; chain++) {
        tile_sums acc;
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            QR_UNROLL for (int v = 0; v < VECTORS; v++) { acc[i][v] = qr_vec_zero(); }
        }
        if (ahead != NULL) { qr_cpu_ask(ahead); }
        int64_t s = 0;
        for (; s + 2 <= n_steps; s += 2, w += 2 * TILE_ROWS, x += 2 * STRIP) { /* 64 bytes of x */
            if (to_next != 0) { _mm_prefetch((const void *)((uintptr_t)x + (size_t)to_next * sizeof *x), _MM_HINT_T1); }
            add_steps(acc, w, x, 2, n_x);
        }
        if (s < n_steps) {
            add_steps(acc, w, x, 1, n_x);
            w += TILE_ROWS;
            x += STRIP;
        }
        w += chain_stride(0);
        for (int done = chain; done % 2 == 1; done /= 2) { /* its neighbour of the tree, and theirs */
            n_waiting--;
            QR_UNROLL for (int i = 0; i < n_x; i++) {
                QR_UNROLL for (int v = 0; v < VECTORS; v++) {
                    acc[i][v] = qr_vec_add(waiting[n_waiting][i][v], acc[i][v]);
                }
            }
        }
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            QR_UNROLL for (int v = 0; v < VECTORS; v++) { waiting[n_waiting][i][v] = acc[i][v]; }
        }
        n_waiting++;
    }
    QR_UNROLL for (int i = 0; i < n_x; i++) {
        QR_UNROLL for (int v = 0; v < VECTORS; v++) {
            float *sum = sums + i * sum_stride + 16 * v;
            qr_vec_store(sum, first ? waiting[0][i][v] : qr_vec_add(qr_vec_load(sum), waiting[0][i][v]));
        }
    }
}

/* Its first tile prefetches the next strip: x may be larger than L2, and no hardware follows from strip to strip. */
QR_INLINE void multiply_strip(const qr_cpu_product *p, const float *x, int64_t i, const int n_x) {
    for (int64_t o = 0; o < p->n_w; o += TILE_ROWS) {
        multiply_tile((const float *)p->w + o / TILE_ROWS * TILE_FLOATS, x, p->n_k / STEP, n_x,
                      o == 0 ? STRIP * (p->x_stride / 2) : 0, p->ahead, p->sums + i * p->sum_stride + o, p->sum_stride,
                      p->first);
    }
}

static void multiply(const qr_cpu_product *p) {
    const int64_t n_tiles = qr_ceil_div(p->n_x, STRIP) * qr_ceil_div(p->n_w, TILE_ROWS);
    if (p->ahead != NULL) { qr_cpu_ask_in(p->ahead, n_tiles * CHAINS); }
    for (int64_t i = 0, n; i < p->n_x; i += n) {
        const int64_t row = p->x_skip + i, in_strip = row % STRIP;
        const float *x = (const float *)p->x + row / STRIP * STRIP * (p->x_stride / 2) + in_strip;
        n = qr_min(p->n_x - i, STRIP - in_strip);
#define CASE(n_x) \
    case n_x: multiply_strip(p, x, i, n_x); break;
        switch (n) {
            CASE(8)
            CASE(7)
            CASE(6)
            CASE(5)
            CASE(4)
            CASE(3)
            CASE(2)
            default: multiply_strip(p, x, i, 1); break;
        }
#undef CASE
    }
}

const qr_cpu_strips qr_cpu_strips_bf16 = {
    .rows = STRIP,
    .above_rows = ABOVE_ROWS,
    .chunk_rows = CHUNK,
    .pack = pack,
    .fetch = fetch,
    .multiply = multiply,
};
