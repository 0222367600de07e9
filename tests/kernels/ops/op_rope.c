/* rope_table and rope. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"

enum { N_TOKENS = 65, N_SLOTS = 3 };

typedef struct table_case {
    int64_t half;
    const float *inv_freq, *factor;
    const int32_t *slot, *position;
    float temperature_beta;
    int32_t temperature_tokens;
} table_case;

/* Row: the cosines, then the sines. */
static void exec_rope_table(op_run *run, const void *data, int64_t first, int64_t n_tokens, qr_dtype dtype, void *out) {
    (void)dtype;
    const table_case *c = data;
    const size_t n_bytes = (size_t)c->half * sizeof(float);
    const qr_rope_table_args args = {
        .inv_freq = op_input(run, c->inv_freq, N_SLOTS * n_bytes),
        .factor = op_input(run, c->factor, N_SLOTS * sizeof(float)),
        .token_slot = op_input(run, c->slot + first, (size_t)n_tokens * sizeof(int32_t)),
        .position = op_input(run, c->position + first, (size_t)n_tokens * sizeof(int32_t)),
        .cos_table = op_output(run, NULL, n_tokens, n_bytes, n_bytes),
        .sin_table = op_output(run, NULL, n_tokens, n_bytes, n_bytes),
        .n_tokens = n_tokens,
        .half = c->half,
        .temperature_beta = c->temperature_beta,
        .temperature_tokens = c->temperature_tokens,
    };
    op_call(run, QR_OP_rope_table, &args);
    float *cosines = qr_alloc((size_t)n_tokens * n_bytes), *sines = qr_alloc((size_t)n_tokens * n_bytes);
    op_read(run, args.cos_table, cosines);
    op_read(run, args.sin_table, sines);
    for (int64_t i = 0; i < n_tokens; i++) {
        memcpy((float *)out + 2 * i * c->half, cosines + i * c->half, n_bytes);
        memcpy((float *)out + (2 * i + 1) * c->half, sines + i * c->half, n_bytes);
    }
    qr_free(cosines);
    qr_free(sines);
}

/* The angle is the same F32 number everywhere, up to that of position 131,071; its cosine and sine err by at most 3 u
 * of 1, and the factor adds one rounding. */
void test_op_rope_table(void) {
    static const int64_t halves[] = {1, 4, 15, 32, 40, 64, 128};
    static const float factor[N_SLOTS] = {1.0F, 1.1902F, 0.75F};
    int32_t slot[N_TOKENS], position[N_TOKENS];
    for (int64_t i = 0; i < N_TOKENS; i++) {
        slot[i] = (int32_t)op_below(1, i, N_SLOTS);
        position[i] = (int32_t)op_below(2, i, i % 2 == 0 ? 131072 : 40);
    }
    position[0] = 0;
    for (size_t s = 0; s < QR_COUNT_OF(halves); s++) {
        const int64_t half = halves[s];
        float *inv_freq = qr_alloc_array((size_t)(N_SLOTS * half), sizeof(float));
        double *bound = op_doubles(N_TOKENS * 2 * half);
        for (int64_t i = 0; i < N_SLOTS * half; i++) {
            inv_freq[i] = (float)pow(i < half ? 10000.0 : 5e5, -(double)(i % half) / (double)half);
        }
        const table_case data = {
            .half = half,
            .inv_freq = inv_freq,
            .factor = factor,
            .slot = slot,
            .position = position,
            .temperature_beta = 0.1F,
            .temperature_tokens = s % 2 == 0 ? 0 : 30,
        };
        op_case c = {.n_rows = N_TOKENS, .row = 2 * half, .exec = exec_rope_table, .data = &data, .bound = bound};
        snprintf(c.label, sizeof c.label, "rope_table half %lld", (long long)half);
        for (int64_t i = 0; i < N_TOKENS * 2 * half; i++) {
            const int64_t row = i / (2 * half);
            const double n = data.temperature_tokens == 0 ? 0 : position[row] / data.temperature_tokens;
            bound[i] = 4.0 * OP_U * (double)factor[slot[row]];
            if (n > 0) { bound[i] = 9.0 * OP_U * (double)factor[slot[row]] * (1.0 + 0.1 * log(1.0 + n)); }
        }
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(inv_freq);
        qr_free(bound);
    }
}

typedef struct rope_case {
    int64_t n_heads, head_dim, half;
    const float *x, *cos_table, *sin_table; /* x [N_TOKENS, n_heads · head_dim] */
    bool interleaved, backward;
} rope_case;

