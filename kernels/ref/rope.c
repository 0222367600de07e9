/* rope_table and rope. */
#include <math.h>

#include "kernels/ref/ref.h"

static double temperature(const qr_rope_table_args *args, int32_t position) {
    if (args->temperature_tokens == 0) { return 1.0; }
    const int32_t n_spans = position / args->temperature_tokens;
    return 1.0 + (double)args->temperature_beta * log(1.0 + n_spans);
}

/* The angle is rounded to F32 because transformers computes it so; the functions of that angle are exact here. */
void qr_ref_rope_table(const qr_rope_table_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_tokens; i++) {
        const int32_t slot = args->token_slot[i];
        const double factor = (double)args->factor[slot] * temperature(args, args->position[i]);
        for (int64_t j = 0; j < args->half; j++) {
            const float angle = (float)args->position[i] * args->inv_freq[slot * args->half + j];
            args->cos_table[i * args->half + j] = (float)(cos((double)angle) * factor);
            args->sin_table[i * args->half + j] = (float)(sin((double)angle) * factor);
        }
    }
}

void qr_ref_rotate(float *x, const float *cos_row, const float *sin_row, int64_t half, bool interleaved, double sign) {
    for (int64_t j = 0; j < half; j++) {
        float *first = x + (interleaved ? 2 * j : j), *second = first + (interleaved ? 1 : half);
        const double c = (double)cos_row[j], s = sign * (double)sin_row[j];
        const double a = (double)*first, b = (double)*second;
        *first = (float)(a * c - b * s);
        *second = (float)(b * c + a * s);
    }
}

void qr_ref_rope(const qr_rope_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_tokens; i++) {
        for (int64_t h = 0; h < args->n_heads; h++) {
            float *x = args->x + i * args->x_stride + h * args->head_dim;
            qr_ref_rotate(x, args->cos_table + i * args->half, args->sin_table + i * args->half, args->half,
                          args->interleaved, 1.0);
        }
    }
}
