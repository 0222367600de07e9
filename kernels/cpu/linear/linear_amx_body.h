/* linear on AMX tiles, for x in BF16. Included by linear_amx.c, whose tiles are the CPU's, and by
 * linear_amx_emulated.c, whose tiles are arrays, so that CPUs without AMX run and test this code too.
 *
 * The weights are the first source, 16 rows by 32 k, row-major as fetch writes them; x is the second, packed once a
 * call into tiles of 16 rows: [n_k / 2 pairs of k][16][2]. The sums then are [weight row][row of x]. TDPBF16PS adds the
 * 32 products of a pair of rows in an order of its own, then adds the result to C. C is carried unchanged from one K
 * block to the next, so the order depends on K alone.
 *
 * The includer includes gemm_backward.h, linear_bf16_fetch.h and tile_layout.h, and defines tiles_state,
 * tiles_begin(state, n_cols) and tiles_end(state). With constant tile numbers it defines tiles_zero(state, t),
 * tiles_load(state, t, base, stride), tiles_store(state, t, base, stride), strides in bytes, and tiles_dot(state, c, a,
 * b). Tiles 0 … 3 are C, 4 and 5 are A, 6 and 7 are B; C and B are n_cols wide. */

enum { TILE_ROWS = 16, TILE_K = 32, K_BLOCK = 512 };

/* Macros, because the compiler's intrinsics need a literal tile number. */
#define TILES_C0 0
#define TILES_C1 1
#define TILES_C2 2
#define TILES_C3 3
#define TILES_A0 4
#define TILES_A1 5
#define TILES_B0 6
#define TILES_B1 7

/* A block of C: 16 or 32 weight rows by one or two tiles of x. */
typedef struct tiles_block {
    const uint16_t *a0, *a1, *b0, *b1; /* a1, b1: not read where there is one only */
    size_t a_stride, b_stride, b_step; /* bytes of a row of A, of B; elements from one B tile to the next along k */
    float *c;
    size_t c_stride; /* elements */
    int64_t n_k;
    bool first;
} tiles_block;

/* Two tiles of A and two of B are four products for four loads; decoding has one tile of B and two chains of products;
 * one tile of A is the end of a matrix. two_a and two_b are constants after inlining. */
static inline __attribute__((always_inline)) void multiply_block(tiles_state *state, const tiles_block *b,
                                                                 const bool two_a, const bool two_b) {
    float *c2 = b->c + TILE_ROWS * b->c_stride;
    const size_t c_bytes = b->c_stride * sizeof(float);
    if (b->first) {
        tiles_zero(state, TILES_C0);
        if (two_b) { tiles_zero(state, TILES_C1); }
        if (two_a) { tiles_zero(state, TILES_C2); }
        if (two_a && two_b) { tiles_zero(state, TILES_C3); }
    } else {
        tiles_load(state, TILES_C0, b->c, c_bytes);
        if (two_b) { tiles_load(state, TILES_C1, b->c + TILE_ROWS, c_bytes); }
        if (two_a) { tiles_load(state, TILES_C2, c2, c_bytes); }
        if (two_a && two_b) { tiles_load(state, TILES_C3, c2 + TILE_ROWS, c_bytes); }
    }
    for (int64_t k = 0; k < b->n_k; k += TILE_K) {
        const size_t b_offset = (size_t)(k / TILE_K) * b->b_step;
        tiles_load(state, TILES_A0, b->a0 + k, b->a_stride);
        tiles_load(state, TILES_B0, b->b0 + b_offset, b->b_stride);
        tiles_dot(state, TILES_C0, TILES_A0, TILES_B0);
        if (two_b) {
            tiles_load(state, TILES_B1, b->b1 + b_offset, b->b_stride);
            tiles_dot(state, TILES_C1, TILES_A0, TILES_B1);
        }
        if (two_a) {
            tiles_load(state, TILES_A1, b->a1 + k, b->a_stride);
            tiles_dot(state, TILES_C2, TILES_A1, TILES_B0);
        }
        if (two_a && two_b) { tiles_dot(state, TILES_C3, TILES_A1, TILES_B1); }
    }
    tiles_store(state, TILES_C0, b->c, c_bytes);
    if (two_b) { tiles_store(state, TILES_C1, b->c + TILE_ROWS, c_bytes); }
    if (two_a) { tiles_store(state, TILES_C2, c2, c_bytes); }
    if (two_a && two_b) { tiles_store(state, TILES_C3, c2 + TILE_ROWS, c_bytes); }
}

/* Up to 32 weight rows from o on; what a tile computes past the last row is not used. */
static void multiply_tile_rows(tiles_state *state, const qr_cpu_product *p, int64_t o) {
    const bool two = p->n_w - o > TILE_ROWS;
    const uint16_t *a = (const uint16_t *)p->w + o * p->w_stride;
    tiles_block block = {
        .a0 = a,
        .a1 = a + TILE_ROWS * p->w_stride,
        .a_stride = (size_t)p->w_stride * sizeof *a,
        .b_stride = (size_t)p->tile_cols * 4,
        .b_step = (size_t)(p->tile_cols * TILE_K),
        .c_stride = (size_t)p->sum_stride,
        .n_k = p->n_k,
        .first = p->first,
    };
    for (int64_t i = 0; i < p->n_x; i += TILE_ROWS) {
        block.b0 = (const uint16_t *)p->x + i * p->x_stride;
        block.b1 = block.b0 + TILE_ROWS * p->x_stride;
        block.c = p->sums + o * p->sum_stride + i;
        if (!two) {
            multiply_block(state, &block, false, false);
        } else if (i + TILE_ROWS < p->n_x) {
            multiply_block(state, &block, true, true);
            i += TILE_ROWS;
        } else {
            multiply_block(state, &block, true, false);
        }
    }
}

static void multiply(const qr_cpu_product *p) {
    tiles_state state;
    tiles_begin(&state, p->tile_cols);
    for (int64_t o = 0; o < p->n_w; o += 2 * TILE_ROWS) { multiply_tile_rows(&state, p, o); }
    tiles_end(&state);
}

/* The table of the tiles; each includer adds its own members. */
#define AMX_MATMUL(...)                                                                                \
    {                                                                                                  \
        .element_bytes = 2, .k_block = K_BLOCK, .piece_rows = 2 * TILE_ROWS, .x_dtype = QR_DTYPE_BF16, \
        .fetch = qr_cpu_fetch_bf16, .multiply = multiply, .gemm_backward = &qr_cpu_gemm_bf16,          \
        .tile_pack = qr_cpu_tile_pack, .tile_turn = qr_cpu_tile_turn, __VA_ARGS__                      \
    }
