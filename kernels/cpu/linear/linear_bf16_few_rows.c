/* Products of a panel with a few rows of x, in pieces of QR_TILE_ROWS weight rows by one K block. While the last tile
 * of a piece is multiplied, the codes of the next piece become BF16 values, in the place of those that the tile has
 * passed: products leave the CPU's other units free, and L1 holds one piece beside x.
 *
 * Measured on one core of an AMD Zen 5 server, 256 x 2048, 16 rows of x, against fetching a piece before it is
 * multiplied: the two kernels call by call in turn in one process, weights from memory, first decile of 2,000 calls.
 * NF4 double-quantised 57.4 -> 53.4 us, NF4 58.8 -> 53.4, INT8 61.8 -> 56.3; the products alone take 34. Codes are
 * prefetched two pieces ahead, to L1: four pieces to L2 gave 56.7 with NF4 double-quantised. */
#include "kernels/cpu/linear/linear_bf16.h"

#include "base/sizes.h"
#include "kernels/cpu/linear/nf4_avx512_bf16.h"
#include "kernels/cpu/simd/vec_tile.h"

enum {
    STEP = 32,
    RUN = 128,
    MAX_BLOCKS = QR_CPU_BF16_K_BLOCK / QR_CPU_MXFP4_SCALE_COLS, /* that have a scale */
    PIECES_AHEAD = 2,
};

typedef enum piece_kind { PIECE_NF4, PIECE_MXFP4, PIECE_INT8 } piece_kind;

/* Where the codes of a piece are. Run j of row r: RUN columns from RUN · j on. */
typedef struct piece_codes {
    const unsigned char *src[QR_TILE_ROWS];   /* run 0 of each row */
    const unsigned char *ahead[QR_TILE_ROWS]; /* the same of a later piece, which is prefetched */
    int64_t run_bytes;                        /* from run to run of a row */
    float scales[QR_TILE_ROWS * MAX_BLOCKS];  /* but of INT8 */
    int64_t n_rows, n_runs;                   /* n_runs whole ones */
} piece_codes;

/* Run j of every row. */
QR_INLINE void fetch_runs(const qr_cpu_panel *p, const piece_codes *c, int64_t j, const piece_kind kind) {
    QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) {
        if (r >= c->n_rows) { break; }
        uint16_t *dst = (uint16_t *)p->dst + r * p->dst_stride + RUN * j;
        const unsigned char *src = c->src[r] + j * c->run_bytes, *ahead = c->ahead[r] + j * c->run_bytes;
        __m512i v[4];
        _mm_prefetch(ahead, _MM_HINT_T0);
        if (kind == PIECE_INT8) {
            _mm_prefetch(ahead + 64, _MM_HINT_T0);
            QR_UNROLL for (int i = 0; i < 4; i++) {
                const __m128i *codes = (const __m128i *)(const void *)(src + STEP * i);
                const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)));
                const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes + 1)));
                v[i] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            }
        } else {
            const bool is_mxfp4 = kind == PIECE_MXFP4;
            const float *scales = c->scales + r * MAX_BLOCKS + RUN / qr_cpu_scale_cols_of(is_mxfp4) * j;
            run_values(src, code_values(is_mxfp4), scales, false, is_mxfp4, v);
        }
        QR_UNROLL for (int i = 0; i < 4; i++) { _mm512_storeu_si512(dst + STEP * i, v[i]); }
    }
}

