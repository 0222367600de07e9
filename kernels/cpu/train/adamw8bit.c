/* adamw8bit. The bytes of the states are part of the interface, so every product and sum is rounded by itself, as in
 * ref: no qr_vec_fma here, nor anything else whose result differs between instruction sets. */
#include <stddef.h>

#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/vector_ops.h"
#include "quant/dynamic8.h"

enum { BLOCK = 256 };

/* Keeps a loop over table look-ups from being vectorised: a vector of them takes longer than one after the other. */
#define KEEP_SCALAR(x) __asm__("" : "+r"(x))

/* Of one of the two maps. */
struct code_search {
    const uint8_t *cells;
    const float *bounds;
};

struct adamw8bit {
    const qr_adamw8bit_args *args;
    const float *m_map, *v_map;
    struct code_search m_search, v_search;
    float step_size, eps, decay;
};

/* One block in work; zeros after its n elements. is_finite is 1 where the gradient is finite, else 0. */
struct block {
    float m[BLOCK], v[BLOCK], is_finite[BLOCK];
    int64_t first, n;
};

static void load_states(const struct adamw8bit *s, struct block *b) {
    if (b->n < BLOCK) { memset(b, 0, offsetof(struct block, first)); }
    const uint8_t *m = s->args->m + b->first, *v = s->args->v + b->first;
    for (int64_t j = 0; j < b->n; j++) {
        int32_t m_code = m[j], v_code = v[j];
        KEEP_SCALAR(m_code);
        b->m[j] = s->m_map[m_code];
        b->v[j] = s->v_map[v_code];
    }
}

/* The new moments; 0 where the gradient is not finite. Returns their greatest magnitudes. */
static void update_moments(const struct adamw8bit *s, struct block *b, float *m_absmax, float *v_absmax) {
    const qr_adamw8bit_args *a = s->args;
    const qr_vec keep_m = qr_vec_set1(a->beta1), add_m = qr_vec_set1(1.0F - a->beta1), zero = qr_vec_zero();
    const qr_vec keep_v = qr_vec_set1(a->beta2), add_v = qr_vec_set1(1.0F - a->beta2);
    const qr_vec old_m_absmax = qr_vec_set1(*m_absmax), old_v_absmax = qr_vec_set1(*v_absmax);
    const qr_vec grad_scale = qr_vec_set1(a->grad_scale), one = qr_vec_set1(1.0F), infinity = qr_vec_set1(INFINITY);
    qr_vec m_highest = zero, v_highest = zero;
    for (int64_t j = 0; j < b->n; j += QR_VEC) {
        const qr_vec raw = qr_vec_load_n(a->g + b->first + j, b->n - j), g = qr_vec_mul(raw, grad_scale);
        const qr_vec old_m = qr_vec_mul(qr_vec_mul(qr_vec_load(b->m + j), old_m_absmax), keep_m);
        const qr_vec old_v = qr_vec_mul(qr_vec_mul(qr_vec_load(b->v + j), old_v_absmax), keep_v);
        const qr_vec new_m = qr_vec_add(old_m, qr_vec_mul(add_m, g));
        const qr_vec new_v = qr_vec_add(old_v, qr_vec_mul(qr_vec_mul(add_v, g), g));
        /* NaN is not less than infinity. */
        const qr_vec is_finite = qr_vec_select_less(qr_vec_abs(raw), infinity, one, zero);
        qr_vec m = qr_vec_select_less(zero, is_finite, new_m, zero);
        qr_vec v = qr_vec_select_less(zero, is_finite, new_v, zero);
        if (b->n - j < QR_VEC) {
            m = qr_vec_select_range(m, zero, 0, (int)(b->n - j));
            v = qr_vec_select_range(v, zero, 0, (int)(b->n - j));
        }
        m_highest = qr_vec_max(qr_vec_abs(m), m_highest);
        v_highest = qr_vec_max(qr_vec_abs(v), v_highest);
        qr_vec_store(b->m + j, m);
        qr_vec_store(b->v + j, v);
        qr_vec_store(b->is_finite + j, is_finite);
    }
    *m_absmax = qr_vec_highest(m_highest);
    *v_absmax = qr_vec_highest(v_highest);
}

