/* adamw, adamw8bit, sgd and adafactor: in float64, rounded when stored, except the updates of bitsandbytes. */
#include <math.h>

#include "base/sizes.h"
#include "kernels/ref/ref.h"
#include "quant/dynamic8.h"

/* bitsandbytes' factors of an update: p += step_size · m / (sqrt(v) + eps), all of it F32. */
typedef struct bnb_factors {
    float step_size, eps;
} bnb_factors;

static bnb_factors bnb_factors_of(float lr, float beta1, float beta2, float eps, int64_t step) {
    const float correction1 = 1.0F - (float)pow((double)beta1, (double)step);
    const float correction2 = sqrtf(1.0F - (float)pow((double)beta2, (double)step));
    return (bnb_factors){-lr * correction2 / correction1, correction2 * eps};
}

static void adamw_of_8bit(const qr_adamw_args *args) {
    const bnb_factors factors = bnb_factors_of(args->lr, args->beta1, args->beta2, args->eps, args->step);
    for (int64_t i = 0; i < args->n; i++) {
        const float g = args->g[i] * args->grad_scale;
        args->m[i] = args->m[i] * args->beta1 + (1.0F - args->beta1) * g;
        args->v[i] = args->v[i] * args->beta2 + (1.0F - args->beta2) * (g * g);
        args->p[i] += factors.step_size * (args->m[i] / (sqrtf(args->v[i]) + factors.eps));
        if (args->weight_decay > 0.0F) { args->p[i] *= 1.0F - args->lr * args->weight_decay; }
    }
}

void qr_ref_adamw(const qr_adamw_args *args, void *workspace) {
    (void)workspace;
    if (args->of_8bit) {
        adamw_of_8bit(args);
        return;
    }
    const double beta1 = (double)args->beta1, beta2 = (double)args->beta2, lr = (double)args->lr;
    const double correction1 = 1.0 - pow(beta1, (double)args->step), correction2 = 1.0 - pow(beta2, (double)args->step);
    for (int64_t i = 0; i < args->n; i++) {
        const double g = (double)args->g[i] * (double)args->grad_scale;
        const double m = beta1 * (double)args->m[i] + (1.0 - beta1) * g;
        const double v = beta2 * (double)args->v[i] + (1.0 - beta2) * g * g;
        const double decayed = (double)args->p[i] * (1.0 - lr * (double)args->weight_decay);
        args->p[i] = (float)(decayed - lr / correction1 * m / (sqrt(v / correction2) + (double)args->eps));
        args->m[i] = (float)m;
        args->v[i] = (float)v;
    }
}

void qr_ref_sgd(const qr_sgd_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n; i++) {
        const double p = (double)args->p[i];
        const double g = (double)args->g[i] * (double)args->grad_scale + (double)args->weight_decay * p;
        const double m = args->step == 1 ? g : (double)args->momentum * (double)args->m[i] + g;
        args->p[i] = (float)(p - (double)args->lr * m);
        args->m[i] = (float)m;
    }
}

/* --- adamw8bit: F32 with every product and sum rounded, because the codes must be equal everywhere --- */

enum { BLOCK = 256 };

size_t qr_ref_adamw8bit_workspace(const qr_adamw8bit_args *args) {
    (void)args;
    return 2 * (size_t)BLOCK * sizeof(float);
}

/* m and v of the block after this gradient; 0 where it is not finite. */
static void update_moments(const qr_adamw8bit_args *args, int64_t block, int64_t n, float *m, float *v) {
    const float *m_map = qr_dynamic8_map(true), *v_map = qr_dynamic8_map(false);
    for (int64_t j = 0; j < n; j++) {
        const int64_t i = block * BLOCK + j;
        const float g = args->g[i] * args->grad_scale;
        m[j] = v[j] = 0.0F;
        if (!isfinite(args->g[i])) { continue; }
        v[j] = v_map[args->v[i]] * args->v_absmax[block] * args->beta2 + (1.0F - args->beta2) * g * g;
        m[j] = m_map[args->m[i]] * args->m_absmax[block] * args->beta1 + (1.0F - args->beta1) * g;
    }
}

static void update_parameters(const qr_adamw8bit_args *args, int64_t first, int64_t n, const float *m, const float *v) {
    const bnb_factors factors = bnb_factors_of(args->lr, args->beta1, args->beta2, args->eps, args->step);
    for (int64_t j = 0; j < n; j++) {
        float *p = &args->p[first + j];
        if (!isfinite(args->g[first + j])) { continue; }
        *p += factors.step_size * (m[j] / (sqrtf(v[j]) + factors.eps));
        if (args->weight_decay > 0.0F) { *p *= 1.0F - args->lr * args->weight_decay; }
    }
}