QR_INLINE void locate_codes(const qr_cpu_panel *p, const nf4_map *map, piece_codes *c, const piece_kind kind) {
    const bool is_int8 = kind == PIECE_INT8;
    int64_t row, k;
    qr_cpu_position_ahead(p, p->row, PIECES_AHEAD * p->n_rows, &row, &k);
    for (int r = 0; r < p->n_rows; r++) {
        if (is_int8) {
            c->src[r] = (const unsigned char *)qr_cpu_row(p->weight, p->layout, p->row + r) + p->k;
            c->ahead[r] = (const unsigned char *)qr_cpu_row(p->weight, p->layout, row + r) + k;
        } else {
            c->src[r] = qr_cpu_nf4_run(p->weight, p->layout, p->row + r, p->k);
            c->ahead[r] = qr_cpu_nf4_run(p->weight, p->layout, row + r, k);
        }
    }
    c->run_bytes = is_int8 ? RUN : RUN / 2 * QR_CPU_NF4_GROUP_ROWS;
    c->n_rows = p->n_rows;
    c->n_runs = p->n_k / RUN;
    if (!is_int8) { panel_scales_of(map, p, p->row, p->n_rows, kind == PIECE_MXFP4, c->scales, MAX_BLOCKS); }
}

/* All from run `first` on, and what is no whole run. */
QR_INLINE void fetch_rest(const qr_cpu_panel *p, const piece_codes *c, int64_t first, const piece_kind kind) {
    for (int64_t j = first; j < c->n_runs; j++) { fetch_runs(p, c, j, kind); }
    if (c->n_runs * RUN < p->n_k) {
        const int64_t n_whole = c->n_runs * RUN;
        qr_cpu_panel rest = *p;
        rest.k += n_whole;
        rest.n_k -= n_whole;
        rest.n_k_padded -= n_whole;
        rest.dst = (uint16_t *)p->dst + n_whole;
        qr_cpu_fetch_bf16(&rest);
    }
}

typedef __m512 accumulators[QR_TILE_MAX_COLS][QR_TILE_ROWS];

QR_INLINE void add_step(const uint16_t *const w[QR_TILE_ROWS], const uint16_t *x, int64_t x_stride, const int n_x,
                        int64_t k, accumulators acc) {
    __m512bh xv[QR_TILE_MAX_COLS];
    QR_UNROLL for (int i = 0; i < n_x; i++) { xv[i] = (__m512bh)_mm512_loadu_si512(x + i * x_stride + k); }
    QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) {
        const __m512bh wv = (__m512bh)_mm512_loadu_si512(w[r] + k);
        QR_UNROLL for (int i = 0; i < n_x; i++) { acc[i][r] = _mm512_dpbf16_ps(acc[i][r], wv, xv[i]); }
    }
}

/* The accumulations of linear_microkernel.h, in its order. next: the piece whose values take the place of those that
 * have been multiplied, or NULL. */
QR_INLINE void multiply_tile(const qr_cpu_product *p, int64_t i, const int n_x, const qr_cpu_panel *next,
                             const piece_codes *codes, const piece_kind kind) {
    const uint16_t *x = (const uint16_t *)p->x + i * p->x_stride, *w[QR_TILE_ROWS];
    accumulators acc;
    for (int64_t r = 0; r < QR_TILE_ROWS; r++) {
        w[r] = (const uint16_t *)p->w + qr_min(r, p->n_w - 1) * p->w_stride; /* the last row again */
    }
    QR_UNROLL for (int j = 0; j < n_x; j++) {
        QR_UNROLL for (int r = 0; r < QR_TILE_ROWS; r++) { acc[j][r] = _mm512_setzero_ps(); }
    }
    int64_t run = 0;
    for (; RUN * (run + 1) <= p->n_k; run++) {
        QR_UNROLL for (int step = 0; step < RUN / STEP; step++) {
            add_step(w, x, p->x_stride, n_x, RUN * run + STEP * step, acc);
        }
        if (next != NULL && run < codes->n_runs) { fetch_runs(next, codes, run, kind); }
    }
    for (int64_t k = RUN * run; k < p->n_k; k += STEP) { add_step(w, x, p->x_stride, n_x, k, acc); }
    qr_vec_reduce_rows(acc, n_x, p->sums + i * p->sum_stride, p->sum_stride, p->first);
    if (next != NULL) { fetch_rest(next, codes, run, kind); }
}

