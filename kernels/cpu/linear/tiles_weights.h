/* Weights to BF16 tiles, for kernels on matrix tiles (AVX-512 BF16, VBMI): a panel is 32 weight rows by up to 512
 * columns, two groups of 16 rows, each group tile by tile: [2][16 tiles of 32 columns][16 rows][32].
 *
 * A panel is filled in batches of 8 rows by 128 columns, counted run by run (a run: 128 columns of all rows). A quarter
 * of a batch, 2 rows, is what fits between two tile products. NF4 and MXFP4: the tables of a batch are made while the
 * batch before it is looked up. In one go, the chain from a scale to a weight (40 cycles) is longer than the CPU can
 * look ahead.
 *
 * Costs as measured on a Xeon with AMX (cycles; 512-bit vectors have two ports, p0 and p5): vpermw p0 + p5; vpsrlw p0;
 * vpmultishiftqb p5; vcvtne2ps2bf16 2 p0 + 2 p5; vmulps p0 or p5, but only p0 for about 100 cycles after any tile
 * instruction. A tile of NF4 weights takes at least 34 cycles of both ports, twice what its product takes. */
#ifndef QR_KERNELS_CPU_LINEAR_TILES_WEIGHTS_H
#define QR_KERNELS_CPU_LINEAR_TILES_WEIGHTS_H

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear_bf16.h"
#include "kernels/cpu/simd/tiles_names.h"
#include "kernels/cpu/simd/vec.h"
#include "quant/dynamic8.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

enum {
    TILE_ROWS = 16,
    TILE_PAIRS = 16, /* of k */
    TILE_ELEMENTS = TILE_ROWS * 32,
    RUN_K = 128,
    RUN_TILES = 4,
    PANEL_ROWS = 2 * TILE_ROWS,
    PANEL_K = 512,
    PANEL_TILES = PANEL_K / 32,
    PANEL_SCALES = PANEL_K / 32, /* a row, at most */
    TABLES = 4 * 16,             /* elements: the 16 values of each of the blocks of a run, two of NF4, four of MXFP4 */
    GROUP_ELEMENTS = TILE_ROWS * PANEL_K,
    BATCH_ROWS = 8,
    RUN_BATCHES = PANEL_ROWS / BATCH_ROWS,
    PANEL_BATCHES = PANEL_K / RUN_K * RUN_BATCHES,
};

/* OTHER: any format, by rows through qr_cpu_fetch_bf16. */
typedef enum weights_kind { WEIGHTS_NF4, WEIGHTS_MXFP4, WEIGHTS_INT8, WEIGHTS_BF16, WEIGHTS_OTHER } weights_kind;

/* Scales of a row of a panel. */
QR_INLINE int panel_row_scales(const weights_kind kind) {
    return PANEL_K / qr_cpu_scale_cols_of(kind == WEIGHTS_MXFP4);
}

QR_INLINE bool has_tables(const weights_kind kind) { return kind == WEIGHTS_NF4 || kind == WEIGHTS_MXFP4; }

typedef struct tiles_weights {
    weights_kind kind;
    const qr_weight *weight;
    const qr_cpu_layout *layout;
    int64_t n_rows, n_k;
} tiles_weights;

/* Weights of rows [row, row + n_rows), at most 32, and columns [k, k + n_k), at most 512. row is a multiple of 16, k of
 * 128. */
typedef struct tiles_panel {
    const tiles_weights *w;
    int64_t row, n_rows, k, n_k;
} tiles_panel;

/* Where the weights of a regular panel lie: those of a group, of a run and of a row are so many bytes apart. */
typedef struct panel_source {
    const unsigned char *first;
    size_t group_bytes, run_bytes, row_bytes;
} panel_source;

/* Where panels are made. */
typedef struct panel_scratch {
    uint16_t panel[2 * GROUP_ELEMENTS];
    uint16_t tables[2][BATCH_ROWS][TABLES];  /* of two batches */
    float scales[PANEL_ROWS * PANEL_SCALES]; /* of the panel that is being filled, panel_row_scales a row */
    uint16_t rows[GROUP_ELEMENTS];           /* OTHER: a group by rows */
    panel_source source;                     /* of the panel that is being filled */
    char unused[64 - sizeof(panel_source)];
} panel_scratch;

