/* Vectors of F32 lanes in plain C: what the bodies that are shared between instruction sets are written in. Each
 * lanes_<isa>.h defines the same names. */
#ifndef QR_KERNELS_CPU_SIMD_LANES_C_H
#define QR_KERNELS_CPU_SIMD_LANES_C_H

#include <stdint.h>
#include <string.h>

#include "base/half.h"

#define TILE_MAX_COLS 2
enum { LANES = 4, LANES_TILE_ROWS = 4, LANES_TILE_COLS = TILE_MAX_COLS };

/* A vector type of the compiler's (GCC and Clang have them for every processor): accumulators in plain arrays are kept
 * in memory instead of registers, which made products 10 times slower. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef struct lanes_index {
    uint32_t v[LANES];
} lanes_index;
typedef struct lanes_table {
    float v[16];
} lanes_table;

#define LANES_EACH(expression)                                   \
    do {                                                         \
        for (int lane = 0; lane < LANES; lane++) { expression; } \
    } while (0)

static inline lanes lanes_zero(void) { return (lanes){0}; }

static inline lanes lanes_load(const float *src) {
    lanes a;
    memcpy(&a, src, sizeof a);
    return a;
}

static inline void lanes_store(float *dst, lanes a) { memcpy(dst, &a, sizeof a); }

static inline lanes lanes_set(float value) {
    lanes a;
    LANES_EACH(a[lane] = value);
    return a;
}

static inline lanes lanes_mul(lanes a, lanes b) { return a * b; }

/* a · b + c; here with two roundings, in the vector instruction sets with one. */
static inline lanes lanes_fma(lanes a, lanes b, lanes c) { return c + a * b; }

static inline lanes lanes_from_bf16(const uint16_t *src) {
    lanes a;
    LANES_EACH(a[lane] = qr_bf16_to_f32(src[lane]));
    return a;
}

static inline lanes lanes_from_f16(const uint16_t *src) {
    lanes a;
    LANES_EACH(a[lane] = qr_f16_to_f32(src[lane]));
    return a;
}

static inline lanes lanes_from_i8(const int8_t *src) {
    lanes a;
    LANES_EACH(a[lane] = (float)src[lane]);
    return a;
}

/* Rounded to the nearest value of a type: BF16, F16, or F32, which leaves it as it is. */
static inline lanes lanes_round(lanes a, qr_dtype dtype) {
    if (dtype == QR_DTYPE_BF16) { LANES_EACH(a[lane] = qr_bf16_to_f32(qr_f32_to_bf16(a[lane]))); }
    if (dtype == QR_DTYPE_F16) { LANES_EACH(a[lane] = qr_f16_to_f32(qr_f32_to_f16(a[lane]))); }
    return a;
}

/* The 16 products code[i] · scale, rounded to a type. */
static inline lanes_table lanes_table_make(const float code[16], float scale, qr_dtype dtype) {
    lanes_table table;
    for (int i = 0; i < 16; i += LANES) {
        lanes_store(table.v + i, lanes_round(lanes_mul(lanes_load(code + i), lanes_set(scale)), dtype));
    }
    return table;
}

static inline lanes_index lanes_index_from_u16(const uint8_t *src) {
    lanes_index a;
    LANES_EACH(a.v[lane] = (uint32_t)src[2 * lane] | (uint32_t)src[2 * lane + 1] << 8);
    return a;
}

static inline lanes_index lanes_index_from_u8(const uint8_t *src) {
    lanes_index a;
    LANES_EACH(a.v[lane] = src[lane]);
    return a;
}

/* The table at bits [shift, shift + 4) of each index. */
static inline lanes lanes_lookup(const lanes_table *table, lanes_index index, int shift) {
    lanes a;
    LANES_EACH(a[lane] = table->v[index.v[lane] >> shift & 15]);
    return a;
}

/* dst[r] = the sum of the lanes of acc[r] in a fixed tree, for r in [0, LANES_TILE_ROWS); added to dst unless first. */
static inline void lanes_reduce(const lanes *acc, float *dst, bool first) {
    for (int r = 0; r < LANES_TILE_ROWS; r++) {
        const float sum = (acc[r][0] + acc[r][2]) + (acc[r][1] + acc[r][3]);
        dst[r] = first ? sum : dst[r] + sum;
    }
}

/* lanes_reduce of n_rows rows of accumulators, LANES_TILE_ROWS a row. */
static inline void lanes_reduce_rows(lanes acc[][LANES_TILE_ROWS], int n_rows, float *dst, int64_t stride, bool first) {
    for (int r = 0; r < n_rows; r++) { lanes_reduce(acc[r], dst + r * stride, first); }
}

#endif
