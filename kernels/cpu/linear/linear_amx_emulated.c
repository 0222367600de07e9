/* linear_amx_body.h on tiles emulated in plain C, for tests. The arithmetic is that of TDPBF16PS (Intel SDM, volume 2):
 * for each element of C, two chains of fused multiply-adds, over the even and over the odd k, each from zero; their sum
 * is added to C; subnormal sources count as zero and subnormal results become zero. */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "base/half.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_bf16_fetch.h"
#include "kernels/cpu/linear/tile_layout.h"

typedef struct tile {
    unsigned char rows[16][64];
} tile;
typedef struct tiles_state {
    tile tiles[8];
    size_t row_bytes[8];
} tiles_state;

static void tiles_begin(tiles_state *state, int64_t n_cols) {
    memset(state, 0, sizeof *state);
    for (int t = 0; t < 8; t++) { state->row_bytes[t] = t == 4 || t == 5 ? 64 : 4 * (size_t)n_cols; }
}

static void tiles_end(tiles_state *state) { (void)state; }

static void tiles_zero(tiles_state *state, int t) { memset(&state->tiles[t], 0, sizeof(tile)); }

static void tiles_load(tiles_state *state, int t, const void *base, size_t stride) {
    tiles_zero(state, t);
    for (size_t r = 0; r < 16; r++) {
        memcpy(state->tiles[t].rows[r], (const unsigned char *)base + r * stride, state->row_bytes[t]);
    }
}

static void tiles_store(const tiles_state *state, int t, void *base, size_t stride) {
    for (size_t r = 0; r < 16; r++) {
        memcpy((unsigned char *)base + r * stride, state->tiles[t].rows[r], state->row_bytes[t]);
    }
}

static float flush(float value) { return fabsf(value) < FLT_MIN ? copysignf(0.0F, value) : value; }

static float source(const tile *t, int row, int i) {
    uint16_t bits;
    memcpy(&bits, &t->rows[row][2 * i], sizeof bits);
    return flush(qr_bf16_to_f32(bits));
}

static void tiles_dot(tiles_state *state, int c, int a, int b) {
    tile *sums = &state->tiles[c];
    const tile *left = &state->tiles[a], *right = &state->tiles[b];
    for (int m = 0; m < 16; m++) {
        for (int n = 0; n < (int)(state->row_bytes[c] / 4); n++) {
            float even = 0.0F, odd = 0.0F, sum;
            for (int k = 0; k < 16; k++) {
                even = flush(fmaf(source(left, m, 2 * k), source(right, k, 2 * n), even));
                odd = flush(fmaf(source(left, m, 2 * k + 1), source(right, k, 2 * n + 1), odd));
            }
            memcpy(&sum, &sums->rows[m][4 * n], sizeof sum);
            sum = flush(flush(sum) + flush(even + odd));
            memcpy(&sums->rows[m][4 * n], &sum, sizeof sum);
        }
    }
}

#include "kernels/cpu/linear/linear_amx_body.h"

const qr_cpu_matmul qr_cpu_matmul_bf16_amx_emulated = AMX_MATMUL(.exercise = NULL);