static tiles_weights tiles_weights_of(const qr_weight *weight, const qr_cpu_layout *layout) {
    weights_kind kind = WEIGHTS_OTHER;
    if (layout->kind == QR_CPU_NF4_GROUPS) {
        kind = weight->desc.format == QR_WEIGHT_MXFP4 ? WEIGHTS_MXFP4 : WEIGHTS_NF4;
    }
    if (weight->desc.format == QR_WEIGHT_INT8) { kind = WEIGHTS_INT8; }
    if (weight->desc.format == QR_WEIGHT_BF16) { kind = WEIGHTS_BF16; }
    return (tiles_weights){kind, weight, layout, weight->desc.rows, weight->desc.cols};
}

/* Codes of NF4_GROUPS from a run on; those of the group's rows follow one another, 64 bytes each. */
QR_INLINE const uint8_t *group_codes(const tiles_weights *w, int64_t row, int64_t k) {
    return (const uint8_t *)w->weight->data + (size_t)(row / TILE_ROWS) * w->layout->group_bytes +
           (size_t)(k / 2 * TILE_ROWS);
}

QR_INLINE const unsigned char *element_row(const tiles_weights *w, int64_t row, int64_t k, size_t element_bytes) {
    return (const unsigned char *)qr_cpu_row(w->weight, w->layout, row) + (size_t)k * element_bytes;
}

/* --- Values ------------------------------------------------------------------------------------------------------ */

/* bf16(code · scale) of the 16 codes, for two blocks of a run. */
QR_INLINE void make_two_tables(__m512 code, float scale0, float scale1, uint16_t *tables) {
    const __m512 low = _mm512_mul_ps(code, _mm512_set1_ps(scale0)), high = _mm512_mul_ps(code, _mm512_set1_ps(scale1));
    _mm512_store_si512(tables, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* The same for all blocks of a run. */
QR_INLINE void make_tables(__m512 code, const float *scales, const weights_kind kind, uint16_t *tables) {
    make_two_tables(code, scales[0], scales[1], tables);
    if (kind == WEIGHTS_MXFP4) { make_two_tables(code, scales[2], scales[3], tables + 32); }
}

QR_INLINE __m512 values_of_codes(const weights_kind kind) {
    return _mm512_loadu_ps(kind == WEIGHTS_MXFP4 ? qr_float4_values : qr_nf4_code);
}

/* One table, in both halves of a register. */
QR_INLINE __m512i load_table(const uint16_t *table) {
    return _mm512_broadcast_i64x4(_mm256_load_si256((const __m256i *)(const void *)table));
}

/* 128 weights of a row, 32 in each of four tiles. The tables come through memory: that costs loads, which are free
 * here, and no p5. Two of the three shifts are multishifts, so that both ports carry the same. vpermw looks at five
 * bits of an index, and both halves of a register hold the same table. */
QR_INLINE void look_up(const uint8_t *run, const uint16_t *tables, const weights_kind kind, uint16_t *dst) {
    const __m512i right4 = _mm512_set1_epi64(0x3c342c241c140c04), right12 = _mm512_set1_epi64(0x043c342c241c140c);
    const __m512i words = _mm512_loadu_si512(run);
    const int step = kind == WEIGHTS_MXFP4 ? 1 : 2; /* runs of 32 columns that have a table */
    const __m512i t0 = load_table(tables), t1 = load_table(tables + 16 * (1 / step));
    const __m512i t2 = load_table(tables + 16 * (2 / step)), t3 = load_table(tables + 16 * (3 / step));
    _mm512_store_si512(dst, _mm512_permutexvar_epi16(words, t0));
    _mm512_store_si512(dst + TILE_ELEMENTS, _mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(right4, words), t1));
    _mm512_store_si512(dst + 2 * TILE_ELEMENTS, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), t2));
    _mm512_store_si512(dst + 3 * TILE_ELEMENTS,
                       _mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(right12, words), t3));
}

