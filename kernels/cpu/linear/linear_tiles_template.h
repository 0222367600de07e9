/* linear on matrix tiles: included by linear_amx.c, whose tiles are the CPU's, and by linear_amx_emulated.c, whose
 * tiles are arrays. So CPUs without AMX run and test this code too.
 *
 * Weights are the first source of TDPBF16PS, 16 rows by 32 columns of k, row-major; x is the second, [16 pairs of
 * k][columns][2]. C then is [weight row][row of x].
 *
 * The costs that comments state are those of two Xeons with AMX, as seen by a virtual machine. On one core of the
 * second (Emerald Rapids, 2.3 GHz under these products), of the tile peak: products out of L1 and L2 87 %, with panels
 * made beside them about 62, with y written 53 to 55 (docs/speed.md).
 *
 * The includer includes kernels/cpu/simd/tiles_amx.h or tiles_emulated.h before. Configuring and releasing tiles costs
 * 180 cycles: once a task. */
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear_tiles.h"
#include "kernels/cpu/linear/tiles_store.h"
#include "kernels/cpu/linear/tiles_weights.h"

#include "kernels/cpu/linear/tiles_panels.h"

#include "kernels/cpu/linear/tiles_decode.h"

#include "kernels/cpu/linear/tiles_gemm.h"

static size_t scratch_bytes(int64_t n_rows) {
    const int64_t n_blocks = qr_ceil_div(qr_min(n_rows, QR_TILES_CHUNK), BLOCK_COLS);
    const size_t of_panels = sizeof(panels_scratch) + (size_t)(TASK_PANELS * n_blocks) * BLOCK_SUMS * sizeof(float);
    return n_rows > QR_TILES_DECODE_ROWS || of_panels > sizeof(decode_scratch) ? of_panels : sizeof(decode_scratch);
}

/* 16 pairs of k a turn. */
static void pack(const uint16_t *x, int64_t x_stride, int64_t n_rows, int64_t tile_cols, int64_t n_k,
                 int64_t n_k_padded, uint16_t *dst) {
    for (int64_t k = 0; k < n_k_padded; k += 32, dst += 32 * tile_cols) {
        qr_vec rows[QR_VEC];
        for (int64_t r = 0; r < QR_VEC; r++) {
            rows[r] = r < n_rows ? qr_vec_load_units(x + r * x_stride + k, 2 * (n_k - k)) : qr_vec_zero();
        }
        qr_vec_transpose(rows);
        for (int64_t pair = 0; pair < QR_VEC; pair++) {
            qr_vec_store_n((float *)(void *)(dst + pair * 2 * tile_cols), rows[pair], tile_cols);
        }
    }
}

static void dot(float *c, const uint16_t *a, const uint16_t *b) {
    tiles_state state;
    tiles_begin(&state, TILE_ROWS, QR_TILES_COLS, TILE_PAIRS);
    TILES_BARRIER();
    tiles_load(&state, TILES_C0, c, 64);
    tiles_load(&state, TILES_A0, a, 64);
    tiles_load(&state, TILES_B0, b, 64);
    tiles_dot(&state, TILES_C0, TILES_A0, TILES_B0);
    tiles_store(&state, TILES_C0, c, 64);
    tiles_end(&state);
}

#define TILES_KERNEL \
    { .pack = pack, .scratch_bytes = scratch_bytes, .decode = decode, .panels = panels, .dot = dot }

#define TILES_GEMM                                                                            \
    {                                                                                         \
        .unit_k = 2, .row_step = 2 * TILE_ROWS, .pack = qr_cpu_gemm_pack_bf16,                \
        .interleave = qr_cpu_gemm_interleave_bf16, .pack_parts = qr_cpu_gemm_pack_parts_bf16, \
        .multiply = gemm_multiply, .packs_once = true                                         \
    }

/* The table of the tiles; each includer adds its own members. */
#define TILES_MATMUL(...) \
    { .element_bytes = 2, .k_block = PANEL_K, .x_dtype = QR_DTYPE_BF16, .fetch = qr_cpu_fetch_bf16, __VA_ARGS__ }