static void update_parameters(const struct adamw8bit *s, const struct block *b) {
    const qr_vec step_size = qr_vec_set1(s->step_size), eps = qr_vec_set1(s->eps), decay = qr_vec_set1(s->decay);
    for (int64_t j = 0; j < b->n; j += QR_VEC) {
        float *p = s->args->p + b->first + j;
        const qr_vec old = qr_vec_load_n(p, b->n - j);
        const qr_vec root = qr_vec_add(qr_vec_sqrt(qr_vec_load(b->v + j)), eps);
        qr_vec moved = qr_vec_add(old, qr_vec_mul(step_size, qr_vec_div(qr_vec_load(b->m + j), root)));
        if (s->args->weight_decay > 0.0F) { moved = qr_vec_mul(moved, decay); }
        qr_vec_store_n(p, qr_vec_select_less(qr_vec_zero(), qr_vec_load(b->is_finite + j), moved, old), b->n - j);
    }
}

/* codes[j] of x[j] / absmax, as qr_dynamic8_encode gives them: 0 of NaN. */
static void encode(const float *x, float absmax, const struct code_search *search, int32_t *codes) {
    float scaled[BLOCK];
    uint32_t cells[BLOCK];
    for (int64_t j = 0; j < BLOCK; j++) {
        scaled[j] = x[j] / absmax;
        cells[j] = qr_dynamic8_cell(scaled[j]);
    }
    for (int64_t j = 0; j < BLOCK; j++) {
        int32_t code = search->cells[cells[j]];
        KEEP_SCALAR(code);
        codes[j] = code + (scaled[j] > search->bounds[code]);
    }
    for (int64_t j = 0; j < BLOCK; j++) { codes[j] = isnan(scaled[j]) ? 0 : codes[j]; }
}

static void store_states(const struct adamw8bit *s, const struct block *b, float m_absmax, float v_absmax) {
    enum { CODE_OF_ZERO = 127 }; /* of the signed map; codes below are negative */
    int32_t m_codes[BLOCK], v_codes[BLOCK];
    encode(b->m, m_absmax, &s->m_search, m_codes);
    encode(b->v, v_absmax, &s->v_search, v_codes);
    for (int64_t j = 0; j < BLOCK; j++) {
        const bool is_other_sign = (m_codes[j] < CODE_OF_ZERO) != (signbit(b->m[j]) != 0);
        m_codes[j] += is_other_sign ? (b->m[j] > 0.0F ? 1 : -1) : 0;
    }
    uint8_t *m = s->args->m + b->first, *v = s->args->v + b->first;
    for (int64_t j = 0; j < b->n; j++) {
        m[j] = (uint8_t)m_codes[j];
        v[j] = (uint8_t)v_codes[j];
    }
}

static void run_blocks(const void *args, int64_t begin, int64_t end) {
    const struct adamw8bit *s = args;
    const qr_adamw8bit_args *a = s->args;
    for (int64_t i = begin; i < end; i++) {
        struct block b;
        b.first = i * BLOCK;
        b.n = qr_min(BLOCK, a->n - b.first);
        load_states(s, &b);
        update_moments(s, &b, &a->m_absmax[i], &a->v_absmax[i]);
        update_parameters(s, &b);
        store_states(s, &b, a->m_absmax[i], a->v_absmax[i]);
    }
}

void QR_ISA(qr_cpu_adamw8bit)(const qr_backend *backend, const qr_adamw8bit_args *args) {
    enum { COST = 16 };
    const float correction1 = 1.0F - (float)pow((double)args->beta1, (double)args->step);
    const float correction2 = sqrtf(1.0F - (float)pow((double)args->beta2, (double)args->step));
    const struct adamw8bit s = {
        .args = args,
        .m_map = qr_dynamic8_map(true),
        .v_map = qr_dynamic8_map(false),
        .m_search = {qr_dynamic8_cells(true), qr_dynamic8_bounds(true)},
        .v_search = {qr_dynamic8_cells(false), qr_dynamic8_bounds(false)},
        .step_size = -args->lr * correction2 / correction1,
        .eps = correction2 * args->eps,
        .decay = 1.0F - args->lr * args->weight_decay,
    };
    qr_cpu_run_ranges(backend, qr_ceil_div(args->n, BLOCK), BLOCK * COST, run_blocks, &s);
}