/* 128 INT8 codes of a row; exact. */
QR_INLINE void convert_int8(const unsigned char *src, uint16_t *dst) {
    QR_UNROLL for (int j = 0; j < RUN_TILES; j++) {
        const __m128i *codes = (const __m128i *)(const void *)(src + 32 * j);
        const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes + 1)));
        _mm512_store_si512(dst + j * TILE_ELEMENTS, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

QR_INLINE void copy_bf16(const unsigned char *src, uint16_t *dst) {
    QR_UNROLL for (int j = 0; j < RUN_TILES; j++) {
        _mm512_store_si512(dst + j * TILE_ELEMENTS, _mm512_loadu_si512(src + 64 * j));
    }
}

/* --- Panels ------------------------------------------------------------------------------------------------------ */

/* In batches: 32 rows, and whole runs. */
QR_INLINE bool is_regular(const tiles_panel *p) {
    return p->w->kind != WEIGHTS_OTHER && p->n_rows == PANEL_ROWS && p->n_k % RUN_K == 0;
}

/* Eight nested scales a row, two rows a gather. */
static void gather_scales(const tiles_panel *p, float *scales) {
    const qr_weight *weight = p->w->weight;
    const unsigned char *data = weight->data;
    const float *map = qr_dynamic8_map(true);
    const float *nested = (const float *)(const void *)(data + p->w->layout->nested_offset);
    const int64_t row_blocks = p->w->n_k / 64;
    const __m512 offset = _mm512_set1_ps(weight->nested_offset);
    int64_t block = p->row * row_blocks + p->k / 64;
    for (int r = 0; r < PANEL_ROWS; r += 2, block += 2 * row_blocks) {
        const unsigned char *codes = data + p->w->layout->scales_offset + block;
        const __m128i both = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)codes),
                                                _mm_loadl_epi64((const __m128i *)(const void *)(codes + row_blocks)));
        const __m512 values = _mm512_i32gather_ps(_mm512_cvtepu8_epi32(both), map, 4);
        const __m512 scale = _mm512_mask_blend_ps(0xFF00, _mm512_set1_ps(nested[block / QR_NESTED_BLOCK]),
                                                  _mm512_set1_ps(nested[(block + row_blocks) / QR_NESTED_BLOCK]));
        _mm512_storeu_ps(scales + r * panel_row_scales(WEIGHTS_NF4),
                         _mm512_add_ps(_mm512_mul_ps(values, scale), offset));
    }
}

static void panel_scales(const tiles_panel *p, panel_scratch *s) {
    const qr_weight_desc *desc = &p->w->weight->desc;
    if (desc->format == QR_WEIGHT_NF4_DQ && desc->block == 64 && p->n_k == PANEL_K && desc->cols % PANEL_K == 0) {
        gather_scales(p, s->scales);
        return;
    }
    const int64_t n = p->n_k / qr_cpu_scale_cols(p->w->weight);
    for (int64_t r = 0; r < PANEL_ROWS; r++) {
        qr_cpu_nf4_scales(p->w->weight, p->w->layout, p->row + r, p->k, n,
                          s->scales + r * panel_row_scales(p->w->kind));
    }
}

/* Rows [2 · quarter, + 2) of the tables of a batch. */
QR_INLINE void make_batch_tables(panel_scratch *s, unsigned batch, const int quarter, const weights_kind kind) {
    const unsigned row = batch % RUN_BATCHES * BATCH_ROWS, of_row = (unsigned)panel_row_scales(kind);
    const __m512 code = values_of_codes(kind);
    QR_UNROLL for (int r = 2 * quarter; r < 2 * quarter + 2; r++) {
        const float *scales =
            s->scales + (row + (unsigned)r) * of_row + of_row / (PANEL_K / RUN_K) * (batch / RUN_BATCHES);
        make_tables(code, scales, kind, s->tables[batch % 2][r]);
    }
}

static panel_source source_of(const tiles_panel *p) {
    const size_t element_bytes = p->w->kind == WEIGHTS_INT8 ? 1 : 2, row_bytes = p->w->layout->row_bytes;
    if (has_tables(p->w->kind)) {
        return (panel_source){group_codes(p->w, p->row, p->k), p->w->layout->group_bytes, TILE_ROWS * 64, 64};
    }
    return (panel_source){element_row(p->w, p->row, p->k, element_bytes), TILE_ROWS * row_bytes, RUN_K * element_bytes,
                          row_bytes};
}

/* What a panel's filling needs before its first batch. */
static void begin_filling(const tiles_panel *p, panel_scratch *s) {
    s->source = source_of(p);
    if (!has_tables(p->w->kind)) { return; }
    panel_scales(p, s);
    for (int quarter = 0; quarter < 4; quarter++) { make_batch_tables(s, 0, quarter, p->w->kind); }
}

/* A quarter of a batch. With tables: and of the tables of the next one; after the last, of tables that nothing reads.
 */
