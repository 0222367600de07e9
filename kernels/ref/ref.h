/* The reference backend: one plain scalar loop per op, sums in float64, one rounding at the end. It is the executable
 * specification of ops.h; other backends are tested against it. Device memory is host memory, weights are kept in
 * their canonical form, everything runs in the calling thread.
 *
 * What ops.h states about data (ids inside the vocabulary, pages that exist) is asserted. */
#ifndef QR_KERNELS_REF_REF_H
#define QR_KERNELS_REF_REF_H

#include <math.h>

#include "base/dtype.h"
#include "kernels/host_memory.h"

extern const qr_host_weights qr_ref_weights; /* ref/weight.c */

/* Rotates the pairs (x[j], x[j + half]) of one head by the angles of a row of the tables: by sign = 1, or back by -1.
 */
void qr_ref_rotate(float *x, const float *cos_row, const float *sin_row, int64_t half, bool interleaved, double sign);

/* As qr_backend.measure_peaks; in ref/peaks.c. */
qrun_status qr_ref_measure_peaks(qr_backend *backend, double seconds, qr_backend_peaks *peaks, qr_error *err);

/* The element type of a plain format: F32, F16 or BF16. */
qr_dtype qr_ref_plain_dtype(qr_weight_format format);
/* Elements [0, cols) of one row, dequantised to F32. */
void qr_ref_weight_row(const qr_weight *weight, int64_t row, float *dst);
/* INT8: the codes as values and the row's SCB; every other format goes through qr_ref_weight_row. */
float qr_ref_int8_row(const qr_weight *weight, int64_t row, float *codes);
float qr_ref_int8_scale(const qr_weight *weight, int64_t row); /* SCB */

/* One row as products with x of a type read it: INT8 codes, or dequantised and rounded to the type. Returns the factor
 * of the sum: SCB / 127, or 1. */
double qr_ref_product_row(const qr_weight *weight, qr_dtype x_dtype, int64_t row, float *dst);

/* One row as integers and their factors, one for each 64 columns (int16_sum.h). */
void qr_ref_int16_row(const qr_weight *weight, int64_t row, int16_t *dst, float *factors);

/* Element `index` of a vector of F32, F16 or BF16, and its inverse (rounded to F32, then to dtype). */
float qr_ref_load(const void *src, qr_dtype dtype, int64_t index);
void qr_ref_store(void *dst, qr_dtype dtype, int64_t index, double value);
/* The value of a type (F32, F16, BF16) nearest to one of F32. */
float qr_ref_round(float value, qr_dtype dtype);

double qr_ref_act_fn(qr_act_fn fn, double x);
double qr_ref_act_derivative(qr_act_fn fn, double x);
double qr_ref_softcap_value(double x, double cap);
static inline double qr_ref_softplus(double x) { return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static inline double qr_ref_at_most(double x, double limit) { return x > limit ? limit : x; } /* NaN stays */

/* void qr_ref_<op>(args, workspace); the arguments have passed qr_check_<op>. */
#define QR_X(name) void qr_ref_##name(const qr_##name##_args *args, void *workspace);
QR_OPS(QR_X)
#undef QR_X

/* linear with x in BF16 in the order of sums of tiles (tile_sum.h); the workspace is linear's. */
void qr_ref_linear_in_tile_order(const qr_linear_args *args, void *workspace);
/* The same by integers, and in the order of sums, of int16_sum.h, for weights that it takes; its own workspace. */
void qr_ref_linear_in_int16(const qr_linear_args *args, void *workspace);
size_t qr_ref_linear_in_int16_workspace(const qr_linear_args *args);
void qr_ref_expert_linear_in_int16(const qr_expert_linear_args *args, void *workspace);
size_t qr_ref_expert_linear_in_int16_workspace(const qr_expert_linear_args *args);

/* The ops that need a workspace: size_t qr_ref_<op>_workspace(args) is its bytes. */
#define QR_REF_WORKSPACE_OPS(X)  \
    X(embedding)                 \
    X(linear)                    \
    X(expert_linear)             \
    X(lora)                      \
    X(dora_norm)                 \
    X(head_linear)               \
    X(attention)                 \
    X(gated_delta)               \
    X(state_space)               \
    X(sample)                    \
    X(linear_backward)           \
    X(expert_linear_backward)    \
    X(route_backward)            \
    X(lora_backward)             \
    X(rms_norm_backward)         \
    X(layer_norm_backward)       \
    X(attention_packed)          \
    X(attention_packed_backward) \
    X(gated_delta_backward)      \
    X(state_space_backward)      \
    X(adamw8bit)
#define QR_X(name) size_t qr_ref_##name##_workspace(const qr_##name##_args *args);
QR_REF_WORKSPACE_OPS(QR_X)
#undef QR_X

#endif