/* Even tiles, of which the last has five columns where it can: next to those of six there are too few registers. */
static int64_t tile_cols(int64_t n_left) {
    const int64_t n_tiles = qr_ceil_div(n_left, QR_TILE_MAX_COLS), least = n_left / n_tiles;
    return least == 4 ? least : qr_ceil_div(n_left, n_tiles);
}

QR_INLINE void multiply_piece(const qr_cpu_product *p, const qr_cpu_panel *next, const piece_codes *codes,
                              const piece_kind kind) {
    for (int64_t i = 0, n; i < p->n_x; i += n) {
        n = tile_cols(p->n_x - i);
        const bool beside = next != NULL && i + n == p->n_x;
#define CASE(cols)                                    \
    if (beside) {                                     \
        multiply_tile(p, i, cols, next, codes, kind); \
    } else {                                          \
        multiply_tile(p, i, cols, NULL, NULL, kind);  \
    }                                                 \
    break;
        switch (n) {
            case 6: CASE(6)
            case 5: CASE(5)
            default: CASE(4)
        }
#undef CASE
    }
}

/* Piece number `index`: K blocks first, then rows. */
static void locate_piece(const qr_cpu_panel *panel, int64_t n_k, int64_t index, qr_cpu_panel *piece) {
    const int64_t n_blocks = qr_ceil_div(panel->weight->desc.cols, panel->k_block),
                  row = index / n_blocks * QR_TILE_ROWS;
    *piece = *panel;
    piece->row = panel->row + row;
    piece->n_rows = qr_min(panel->n_rows - row, QR_TILE_ROWS);
    piece->k = index % n_blocks * panel->k_block;
    piece->n_k = qr_min(panel->weight->desc.cols - piece->k, panel->k_block);
    piece->n_k_padded = qr_min(n_k - piece->k, panel->k_block);
}

QR_INLINE void multiply_few(const qr_cpu_panel *panel, const qr_cpu_product *product, const piece_kind kind) {
    const int64_t n_blocks = qr_ceil_div(panel->weight->desc.cols, panel->k_block);
    const int64_t n_pieces = qr_ceil_div(panel->n_rows, QR_TILE_ROWS) * n_blocks;
    nf4_map map;
    piece_codes codes;
    qr_cpu_panel piece, next;
    if (kind == PIECE_NF4) { nf4_map_split(&map); }
    locate_piece(panel, product->n_k, 0, &piece);
    locate_codes(&piece, &map, &codes, kind);
    fetch_rest(&piece, &codes, 0, kind);
    for (int64_t i = 0; i < n_pieces; i++, piece = next) {
        const bool is_last = i + 1 == n_pieces;
        if (!is_last) {
            locate_piece(panel, product->n_k, i + 1, &next);
            locate_codes(&next, &map, &codes, kind);
        }
        qr_cpu_product p = *product;
        p.w = piece.dst;
        p.w_stride = piece.dst_stride;
        p.n_w = piece.n_rows;
        p.x = (const uint16_t *)product->x + piece.k;
        p.n_k = piece.n_k_padded;
        p.sums += piece.row - panel->row;
        p.first = piece.k == 0;
        multiply_piece(&p, is_last ? NULL : &next, &codes, kind);
    }
}

bool qr_cpu_multiply_few_bf16(const qr_cpu_panel *panel, const qr_cpu_product *product) {
    const bool is_int8 = panel->weight->desc.format == QR_WEIGHT_INT8;
    if (!is_int8 && panel->layout->kind != QR_CPU_NF4_GROUPS) { return false; }
    if (is_int8) {
        multiply_few(panel, product, PIECE_INT8);
    } else if (panel->weight->desc.format == QR_WEIGHT_MXFP4) {
        multiply_few(panel, product, PIECE_MXFP4);
    } else {
        multiply_few(panel, product, PIECE_NF4);
    }
    return true;
}