QR_INLINE void fill_quarter(panel_scratch *s, unsigned batch, const int quarter, const weights_kind kind) {
    const unsigned run = batch / RUN_BATCHES, group = batch / 2 % 2;
    const unsigned in_group = batch % 2 * BATCH_ROWS + 2 * (unsigned)quarter;
    const size_t row_bytes = has_tables(kind) ? 64 : s->source.row_bytes;
    const unsigned char *src =
        s->source.first + group * s->source.group_bytes + run * s->source.run_bytes + in_group * row_bytes;
    uint16_t *dst = s->panel + group * GROUP_ELEMENTS + run * RUN_TILES * TILE_ELEMENTS + in_group * 32;
    const uint16_t *tables = s->tables[batch % 2][2 * quarter];
    if (has_tables(kind)) { make_batch_tables(s, (batch + 1) % PANEL_BATCHES, quarter, kind); }
    QR_UNROLL for (int r = 0; r < 2; r++, src += row_bytes, tables += TABLES, dst += 32) {
        if (has_tables(kind)) {
            look_up(src, tables, kind, dst);
        } else if (kind == WEIGHTS_INT8) {
            convert_int8(src, dst);
        } else {
            copy_bf16(src, dst);
        }
    }
}

QR_INLINE void fill_batches(const tiles_panel *p, panel_scratch *s, const weights_kind kind) {
    const unsigned n_batches = (unsigned)(p->n_k / RUN_K) * RUN_BATCHES;
    begin_filling(p, s);
    for (unsigned batch = 0; batch < n_batches; batch++) {
        QR_UNROLL for (int quarter = 0; quarter < 4; quarter++) { fill_quarter(s, batch, quarter, kind); }
    }
}

/* Any panel: rows that are missing and columns past the end are zeros. */
static void fetch_rows(const tiles_panel *p, panel_scratch *s) {
    const int64_t n_k_padded = qr_round_up(p->n_k, 32);
    for (int64_t group = 0; group < 2; group++) {
        const int64_t n_rows = qr_min(p->n_rows - group * TILE_ROWS, TILE_ROWS);
        uint16_t *dst = s->panel + group * GROUP_ELEMENTS;
        if (n_rows < TILE_ROWS) { memset(dst, 0, GROUP_ELEMENTS * sizeof *dst); }
        if (n_rows <= 0) { continue; }
        const qr_cpu_panel rows = {
            .weight = p->w->weight,
            .layout = p->w->layout,
            .row = p->row + group * TILE_ROWS,
            .n_rows = n_rows,
            .k = p->k,
            .n_k = p->n_k,
            .n_k_padded = n_k_padded,
            .k_block = PANEL_K,
            .dst = s->rows,
            .dst_stride = PANEL_K,
        };
        qr_cpu_fetch_bf16(&rows);
        for (int64_t r = 0; r < n_rows; r++) {
            for (int64_t k = 0; k < n_k_padded; k += 32) {
                memcpy(dst + k * TILE_ROWS + r * 32, s->rows + r * PANEL_K + k, 64);
            }
        }
    }
}

static void fill_panel(const tiles_panel *p, panel_scratch *s) {
    if (!is_regular(p)) {
        fetch_rows(p, s);
    } else if (p->w->kind == WEIGHTS_NF4) {
        fill_batches(p, s, WEIGHTS_NF4);
    } else if (p->w->kind == WEIGHTS_MXFP4) {
        fill_batches(p, s, WEIGHTS_MXFP4);
    } else if (p->w->kind == WEIGHTS_INT8) {
        fill_batches(p, s, WEIGHTS_INT8);
    } else {
        fill_batches(p, s, WEIGHTS_BF16);
    }
    TILES_BARRIER();
}

/* Asks for one of n_parts parts of a regular panel's weights: into L2, while the panel before it is at work. Of codes
 * of 4 bits every other line: L2 fetches lines in pairs. */
static void prefetch_panel(const tiles_panel *p, int64_t part, int64_t n_parts) {
    if (!is_regular(p)) { return; }
    if (has_tables(p->w->kind)) {
        const int64_t n_lines = p->n_k / 8;
        const uint8_t *first = group_codes(p->w, p->row, p->k), *second = group_codes(p->w, p->row + TILE_ROWS, p->k);
        for (int64_t i = n_lines * part / n_parts; i < n_lines * (part + 1) / n_parts; i += 2) {
            _mm_prefetch((const char *)first + 64 * i, _MM_HINT_T1);
            _mm_prefetch((const char *)second + 64 * i, _MM_HINT_T1);
        }
        return;
    }
    const size_t element_bytes = p->w->kind == WEIGHTS_INT8 ? 1 : 2;
    for (int64_t r = PANEL_ROWS * part / n_parts; r < PANEL_ROWS * (part + 1) / n_parts; r++) {
        const unsigned char *row = element_row(p->w, p->row + r, p->k, element_bytes);
        for (size_t i = 0; i < (size_t)p->n_k * element_bytes; i += 64) {
            _mm_prefetch((const char *)row + i, _MM_HINT_T1);
        }
    }
}

#endif