/* rope and rope_backward have the same arguments under other names. */
static void exec_rope(op_run *run, const void *data, int64_t first, int64_t n_tokens, qr_dtype dtype, void *out) {
    (void)dtype;
    const rope_case *c = data;
    const int64_t row = c->n_heads * c->head_dim;
    const size_t table_bytes = (size_t)(n_tokens * c->half) * sizeof(float);
    const qr_rope_args args = {
        .x = op_output(run, c->x + first * row, n_tokens, (size_t)row * sizeof(float),
                       (size_t)(row + op_gap(row)) * sizeof(float)),
        .cos_table = op_input(run, c->cos_table + first * c->half, table_bytes),
        .sin_table = op_input(run, c->sin_table + first * c->half, table_bytes),
        .n_tokens = n_tokens,
        .n_heads = c->n_heads,
        .head_dim = c->head_dim,
        .half = c->half,
        .x_stride = row + op_gap(row),
        .interleaved = c->interleaved,
    };
    if (c->backward) {
        const qr_rope_backward_args backward = {
            .dx = args.x,
            .cos_table = args.cos_table,
            .sin_table = args.sin_table,
            .n_tokens = n_tokens,
            .n_heads = c->n_heads,
            .head_dim = c->head_dim,
            .half = c->half,
            .dx_stride = args.x_stride,
            .interleaved = c->interleaved,
        };
        op_call(run, QR_OP_rope_backward, &backward);
    } else {
        op_call(run, QR_OP_rope, &args);
    }
    op_read(run, args.x, out);
}

/* Two products and a sum: at most 2 u of each product. Elements from 2 · half on are copied: bound 0. */
static void rope_bound(const rope_case *c, double *bound) {
    for (int64_t i = 0; i < N_TOKENS * c->n_heads; i++) {
        const float *x = c->x + i * c->head_dim;
        for (int64_t j = 0; j < c->half; j++) {
            const double cosine = fabs((double)c->cos_table[i / c->n_heads * c->half + j]);
            const double sine = fabs((double)c->sin_table[i / c->n_heads * c->half + j]);
            const int64_t first = c->interleaved ? 2 * j : j, second = first + (c->interleaved ? 1 : c->half);
            const double a = fabs((double)x[first]), b = fabs((double)x[second]);
            bound[i * c->head_dim + first] = 2.0 * OP_U * (a * cosine + b * sine);
            bound[i * c->head_dim + second] = 2.0 * OP_U * (b * cosine + a * sine);
        }
    }
}

static void test_rope(bool interleaved, bool backward) {
    static const int64_t shapes[][3] = {{1, 2, 1},    {3, 8, 4},     {5, 30, 15}, {4, 64, 32}, {7, 80, 40}, {2, 80, 16},
                                        {3, 128, 64}, {2, 256, 128}, {2, 96, 24}, {3, 17, 5},  {3, 21, 9}};
    for (size_t s = 0; s < QR_COUNT_OF(shapes); s++) {
        const int64_t n_heads = shapes[s][0], head_dim = shapes[s][1], half = shapes[s][2], row = n_heads * head_dim;
        float *x = op_normals(N_TOKENS * row, 3, 1.0), *angle = op_normals(N_TOKENS * half, 4, 2.0);
        float *cosines = op_normals(N_TOKENS * half, 4, 1.0), *sines = op_normals(N_TOKENS * half, 4, 1.0);
        for (int64_t i = 0; i < N_TOKENS * half; i++) {
            cosines[i] = cosf(angle[i]);
            sines[i] = sinf(angle[i]);
        }
        double *bound = op_doubles(N_TOKENS * row);
        const rope_case data = {
            .n_heads = n_heads,
            .head_dim = head_dim,
            .half = half,
            .x = x,
            .cos_table = cosines,
            .sin_table = sines,
            .interleaved = interleaved,
            .backward = backward,
        };
        op_case c = {.n_rows = N_TOKENS, .row = row, .exec = exec_rope, .data = &data, .bound = bound};
        snprintf(c.label, sizeof c.label, "%s%s %lld heads of %lld, half %lld", interleaved ? "interleaved " : "",
                 backward ? "rope_backward" : "rope", (long long)n_heads, (long long)head_dim, (long long)half);
        rope_bound(&data, bound);
        op_check_case(&c, QR_DTYPE_F32);
        qr_free(x);
        qr_free(angle);
        qr_free(cosines);
        qr_free(sines);
        qr_free(bound);
    }
}

void test_op_rope(void) {
    test_rope(false, false);
    test_rope(true, false);
}

void test_op_rope_backward(void) {
    test_rope(false, true);
    test_rope(true, true);
}