static float absmax_of(const float *x, int64_t n) {
    float largest = 0.0F;
    for (int64_t j = 0; j < n; j++) { largest = fmaxf(largest, fabsf(x[j])); }
    return largest;
}

/* The nearest code, or its neighbour where the nearest has another sign than m. */
static uint8_t encode_signed(float m, float absmax) {
    const uint8_t code = qr_dynamic8_encode(m / absmax, true);
    if (signbit(qr_dynamic8_map(true)[code]) == signbit(m)) { return code; }
    return (uint8_t)(m > 0.0F ? code + 1 : code - 1);
}

void qr_ref_adamw8bit(const qr_adamw8bit_args *args, void *workspace) {
    float *m = workspace, *v = m + BLOCK;
    for (int64_t block = 0; block < qr_ceil_div(args->n, BLOCK); block++) {
        const int64_t first = block * BLOCK, n = qr_min(BLOCK, args->n - first);
        update_moments(args, block, n, m, v);
        update_parameters(args, first, n, m, v);
        args->m_absmax[block] = absmax_of(m, n);
        args->v_absmax[block] = absmax_of(v, n);
        for (int64_t j = 0; j < n; j++) {
            args->m[first + j] = encode_signed(m[j], args->m_absmax[block]);
            args->v[first + j] = qr_dynamic8_encode(v[j] / args->v_absmax[block], false);
        }
    }
}

/* --- adafactor --- */

static double squared(const qr_adafactor_args *args, int64_t r, int64_t c) {
    const double g = (double)args->g[r * args->cols + c] * (double)args->grad_scale;
    return g * g + (double)args->eps1;
}

static float mixed(double beta, float old, double now) { return (float)(beta * (double)old + (1.0 - beta) * now); }

/* Means of the squares over columns and over rows; one row has its plain squares in row_moment. */
static void update_factors(const qr_adafactor_args *args, double beta) {
    if (args->rows == 1) {
        for (int64_t c = 0; c < args->cols; c++) {
            args->row_moment[c] = mixed(beta, args->row_moment[c], squared(args, 0, c));
        }
        return;
    }
    for (int64_t r = 0; r < args->rows; r++) {
        double sum = 0.0;
        for (int64_t c = 0; c < args->cols; c++) { sum += squared(args, r, c); }
        args->row_moment[r] = mixed(beta, args->row_moment[r], sum / (double)args->cols);
    }
    for (int64_t c = 0; c < args->cols; c++) {
        double sum = 0.0;
        for (int64_t r = 0; r < args->rows; r++) { sum += squared(args, r, c); }
        args->col_moment[c] = mixed(beta, args->col_moment[c], sum / (double)args->rows);
    }
}

/* The gradient over the root of its estimated second moment. row_mean is that of row_moment. */
static double update_of(const qr_adafactor_args *args, double row_mean, int64_t r, int64_t c) {
    const double g = (double)args->g[r * args->cols + c] * (double)args->grad_scale;
    if (args->rows == 1) { return g / sqrt((double)args->row_moment[c]); }
    return g / sqrt((double)args->row_moment[r] / row_mean) / sqrt((double)args->col_moment[c]);
}

void qr_ref_adafactor(const qr_adafactor_args *args, void *workspace) {
    (void)workspace;
    update_factors(args, 1.0 - pow((double)args->step, (double)args->decay_rate));
    double row_mean = 0.0, squares = 0.0;
    for (int64_t r = 0; r < args->rows; r++) { row_mean += (double)args->row_moment[r] / (double)args->rows; }
    for (int64_t i = 0; i < args->rows * args->cols; i++) {
        const double update = update_of(args, row_mean, i / args->cols, i % args->cols);
        squares += update * update;
    }
    const double rms = sqrt(squares / (double)(args->rows * args->cols));
    const double clip = fmax(1.0, rms / (double)args->clip_threshold), lr = (double)args->lr;
    for (int64_t i = 0; i < args->rows * args->cols; i++) {
        const double update = update_of(args, row_mean, i / args->cols, i % args->cols) / clip;
        args->p[i] = (float)((double)args->p[i] * (1.0 - lr * (double)args->weight_decay) - lr * update);
    }
}
